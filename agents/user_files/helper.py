"""What is done with one user's rights: open, list and remove what he can name. Also the program of his helper process.

    python -I -S helper.py UID GID GROUPS                  (a SOCK_SEQPACKET socket is its standard input)
    python -I -S helper.py UID GID GROUPS FD WORD ...      (becomes the program that is open as FD, with these words)

It imports a little of the standard library only: it is started by root, once per user, from wherever the interpreter
lies. Before it reads a request it gives up all rights but the user's. It holds nothing that the user may not have: no
descriptor of the agent, an empty environment. Whoever asks believes no answer, and waits for none for long.
"""

from __future__ import annotations

import ctypes
import errno
import os
import resource
import select
import stat
import sys
from _collections_abc import Callable, Sequence
from _socket import socket as Socket
from struct import Struct

#: A message of either side: a request's words or an answer's are joined by NULs, which no name holds.
MESSAGE_BYTES = 96 << 10
#: Names that an answer holds have this much room together.
_NAMES_BYTES = 64 << 10
MOST_NAMES = 4096
#: A helper that nobody asks anything for so long ends by itself.
IDLE_S = 20.0
READY = b"ready"
_LIMITS = (
    (resource.RLIMIT_AS, 192 << 20),
    (resource.RLIMIT_CPU, 120),
    (resource.RLIMIT_FSIZE, 0),
    (resource.RLIMIT_NOFILE, 32),
    (resource.RLIMIT_CORE, 0),
    (resource.RLIMIT_NPROC, 0),
)
#: Of a program that looks into a process: it maps that one's libraries, so what counts is what it writes to.
_PROGRAM_LIMITS = (
    (resource.RLIMIT_DATA, 256 << 20),
    (resource.RLIMIT_CPU, 20),
    (resource.RLIMIT_FSIZE, 0),
    (resource.RLIMIT_NOFILE, 1024),
    (resource.RLIMIT_CORE, 0),
)

_OPENAT2 = 437
_RESOLVE_NO_MAGICLINKS, _RESOLVE_NO_SYMLINKS, _RESOLVE_BENEATH, _RESOLVE_IN_ROOT = 0x02, 0x04, 0x08, 0x10
#: How a name is resolved: below a folder that we hold, no link on its way; or as a process sees it, from its root.
BELOW, IN_ROOT = "below", "in root"
_RESOLVE = {
    BELOW: _RESOLVE_BENEATH | _RESOLVE_NO_SYMLINKS | _RESOLVE_NO_MAGICLINKS,
    IN_ROOT: _RESOLVE_IN_ROOT | _RESOLVE_NO_MAGICLINKS,
}
#: Files of the kernel's own (proc, sysfs, cgroup 1 and 2, debugfs, tracefs, securityfs, bpf, configfs, efivarfs,
#: pstore, devpts): regular by their mode, answered by code that may ask who reads.
_OF_THE_KERNEL = frozenset(
    (0x9FA0, 0x62656572, 0x27E0EB, 0x63677270, 0x64626720, 0x74726163, 0x73636673, 0xCAFE4A11, 0x62656570, 0xDE5E81E4,
     0x6165676C, 0x1CD1)
)  # fmt: skip
FUSE_MAGIC = 0x65735546
_O_PATH = os.O_PATH | os.O_CLOEXEC
_OPEN_HOW = Struct("=QQQ")
#: struct statx: links, uid, mode, inode, size, blocks, mtime, device.
_STATX = Struct("=16xII4xH2xQQQ56xqI4x8xII112x")
#: AT_EMPTY_PATH, AT_SYMLINK_NOFOLLOW, AT_NO_AUTOMOUNT, AT_STATX_DONT_SYNC.
_STATX_FLAGS, _STATX_BASIC = 0x1000 | 0x100 | 0x800 | 0x4000, 0x7FF
_CAP_SYS_PTRACE = 19
_PR_SET_DUMPABLE, _PR_SET_KEEPCAPS, _PR_CAPBSET_DROP, _PR_SET_NO_NEW_PRIVS = 4, 8, 24, 38
_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_RAISE = 47, 2

#: Version 3, this thread.
_CAPABILITY_HEADER = Struct("=Ii").pack(0x20080522, 0)

_libc = ctypes.CDLL(None, use_errno=True)
#: f_type is the first word of struct statfs; 256 bytes are more than any release's.
_STATFS_BYTES = 256


