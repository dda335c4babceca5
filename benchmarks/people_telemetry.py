"""What telling people costs: microseconds per span and metric point, bytes per rank and second on the way to Kafka.

The bytes are those of everything an agent sends (blocks, events, spans, metrics) at the design's reference load, from
real ranks' rings through the real agent, in real time, compressed and framed as the producer does it
(``producer_batches``). What large jobs send is in ``cost_sheet``. The time per span is that of the encoder alone.
Run: ``python -m benchmarks.people_telemetry [--seconds 120] [--quick]``. Exit status 1 on SHORT.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

if not __package__:
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.metric_series import series_of_ranks
from benchmarks.reference_load import COLLECTIVES_PER_STEP, STEP_S, write_rank
from benchmarks.report import Report
from benchmarks.ring_load import Load, RingLoad
from whichrank.agents.base.settings import AgentSettings
from whichrank.agents.job_agent import Agent
from whichrank.evaluation.bench.producer_batches import Wire
from whichrank.telemetry import attributes as names
from whichrank.telemetry.histogram_table import HistogramTable
from whichrank.telemetry.metric_encode import histogram_attributes, metric_entry, number_attributes, number_point
from whichrank.telemetry.records import Group, Identity
from whichrank.telemetry.spans import PHASE_SPANS, TraceScope, collective_spans, phase_spans, step_spans
from whichrank.telemetry.tables import COLLECTIVES, STEPS
from whichrank.telemetry.topics import TOPIC_METRICS
from whichrank.telemetry.vocabulary import Phase, StepFlag

ASKED_US_PER_SPAN = 6.0
ASKED_US_PER_POINT = 10.0
ASKED_BYTES_PER_RANK_S = 1024.0
ASKED_SERIES_PER_RANK = 100
_RANKS = 8
#: The agent's first words (definitions, histograms that begin) are not its running cost.
_WARM_UP_S = 10.0
_ROWS, _TIMES = 1000, 21


def median_us(work: Callable[[], object], items: int) -> float:
    """Microseconds per item, median over repeats."""
    took_s = []
    for _ in range(_TIMES):
        begin_s = time.thread_time()
        work()
        took_s.append(time.thread_time() - begin_s)
    return statistics.median(took_s) * 1e6 / items


def encoder_times(report: Report) -> None:
    scope = TraceScope(job="job", attempt="token/0", clock_offset_ns=1_700_000_000 * 10**9)
    groups = [Group(uid=f"{n:016x}", name=str(n), desc="mesh_dp", ranks="0-7", size=8) for n in range(3)]
    calls = np.zeros(_ROWS, COLLECTIVES)
    calls["rank"], calls["group"], calls["op"] = np.arange(_ROWS) % 8, np.arange(_ROWS) % 3, 1 + np.arange(_ROWS) % 3
    calls["seq"], calls["step"], calls["bytes"] = np.arange(_ROWS), np.arange(_ROWS) // 160, 64 << 20
    calls["dtype"], calls["phase"], calls["peer"] = 13, 4, -1
    calls["enqueued_ns"], calls["started_ns"], calls["done_ns"] = 10**9, 2 * 10**9, 3 * 10**9
    steps = np.zeros(_ROWS, STEPS)
    steps["rank"], steps["step"] = np.arange(_ROWS) % 8, np.arange(_ROWS) // 8
    steps["end_ns"], steps["phase_ns"] = 2 * 10**9, 10**8
    steps["flags"], steps["loss"], steps["grad_norm"] = StepFlag.HAS_LOSS | StepFlag.HAS_GRAD_NORM, 2.5, 1.0
    phases = np.zeros(_ROWS, PHASE_SPANS)
    phases["rank"], phases["step"] = np.arange(_ROWS) % 8, np.arange(_ROWS) // 48
    phases["phase"], phases["begin_ns"], phases["end_ns"] = np.arange(_ROWS) % 6, np.arange(_ROWS), 10**9

    # Of one step of the reference load: a step, six phases, twenty collectives.
    collective_us = median_us(lambda: collective_spans(calls, groups, scope), _ROWS)
    step_us = median_us(lambda: step_spans(steps, scope), _ROWS)
    phase_us = median_us(lambda: phase_spans(phases, scope), _ROWS)
    for word, us in (("step", step_us), ("phase", phase_us), ("collective", collective_us)):
        report.shown(f"µs per {word} span", f"{us:.1f}")
    mean_us = (step_us + 6 * phase_us + COLLECTIVES_PER_STEP * collective_us) / (7 + COLLECTIVES_PER_STEP)
    report.at_most("µs per span, as a step of the reference load has them", ASKED_US_PER_SPAN, mean_us)

    attributes: dict[str, str | int | float | None] = {
        names.JOB_ID: "job",
        names.NODE_ID: "node-a",
        names.RANK: 3,
        names.PHASE: Phase.FORWARD.name,
    }
    table = HistogramTable(_ROWS)
    rows = np.array([table.series(n, histogram_attributes({**attributes, "n": n}), 1) for n in range(_ROWS)])
    chance = np.random.default_rng(1)
    record_us = median_us(lambda: table.record(rows, chance.lognormal(0.0, 0.3, _ROWS)), _ROWS)
    report.shown("µs per value recorded", f"{record_us:.2f}")
    histogram_us = median_us(lambda: metric_entry(names.METRIC_STEP_DURATION, table.points(2)), _ROWS)
    words = number_attributes(attributes)
    number_us = median_us(lambda: [number_point(words, 1.5, time_ns=2, start_ns=1) for _ in range(_ROWS)], _ROWS)
    report.shown("µs per number", f"{number_us:.1f}")
    report.at_most("µs per histogram point", ASKED_US_PER_POINT, histogram_us)


def bytes_at_reference_load(report: Report, seconds: float) -> None:
    work = Path(tempfile.mkdtemp(prefix="whichrank-people-", dir="/dev/shm"))
    rings = work / "rings"
    rings.mkdir(mode=0o700)
    wire = Wire()
    writers = RingLoad(rings, Load(ranks=_RANKS), write=write_rank)
    try:
        writers.wait_for_rings(rings)
        agent = Agent(
            ring_directory=rings,
            publish=None,
            publish_ranked=wire.publish,
            identity=Identity(cluster="cluster", job="reference-load", run="reference-load", node="node-0001"),
            settings=AgentSettings(tell_people=True),
        )
        begin_s = time.monotonic()
        while (now_s := time.monotonic()) < begin_s + _WARM_UP_S + seconds:
            agent.wait(0.25)
            agent.poll()
        passed_s = now_s - begin_s - _WARM_UP_S
        sizes = wire.sizes(begin_s + _WARM_UP_S)
        agent.close()
    finally:
        writers.stop()
        shutil.rmtree(work, ignore_errors=True)
    rank_s = _RANKS * passed_s
    for topic, size in sorted(sizes.items()):
        report.shown(
            f"{topic}: bytes per rank and second", f"{size.wire / rank_s:.0f} ({size.plain / rank_s:.0f} plain)"
        )
    total = sum(size.wire for size in sizes.values()) / rank_s
    report.at_most("everything: bytes per rank and second on the wire", ASKED_BYTES_PER_RANK_S, total)
    events = _RANKS * passed_s / STEP_S * COLLECTIVES_PER_STEP
    report.at_least("collectives read, of those the load makes", 0.9 * events, agent.health.events_read / 2)
    report.at_most("events, spans or series dropped", 0, agent.health.events_lost + sum(agent.health.drops.values()))
    last = [each.value for each in wire.published if each.topic == TOPIC_METRICS][-1:]
    report.at_most("series per rank", ASKED_SERIES_PER_RANK, max(series_of_ranks(last).values(), default=0))


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--seconds", type=float, default=120.0)
    parser.add_argument("--quick", action="store_true", help="20 seconds")
    options = parser.parse_args(arguments)
    report = Report(f"telling people: {_RANKS} ranks at the reference load")
    encoder_times(report)
    bytes_at_reference_load(report, 20.0 if options.quick else options.seconds)
    return report.finish()


if __name__ == "__main__":
    sys.exit(main())
