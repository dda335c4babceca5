"""What whichrank saw of a finished job, read from the capture that its verdicts rest on."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from whichrank.telemetry.otlp import decode_logs
from whichrank.telemetry.records import Block
from whichrank.telemetry.vocabulary import EventFlag, EventName, Phase, StepFlag
from whichrank.transport.bus import TOPIC_BLOCKS
from whichrank.transport.embedded import EmbeddedBus

READ_AT_ONCE = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenStep:
    seconds: dict[str, float]
    loss: float | None
    grad_norm: float | None
    skipped: bool


@dataclass(slots=True)
class SeenRank:
    """``collectives``, ``sends`` (point-to-point): (group, sequence number) -> time of the call, monotonic."""

    steps: dict[int, SeenStep] = field(default_factory=dict)
    collectives: dict[tuple[str, str, int], int] = field(default_factory=dict)
    sends: dict[tuple[str, str, int], int] = field(default_factory=dict)


def read_capture(run_folder: Path) -> dict[int, SeenRank]:
    """By rank; empty when there is no capture."""
    ranks: dict[int, SeenRank] = {}
    capture = run_folder / "capture"
    if not capture.is_dir():
        return ranks
    bus = EmbeddedBus(capture, read_only=True)
    position = 0
    try:
        while messages := bus.read(position, READ_AT_ONCE):
            position = messages[-1].position
            for message in messages:
                if message.topic != TOPIC_BLOCKS:
                    continue
                for payload in decode_logs(message.topic, message.value):
                    if isinstance(payload, Block):
                        _add(payload, ranks)
    finally:
        bus.close()
    return ranks


def _add(block: Block, ranks: dict[int, SeenRank]) -> None:
    if block.name is EventName.BLOCK_STEPS:
        for row in block.rows:
            flags = int(row["flags"])
            ranks.setdefault(int(row["rank"]), SeenRank()).steps[int(row["step"])] = SeenStep(
                seconds={phase.name.lower(): float(row["phase_ns"][phase]) / 1e9 for phase in Phase},
                loss=float(row["loss"]) if flags & StepFlag.HAS_LOSS else None,
                grad_norm=float(row["grad_norm"]) if flags & StepFlag.HAS_GRAD_NORM else None,
                skipped=bool(flags & StepFlag.SKIPPED),
            )
    elif block.name is EventName.BLOCK_COLLECTIVES:
        for row in block.rows:
            rank = ranks.setdefault(int(row["rank"]), SeenRank())
            group = block.groups[int(row["group"])]
            calls = rank.sends if row["flags"] & EventFlag.P2P else rank.collectives
            calls[(group.name, group.ranks, int(row["seq"]))] = int(row["enqueued_ns"])
