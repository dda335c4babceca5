"""Spans and metrics that an agent tells people: of real ranks and rings, decoded as a back end would."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.agents.people_messages import last_points, plain, points_of, spans_of
from whichrank.agents.base.health import AgentHealth
from whichrank.agents.base.settings import AgentSettings
from whichrank.agents.job_agent import Agent
from whichrank.agents.telemetry_export.observability_export import ObservabilityExport
from whichrank.agents.telemetry_export.rank_metrics import MAX_COLLECTIVE_SERIES
from whichrank.agents.telemetry_export.rank_spans import SpanRate
from whichrank.instrumentation.ring_writer import RingWriter
from whichrank.processors.observability_export.trace_writer import TraceWriter
from whichrank.telemetry import attributes as names
from whichrank.telemetry.incident_reading import read_incident
from whichrank.telemetry.metric_encode import METRICS
from whichrank.telemetry.otlp import decode_logs
from whichrank.telemetry.records import Event, Identity
from whichrank.telemetry.topics import TOPIC_METRICS, TOPIC_SPANS
from whichrank.telemetry.trace_identity import attempt_word, step_trace_id
from whichrank.telemetry.vocabulary import EventName, HookState, Level, Op, Phase

Start = Callable[..., Any]
Watch = Callable[..., Any]
#: Far more than these tests make: they are not about the rate.
MANY = 1e9


class Told:
    """Rings written by this process, an agent that looks at them when told to, and what it told people."""

    def __init__(self, directory: Path, **settings: Any) -> None:
        self.directory = directory
        self.spans: list[bytes] = []
        self.metrics: list[bytes] = []
        self.blocks: list[bytes] = []
        self.others: list[str] = []
        self.writers: list[RingWriter] = []
        usual: dict[str, Any] = {
            "tell_people": True,
            "spans_per_rank_s": MANY,
            "spans_period_s": 1e-6,
            "metrics_period_s": 1e-6,
            "take_stacks": False,
        }
        self.agent = Agent(
            ring_directory=directory,
            publish=self._publish,
            identity=Identity(job="job", run="run", cluster="local", node="node-a"),
            job_name="llama",
            settings=AgentSettings(**{**usual, **settings}),
        )

    def _publish(self, topic: str, key: str, value: bytes) -> None:
        {TOPIC_SPANS: self.spans, TOPIC_METRICS: self.metrics}.get(topic, self.blocks).append(value)
        self.others.append(topic)

    def rank(self, rank: int, world: int, port: str = "29500") -> RingWriter:
        writer = RingWriter.create(
            self.directory,
            rank=rank,
            local_rank=rank,
            world_size=world,
            identity={"launcher_pid": 1, "launcher_start_ticks": 7, "restart_count": 0, "MASTER_PORT": port},
        )
        writer.track_completion(True)
        writer.set_level(Level.EVENTS, HookState.COLLECTIVES_HOOKED | HookState.COMPLETION_HOOKED)
        writer.beat()
        self.writers.append(writer)
        return writer

    def look(self) -> None:
        """One look with a flush, whatever time it is."""
        self.agent._next_look_ns = self.agent._flushes.next_flush_ns = 0  # noqa: SLF001  (time is not what is tested)
        self.agent.poll()


@pytest.fixture
def told(ring_directory: Path) -> Iterator[Callable[..., Told]]:
    made: list[Told] = []

    def make(**settings: Any) -> Told:
        made.append(Told(ring_directory, **settings))
        return made[-1]

    yield make
    for each in made:
        each.agent.close()
        for writer in each.writers:
            writer.close()


def group(writer: RingWriter, name: str, world: int) -> int:
    return writer.define_group(
        {"name": name, "ranks": f"0-{world - 1}", "size": world, "backend": "gloo", "ordinal": 0}
    )


def test_one_trace_per_step_over_all_ranks(start_rank: Start, watch: Watch) -> None:
    ranks = [start_rank(0), start_rank(1)]
    watched = watch(tell_people=True, spans_per_rank_s=MANY, spans_period_s=0.05, metrics_period_s=0.05)
    watched.run_until(lambda: len(watched.events(EventName.RANK_STARTED)) == 2)
    for rank in ranks:
        rank.say("token feed")
    watched.run_until(lambda: watched.events(EventName.LAUNCH_MET))
    for rank in ranks:
        for _ in range(2):
            rank.say(f"phase {int(Phase.FORWARD)}")
            rank.say("collectives 3")
            rank.say("step 2.5")
    for rank in ranks:
        rank.say("exit 0 1", answers=False)
    watched.run_until(lambda: len(watched.events(EventName.RANK_EXIT)) == 2)
    watched.agent.close()
    spans = spans_of(watched.for_people[TOPIC_SPANS])
    for step in (0, 1):
        trace = step_trace_id("job", attempt_word(launch="", token="feed", restart_count=0), step)
        of_step = [(resource, span) for resource, span in spans if span.trace_id == trace]
        for rank_number, rank in enumerate(ranks):
            own = [(resource, span) for resource, span in of_step if resource[names.RANK] == rank_number]
            assert {resource["process.pid"] for resource, _ in own} == {rank.pid}
            (parent,) = [span for _, span in own if span.name == "step"]
            children = [span for _, span in own if span.name != "step"]
            assert {span.parent_span_id for span in children} == {parent.span_id}
            collectives = [span for span in children if span.name == "all_reduce"]
            assert [plain(span)[names.COLLECTIVE_SEQ] for span in collectives] == [3 * step + n for n in (1, 2, 3)]
            assert plain(parent)[names.STEP] == step
            assert plain(parent)[names.STEP_LOSS] == 2.5
            for span in collectives:
                assert span.start_time_unix_nano <= span.end_time_unix_nano <= parent.end_time_unix_nano
    assert len({(span.trace_id, span.span_id) for _, span in spans}) == len(spans)
    assert "forward" in {span.name for _, span in spans}


def test_metrics_count_what_happened(start_rank: Start, watch: Watch) -> None:
    ranks = [start_rank(0), start_rank(1)]
    watched = watch(tell_people=True, metrics_period_s=0.05)
    watched.run_until(lambda: len(watched.events(EventName.RANK_STARTED)) == 2)
    for rank in ranks:
        rank.say("collectives 50")
        rank.say("step 2.5")
        rank.say("step 2.5")
    for rank in ranks:
        rank.say("exit 0 1", answers=False)
    watched.run_until(lambda: len(watched.events(EventName.RANK_EXIT)) == 2)
    watched.agent.close()
    requests = watched.for_people[TOPIC_METRICS]
    last = last_points(requests)

    def of_rank(name: str, rank: int, **others: Any) -> Any:
        words = {names.JOB_ID: "job", names.NODE_ID: "node-a", names.RANK: rank, **others}
        return last[name, tuple(sorted(words.items()))]

    for rank in (0, 1):
        assert of_rank(names.METRIC_STEP_DURATION, rank).count == 2
        calls = {names.GROUP_NAME: "world", names.COLLECTIVE_OP: "all_reduce"}
        collectives = of_rank(names.METRIC_COLLECTIVE_DURATION, rank, **calls)
        assert collectives.count == 50
        assert collectives.sum == pytest.approx(of_rank(names.METRIC_RANK_WAIT, rank).as_double)
        assert 0 < collectives.start_time_unix_nano < collectives.time_unix_nano
    resources = {resource["service.name"] for resource, *_ in points_of(requests)}
    assert resources == {"job", "whichrank-agent"}
    own = {names.JOB_ID: "job", names.NODE_ID: "node-a"}
    read = last[names.METRIC_AGENT_EVENTS_READ, tuple(sorted(own.items()))]
    assert read.as_int == watched.agent.health.events_read
    assert not watched.agent.health.drops
    for _, name, attributes, _ in points_of(requests):
        assert set(attributes) <= set(METRICS[name].attributes)


def test_the_trace_writer_tells_the_same_spans_as_the_agent(start_rank: Start, watch: Watch) -> None:
    ranks = [start_rank(0), start_rank(1)]
    watched = watch(tell_people=True, spans_per_rank_s=MANY, spans_period_s=0.05)
    watched.run_until(lambda: len(watched.events(EventName.RANK_STARTED)) == 2)
    for rank in ranks:
        rank.say("token feed")
    watched.run_until(lambda: watched.events(EventName.LAUNCH_MET))
    for rank in ranks:
        for _ in range(4):
            rank.say(f"phase {int(Phase.FORWARD)}")
            rank.say("collectives 3")
            rank.say("step 2.5")
    for rank in ranks:
        rank.say("exit 0 1", answers=False)
    watched.run_until(lambda: len(watched.events(EventName.RANK_EXIT)) == 2)
    watched.agent.close()
    writer = TraceWriter()
    for stamp_ns, payload in enumerate(watched.payloads):
        writer.see(payload, stamp_ns)
    launch = watched.events(EventName.RANK_STARTED)[0].identity.attempt
    suspect = {"job": {"id": "job", "attempt": launch}, "suspects": [{"rank": 1}], "first_bad": {"step": 2}}
    assert writer.incident(read_incident({"id": "1", **suspect}), len(watched.payloads)) is not None
    written = [(resource, span.SerializeToString()) for resource, span in spans_of(writer.take())]
    assert len(written) == 2 * 4 * 4, "ranks, steps 0 to 3, a step and three operations each"
    told = [(resource, span.SerializeToString()) for resource, span in spans_of(watched.for_people[TOPIC_SPANS])]
    assert [each for each in written if each not in told] == []


def test_the_jobs_name_is_told_with_each_rank(told: Callable[..., Told]) -> None:
    job = told()
    job.rank(0, 1).end_step(1.0, None, 0)
    job.look()
    events = [payload for raw in job.blocks for payload in decode_logs("", raw) if isinstance(payload, Event)]
    (started,) = {event.attributes["job_name"] for event in events if event.name is EventName.RANK_STARTED}
    services = {resource["service.name"] for resource, _ in spans_of(job.spans)}
    assert (started, services) == ("llama", {"llama"})


def test_nothing_is_told_unless_asked_for(told: Callable[..., Told]) -> None:
    quiet = told(tell_people=False)
    writer = quiet.rank(0, 1)
    writer.end_step(1.0, None, 0)
    quiet.look()
    quiet.agent.close()
    assert quiet.others
    assert not quiet.spans
    assert not quiet.metrics


@pytest.mark.parametrize(("world", "steps"), [(64, [0, 1, 2, 3, 4, 5, 6, 7]), (129, [0, 3, 6]), (16_384, [0])])
def test_large_jobs_tell_the_same_sampled_steps(told: Callable[..., Told], world: int, steps: list[int]) -> None:
    large = told()
    writers = [large.rank(rank, world) for rank in (0, 1)]
    large.look()
    for writer in writers:
        number = group(writer, "0", world)
        for _ in range(8):
            writer.complete(number, writer.enqueue(number, Op.ALL_REDUCE, 1024, 7, -1, 0), 0, 0)
            writer.end_step(1.0, None, 0)
    large.look()
    large.agent.close()
    spans = spans_of(large.spans)
    for rank in (0, 1):
        own = [plain(span) for resource, span in spans if resource[names.RANK] == rank]
        assert [each[names.STEP] for each in own if names.STEP in each] == steps
        assert len([each for each in own if names.COLLECTIVE_SEQ in each]) == len(steps)
    counted = [point.count for _, name, _, point in points_of(large.metrics) if name == names.METRIC_STEP_DURATION]
    assert counted[-2:] == [8, 8], "every step counts, whatever is sampled"


def test_a_rank_has_fewer_than_a_hundred_series_whatever_it_does(told: Callable[..., Told]) -> None:
    wild = told()
    writer = wild.rank(0, 2)
    wild.look()
    for number in range(60):
        row = group(writer, f"group-{number}", 2)
        for op in (Op.ALL_REDUCE, Op.ALL_GATHER, Op.REDUCE_SCATTER, Op.BROADCAST):
            writer.complete(row, writer.enqueue(row, op, 1024, 7, -1, 0), 0, 0)
        writer.set_phase(list(Phase)[number % len(Phase)])
        if number % 7 == 0:
            writer.end_step(1.0, 0.5, 0)
            wild.look()
    for phase in Phase:
        writer.set_phase(phase)
    wild.look()
    wild.agent.close()
    series = {key for key in last_points(wild.metrics) if names.RANK in dict(key[1])}
    assert len(series) < 100
    collectives = [dict(words) for name, words in series if name == names.METRIC_COLLECTIVE_DURATION]
    assert MAX_COLLECTIVE_SERIES <= len(collectives) <= MAX_COLLECTIVE_SERIES + len(Op)
    assert sum(words[names.GROUP_NAME] == "other" for words in collectives) == 4
    last = last_points(wild.metrics)
    counted = sum(point.count for (name, _), point in last.items() if name == names.METRIC_COLLECTIVE_DURATION)
    assert counted == 60 * 4, "what has no series of its own is counted among the others"


def test_histograms_over_the_nodes_limit_are_counted(told: Callable[..., Told]) -> None:
    small = told(max_histograms=1)
    for rank in (0, 1):
        small.rank(rank, 2).end_step(1.0, None, 0)
    small.look()
    assert small.agent.health.drops["histograms_over_limit"] > 0
    assert len([1 for _, name, *_ in points_of(small.metrics) if name == names.METRIC_STEP_DURATION]) == 1


def test_series_end_with_their_rank_and_begin_anew_with_the_next(start_rank: Start, watch: Watch) -> None:
    watched = watch(tell_people=True, metrics_period_s=0.05)
    requests = watched.for_people[TOPIC_METRICS]
    rank = start_rank(0, identity={"MASTER_PORT": "29500"})
    rank.say("step 2.5")
    watched.run_until(lambda: requests)
    rank.kill()
    watched.run_until(lambda: watched.agent.health.rings_closed)
    watched.run_until(lambda: list(steps_in(requests[-1])))
    (last,) = steps_in(requests[-1])
    watched.run_until(lambda: not list(steps_in(requests[-1])))
    assert last.count == 1
    again = start_rank(0, identity={"MASTER_PORT": "29501"})
    for _ in range(3):
        again.say("step 2.5")
    watched.run_until(lambda: any(point.count == 3 for point in steps_in(requests[-1])))
    (point,) = steps_in(requests[-1])
    assert point.start_time_unix_nano > last.time_unix_nano
    assert plain(point) == plain(last), "another port is no other series"


def steps_in(request: bytes) -> Iterator[Any]:
    return (point for _, name, _, point in points_of([request]) if name == names.METRIC_STEP_DURATION)


def test_two_worlds_of_one_job_are_series_apart_and_one_has_no_need_of_a_name(told: Callable[..., Told]) -> None:
    job = told()
    for port, steps in (("29500", 1), ("29501", 2)):
        writer = job.rank(0, 1, port)
        for _ in range(steps):
            writer.end_step(1.0, None, 0)
        job.look()
    job.agent.close()
    found = {
        dict(words).get(names.WORLD): point.count
        for (name, words), point in last_points(job.metrics).items()
        if name == names.METRIC_STEP_DURATION
    }
    assert found == {None: 1, "29501": 2}
    for raw in job.metrics:
        series = [(name, tuple(words.items())) for _, name, words, _ in points_of([raw])]
        assert len(series) == len(set(series)), "no series twice in one report"


def test_an_agent_that_begins_again_counts_from_its_own_begin(told: Callable[..., Told]) -> None:
    """The ring still holds what the first agent has counted; a rate over both must not see it twice."""
    first = told()
    writer = first.rank(0, 1)
    number = group(writer, "0", 1)
    first.look()
    for _ in range(5):
        writer.complete(number, writer.enqueue(number, Op.ALL_REDUCE, 1024, 7, -1, 0), 0, 0)
        writer.end_step(1.0, None, 0)
    first.look()
    first.agent.close()
    second = told()
    for _ in range(2):
        writer.complete(number, writer.enqueue(number, Op.ALL_REDUCE, 1024, 7, -1, 0), 0, 0)
        writer.end_step(1.0, None, 0)
    second.look()
    starts = []
    for agent, count in ((first, 5), (second, 2)):
        last = last_points(agent.metrics)
        for metric in (names.METRIC_STEP_DURATION, names.METRIC_COLLECTIVE_DURATION):
            ((_, point),) = [each for each in last.items() if each[0][0] == metric]
            assert point.count == count
            starts.append(point.start_time_unix_nano)
    assert max(starts[:2]) < min(starts[2:])
    assert len(spans_of(second.spans)) > 2 * 2, "spans are told again: they are the same spans"


def test_what_the_way_to_kafka_drops_and_keeps_is_told() -> None:
    sent: list[bytes] = []
    settings = AgentSettings(tell_people=True)
    stats = {"kafka.sent": 9, "kafka.dropped.copies.memory_full": 4, "spool.bytes": 77}
    people = ObservabilityExport(
        settings,
        AgentHealth(),
        Identity(job="job", node="node-a"),
        "",
        lambda topic, value: sent.append(value),
        since_ns=0,
        more_health=lambda: stats,
    )
    people.tell([], clock_offset_ns=0, now_ns=1, everything=True)
    points = {(name, attributes.get(names.DROP_REASON)): point.as_int for _, name, attributes, point in points_of(sent)}
    assert points[names.METRIC_AGENT_DROPS, "kafka.dropped.copies.memory_full"] == 4
    assert points[names.METRIC_AGENT_SPOOL, None] == 77


def test_a_bug_in_what_people_get_costs_operators_nothing(
    told: Callable[..., Told], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("whichrank.agents.telemetry_export.rank_spans.step_spans", lambda *_: 1 / 0)
    job = told()
    job.rank(0, 1).end_step(1.0, None, 0)
    job.look()
    assert "whichrank.blocks" in job.others
    assert job.agent.health.drops["people_failed"] == 1
    assert any("ZeroDivisionError" in line for line in job.agent.health.problems)


def test_spans_over_the_rate_are_dropped_and_counted(told: Callable[..., Told]) -> None:
    job = told(spans_per_rank_s=1.0)
    writer = job.rank(0, 1)
    number = group(writer, "0", 1)
    for _ in range(100):  # of one step: which steps are told cannot help
        writer.complete(number, writer.enqueue(number, Op.ALL_REDUCE, 1024, 7, -1, 0), 0, 0)
    job.look()
    job.agent.close()
    assert len(spans_of(job.spans)) == 20, "ten seconds' worth at twice the rate"
    assert job.agent.health.drops["spans_over_rate"] == 80


SECOND_NS = 10**9


@given(st.lists(st.integers(0, 5000), min_size=1, max_size=200), st.floats(1.0, 100.0), st.integers(1, 16))
def test_no_more_spans_pass_than_were_saved_up(offers: list[int], limit_s: float, ranks: int) -> None:
    rate = SpanRate(limit_s)
    passed = 0
    for number, spans in enumerate(offers):
        passed += rate.admit(spans, ranks, number * SECOND_NS // 2)
        assert passed <= 2 * limit_s * ranks * (10 + number / 2) + 1


@pytest.mark.parametrize(("spans_per_s", "exponent"), [(10, 0), (19, 0), (25, 1), (300, 4), (100_000, 13)])
def test_the_choice_of_steps_follows_the_pace(spans_per_s: int, exponent: int) -> None:
    rate = SpanRate(20.0)
    for look in range(1, 60):
        rate.offer(8 * spans_per_s // 2, 8, look * SECOND_NS // 2)
    assert rate.exponent == exponent
    # Slower again: finer again, a step at a time, and no finer than the pace allows.
    for look in range(60, 400):
        rate.offer(8 * 5, 8, look * SECOND_NS // 2)
    assert rate.exponent == 0


@pytest.mark.parametrize(("covered_s", "exponent"), [(100.0, 0), (10.0, 2), (0.0, 6)])
def test_what_had_gathered_counts_for_the_time_that_it_covers(covered_s: float, exponent: int) -> None:
    rate = SpanRate(20.0)
    rate.offer(8 * 600, 8, SECOND_NS, covered_s)
    assert rate.exponent == exponent


@given(st.lists(st.integers(1, 4000), min_size=2, max_size=40), st.integers(1, 300))
def test_a_coarser_choice_is_part_of_every_finer_one(rates: list[int], every: int) -> None:
    rate = SpanRate(20.0)
    told_steps = []
    for look, spans in enumerate(rates, 1):
        rate.offer(spans, 1, look * SECOND_NS // 2)
        told_steps.append({step for step in range(0, 5000, every << rate.exponent)})
    told_steps.sort(key=len)
    for smaller, larger in pairwise(told_steps):
        assert smaller <= larger


def test_what_several_flushes_brought_is_told_whole_when_it_is_due(told: Callable[..., Told]) -> None:
    job = told(spans_period_s=1e6, metrics_period_s=1e6)
    writer = job.rank(0, 2)
    wide, narrow = group(writer, "wide", 2), group(writer, "narrow", 1)
    job.look()
    before = len(job.spans)
    for place in (narrow, wide, narrow):  # the second's number in its own block is that of another group here
        writer.complete(place, writer.enqueue(place, Op.ALL_REDUCE, 8, 1, -1, 0), 0, 0)
        writer.end_step(None, None, 0)
        job.look()
    assert len(job.spans) == before, "nothing is due yet"
    job.agent.close()
    spans = [span for _, span in spans_of(job.spans)]
    named = [plain(span)[names.GROUP_NAME] for span in spans if span.name == "all_reduce"]
    assert named == ["narrow", "wide", "narrow"]
    assert sum(span.name == "step" for span in spans) == 3
    steps = [point for _, name, _, point in points_of(job.metrics) if name == names.METRIC_STEP_DURATION]
    assert [point.count for point in steps][-1:] == [3]
