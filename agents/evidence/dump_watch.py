"""Looks for dumps that torch's flight recorder writes, unasked, and makes facts of them that the judge can join.

torch dumps where a collective timed out, and ends the process right after: nobody could ask in time. So a rank whose
ring stands still, or that has just ended, is looked at for a dump, in the thread of the evidence desk. A dump is read
once as it is (bounded, in a process with its user's rights) and told once; a rank of which there is none is told of by
nobody: that says nothing about it.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from ...telemetry.records import Identity
from ..user_files.helper_process import HelperUnavailable
from ..user_files.user_files import read_as_user
from . import dump_reader
from .awaited_dumps import AFTER_END_NS
from .flight_dumps import DumpPlaces, is_settled, look_at_dump, read_dump

#: A rank whose ring has not moved for so long is looked at for a dump.
STANDS_NS = 5_000_000_000
#: Dumps told of one rank: torch writes one, people may ask for others.
MOST_TOLD = 4
MOST_WATCHED = 256
#: The answer is a few kilobytes; a dump of 20,000 entries takes a second or two.
_TIMEOUT_S = 25.0
_MOST_BYTES = 64 << 10
_MOST_WORDS = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class DumpTold:
    """What is to be told of a rank's dump: attributes of RANK_FLIGHT_RECORDER."""

    identity: Identity
    attributes: dict[str, Any]


@dataclass(slots=True, kw_only=True, eq=False)
class WatchedDump:
    """identity, moved_ns: of the rank now (monotonic; when its ring last moved). seen: what was taken, by path."""

    rank: int
    pid: int
    places: DumpPlaces
    identity: Callable[[], Identity]
    moved_ns: Callable[[], int]
    until_ns: int = 0  # 0: it lives
    seen: dict[str, tuple[int, int]] = field(default_factory=dict)
    told: int = 0


class DumpWatch:
    """Everything here runs in the thread of the evidence desk. tell: takes what was found."""

    def __init__(self, tell: Callable[[DumpTold], None], report: Callable[[str], None]) -> None:
        self._tell, self._report = tell, report
        self._watched: list[WatchedDump] = []

    def __len__(self) -> int:
        return len(self._watched)

    def add(self, dump: WatchedDump) -> None:
        """Looks for this rank's dumps from now on. Beyond ``MOST_WATCHED`` the oldest is given up."""
        self._watched.append(dump)
        del self._watched[:-MOST_WATCHED]

    def end(self, pid: int, now_ns: int) -> None:
        """The process has ended: what it wrote is looked for ``AFTER_END_NS`` more. now_ns: monotonic."""
        for dump in self._watched:
            if dump.pid == pid:
                dump.until_ns = now_ns + AFTER_END_NS

    def give_up(self, places: DumpPlaces) -> None:
        """Looks no more there: the places are about to be closed."""
        self._watched = [dump for dump in self._watched if dump.places is not places]

    def look(self, now_ns: int, wall_ns: int, *, last: bool = False) -> None:
        """Tells of each dump that is new. now_ns: monotonic. last: a file that may still grow is taken as well."""
        for dump in list(self._watched):
            if last or dump.until_ns or now_ns - dump.moved_ns() >= STANDS_NS:
                self._look_at(dump, wall_ns + (1 << 62 if last else 0))
            if (dump.until_ns and now_ns >= dump.until_ns) or dump.told >= MOST_TOLD:
                self._watched.remove(dump)

    def _look_at(self, dump: WatchedDump, wall_ns: int) -> None:
        for path in dump.places.paths:
            if not is_settled(dump.places, path, wall_ns):
                continue
            try:
                state = look_at_dump(dump.places, path)
                mark = (state.changed_ns, state.size_bytes)
                if dump.seen.get(path) == mark:
                    return
                dump.seen[path] = mark
                content = read_dump(dump.places, path)
            except HelperUnavailable:
                dump.seen.pop(path, None)  # at the next look
                continue
            except OSError as error:
                self._report(f"{path}: {error.strerror or error}")
                continue
            if content:
                dump.told += 1
                name = os.path.basename(path)
                attributes = {"name": name[:_MOST_WORDS], "written_ns": mark[0], **self._read(dump, name, content)}
                self._tell(DumpTold(identity=dump.identity(), attributes=attributes))
                return

    def _read(self, dump: WatchedDump, name: str, content: bytes) -> dict[str, Any]:
        """Its facts, or why there are none."""
        words = [f"rank_{dump.rank}", str(dump.rank)]
        began_s = time.monotonic()
        try:
            status, out, errors = read_as_user(
                dump_reader.__name__, content, words, dump.places.owner_uid, _TIMEOUT_S, _MOST_BYTES
            )
        except (OSError, ValueError) as error:
            problem = f"cannot be read here: {error}"
        else:
            if status == 0 and out:
                return {"facts": out.decode("ascii", "replace")}
            said = errors.decode("utf-8", "replace").strip().splitlines() if status == dump_reader.NO_DUMP else []
            problem = (
                said[-1]
                if said
                else f"takes more memory or time to read than it may ({time.monotonic() - began_s:.0f} s)"
            )
        self._report(f"{name}: {problem}")
        return {"problem": problem[:_MOST_WORDS]}
