"""Files that users can name, opened with their rights: by a helper process each where the agent is root.

``files_of(uid)`` gives one user's. What a helper hands over is checked again here by the descriptor itself: a regular
file or a folder, of that user, on a file system that answers by itself. May be used by several threads.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from . import helper
from .capabilities import can_become_others
from .helper_process import STARTER, HelperProcess, Rights, read_bounded, run_bounded
from .system_calls import BELOW, IN_ROOT, FileState, state_of

#: So many helpers at once; the one that was asked longest ago ends for another one.
MOST_HELPERS = 32
#: One that is asked nothing for so long ends.
IDLE_S = 5.0

Ask = Callable[[Sequence[str], int, Rights | None], tuple[list[str], int]]


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenFile:
    """What lies at a name that was looked at and not opened."""

    mode: int
    uid: int
    size_bytes: int
    changed_ns: int


class UserFiles:
    """One user's. Every method raises OSError: no such file, no right, another owner, no answer in time.

    Descriptors that are returned are the caller's to close.
    """

    def __init__(self, uid: int, ask: Ask, rights: Rights | None = None) -> None:
        self.uid = uid
        self._rights = rights
        self._request = ask

    def root_of(self, pid: int, proc: str = "/proc") -> int:
        """A descriptor of the root folder of one of the user's processes, which the caller closes.

        As ``place`` of the other methods, with ``how=IN_ROOT``: then names lead where that process sees them lead.
        """
        _, fd = self._ask(["root", str(pid), proc])
        return self._checked(fd, stat.S_IFDIR, any_owner=True)

    def working_folder(self, pid: int, proc: str = "/proc") -> str:
        """Where a process of the user's stands."""
        return self._answer_words(["working_folder", str(pid), proc])[0]

    def open_descriptor(self, pid: int, number: int) -> tuple[str, int]:
        """Name and descriptor of the user's own regular file behind ``number`` of a process."""
        words, fd = self._ask(["descriptor", str(pid), str(number)])
        return words[0], self._checked(fd, stat.S_IFREG)

    def socket_inodes(self, pid: int, most: int) -> list[int]:
        """Of the sockets among a process's first ``most`` descriptors."""
        words = self._answer_words(["sockets", str(pid), str(most)])
        return [int(word) for word in words[0].split(",") if word.isdecimal()]

    def open_file(self, place: int, name: str, how: str = BELOW) -> int:
        """The user's own regular file at ``name``, from the folder ``place`` on. how: ``BELOW`` or ``IN_ROOT``."""
        return self._checked(self._ask(["regular_file", name, how], place)[1], stat.S_IFREG)

    def open_readable(self, place: int, name: str, how: str = IN_ROOT) -> int:
        """A regular file that the user can read, whosever it is."""
        return self._checked(self._ask(["readable_file", name, how], place)[1], stat.S_IFREG, any_owner=True)

    def open_folder(self, place: int, name: str, how: str = BELOW) -> int:
        """The user's own folder at ``name``, open for being listed."""
        return self._checked(self._ask(["open_folder", name, how], place)[1], stat.S_IFDIR)

    def read(self, place: int, name: str, limit_bytes: int, how: str = IN_ROOT) -> bytes:
        """The first bytes of a regular file that the user can read, whosever it is."""
        fd = self.open_readable(place, name, how)
        try:
            return os.pread(fd, limit_bytes, 0)
        finally:
            os.close(fd)

    def list_names(self, place: int, name: str, how: str = IN_ROOT) -> list[str]:
        """The first ``helper.MOST_NAMES`` names in a folder that the user can list, in no order."""
        return [name for name in self._answer_words(["names", name, how], place) if name]

    def look_at(self, place: int, name: str, how: str = IN_ROOT) -> SeenFile:
        """What lies at ``name``; a link at its end is not followed. Raises OSError."""
        try:
            mode, uid, size_bytes, changed_ns = map(int, self._answer_words(["state", name, how], place))
        except ValueError:
            raise OSError(errno.EPROTO, "an answer that is none") from None
        return SeenFile(mode=mode, uid=uid, size_bytes=size_bytes, changed_ns=changed_ns)

    def remove(self, folder: int, name: str) -> None:
        """Removes the user's own regular file from a folder that is held."""
        self._answer_words(["remove", name], folder)

    def _answer_words(self, words: Sequence[str], folder: int = -1) -> list[str]:
        found, fd = self._ask(words, folder)
        if fd >= 0:  # nobody has asked for one
            os.close(fd)
        return found

    def _ask(self, words: Sequence[str], folder: int = -1) -> tuple[list[str], int]:
        found, fd = self._request(words, folder, self._rights)
        try:
            code, *values = found
            if code != "0":
                raise OSError(int(code), values[0] if values else os.strerror(int(code)))
            if not values:
                values = [""]
        except (ValueError, OSError) as error:
            if fd >= 0:
                os.close(fd)
            raise error if isinstance(error, OSError) else OSError(errno.EPROTO, "an answer that is none") from error
        return values, fd

    def _checked(self, fd: int, kind: int, *, any_owner: bool = False) -> int:
        if fd < 0:
            raise OSError(errno.EPROTO, "an answer without a descriptor")
        try:
            found = state_of(fd)
            if stat.S_IFMT(found.mode) != kind:
                raise OSError(errno.EINVAL, "is not a regular file" if kind == stat.S_IFREG else "is not a folder")
            if found.uid != self.uid and not any_owner:
                raise OSError(errno.EPERM, f"belongs to user {found.uid}, not to user {self.uid}")
            if found.device_inode[0] in _devices_of_users():
                raise OSError(errno.EINVAL, "lies on a file system that a user has mounted")
        except OSError:
            os.close(fd)
            raise
        return fd