def open_at(folder: int, path: str, flags: int, how: str) -> int:
    """A descriptor of ``path``, resolved as ``how`` (``BELOW``, ``IN_ROOT``) says, never through /proc's magic links.

    Raises OSError; ENOSYS from kernels before 5.6.
    """
    request = ctypes.create_string_buffer(_OPEN_HOW.pack(flags | os.O_CLOEXEC, 0, _RESOLVE[how]), _OPEN_HOW.size)
    name = os.fsencode(path)
    if b"\0" in name:
        raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
    for _ in range(8):
        fd = int(_libc.syscall(_OPENAT2, folder, name, request, ctypes.c_size_t(_OPEN_HOW.size)))
        if fd >= 0:
            return fd
        if ctypes.get_errno() != errno.EAGAIN:  # somebody renames beside us
            break
    raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def file_system_of(fd: int) -> int:
    """The magic number of the file system that a descriptor's file lies on. Raises OSError."""
    found = ctypes.create_string_buffer(_STATFS_BYTES)
    if _libc.fstatfs(fd, found) != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return int(ctypes.c_long.from_buffer(found).value) & 0xFFFFFFFF


class FileState:
    """What the kernel knows of a file without asking whoever serves its file system. (Plain: ``typing`` costs 3 MB.)"""

    __slots__ = ("changed_ns", "device_inode", "links", "mode", "size", "uid", "used_bytes")

    def __init__(
        self, mode: int, uid: int, size: int, changed_ns: int, device_inode: tuple[int, int], links: int, used: int
    ) -> None:
        self.mode, self.uid, self.size, self.changed_ns = mode, uid, size, changed_ns
        self.device_inode, self.links, self.used_bytes = device_inode, links, used


def state_of(folder: int, name: str = "") -> FileState:
    """Of what is called ``name`` in a folder (a link is not followed), or of the descriptor itself. Raises OSError.

    Never waits: a file system in user space (FUSE) is not asked, its last answer counts.
    """
    buffer = ctypes.create_string_buffer(_STATX.size)
    if _libc.statx(folder, os.fsencode(name), _STATX_FLAGS, _STATX_BASIC, buffer) != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), name or None)
    links, uid, mode, inode, size, blocks, seconds, ns, major, minor = _STATX.unpack(buffer.raw)
    return FileState(
        mode, uid, size, seconds * 1_000_000_000 + ns, (os.makedev(major, minor), inode), links, blocks * 512
    )


# --- what can be asked for: each gives the answer's words and a descriptor (-1: none), and raises OSError -----------

Answer = tuple[list[str], int]


def root(uid: int | None, folder: int, pid: str, proc: str = "/proc") -> Answer:
    """The root folder of a process of this user, as a place to resolve names from. proc: where procfs is mounted."""
    _check_process(uid, pid, proc)
    return [], os.open(f"{proc}/{int(pid)}/root", _O_PATH | os.O_DIRECTORY)


def working_folder(uid: int | None, folder: int, pid: str, proc: str = "/proc") -> Answer:
    """Where a process stands, as it calls that itself."""
    _check_process(uid, pid, proc)
    return [os.readlink(f"{proc}/{int(pid)}/cwd")], -1


def descriptor(uid: int | None, folder: int, pid: str, number: str) -> Answer:
    """The file behind a process's descriptor, opened anew with this user's rights, and its name."""
    _check_process(uid, pid)
    link = f"/proc/{int(pid)}/fd/{int(number)}"
    name = os.readlink(link)
    return [name], _reopened(uid, os.open(link, _O_PATH))


def sockets(uid: int | None, folder: int, pid: str, most: str) -> Answer:
    """Inodes of the sockets among a process's first ``most`` descriptors."""
    _check_process(uid, pid)
    found: list[str] = []
    with os.scandir(f"/proc/{int(pid)}/fd") as entries:
        for place, entry in enumerate(entries):
            if place >= int(most):
                break
            try:
                target = os.readlink(entry.path)
            except OSError:
                continue
            if target.startswith("socket:["):
                found.append(target[8:-1])
    return [",".join(found)], -1


def regular_file(uid: int | None, folder: int, path: str, how: str) -> Answer:
    """A regular file of this user's, open for reading."""
    return [], _reopened(uid, open_at(folder, path, _O_PATH | os.O_NOFOLLOW, how))


def readable_file(uid: int | None, folder: int, path: str, how: str) -> Answer:
    """A regular file that this user can read, whoever it belongs to: libraries of a rank are often root's."""
    return [], _reopened(None, open_at(folder, path, _O_PATH, how))


def open_folder(uid: int | None, folder: int, path: str, how: str) -> Answer:
    """A folder of this user's, open for being listed."""
    fd = open_at(folder, path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, how)
    try:
        if uid is not None and os.fstat(fd).st_uid != uid:
            raise OSError(errno.EPERM, "belongs to another user")
        _check_file_system(fd)
    except OSError:
        os.close(fd)
        raise
    return [], fd


