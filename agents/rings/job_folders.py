"""Which folders of a node hold rings, whose they are, and of which job: for an agent that nobody told about the jobs.

The owner of a folder is who the kernel says; what a ring claims about its job is believed only beside that. A folder is
held by its descriptor from the moment it is found: its name may lead elsewhere by then. Reads directories and the
headers of rings, nothing else; a look at unchanged folders asks the kernel once for each. Of each owner so many folders
are held, the newest; so nobody's folders keep others' from being seen.
"""

from __future__ import annotations

import contextlib
import os
import stat
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from ...telemetry.identity import resolve_identity, resolve_job_name
from ...telemetry.printable import printable
from ...telemetry.records import Identity
from ...telemetry.ring_layout import RING_SUFFIX
from ..processes import processes
from ..processes.job_id_proof import owner_of
from ..user_files.helper import MOST_NAMES
from ..user_files.system_calls import FileState, state_of
from ..user_files.user_files import files_of
from ..user_files.walk import MOST_FOLDERS, Budget, OpenFolder, find_matches, newest_entries, open_below
from .ring_directory import gave_sign_of_life
from .ring_file import RingDamaged, RingFile

#: Root, user, job: rings may lie in each.
_DEPTH = 2
#: The clock behind mtime ticks in jiffies: a listing is good once the folder has not changed for so long before it.
_SETTLED_NS = 2_000_000_000
#: Looks use no more than this part of a core: after one that took long, the next is later, though not for ever.
_SHARE, _LONGEST_S = 0.05, 5.0
_MOST_COMPLAINTS = 64
#: Of the rings in a folder so many are looked into, the newest, for the job that they are of.
_MOST_TRIED = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundJob:
    """identity: cluster and node are the agent's own, the owner is the kernel's. name: what people call the job."""

    identity: Identity
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class JobFolder:
    """A folder with rings. ``changed_ns``: its mtime; new rings change it. ``fd``: the finder's, open until it is gone.

    key: what tells it from any other folder that has or had its name.
    """

    path: Path
    owner_uid: int
    changed_ns: int
    fd: int
    key: tuple[int, int]


@dataclass(slots=True)
class _Held:
    place: OpenFolder
    depth: int
    listed_ns: int = -1  # its mtime when it was listed and had settled; -1: it has to be listed
    has_rings: bool = False
    folders: tuple[tuple[str, FileState], ...] = ()
    seen: int = 0  # number of the look


class FolderFinder:
    """Owned by one thread."""

    def __init__(self, pattern: Path, report: Callable[[str], None]) -> None:
        """report: hears of what may not be read, in one line per folder, and of who has too much."""
        self._pattern = str(pattern)
        self._report = report
        self._held: dict[tuple[int, int], _Held] = {}
        self._number = 0
        self._found: list[JobFolder] = []
        self._next_look_s = 0.0
        #: About folders of each owner: nobody's take the lines away from the others.
        self._complaints: Counter[int] = Counter()
        #: Where the last walk has found roots, and which: while nothing has changed there, they are all there are.
        self._parents: list[OpenFolder] = []
        self._roots_before: list[tuple[int, int]] = []
        self._walk_again_s = 0.0

    def look(self) -> list[JobFolder]:
        """Folders with rings at the pattern's matches and up to two levels below, by their owners, the newest first.

        Links are not followed. Their descriptors are good until the next look.
        """
        if time.monotonic() < self._next_look_s:
            return self._found
        began_s = time.thread_time()
        self._number += 1
        budget = Budget()
        found = [folder for root in self._roots(budget) for folder in self._below(root, budget)]
        for uid in sorted(budget.over):
            self._report(
                f"{self._pattern}: more than {MOST_FOLDERS} folders of user {uid}; of his only the newest count"
            )
        for key, held in list(self._held.items()):
            if held.seen != self._number:
                held.place.close()
                del self._held[key]
        self._found = found
        self._next_look_s = time.monotonic() + min((time.thread_time() - began_s) / _SHARE, _LONGEST_S)
        return found

    def close(self) -> None:
        """Lets go of all folders."""
        for held in self._held.values():
            held.place.close()
        self._forget_parents()
        self._held.clear()
        self._found = []

    def _roots(self, budget: Budget) -> Iterator[_Held]:
        if time.monotonic() < self._walk_again_s and not any(map(_has_changed, self._parents)):
            for key in self._roots_before:
                held = self._held.get(key)
                if held is not None and budget.allows(held.place.state.uid):
                    held.seen = self._number
                    yield held
            return
        self._forget_parents()
        for match in find_matches(self._pattern, self._report):
            parent = match.parent
            if not self._parents or self._parents[-1].state.device_inode != parent.state.device_inode:
                with contextlib.suppress(OSError):
                    self._parents.append(OpenFolder(parent.path, os.dup(parent.fd), state_of(parent.fd)))
            if stat.S_ISDIR(match.state.mode):
                held = self._hold(match.state, match.open_folder, _DEPTH, match.path, budget)
                if held is not None:
                    self._roots_before.append(match.state.device_inode)
                    yield held
        if len(self._parents) == 1:
            self._walk_again_s = time.monotonic() + _LONGEST_S

    def _forget_parents(self) -> None:
        for place in self._parents:
            place.close()
        self._parents, self._roots_before, self._walk_again_s = [], [], 0.0

    def _hold(
        self, state: FileState, open_folder: Callable[[], OpenFolder], depth: int, path: str, budget: Budget
    ) -> _Held | None:
        if not budget.allows(state.uid):
            return None
        held = self._held.get(state.device_inode)
        if held is None:
            try:
                held = _Held(open_folder(), depth)
            except FileNotFoundError:
                return None
            except OSError as error:
                self._complaints[state.uid] += 1
                if self._complaints[state.uid] <= _MOST_COMPLAINTS:
                    self._report(
                        f"{printable(path)}: {error.strerror}; "
                        "rings in it are not watched (run the agent as root or as their user)"
                    )
                return None
            self._held[state.device_inode] = held
        held.seen = self._number
        held.place.path = path
        return held

    def _below(self, held: _Held, budget: Budget) -> Iterator[JobFolder]:
        place = held.place
        try:
            state = state_of(place.fd)
            if held.listed_ns != state.changed_ns:
                self._list(held, state)
        except OSError as error:
            self._report(f"{printable(place.path)}: {error.strerror}; rings in it are not watched")
            return
        place.state = state
        if held.has_rings:
            yield JobFolder(
                path=Path(place.path), owner_uid=state.uid, changed_ns=state.changed_ns, fd=place.fd,
                key=state.device_inode,
            )  # fmt: skip
        if held.depth:
            for name, known in held.folders:
                child = self._hold(
                    known, partial(open_below, place, name, known), held.depth - 1, f"{place.path}/{name}", budget
                )
                if child is not None:
                    yield from self._below(child, budget)

    def _list(self, held: _Held, state: FileState) -> None:
        entries = newest_entries(held.place, lambda name: not name.startswith("."))
        if len(entries) >= MOST_NAMES:
            self._report(f"{printable(held.place.path)}: more than {MOST_NAMES} names; the others are not looked at")
        held.has_rings = any(name.endswith(RING_SUFFIX) for name, _ in entries)
        folders = [each for each in entries if stat.S_ISDIR(each[1].mode)]
        held.folders = tuple(folders[: 4 * MOST_FOLDERS])
        settled = time.time_ns() - state.changed_ns > _SETTLED_NS
        held.listed_ns = state.changed_ns if settled else -1


