"""What a ring file says, read with ``struct`` and nothing of whichrank's readers: a second opinion for the tests."""

from __future__ import annotations

import json
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from whichrank.telemetry import ring_layout as layout
from whichrank.telemetry.vocabulary import EventKind, Phase


@dataclass(frozen=True, slots=True, kw_only=True)
class RingEvent:
    """One 64-byte event."""

    kind: EventKind
    op: int
    phase: Phase
    flags: int
    group: int
    seq: int
    time_ns: int
    value: int
    step: int
    extra: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RingContents:
    """A whole ring."""

    rank: int
    pid: int
    identity: dict[str, Any]
    events: list[RingEvent]
    definitions: list[tuple[int, dict[str, Any]]]
    words: dict[str, int]  # rank row by field name without its R_
    loss: float
    grad_norm: float
    beats: int
    hook_errors: int
    exception: str
    exception_in_main: bool
    exception_stack: list[str]
    signal: int
    signal_sender: int
    signal_time_ns: int
    stack: list[str]
    stack_time_ns: int

    def phases(self, step: int | None = None) -> list[str]:
        """Names of the phases entered, in order; of one step if given."""
        return [
            event.phase.name.lower()
            for event in self.events
            if event.kind is EventKind.PHASE and (step is None or event.step == step)
        ]

    def steps(self) -> list[RingEvent]:
        return [event for event in self.events if event.kind is EventKind.STEP]

    def losses(self) -> list[float]:
        return [as_float(event.value) for event in self.steps()]

    def notes(self) -> list[str]:
        return [payload["text"] for kind, payload in self.definitions if kind == layout.DEFINITION_NOTE]


def as_float(bits: int) -> float:
    """The float64 with these bits."""
    return float(struct.unpack("<d", struct.pack("<Q", bits))[0])


def read_ring(path: Path) -> RingContents:
    """Read one ring. Raises AssertionError for a file that is not whole."""
    data = path.read_bytes()
    assert data[: len(layout.MAGIC)] == layout.MAGIC

    def word(offset: int) -> int:
        return int(struct.unpack_from("<Q", data, offset)[0])

    assert word(layout.H_FILE_BYTES) == len(data)
    page = word(layout.H_PROGRESS_OFFSET)
    crash = word(layout.H_CRASH_OFFSET)
    words = {name[2:].lower(): word(page + getattr(layout, name)) for name in vars(layout) if name.startswith("R_")}
    beat = page + layout.HEARTBEAT_ROW * layout.ROW_BYTES

    def text(start: int, size_field: int) -> str:
        return data[crash + start : crash + start + word(crash + size_field)].decode()

    return RingContents(
        rank=word(layout.H_RANK),
        pid=word(layout.H_PID),
        identity=json.loads(data[layout.H_IDENTITY : layout.H_IDENTITY + word(layout.H_IDENTITY_BYTES)]),
        events=_read_events(data, word),
        definitions=_read_definitions(data, word),
        words=words,
        loss=as_float(words["loss"]),
        grad_norm=as_float(words["grad_norm"]),
        beats=word(beat + layout.B_BEATS),
        hook_errors=word(beat + layout.B_HOOK_ERRORS),
        exception=text(layout.C_EXC_TEXT, layout.C_EXC_TEXT_BYTES) if word(crash + layout.C_EXC_VERSION) else "",
        exception_in_main=bool(word(crash + layout.C_EXC_IN_MAIN)),
        exception_stack=text(layout.C_EXC_STACK, layout.C_EXC_STACK_BYTES).splitlines(),
        signal=word(crash + layout.C_SIG_NUMBER),
        signal_sender=word(crash + layout.C_SIG_SENDER_PID),
        signal_time_ns=word(crash + layout.C_SIG_TIME_NS),
        stack_time_ns=word(crash + layout.C_STACK_TIME_NS),
        stack=text(layout.C_STACK, layout.C_STACK_BYTES).splitlines(),
    )


def read_rings(directory: Path) -> list[RingContents]:
    """All rings of a directory, by rank."""
    return sorted((read_ring(path) for path in directory.glob("*" + layout.RING_SUFFIX)), key=lambda ring: ring.rank)


def _read_events(data: bytes, word: Any) -> list[RingEvent]:
    head, slots, start = word(layout.H_EVENT_HEAD), word(layout.H_EVENT_SLOTS), word(layout.H_EVENTS_OFFSET)
    events = []
    for index in range(max(0, head - slots), head):
        begin, packed, seq, time_ns, value, step, extra, end = struct.unpack_from(
            "<8Q", data, start + index % slots * layout.EVENT_BYTES
        )
        assert begin == end == index + 1
        events.append(
            RingEvent(
                kind=EventKind(packed & 0xFF),
                op=packed >> 8 & 0xFF,
                phase=Phase(packed >> 16 & 0xFF),
                flags=packed >> 24 & 0xFF,
                group=packed >> 32 & 0xFFFF,
                seq=seq,
                time_ns=time_ns,
                value=value,
                step=step,
                extra=extra,
            )
        )
    return events


def _read_definitions(data: bytes, word: Any) -> list[tuple[int, dict[str, Any]]]:
    start, used = word(layout.H_DEFINITIONS_OFFSET), word(layout.H_DEFINITIONS_USED)
    found = []
    position = 0
    while position < used:
        size, kind, _ = layout.DEFINITION_HEAD.unpack_from(data, start + position)
        begin = start + position + layout.DEFINITION_HEAD.size
        found.append((kind, json.loads(data[begin : begin + size])))
        position += (layout.DEFINITION_HEAD.size + size + 7) // 8 * 8
    return found
