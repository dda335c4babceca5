"""Reclaims what a job's user has left on the node: processes, files in /dev/shm, temporary files.

Memory of GPUs goes with the processes that hold it; what is held afterwards the check finds. Nothing that a user can
name is opened, listed or removed with root's rights: his helper does it with his (``agents.user_files``). A process is
ended by a descriptor that was got before its owner was asked for, so that its number cannot become somebody else's.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import select
import signal
import stat
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from ....agents.user_files.system_calls import BELOW
from ....agents.user_files.user_files import UserFiles, files_of
from .act import NodeAct

#: Accounts of the system are none of a job.
LEAST_UID = 1000
#: Files and processes that one run reclaims at most.
MOST = 2000
_PATIENCE_S = 2.0


class NoUser(ValueError):
    """One line: why nothing is reclaimed of such a user."""


def uid_of(name: str) -> int:
    """The uid of a user, by name or number. Raises NoUser for one of the system, and where there is none."""
    try:
        uid = int(name) if name.isdecimal() else pwd.getpwnam(name).pw_uid
    except KeyError:
        raise NoUser(f"{name}: there is no such user") from None
    if uid < LEAST_UID or uid == 65534:
        raise NoUser(f"user {name} ({uid}) is one of the system: nothing of it is reclaimed")
    return uid


def reclaim_acts(uid: int, folders: tuple[str, ...], *, proc: Path = Path("/proc")) -> Iterator[NodeAct]:
    """What there is to reclaim, processes first: they would write on. folders: of temporary files, the system's own."""
    yield from _processes(uid, proc)
    for folder in dict.fromkeys(("/dev/shm", *folders)):
        yield from _files(uid, folder)


# --- processes ------------------------------------------------------------------------------------------------------
def _processes(uid: int, proc: Path) -> Iterator[NodeAct]:
    own = os.getpid()
    count = 0
    for entry in sorted((int(each.name) for each in proc.iterdir() if each.name.isdecimal()), reverse=True):
        if entry in (own, 1) or count >= MOST or not is_process_of(entry, uid, proc) or _is_helper(entry, uid, proc):
            continue
        count += 1
        with contextlib.suppress(OSError):
            name = (proc / str(entry) / "comm").read_text(errors="replace").strip()
            shown = "".join(c if c.isprintable() else "?" for c in name)
            yield NodeAct(
                what="end_process",
                on=str(entry),
                text=f"end process {entry} ({shown}) of user {uid}",
                is_so=partial(_is_gone, entry, uid, proc),
                do=partial(_end, entry, uid, proc),
            )


def is_process_of(pid: int, uid: int, proc: Path) -> bool:
    """Whether real, effective and saved user are this one: what has changed its user is not the job's."""
    try:
        for line in (proc / str(pid) / "status").read_text(errors="replace").splitlines():
            if line.startswith("State:") and line.split()[1] in "ZX":
                return False
            if line.startswith("Uid:"):
                return {int(word) for word in line.split()[1:4]} == {uid}
    except OSError:
        pass
    return False


def _is_helper(pid: int, uid: int, proc: Path) -> bool:
    """Whether it opens the user's files for whichrank, ours or an agent's: named so, and a child of root's."""
    try:
        if (proc / str(pid) / "comm").read_text(errors="replace").strip() != f"helper-{uid}"[:15]:
            return False
        lines = (proc / str(pid) / "status").read_text(errors="replace").splitlines()
        parent = next(line.split()[1] for line in lines if line.startswith("PPid:"))
        return is_process_of(int(parent), 0, proc)
    except (OSError, StopIteration):
        return False


def _is_gone(pid: int, uid: int, proc: Path) -> bool:
    return not is_process_of(pid, uid, proc)


def _end(pid: int, uid: int, proc: Path) -> None:
    """SIGTERM, and SIGKILL to what does not listen. Raises OSError where it is still there."""
    try:
        held = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        if not is_process_of(pid, uid, proc):
            return  # the number is somebody else's by now
        for number in (signal.SIGTERM, signal.SIGKILL):
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(held, number)
            if _has_ended(held, _PATIENCE_S):
                return
        raise OSError("it does not end: it waits in the kernel")
    finally:
        os.close(held)


def _has_ended(held: int, patience_s: float) -> bool:
    return bool(select.select([held], [], [], patience_s)[0])


# --- files ----------------------------------------------------------------------------------------------------------
def _files(uid: int, folder: str) -> Iterator[NodeAct]:
    """The user's own regular files that lie in a folder of the system's, which everybody may write."""
    try:
        place = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return
    try:
        state = os.fstat(place)
        if state.st_uid != 0 or not state.st_mode & stat.S_ISVTX:
            return  # a user may put another folder in its place
        files = files_of(uid, are_slow=folder != "/dev/shm")
        try:
            names = files.list_names(place, ".", BELOW)
        except OSError:
            return
        count = 0
        for name in sorted(names):
            with contextlib.suppress(OSError):
                seen = files.look_at(place, name, BELOW)
                if stat.S_ISREG(seen.mode) and seen.uid == uid and count < MOST:
                    count += 1
                    yield _file(uid, folder, name, seen.size_bytes, files)
    finally:
        os.close(place)


def _file(uid: int, folder: str, name: str, size_bytes: int, files: UserFiles) -> NodeAct:
    shown = "".join(c if c.isprintable() else "?" for c in name)[:200]
    what = "remove_shared_memory" if folder == "/dev/shm" else "remove_file"
    return NodeAct(
        what=what,
        on=f"{folder}/{shown}",
        text=f"remove {folder}/{shown} ({size_bytes >> 10} KiB) of user {uid}",
        is_so=partial(_is_removed, folder, name, files),
        do=partial(_remove, folder, name, files),
    )


def _is_removed(folder: str, name: str, files: UserFiles) -> bool:
    with _held(folder) as place:
        try:
            return files.look_at(place, name, BELOW).uid != files.uid
        except FileNotFoundError:
            return True


def _remove(folder: str, name: str, files: UserFiles) -> None:
    with _held(folder) as place:
        files.remove(place, name)


@contextlib.contextmanager
def _held(folder: str) -> Iterator[int]:
    place = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        yield place
    finally:
        os.close(place)
