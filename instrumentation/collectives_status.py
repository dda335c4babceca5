"""Flight-recorder status: enqueued, started and completed numbers of each group, read without touching a collective.

The lowest level, and the source of completion for device backends, whose Work must not be held (it keeps device memory
alive). Reads only the status part of the dump, 3 to 4 microseconds; called by the heartbeat thread and nowhere else.
Torch keeps a recorder per backend; any may be missing or off, and then nothing is known of its groups.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from ..telemetry.ring_layout import UNKNOWN_U64
from ..telemetry.vocabulary import HOST_BACKENDS
from .ring_writer import RankRecorder

#: Looks in a row that must agree before another difference of the counts is believed: where the recorder counts more
#: (one look may come between our reading and its), and where we do and nothing runs (a first call sets up for seconds).
LOOKS_BEHIND, LOOKS_AHEAD = 3, 60


@dataclass(frozen=True, slots=True, kw_only=True)
class RecorderStatus:
    """Sequence numbers of one group as its backend counts them; -1 where it cannot tell."""

    enqueued: int
    started: int
    completed: int


def parse_status(text: bytes | str) -> dict[int, RecorderStatus]:
    """``pg_status`` of a recorder's dump, by the backend's own group id (order of creation).

    {} for anything unreadable.
    """
    try:
        groups = json.loads(text)["pg_status"]
        return {
            int(key): RecorderStatus(
                enqueued=int(entry["last_enqueued_collective"]),
                started=int(entry["last_started_collective"]),
                completed=int(entry["last_completed_collective"]),
            )
            for key, entry in groups.items()
        }
    except (ValueError, KeyError, TypeError, AttributeError):
        return {}


def find_reader(backend: str) -> Callable[[], bytes] | None:
    """The function that dumps the status part of this backend's recorder; None where this torch has none."""
    try:
        from torch._C import _distributed_c10d
    except ImportError:
        return None
    c10d: Any = _distributed_c10d
    # Looked up at each call: a backend that is not torch's own may put its recorder there later.
    if backend == "nccl" and hasattr(c10d, "_dump_nccl_trace_json"):
        return lambda: c10d._dump_nccl_trace_json(includeCollectives=False)
    if not hasattr(c10d, "_dump_fr_trace_json"):
        return None
    if backend == "gloo":
        return lambda: c10d._dump_fr_trace_json(includeCollectives=False)
    # Releases before 2.15 keep one general recorder and know no such argument: they raise, and it is given up.
    return lambda: c10d._dump_fr_trace_json(includeCollectives=False, backend=backend)


class FlightRecorderStatus:
    """Last status of every recorder, and completion of device groups derived from it."""

    def __init__(self, writer: RankRecorder) -> None:
        self._writer = writer
        #: None: there is none, or it failed.
        self._readers: dict[str, Callable[[], bytes] | None] = {}
        self._by_backend: dict[str, dict[int, RecorderStatus]] = {}
        #: Backend's count minus ours where it is not 0, by (backend, id, row).
        self._offsets: dict[tuple[str, int, int], int] = {}
        #: By how much ours was unexpectedly ahead at the last look, and at how many looks in a row.
        self._odd_looks: dict[tuple[str, int, int], tuple[int, int]] = {}
        self.errors = 0

    def read(self, backends: Iterable[str]) -> None:
        """Read the recorder of each backend once. A recorder that fails is left out from then on."""
        for backend in backends:
            if backend not in self._readers:
                self._readers[backend] = find_reader(backend)
            dump = self._readers[backend]
            if dump is None:
                continue
            try:
                self._by_backend[backend] = parse_status(dump())
            except Exception:
                self.errors += 1
                self._readers[backend] = None
                self._by_backend.pop(backend, None)

    def status_of(self, backend: str, order: int) -> RecorderStatus | None:
        """Status of the group created as number ``order`` on this backend, or None where unknown."""
        return self._by_backend.get(backend, {}).get(order)

    def default_group(self) -> tuple[int, int]:
        """(enqueued, completed) of the default group for the heartbeat row; UNKNOWN_U64 where nothing is known."""
        for backend in sorted(self._by_backend, key=HOST_BACKENDS.__contains__):  # devices first
            status = self.status_of(backend, 0)
            if status is not None:
                return status.enqueued & UNKNOWN_U64, status.completed & UNKNOWN_U64
        return UNKNOWN_U64, UNKNOWN_U64

    def complete_group(self, row: int, backend: str, order: int, enqueued_before: int, flags: int) -> None:
        """Report ends (and starts) of a device group. ``enqueued_before``: our count, read before :meth:`read`.

        Our numbers and the recorder's may differ by what one of them does not count. And a host that stands before a
        full launch queue stands inside a call that we have counted and the recorder has not: ours is one ahead then.
        """
        status = self.status_of(backend, order)
        if status is None or status.completed < 0 or not enqueued_before:
            return
        key = (backend, order, row)
        offset = self._agree(key, status, enqueued_before)
        if offset is None:
            return
        done = min(status.completed - offset, enqueued_before)
        if done > 0:
            self._writer.complete_through(row, done, flags)
        begun = min(status.started - offset, enqueued_before)
        if begun > max(done, 0):
            self._writer.started_through(row, begun)

    def _agree(self, key: tuple[str, int, int], status: RecorderStatus, ours: int) -> int | None:
        """What to take from the recorder's numbers to get ours; None: it counts more than we know of, so far."""
        offset = self._offsets.get(key, 0)
        ahead = ours + offset - status.enqueued
        looks = self._odd_looks.pop(key, (0, 0))
        if ahead == 0:
            return offset
        again = looks[1] + 1 if looks[0] == ahead else 1
        idle = status.completed >= status.enqueued
        if again >= (LOOKS_BEHIND if ahead < 0 else LOOKS_AHEAD) and (ahead < 0 or idle):
            self._offsets[key] = status.enqueued - ours
            return self._offsets[key]
        if ahead < 0 or idle:
            self._odd_looks[key] = (ahead, again)
        return None if ahead < 0 else offset
