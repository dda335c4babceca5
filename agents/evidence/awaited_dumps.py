"""Flight-recorder dumps that were asked for and have not been written yet: looked for until they are, or cannot come.

Everything here runs in the thread of the evidence desk. A look asks its user's helper once per place.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass

from .flight_dumps import DUMP_BYTES, DumpPlaces, is_settled, look_at_dump, read_dump

#: torch's watchdog gives up after ten minutes, many jobs after thirty or sixty, and then writes.
AWAITED_NS = 3_900_000_000_000
#: Whoever has ended writes no more; what is read from network file systems may be seen a moment later.
AFTER_END_NS = 30_000_000_000
#: How often there is a look.
LOOK_S = 2.0
MAX_AWAITED = 256


@dataclass(slots=True, kw_only=True, eq=False)
class AwaitedDump:
    """``tell`` gets the file's name and its bytes, once. until_ns: monotonic."""

    pid: int
    places: DumpPlaces
    tell: Callable[[str, bytes], None]
    until_ns: int = 0


class AwaitedDumps:
    def __init__(self, report: Callable[[str], None]) -> None:
        self._report = report
        self._awaited: list[AwaitedDump] = []
        self._said: set[str] = set()

    def __len__(self) -> int:
        return len(self._awaited)

    def add(self, dump: AwaitedDump, now_ns: int) -> None:
        """Looks for a dump from now on, for ``AWAITED_NS``; sets its ``until_ns``. now_ns: monotonic.

        Beyond ``MAX_AWAITED`` the oldest is given up.
        """
        dump.until_ns = now_ns + AWAITED_NS
        self._awaited.append(dump)
        del self._awaited[:-MAX_AWAITED]

    def end(self, pid: int, now_ns: int) -> None:
        """Waits for an ended process's dumps only ``AFTER_END_NS`` more. now_ns: monotonic."""
        for dump in self._awaited:
            if dump.pid == pid:
                dump.until_ns = min(dump.until_ns, now_ns + AFTER_END_NS)

    def give_up(self, places: DumpPlaces) -> None:
        """Waits no more for dumps there: they are about to be closed."""
        self._awaited = [dump for dump in self._awaited if dump.places is not places]

    def look(self, now_ns: int, wall_ns: int, *, last: bool = False) -> None:
        """Tells each awaited dump that is written by now, and gives up those whose time (monotonic) is over.

        last: there is no further look, so a file that may still grow is taken as well.
        """
        left = []
        for dump in self._awaited:
            if not self._take(dump, wall_ns + (1 << 62 if last else 0)) and now_ns < dump.until_ns:
                left.append(dump)
        self._awaited = left

    def _take(self, dump: AwaitedDump, wall_ns: int) -> bool:
        for path in dump.places.paths:
            if not is_settled(dump.places, path, wall_ns):
                self._report_too_large(dump, path)
                continue
            try:
                content = read_dump(dump.places, path)
            except OSError as error:
                self._say(f"{path}: {error.strerror or error}")
                continue
            if content:
                dump.tell(os.path.basename(path), content)
                return True
        return False

    def _report_too_large(self, dump: AwaitedDump, path: str) -> None:
        try:
            size = look_at_dump(dump.places, path).size_bytes
        except OSError:
            return
        if size > DUMP_BYTES:
            self._say(f"{path}: {size} bytes, a dump is taken up to {DUMP_BYTES}; copy it by hand")

    def _say(self, line: str) -> None:
        if line not in self._said and len(self._said) < MAX_AWAITED:
            self._said.add(line)
            self._report(line)
