"""What jobs of 8,192 and 16,384 ranks cost at the reference load: Kafka, series, spans, logs, and the judge's CPU.

Sizes are those of one node's real agent (``node_cost``; ``failing_ranks`` where it fails), in batches as the producer
makes them, times the number of nodes. Their groups are hosts', and no collectors look: what a job of devices with all
of them costs the judge is ``whichrank bench --cost``. The judge gets all nodes (``whole_job``); with ``--ranks`` a
job of fewer, and its time is multiplied: no verdict then, since a message costs more where there are more ranks.
Run: ``python -m benchmarks.cost_sheet [--ranks N] [--quick] [--only sizes|judge]``. Exit status 1 on SHORT.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

if not __package__:
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.failing_ranks import Failure, fail
from benchmarks.metric_series import series_of, series_of_ranks
from benchmarks.node_cost import HANG_S, Node, cuts_per_s, first_step, observe, spans_in
from benchmarks.reference_load import STEP_S
from benchmarks.report import Report
from benchmarks.stepped_node import RANKS_PER_NODE
from benchmarks.whole_job import Cost, Sent, WholeJob
from whichrank.agents.base.settings import AgentSettings
from whichrank.evaluation.bench.producer_batches import Size
from whichrank.processors.observability_export.trace_writer import TraceWriterSettings
from whichrank.telemetry.ring_layout import C_EXC_STACK_MAX, C_EXC_TEXT_MAX
from whichrank.telemetry.topics import TOPIC_CLOCK, TOPIC_LOGS, TOPIC_METRICS
from whichrank.telemetry.vocabulary import EventName

WORLDS = (8_192, 16_384)
ASKED_BYTES_PER_RANK_S = 100.0
ASKED_SERIES_PER_RANK = 100.0
ASKED_CORES = 1.0
REPLICATION = 3
#: That the judge gets: in a smaller job steps are told whole too often for two windows.
FEWEST_RANKS = 1_280
DAY_S = 86_400.0
_SOUND, _ODD, _GUILTY = 1, 3, 5
_MB, _GB = 1e6, 1e9
#: Sentence, attributes and resource beside the text and the stack of an exception, and its exit.
_AROUND_EXCEPTION = 4096


# --- steady -----------------------------------------------------------------------------------------------------------
def steady(report: Report, node: Node) -> None:
    world = node.world_size
    nodes = world // RANKS_PER_NODE
    share = {"k": RANKS_PER_NODE, "n": world}
    report.shown(
        f"{world:,} ranks, steady", f"one node of {RANKS_PER_NODE} ranks x {nodes:,}; 1 step of {node.k} whole"
    )
    rates = node.rates()
    for topic, (plain, stored, wire) in rates.items():
        report.shown(
            f"{world:,}: {topic}, in; and with replication {REPLICATION}",
            f"{nodes * stored / _MB:,.2f} MB/s, {nodes * stored * DAY_S / _GB:,.0f} GB/day; "
            f"{REPLICATION * nodes * stored * DAY_S / _GB:,.0f} GB/day "
            f"({wire / RANKS_PER_NODE:,.0f} B/s a rank, {plain / RANKS_PER_NODE:,.0f} before compression)",
        )
    cuts = cuts_per_s()
    stored = nodes * sum(rate[1] for rate in rates.values()) + cuts.stored
    report.shown(f"{world:,}: {TOPIC_CLOCK}, in", f"{cuts.stored / _MB:,.4f} MB/s at most, however many ranks")
    report.shown(
        f"{world:,}: Kafka, all topics, in; and with replication {REPLICATION}",
        f"{stored / _MB:,.2f} MB/s, {stored * DAY_S / _GB:,.0f} GB/day; "
        f"{REPLICATION * stored / _MB:,.2f} MB/s, {REPLICATION * stored * DAY_S / _GB:,.0f} GB/day",
    )
    wire = sum(rate[2] for rate in rates.values()) / RANKS_PER_NODE + cuts.wire / world
    report.at_most(f"{world:,}: bytes a rank and second on the wire, everything", ASKED_BYTES_PER_RANK_S, wire, **share)
    report.shown(
        f"{world:,}: of it lists of the groups' members in blocks",
        f"{node.member_lists() / RANKS_PER_NODE:,.0f} B/s a rank",
    )
    first = first_step(world, node.node)
    report.shown(
        f"{world:,}: first step of a job, with all definitions, all topics",
        f"{nodes * first.stored / _MB:,.0f} MB ({nodes * first.plain / _MB:,.0f} plain)",
    )
    metrics = [each.value for each in node.wire.published if each.topic == TOPIC_METRICS]
    series, of_ranks = series_of(metrics), series_of_ranks(metrics)
    report.shown(f"{world:,}: active series", f"{nodes * len(series):,}: {len(series)} of a node x {nodes:,}")
    report.at_most(
        f"{world:,}: series of a rank, its share of the agent's with it",
        ASKED_SERIES_PER_RANK,
        max(of_ranks.values(), default=0) + (len(series) - sum(of_ranks.values())) / RANKS_PER_NODE,
        **share,
    )
    spans_s = node.spans_s()
    report.shown(f"{world:,}: spans a second", f"{nodes * spans_s:,.0f}")
    limit = AgentSettings().spans_per_rank_s
    report.at_most(
        f"{world:,}: spans a rank and second (cap: AgentSettings.spans_per_rank_s)",
        limit,
        spans_s / RANKS_PER_NODE,
        **share,
    )
    logs = nodes * rates.get(TOPIC_LOGS, (0.0, 0.0, 0.0))[0]
    report.shown(f"{world:,}: logs as a store takes them", f"{logs * DAY_S / _GB:,.1f} GB/day before compression")
    report.at_most(f"{world:,}: events, spans or series dropped", 0, node.drops)


# --- after a fault ----------------------------------------------------------------------------------------------------
def burst(report: Report, world: int, failure: Failure, settings: AgentSettings) -> None:
    """Every rank of every node raises, with all that its ring can hold, and exits."""
    nodes = world // RANKS_PER_NODE
    share = {"k": RANKS_PER_NODE, "n": world}
    report.shown(f"{world:,} ranks, all fail", f"one node of {RANKS_PER_NODE} ranks x {nodes:,}; in all, not a second")
    for topic, size in sorted(failure.sizes.items()):
        report.shown(
            f"{world:,}: burst on {topic}",
            f"{nodes * size.stored / _MB:,.0f} MB ({nodes * size.plain / _MB:,.0f} plain)",
        )
    report.all_of(
        f"{world:,}: ranks whose exception and exit were told",
        min(failure.events[EventName.RANK_EXCEPTION], failure.events[EventName.RANK_EXIT]),
        RANKS_PER_NODE,
    )
    logs = failure.sizes.get(TOPIC_LOGS, Size()).plain
    report.at_most(
        f"{world:,}: log bytes of a rank that fails (cap: ring_layout.C_EXC_TEXT_MAX, C_EXC_STACK_MAX)",
        C_EXC_TEXT_MAX + C_EXC_STACK_MAX + _AROUND_EXCEPTION,
        logs / RANKS_PER_NODE,
        **share,
    )
    report.at_most(
        f"{world:,}: stacks a node and minute (cap: AgentSettings.stacks_per_minute)",
        settings.stacks_per_minute,
        failure.events[EventName.RANK_STACK],
        **share,
    )
    tokens = 2 * settings.spans_per_rank_s * 10.0  # SpanRate.admit: ten seconds' worth at twice the rate
    spans = spans_in(failure.published)
    report.at_most(
        f"{world:,}: spans of a rank in the burst (cap: rank_spans.SpanRate.admit)",
        tokens,
        spans / RANKS_PER_NODE,
        **share,
    )
    report.at_most(f"{world:,}: dropped in the burst", 0, failure.dropped)


# --- the judge --------------------------------------------------------------------------------------------------------
def judge(report: Report, world: int, ranks: int) -> None:
    """All nodes' blocks through operators, runner and state; then the hang, and what is told of it.

    ranks: of the job that it really gets, whose cost is multiplied up to that of ``world``.
    """
    sound, odd, times = observe(ranks, _SOUND), observe(ranks, _ODD, (_GUILTY,)), world / ranks
    with tempfile.TemporaryDirectory(prefix="whichrank-cost-") as folder:
        job = WholeJob(
            Path(folder),
            Sent.of(sound.node, sound.wire.published),
            ranks // RANKS_PER_NODE,
            [Sent.of(odd.node, odd.wire.published)],
        )
        start = job.feed(sound.whole_s)
        whole, plain = job.feed(sound.plain_s), job.feed(sound.end_s)
        before = list(job.incidents)
        hung = job.feed(sound.end_s + STEP_S + HANG_S)
        state_bytes, rows, memory = job.state_bytes, job.state_rows, WholeJob.memory_bytes()
        incidents, wire = job.incidents, job.wire
        job.close()
    share = {"k": ranks, "n": world}
    scaled = f", {ranks:,} ranks x {times:g}" if times != 1 else ""
    report.shown(
        f"{world:,}: the judge's messages", f"{_per_s(sound, whole, plain, times)} a second before compression{scaled}"
    )
    cores = times * sound.mean(whole.cpu_s, plain.cpu_s)
    if ranks == world:
        report.at_most(f"{world:,}: the judge's cores", ASKED_CORES, cores, **share)
    else:
        report.shown(f"{world:,}: the judge's cores{scaled}: no verdict", f"{cores:.2f}")
    report.shown(
        f"{world:,}: its CPU time for the first {start.load_s:.0f} s of the job, {ranks:,} ranks",
        f"{start.cpu_s:.1f} s",
    )
    report.shown(
        f"{world:,}: cores in a window with a whole step, without, in a hang{scaled}",
        ", ".join(f"{times * cost.cpu_s / cost.load_s:.2f}" for cost in (whole, plain, hung)),
    )
    report.shown(
        f"{world:,}: its memory, its state on disk",
        f"{memory / _MB:,.0f} MB (this process), {state_bytes / _MB:,.0f} MB in {rows:,} rows; {ranks:,} ranks",
    )
    own = sum(size.stored for size in wire.sizes(sound.whole_s, sound.end_s).values())
    report.shown(
        f"{world:,}: published by the judge while all is well",
        f"{own / (sound.end_s - sound.whole_s):,.0f} B/s, and cuts ({cuts_per_s().stored:,} B/s)",
    )
    report.at_most(f"{world:,}: incidents of the sound job", 0, len(before), **share)
    right = {rank for document in incidents for rank in suspects(document)} == {_ODD * RANKS_PER_NODE + _GUILTY}
    report.all_of(
        f"{world:,}: the hang is one incident, of the rank that did not come",
        int(right and len({document["id"] for document in incidents}) == 1),
        1,
    )
    told = wire.between(sound.end_s)
    cap = TraceWriterSettings()
    report.at_most(
        f"{world:,}: spans told of the incident (cap: TraceWriterSettings.burst_spans)", cap.burst_spans, spans_in(told)
    )
    logs = wire.sizes(sound.end_s).get(TOPIC_LOGS, Size()).plain
    report.shown(f"{world:,}: log bytes of the incident's revisions", f"{logs:,}")


def _per_s(node: Node, whole: Cost, plain: Cost, times: float) -> str:
    messages = times * node.mean(whole.messages, plain.messages)
    return f"{messages:,.0f}, {times * node.mean(whole.plain, plain.plain) / _MB:,.1f} MB"


def suspects(document: Mapping[str, object]) -> Sequence[int]:
    found = document["suspects"]
    assert isinstance(found, Sequence)
    return [suspect["rank"] for suspect in found]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--ranks", type=int, help="of the job that the judge gets; its time is multiplied")
    parser.add_argument(
        "--quick", action="store_true", help="a job of few ranks: a look at the judge, sizes are the same"
    )
    parser.add_argument("--world", type=int, action="append", help=f"instead of {WORLDS}")
    parser.add_argument("--only", choices=("sizes", "judge"))
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    worlds = tuple(options.world or WORLDS)
    ranks = min(FEWEST_RANKS if options.quick else options.ranks or worlds[-1], worlds[-1])
    if ranks < FEWEST_RANKS or ranks % RANKS_PER_NODE:
        parser.error(f"--ranks: a multiple of {RANKS_PER_NODE}, at least {FEWEST_RANKS}")
    report = Report("cost sheet at the reference load: measured on one node, multiplied", as_json=options.json)
    settings = AgentSettings(tell_people=True)
    for world in worlds if options.only != "judge" else ():
        steady(report, observe(world, _SOUND))
        burst(report, world, fail(world, _SOUND, settings), settings)
    if options.only != "sizes":
        judge(report, worlds[-1], ranks)
    return report.finish()


if __name__ == "__main__":
    sys.exit(main())
