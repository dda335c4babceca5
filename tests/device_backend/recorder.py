"""The flight recorder of the pretended device, in the words of NCCL's: a status per group, an entry per collective.

The status is what the watchdogs last saw, ten times a second, not what is; started stays -1 unless timing is on
(TORCH_NCCL_ENABLE_TIMING, as there). It is read where torch's own recorders are, by ``_dump_fr_trace_json``.
"""

from __future__ import annotations

import json
import threading
from collections import deque
from dataclasses import dataclass, field
from typing import Any

BACKEND = "device"
#: As TORCH_FR_BUFFER_SIZE has it by default.
ENTRIES = 2000


@dataclass(slots=True)
class GroupStatus:
    """Of one group, in the order of creation. -1 = none yet, or not known."""

    enqueued: int = -1
    started: int = -1
    completed: int = -1
    members: tuple[int, ...] = ()


@dataclass(slots=True)
class FlightRecorder:
    """All groups of this process."""

    groups: list[GroupStatus] = field(default_factory=list)
    entries: deque[dict[str, Any]] = field(default_factory=lambda: deque(maxlen=ENTRIES))
    lock: threading.Lock = field(default_factory=threading.Lock)

    def add_group(self, members: tuple[int, ...]) -> GroupStatus:
        with self.lock:
            self.groups.append(GroupStatus(members=members))
            return self.groups[-1]

    def add_entry(self, entry: dict[str, Any]) -> dict[str, Any]:
        with self.lock:
            self.entries.append(entry)
        return entry

    def dump_json(self, *, collectives: bool = True, only_active: bool = False) -> bytes:
        with self.lock:
            document: dict[str, Any] = {
                "version": "2.10",
                "pg_config": {
                    str(number): {"name": str(number), "desc": "", "ranks": str(list(group.members))}
                    for number, group in enumerate(self.groups)
                },
                "pg_status": {
                    str(number): {
                        "last_enqueued_collective": group.enqueued,
                        "last_started_collective": group.started,
                        "last_completed_collective": group.completed,
                    }
                    for number, group in enumerate(self.groups)
                },
            }
            if collectives:
                document["entries"] = [entry for entry in self.entries if not only_active or not entry["retired"]]
        return json.dumps(document).encode()


_recorder: FlightRecorder | None = None


def recorder() -> FlightRecorder:
    """The recorder of this process; from the first call on torch's own dump function serves it as well."""
    global _recorder
    if _recorder is None:
        _recorder = FlightRecorder()
        _serve(_recorder)
    return _recorder


def _serve(own: FlightRecorder) -> None:
    from torch._C import _distributed_c10d as c10d

    original: Any = c10d._dump_fr_trace_json

    def dump(includeCollectives: Any = None, onlyActive: Any = None, backend: str = "gloo") -> bytes:
        if backend != BACKEND:
            text: bytes = original(includeCollectives, onlyActive, backend)
            return text
        return own.dump_json(collectives=includeCollectives is not False, only_active=bool(onlyActive))

    c10d._dump_fr_trace_json = dump
