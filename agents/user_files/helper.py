"""What is done with one user's rights: open, list and remove what he can name. Also the program of his helper process.

It imports a little of the standard library only: ``helper_starter`` forks it, once per user. Before it reads a request
it gives up all rights but the user's. It holds nothing that the user may not have: no descriptor of the agent, an empty
environment. Whoever asks believes no answer, and waits for none for long.
"""

from __future__ import annotations

import errno
import os
import select
import stat
from _collections_abc import Callable, Sequence
from _socket import socket as Socket
from struct import Struct

from .rights import HELPER_LIMITS, PROGRAM_LIMITS, give_up_rights
from .system_calls import file_system_of, open_at

TYPE_CHECKING = False
if TYPE_CHECKING:  # ``typing`` costs 3 MB
    from typing import NoReturn


#: A message of either side: a request's words or an answer's are joined by NULs, which no name holds.
MESSAGE_BYTES = 96 << 10
#: Names that an answer holds have this much room together.
_NAMES_BYTES = 64 << 10
MOST_NAMES = 4096
#: A helper that nobody asks anything for so long ends by itself.
IDLE_S = 20.0
READY = b"ready"
#: Files of the kernel's own (proc, sysfs, cgroup 1 and 2, debugfs, tracefs, securityfs, bpf, configfs, efivarfs,
#: pstore, devpts): regular by their mode, answered by code that may ask who reads.
_OF_THE_KERNEL = frozenset(
    (0x9FA0, 0x62656572, 0x27E0EB, 0x63677270, 0x64626720, 0x74726163, 0x73636673, 0xCAFE4A11, 0x62656570, 0xDE5E81E4,
     0x6165676C, 0x1CD1)
)  # fmt: skip
FUSE_MAGIC = 0x65735546
_O_PATH = os.O_PATH | os.O_CLOEXEC

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
    """Removes a regular file of this user's from a folder that was handed over. Raises OSError."""
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
            fds += [int(_INT.unpack_from(data, at)[0]) for at in range(0, len(data) - _INT.size + 1, _INT.size)]
    for fd in fds[1:]:
        os.close(fd)
    return raw, fds[0] if fds else -1


def run_helper(connection: Socket, words: Sequence[str]) -> NoReturn:
    """Becomes the helper of the user that the words name (uid, gid, groups), and the process ends.

    No traceback: it would open this program's text again, and nobody reads it.
    """
    try:
        uid, gid, groups = _ids(words)
        give_up_rights(uid, gid, groups, HELPER_LIMITS)
        serve(connection, uid)
    except BaseException:
        os._exit(1)
    os._exit(0)


def become_program(words: Sequence[str]) -> NoReturn:
    """Becomes a program with a user's rights. The words: uid, gid, groups, the program's descriptor, its own words."""
    try:
        uid, gid, groups = _ids(words)
        give_up_rights(uid, gid, groups, PROGRAM_LIMITS, traces=True)
        os.execve(int(words[3]), list(words[4:]), {})  # by descriptor: it may lie where the user cannot look for it
    finally:
        os._exit(1)


def _ids(words: Sequence[str]) -> tuple[int, int, list[int]]:
    return int(words[0]), int(words[1]), [int(group) for group in words[2].split(",") if group]