class UserFilesPool:
    """All users' files: each user has a helper process. A process that cannot start them opens its own user's alone."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._helpers: dict[int, HelperProcess] = {}

    def of(self, uid: int, pid: int = 0) -> UserFiles:
        """The files of one user; with the groups of his process ``pid``, where that is given."""
        if not can_become_others():
            return UserFiles(uid, partial(_ask_directly, uid))
        rights = _rights_of(uid, pid) if pid else None

        def ask(words: Sequence[str], folder: int, rights: Rights | None) -> tuple[list[str], int]:
            return self._helper(uid).ask(words, folder, rights)

        return UserFiles(uid, ask, rights)

    @property
    def pids(self) -> list[int]:
        """Of the helpers that run now."""
        with self._lock:
            return [one.pid for one in self._helpers.values() if one.pid]

    def end_idle(self) -> None:
        """Ends helpers that were not asked anything for ``IDLE_S``; to be called now and then."""
        with self._lock:
            idle = [one for one in self._helpers.values() if one.pid and one.idle_s > IDLE_S]
        for one in idle:
            one.end()

    def close(self) -> None:
        """Ends all helpers; the pool can be used again."""
        with self._lock:
            ended = list(self._helpers.values())
            self._helpers.clear()
        for one in ended:
            one.end()

    def _helper(self, uid: int) -> HelperProcess:
        with self._lock:
            known = self._helpers.get(uid)
            if known is None:
                known = self._helpers[uid] = HelperProcess(uid)
            running = [one for one in self._helpers.values() if one.pid and one is not known]
            oldest = max(running, key=lambda one: one.idle_s) if len(running) >= MOST_HELPERS else None
        if oldest is not None:
            oldest.end()
        return known


#: This process's: one helper per user for folders of rings, which are in memory, and one for files that may lie on a
#: dead mount: who waits for those is not to lose sight of his ranks.
POOL, SLOW_POOL = UserFilesPool(), UserFilesPool()


def files_of(uid: int, pid: int = 0, *, are_slow: bool = False) -> UserFiles:
    """The files of one user; with the groups of his process ``pid``, where that is given.

    are_slow: they may lie on any file system, as all do that a process names.
    """
    return (SLOW_POOL if pid or are_slow else POOL).of(uid, pid)


def end_idle_helpers() -> None:
    """Ends helpers that are asked nothing; to be called now and then."""
    POOL.end_idle()
    SLOW_POOL.end_idle()


def end_helpers() -> None:
    """Ends all helpers; the next request starts another one."""
    POOL.close()
    SLOW_POOL.close()
    STARTER.close()


def open_own(path: str | os.PathLike[str]) -> int:
    """A file that the caller himself has named, and no user of the node; a link at its end is not followed.

    Never waits for a FIFO's writer. Raises OSError.
    """
    return os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)


def open_own_folder(path: str | os.PathLike[str]) -> int:
    """A folder that the caller himself has named, and no user of the node. Raises OSError."""
    return os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_DIRECTORY)


def run_as_user(
    program: str, words: Sequence[str], uid: int, pid: int, timeout_s: float, most_bytes: int
) -> tuple[int, bytes, bytes]:
    """Runs a program with a user's rights, bounded in memory, time and output, about his process ``pid``.

    Returns its exit status, its standard output and its standard error. Raises OSError, TimeoutError among them, and
    ValueError where it says more than ``most_bytes``; then it is killed.
    """
    rights = _rights_for(uid, pid)
    fd = os.open(program, os.O_PATH | os.O_CLOEXEC)
    try:
        return run_bounded(fd, [program, *words], rights, timeout_s, most_bytes)
    finally:
        os.close(fd)


def read_as_user(
    module: str, content: bytes, words: Sequence[str], uid: int, timeout_s: float, most_bytes: int
) -> tuple[int, bytes, bytes]:
    """Reads the content of a user's file in a process with his rights, bounded as ``run_as_user`` is.

    module: of ours, whose ``main(words)`` reads its standard input and tells what it found on its standard output.
    """
    return read_bounded(module, content, words, _rights_for(uid, 0), timeout_s, most_bytes)


def _rights_for(uid: int, pid: int) -> Rights:
    if not can_become_others():
        return Rights(os.geteuid())
    return _rights_of(uid, pid) if pid else Rights(uid)


class OwnPath:
    """A file that the caller himself has named, and no user of the node: followed by its name."""

    def __init__(self, path: str) -> None:
        self._path = path

    def state(self) -> FileState:
        """Of what has the name now. Raises OSError."""
        return state_of(-100, self._path)

    def open(self) -> int:
        """What has the name now. Raises OSError."""
        return open_own(self._path)

    def close(self) -> None:
        """Does nothing: nothing is held."""


class RankDescriptor:
    """What a process writes to, by the number of its descriptor; never looked for again by any name."""

    def __init__(self, files: UserFiles, pid: int, number: int) -> None:
        self._files, self._pid, self._number = files, pid, number

    def state(self) -> None:
        """None: what it has been renamed to does not matter."""

    def open(self) -> int:
        """The file, with the rights of the process's user. Raises OSError."""
        return self._files.open_descriptor(self._pid, self._number)[1]

    def close(self) -> None:
        """Does nothing: nothing is held."""