def _has_changed(place: OpenFolder) -> bool:
    """Or may have, within the tick of the clock behind its time of change."""
    try:
        changed_ns = state_of(place.fd).changed_ns
    except OSError:
        return True
    return changed_ns != place.state.changed_ns or time.time_ns() - changed_ns < _SETTLED_NS


def identify_job(
    folder: JobFolder, own: Identity, since_ns: int, missed_since_ns: int | None = None
) -> FoundJob | None:
    """The job whose rings lie in a folder, by the newest ring that can be read.

    own: cluster and node of this agent, which no ring can claim.
    since_ns, missed_since_ns: as the ``Agent`` takes them.
    None: no ring can be read yet, or all are of ranks that were dead before these times.
    """
    place = OpenFolder(str(folder.path), folder.fd, state_of(folder.fd))
    try:
        names = newest_entries(place, lambda name: name.endswith(RING_SUFFIX) and not name.startswith("."))
    except OSError:
        return None
    files = files_of(folder.owner_uid)
    job: FoundJob | None = None
    for name, state in names[:_MOST_TRIED]:
        if state.uid != folder.owner_uid:
            continue
        with contextlib.suppress(RingDamaged, OSError):
            ring = RingFile(folder.path / name, fd=files.open_file(folder.fd, name))
            job = job or _claimed_job(ring, folder, own)
            holder = processes.lock_holder(ring.fd)
            matters = (
                ring.header.created_mono_ns >= since_ns
                or holder is not None
                or gave_sign_of_life(ring, missed_since_ns)
            )
            ring.close()
            if matters:
                owner = owner_of(holder or 0, folder.owner_uid)
                return replace(job, identity=replace(job.identity, owner=owner))
    return None


def _claimed_job(ring: RingFile, folder: JobFolder, own: Identity) -> FoundJob:
    claims = {key: printable(value) for key, value in ring.header.identity.items() if isinstance(value, str)}
    claimed = resolve_identity(claims)
    job = claimed.job or claims.get("job") or printable(folder.path.name)
    identity = replace(own, job=job, run=claimed.run or job, world="", attempt="", rank=-1)
    return FoundJob(identity=identity, name=resolve_job_name(claims) or _called(claims.get("script", "")) or job)


def _called(script: str) -> str:
    """What people call a rank's script; of ``python -m package`` its file says no more than __main__.py."""
    path = Path(script)
    return path.parent.name if path.name == "__main__.py" else path.name
