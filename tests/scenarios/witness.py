"""Whether whichrank was really watching: a quiet run proves something only when every step of it was captured."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

from whichrank.telemetry.otlp import decode_logs
from whichrank.telemetry.records import Block
from whichrank.telemetry.vocabulary import EventName
from whichrank.transport.bus import TOPIC_BLOCKS
from whichrank.transport.embedded import EmbeddedBus

READ_AT_ONCE = 1000


def steps_captured(run_folder: Path) -> dict[int, int]:
    """Number of steps of each rank in the capture of a finished run; empty when there is none.

    Every attempt counts from 0, so its steps are others than those of the attempts before.
    """
    capture = run_folder / "capture"
    if not capture.is_dir():
        return {}
    bus = EmbeddedBus(capture, read_only=True)
    steps: dict[int, set[tuple[str, int]]] = defaultdict(set)
    position = 0
    try:
        while messages := bus.read(position, READ_AT_ONCE):
            position = messages[-1].position
            for message in messages:
                if message.topic != TOPIC_BLOCKS:
                    continue
                for payload in decode_logs(message.topic, message.value):
                    if isinstance(payload, Block) and payload.name is EventName.BLOCK_STEPS:
                        for rank, step in zip(payload.rows["rank"], payload.rows["step"], strict=True):
                            steps[int(rank)].add((payload.identity.attempt, int(step)))
    finally:
        bus.close()
    return {rank: len(seen) for rank, seen in sorted(steps.items())}


def steps_done(truth_folder: Path) -> dict[int, int]:
    """Number of different steps that each rank really ended, by its own record; an attempt may repeat some."""
    return {
        int(path.stem.rsplit("-", 1)[1]): len({line.split()[0] for line in path.read_text().splitlines()})
        for path in truth_folder.glob("steps-*.txt")
    }