def _ask_directly(uid: int, words: Sequence[str], folder: int, rights: Rights | None) -> tuple[list[str], int]:
    if uid != os.geteuid():
        text = f"belongs to user {uid}; run the agent as root, with SETUID and SETGID, or as that user"
        return [str(errno.EPERM), text], -1
    return helper.answer(uid, words, folder)


def _rights_of(uid: int, pid: int) -> Rights:
    """Groups of a process as the kernel tells them; the real gid, since a program may lend another one."""
    gid = 65534
    with contextlib.suppress(OSError, ValueError, IndexError), open(f"/proc/{int(pid)}/status", "rb") as file:
        for line in file:
            if line.startswith(b"Uid:") and int(line.split()[2]) != uid:
                return Rights(uid)
            if line.startswith(b"Gid:"):
                gid = int(line.split()[1])
            elif line.startswith(b"Groups:"):
                return Rights(uid, gid, tuple(map(int, line.split()[1:65])))
    return Rights(uid)


def _devices_of_users() -> frozenset[int]:
    """Devices of FUSE mounts whose daemon is not root's, as this process sees them."""
    found = []
    with contextlib.suppress(OSError), open("/proc/self/mountinfo", encoding="utf-8", errors="replace") as file:
        for line in file:
            if " - fuse" in line and "user_id=" in line and "user_id=0," not in line:
                major, _, minor = line.split()[2].partition(":")
                found.append(os.makedev(int(major), int(minor)))
    return frozenset(found)


__all__ = [
    "BELOW",
    "IN_ROOT",
    "POOL",
    "SLOW_POOL",
    "FileState",
    "OwnPath",
    "RankDescriptor",
    "SeenFile",
    "UserFiles",
    "UserFilesPool",
    "files_of",
    "open_own",
    "open_own_folder",
    "read_as_user",
    "run_as_user",
    "state_of",
]  # fmt: skip