def names(uid: int | None, folder: int, path: str, how: str) -> Answer:
    """The first names in a folder that this user can list."""
    fd = open_at(folder, path, os.O_RDONLY | os.O_DIRECTORY, how)
    try:
        _check_file_system(fd)
        found: list[str] = []
        size = 0
        with os.scandir(fd) as entries:
            for entry in entries:
                size += len(os.fsencode(entry.name)) + 1
                if len(found) >= MOST_NAMES or size > _NAMES_BYTES:
                    break
                found.append(entry.name)
        return found, -1
    finally:
        os.close(fd)


def state(uid: int | None, folder: int, path: str, how: str) -> Answer:
    """Mode, owner, size and time of change of what lies there, which is not opened and no link at its end."""
    fd = open_at(folder, path, _O_PATH | os.O_NOFOLLOW, how)
    try:
        found = os.fstat(fd)
    finally:
        os.close(fd)
    return [str(found.st_mode), str(found.st_uid), str(found.st_size), str(found.st_mtime_ns)], -1


def remove(uid: int | None, folder: int, name: str) -> Answer:
    """Removes a regular file of this user's from a folder that was handed over."""
    if "/" in name:
        raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
    found = os.stat(name, dir_fd=folder, follow_symlinks=False)
    if not stat.S_ISREG(found.st_mode) or (uid is not None and found.st_uid != uid):
        raise OSError(errno.EPERM, "is no file of this user")
    os.unlink(name, dir_fd=folder)
    return [], -1


ASKED: dict[str, Callable[..., Answer]] = {
    act.__name__: act
    for act in (
        root, working_folder, descriptor, sockets, regular_file, readable_file, open_folder, names, state, remove,
    )
}  # fmt: skip


def _check_process(uid: int | None, pid: str, proc: str = "/proc") -> None:
    """A pid may be another's by now. (Without rights over it the kernel refuses as well; as root it would not.)

    uid None, here and elsewhere: whoever it belongs to.
    """
    if uid is None:
        return
    with open(f"{proc}/{int(pid)}/status", "rb") as file:
        for line in file:
            if line.startswith(b"Uid:"):
                if int(line.split()[2]) != uid:
                    break
                return
    raise OSError(errno.EPERM, "is a process of another user")


def _reopened(uid: int | None, place: int) -> int:
    """Opens for reading what an ``O_PATH`` descriptor stands for, once it is known to be a harmless file."""
    try:
        found = os.fstat(place)
        if not stat.S_ISREG(found.st_mode):
            raise OSError(errno.EINVAL, "is not a regular file")
        if uid is not None and found.st_uid != uid:
            raise OSError(errno.EPERM, "belongs to another user")
        _check_file_system(place)
        return os.open(f"/proc/self/fd/{place}", os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    finally:
        os.close(place)


def _check_file_system(fd: int) -> None:
    kind = file_system_of(fd)
    if kind in _OF_THE_KERNEL:
        raise OSError(errno.EINVAL, "is a file of the kernel's")
    if kind == FUSE_MAGIC and not _is_mounted_by_root(fd):
        raise OSError(errno.EINVAL, "lies on a file system that a user has mounted")


def _is_mounted_by_root(fd: int) -> bool:
    """Of a FUSE mount: whoever has mounted it answers each read, when and with what he likes."""
    device = os.fstat(fd).st_dev
    wanted = f" {os.major(device)}:{os.minor(device)} "
    with open("/proc/self/mountinfo", encoding="utf-8", errors="replace") as file:
        lines = [line for line in file if wanted in line]
    return bool(lines) and all("user_id=0," in line for line in lines)


# --- the process ----------------------------------------------------------------------------------------------------


def give_up_rights(
    uid: int, gid: int, groups: Sequence[int], limits: Sequence[tuple[int, int]], *, traces: bool = False
) -> None:
    """From now on this process is the user's, and can become nobody else. limits: of ``resource``. Raises OSError.

    uid 0 keeps one capability, to look at processes of its own that have more: a container's root is one. So does
    whoever ``traces``, through an execve too, where the kernel (Yama) does not let a user trace his own processes.
    """
    kept = (_CAP_SYS_PTRACE,) if uid == 0 or (traces and _is_tracing_restricted()) else ()
    for kind, most in limits:
        _, hard = resource.getrlimit(kind)
        most = most if hard == resource.RLIM_INFINITY else min(most, hard)
        resource.setrlimit(kind, (most, most))
    drop_from_bounding_set(kept)
    if uid != os.geteuid() or os.geteuid() == 0:
        try:
            os.setgroups(groups)
            os.setresgid(gid, gid, gid)
        except PermissionError:  # root of a container that has no right to: it can only be root's own helper
            if uid != 0:
                raise
        _libc.prctl(_PR_SET_KEEPCAPS, int(bool(kept)), 0, 0, 0)
        os.setresuid(uid, uid, uid)
        drop_capabilities(kept, inherited=traces)
    if _libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "cannot refuse new privileges")
    _libc.prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)  # so that his debugger cannot make it say what it likes


