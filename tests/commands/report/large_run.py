"""The folder of a run of many ranks, as agents would have told it: blocks and events, encoded. Not a test module.

One rank works longer in each step from ``SLOW_FROM`` on, so that all others stand in the collective and it does not; or
it stays in the last step, and the others wait.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from tests.commands.incidents.documents import document
from whichrank.telemetry.incident import canonical_line
from whichrank.telemetry.otlp import encode_payloads
from whichrank.telemetry.records import Block, Event, Group, Identity
from whichrank.telemetry.tables import DEVICE_STEPS, GROUP_PROGRESS, PROGRESS, STEPS
from whichrank.telemetry.vocabulary import EventName
from whichrank.transport.bus import TOPIC_BLOCKS
from whichrank.transport.embedded import EmbeddedBus

STEP_COUNT, SLOW_FROM = 40, 16
_STEPS_AT_ONCE = 8
RANKS_PER_NODE = 8
START_NS = 1_790_000_000_000_000_000
_MS = 1_000_000
_STEP_NS, _STOOD_NS, _LATE_NS, _NOISE_NS = 2000 * _MS, 500 * _MS, 250 * _MS, 30 * _MS
_STAYS_NS = 20_000 * _MS


def make_large_run(
    folder: Path, *, ranks: int, guilty: int, stays: bool = False, seed: int = 1, job: str = "job-1", name: str = "llm"
) -> Path:
    """stays: in the last step, instead of being slow."""
    draws = np.random.default_rng(seed)
    group = (Group(uid="world", name="world", ranks=f"0-{ranks - 1}", size=ranks, backend="nccl", is_default=True),)
    now_ns = 0
    bus = EmbeddedBus(folder / "capture", start_wall_ns=START_NS, monotonic_ns=lambda: now_ns)
    started = Event(
        name=EventName.JOB_STARTED,
        identity=_identity(job, 0),
        time_ns=START_NS,
        attributes={"job_name": name, "world_size": ranks},
    )
    bus.append(TOPIC_BLOCKS, job, encode_payloads([started]))
    for step in range(0, STEP_COUNT, _STEPS_AT_ONCE):
        is_end = step + _STEPS_AT_ONCE == STEP_COUNT
        now_ns = (step + _STEPS_AT_ONCE) * _STEP_NS + (_STAYS_NS if stays and is_end else 0)
        for first in range(0, ranks, RANKS_PER_NODE):
            of_node = np.arange(first, min(first + RANKS_PER_NODE, ranks))
            tables = _of_steps(of_node, np.arange(step, step + _STEPS_AT_ONCE), guilty, draws, stays=stays)
            if stays and is_end:
                tables += _of_the_end(of_node, guilty)
            blocks = [
                Block(
                    name=block_name,
                    identity=_identity(job, first // RANKS_PER_NODE),
                    rows=rows,
                    groups=group,
                    clock_offset_ns=START_NS,
                    time_ns=START_NS + now_ns,
                )
                for block_name, rows in tables
            ]
            bus.append(TOPIC_BLOCKS, job, encode_payloads(blocks))
    bus.close()
    _write_said(folder, guilty, ranks, stays=stays, job=job, name=name)
    return folder


def _identity(job: str, node: int) -> Identity:
    return Identity(cluster="local", run="run-1", job=job, attempt="a" * 16, node=f"node-{node:05}")


def _of_steps(
    ranks: np.ndarray, steps: np.ndarray, guilty: int, draws: np.random.Generator, *, stays: bool
) -> list[tuple[EventName, np.ndarray]]:
    """What one node's agent tells of its ranks while they train."""
    told, sums = np.zeros(ranks.size * steps.size, STEPS), np.zeros(ranks.size * steps.size, DEVICE_STEPS)
    for rows in (told, sums):
        rows["rank"], rows["step"] = np.repeat(ranks, steps.size), np.tile(steps, ranks.size)
    is_late = (told["rank"] == guilty) & (told["step"] >= SLOW_FROM) & (not stays)
    told["begin_ns"] = told["step"] * _STEP_NS
    told["end_ns"] = told["begin_ns"] + _STEP_NS
    told["collectives"] = sums["calls"] = 8
    sums["stood_ns"] = _STOOD_NS + draws.normal(0, _NOISE_NS, sums.size) - is_late * _LATE_NS
    return [(EventName.BLOCK_STEPS, told), (EventName.BLOCK_DEVICE_STEPS, sums)]


def _of_the_end(ranks: np.ndarray, guilty: int) -> list[tuple[EventName, np.ndarray]]:
    """All but one wait in a collective."""
    progress, waits = np.zeros(ranks.size, PROGRESS), np.zeros(ranks.size, GROUP_PROGRESS)
    is_guilty = ranks == guilty
    progress["rank"] = waits["rank"] = ranks
    progress["step"], progress["step_age_ns"] = STEP_COUNT, _STAYS_NS
    progress["read_ns"] = STEP_COUNT * _STEP_NS + _STAYS_NS
    progress["open"] = waits["open"] = ~is_guilty
    waits["enqueued"] = STEP_COUNT * 8 + ~is_guilty
    waits["started"], waits["completed"] = waits["enqueued"], STEP_COUNT * 8
    waits["open_age_ns"] = np.where(is_guilty, 0, _STAYS_NS - 1000 * _MS)
    return [(EventName.BLOCK_PROGRESS, progress), (EventName.BLOCK_GROUP_PROGRESS, waits)]


def _write_said(folder: Path, guilty: int, ranks: int, *, stays: bool, job: str, name: str) -> None:
    """What was found, and how the run ended."""
    onset = START_NS / 1e9 + (STEP_COUNT if stays else SLOW_FROM) * _STEP_NS / 1e9
    suspect = {"scope": "rank", "id": str(guilty), "rank": guilty, "node": f"node-{guilty // RANKS_PER_NODE:05}"}
    said = document(
        kind="rank_not_entered" if stays else "rank_slow",
        bucket="communication_hang" if stays else "speed_regression",
        severity="page" if stays else "ticket",
        job={"id": job, "name": name, "attempt": "a" * 16, "run": "run-1"},
        suspects=[{**suspect, "pid": 4711, "probability": 0.9}],
        victims={"count": ranks - 1, "ranks": f"0-{ranks - 1}"},
        coverage={"ranks_seen": ranks, "ranks_expected": ranks},
        times={"onset": onset, "detected": onset + 4.0},
        first_bad={"step": STEP_COUNT if stays else SLOW_FROM},
        evidence=[{"signal": "steps", "source": f"rank {guilty}", "time": onset + 4.0, "shows": "it waits for nobody"}],
        ruled_out=[],
        advice={"action": "drain_after_job", "by": "human", "text": f"take {suspect['node']} out"},
    )
    (folder / "incidents.jsonl").write_bytes(canonical_line(said))
    (folder / "run.json").write_text(json.dumps({"schema": 1, "started": START_NS / 1e9, "ended": onset + 30.0}))