def _is_tracing_restricted() -> bool:
    try:
        with open("/proc/sys/kernel/yama/ptrace_scope", "rb") as file:
            return file.read().strip() != b"0"
    except OSError:
        return False


def drop_from_bounding_set(kept: Sequence[int]) -> None:
    """No program that is started from now on gets another capability than these. Without the right to nothing is done:
    then the permitted set, which is cut as well, is what binds.
    """
    for capability in set(range(64)).difference(kept):
        _libc.prctl(_PR_CAPBSET_DROP, capability, 0, 0, 0)


def effective_capabilities() -> int:
    """Bit by bit those of this thread. Raises OSError."""
    low, _, _, high, _, _ = _capability_sets()
    return low | high << 32


def _capability_sets() -> tuple[int, ...]:
    """Effective, permitted and inheritable, low words and then high ones. Raises OSError."""
    sets = ctypes.create_string_buffer(24)
    if _libc.capget(_CAPABILITY_HEADER, sets) != 0:
        raise OSError(ctypes.get_errno(), "capabilities cannot be read")
    return Struct("=6I").unpack(sets.raw)


def drop_capabilities(kept: Sequence[int], *, inherited: bool = False) -> None:
    """Keeps these capabilities (of those that are there), permitted and effective. Raises OSError.

    inherited: through an execve as well, which otherwise ends them for every user but root.
    """
    _, low, _, _, high, _ = _capability_sets()
    bits = (low | high << 32) & sum(1 << capability for capability in kept)
    low, high = bits & 0xFFFFFFFF, bits >> 32
    heirs = (low, high) if inherited else (0, 0)
    if _libc.capset(_CAPABILITY_HEADER, Struct("=6I").pack(low, low, heirs[0], high, high, heirs[1])) != 0:
        raise OSError(ctypes.get_errno(), "capabilities cannot be dropped")
    for capability in kept if inherited else ():
        _libc.prctl(_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_RAISE, capability, 0, 0)


def answer(uid: int | None, words: Sequence[str], folder: int) -> tuple[list[str], int]:
    """What a request asks for is done: its answer's words (0 first, or an errno and a reason) and a descriptor."""
    try:
        found, fd = ASKED[words[0]](uid, folder, *words[1:])
        return ["0", *found], fd
    except OSError as error:
        return [str(error.errno or errno.EIO), error.strerror or type(error).__name__], -1
    except (ValueError, TypeError, LookupError, MemoryError) as error:
        return [str(errno.EINVAL), type(error).__name__], -1


def serve(connection: Socket, uid: int) -> None:
    """Answers requests until the other end goes, or nothing comes for ``IDLE_S``. Raises OSError."""
    connection.send(READY)
    while select.select([connection], [], [], IDLE_S)[0]:
        raw, given = receive(connection)
        if not raw:
            return
        found, fd = answer(uid, os.fsdecode(raw).split("\0"), given)
        try:
            send(connection, found, fd)
        finally:
            for each in (fd, given):
                if each >= 0:
                    os.close(each)


_RIGHTS = (1, 1)  # SOL_SOCKET, SCM_RIGHTS
_INT = Struct("=i")
_MSG_CMSG_CLOEXEC = 0x40000000


def send(connection: Socket, words: Sequence[str], fd: int) -> None:
    """Sends a message, with a descriptor where ``fd`` is one. Raises OSError."""
    connection.sendmsg([os.fsencode("\0".join(words))], [(*_RIGHTS, _INT.pack(fd))] if fd >= 0 else [])


def receive(connection: Socket) -> tuple[bytes, int]:
    """A message (empty: the other end has gone) and the descriptor that came with it, or -1. Raises OSError."""
    raw, ancillary, _, _ = connection.recvmsg(MESSAGE_BYTES, 64 * _INT.size, _MSG_CMSG_CLOEXEC)
    fds: list[int] = []
    for level, kind, data in ancillary:
        if (level, kind) == _RIGHTS:
            fds += [_INT.unpack_from(data, at)[0] for at in range(0, len(data) - _INT.size + 1, _INT.size)]
    for fd in fds[1:]:
        os.close(fd)
    return raw, fds[0] if fds else -1


def main(words: Sequence[str]) -> None:
    """Becomes the helper of the user that the words name, or a program with his rights."""
    uid, gid = int(words[0]), int(words[1])
    groups = [int(group) for group in words[2].split(",") if group]
    if len(words) > 3:
        give_up_rights(uid, gid, groups, _PROGRAM_LIMITS, traces=True)
        os.execve(int(words[3]), list(words[4:]), {})  # by descriptor: it may lie where the user cannot look for it
    connection = Socket(fileno=os.dup(0))
    give_up_rights(uid, gid, groups, _LIMITS)
    serve(connection, uid)


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except BaseException:  # no traceback: it would open this program's text again, and nobody reads it
        os._exit(1)
    os._exit(0)
