"""The embedded runner: routing, timers, ticks, silence, delivery."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from tests.processors.runner_examples import (
    SECOND,
    START_NS,
    Clock,
    Docket,
    Watcher,
    encode_events,
    open_bus,
    rank_event,
)
from whichrank.processors.operator import Context, Timer
from whichrank.processors.runner import GAP_NS, EmbeddedRunner
from whichrank.telemetry.otlp import decode_logs
from whichrank.telemetry.records import Broken, Event, Finding, Incident, Record
from whichrank.telemetry.vocabulary import EventName
from whichrank.transport.bus import (
    TOPIC_BLOCKS,
    TOPIC_CLOCK,
    TOPIC_DLQ,
    TOPIC_FINDINGS,
    TOPIC_INCIDENTS,
    TOPIC_LOGS,
    TOPIC_REQUESTS,
)
from whichrank.transport.embedded import EmbeddedBus


class Bench:
    """A live runner over an embedded bus, with a clock to move."""

    def __init__(self, directory: Path, state: Path | None = None) -> None:
        self.clock = Clock()
        self.bus = open_bus(directory, self.clock)
        self.watcher, self.docket = Watcher(), Docket()
        self.outputs: list[Record] = []
        self.said: list[str] = []
        self.runner = EmbeddedRunner(
            self.bus, state, [self.watcher, self.docket], self.outputs.append, live=True, report=self.said.append
        )

    def hear(self, *events: Event) -> None:
        self.bus.append(TOPIC_BLOCKS, "j", encode_events(*events))

    def pass_time(self, seconds: float, step: float = 0.25) -> None:
        """Time passes in small turns, as in the loop of ``whichrank run``."""
        for _ in range(round(seconds / step)):
            self.clock.advance(step)
            self.runner.drain()

    def on_bus(self, topic: str) -> list[str]:
        return [m.key for m in self.bus.read(0, 10_000) if m.topic == topic]

    def incidents(self) -> list[tuple[str, int]]:
        return [
            (r.payload.document["id"], r.payload.document["revision"])
            for r in self.outputs
            if isinstance(r.payload, Incident)
        ]


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    made = Bench(tmp_path / "capture")
    yield made
    made.runner.close()
    made.bus.close()


def test_a_finding_reaches_the_next_operator_and_everything_the_bus(bench: Bench) -> None:
    bench.hear(rank_event(2), rank_event(2, EventName.RANK_EXIT))
    bench.runner.drain()
    assert [(type(r.payload).__name__, r.topic, r.key) for r in bench.outputs] == [
        ("Finding", TOPIC_FINDINGS, "c"),
        ("Incident", TOPIC_INCIDENTS, "j exit 2"),
        ("Event", TOPIC_REQUESTS, "n"),
    ]
    assert bench.on_bus(TOPIC_FINDINGS) == ["c"]
    assert bench.on_bus(TOPIC_INCIDENTS) == ["j exit 2"]
    assert bench.on_bus(TOPIC_REQUESTS) == ["n"]
    bench.runner.drain()
    assert len(bench.outputs) == 3, "what the runner wrote to the bus is not its input"


def test_one_call_per_message_and_key_in_arrival_order(bench: Bench) -> None:
    bench.hear(rank_event(0), rank_event(1, job="k"), rank_event(2))
    bench.clock.advance(0.1)
    bench.hear(rank_event(0))
    bench.runner.drain()
    assert bench.watcher.calls == [
        ("process", "j", START_NS, 2),
        ("process", "k", START_NS, 1),
        ("process", "j", START_NS + SECOND // 10, 1),
    ]


def test_records_nobody_wants_and_other_topics_are_passed_over(bench: Bench) -> None:
    bench.bus.append(TOPIC_LOGS, "j", encode_events(rank_event(0)))
    bench.hear(Event(name=EventName.AGENT_HEALTH, identity=rank_event(-1).identity, time_ns=1))
    assert bench.runner.drain() == 2
    assert bench.watcher.calls == bench.docket.calls == []


def test_timers_fire_before_a_record_stamped_later_and_see_their_own_time(bench: Bench) -> None:
    bench.hear(rank_event(0))
    bench.clock.advance(1)
    bench.hear(rank_event(1))
    bench.clock.advance(3.5)  # both are due by now: at 3 s and at 4 s
    bench.hear(rank_event(0))
    bench.runner.drain()
    assert [call for call in bench.watcher.calls if call[0] == "timer"] == [
        ("timer", "j", START_NS + 3 * SECOND, "absent 0"),
        ("timer", "j", START_NS + 4 * SECOND, "absent 1"),
    ]
    assert bench.watcher.calls[-1] == ("process", "j", START_NS + round(4.5 * SECOND), 1)


def test_timers_of_one_moment_fire_in_the_order_of_key_and_name(bench: Bench) -> None:
    bench.hear(rank_event(1, job="k"), rank_event(1), rank_event(0, job="k"), rank_event(0))
    bench.clock.advance(3)
    bench.hear(rank_event(5))
    bench.runner.drain()
    fired = [(key, name) for what, key, _, name in bench.watcher.calls if what == "timer"]
    assert fired == [("j", "absent 0"), ("j", "absent 1"), ("k", "absent 0"), ("k", "absent 1")]


def test_a_moved_timer_fires_once_at_its_new_time_and_a_cleared_one_never(bench: Bench) -> None:
    bench.hear(rank_event(0), rank_event(1))
    bench.pass_time(2)
    bench.hear(rank_event(0), rank_event(1, EventName.RANK_EXIT))
    bench.pass_time(4)
    fired = [(name, (now - START_NS) // 1000) for what, _, now, name in bench.watcher.calls if what == "timer"]
    assert fired == [("absent 0", 5_000_000)]


class Rearming:
    """Sets its timer anew for the moment at which it fires."""

    name = "rearming"
    contains_itself = False
    keys_are_jobs = True
    most_keys = 100

    def __init__(self) -> None:
        self.fired = 0

    def spare(self, ctx: Context) -> bool:
        return False

    def let_go(self, key: str) -> None:
        """It holds no working copy."""

    def forget(self, ctx: Context) -> None:
        for row, _ in list(ctx.state.table("counts").rows()):
            ctx.state.table("counts").delete(row)

    def key_of(self, record: Record) -> str | None:
        return "k"

    def process(self, records: Sequence[Record], ctx: Context) -> None:
        ctx.set_timer("t", ctx.now - 5)

    def on_timer(self, timer: Timer, ctx: Context) -> None:
        self.fired += 1
        if self.fired < 10:
            ctx.set_timer("t", ctx.now)


def test_a_timer_set_for_the_past_fires_in_the_future(tmp_path: Path) -> None:
    clock = Clock()
    bus = open_bus(tmp_path, clock)
    operator = Rearming()
    runner = EmbeddedRunner(bus, None, [operator], lambda record: None, live=True)
    bus.append(TOPIC_BLOCKS, "j", encode_events(rank_event(0)))
    runner.drain()
    assert operator.fired <= 1, "at most one for the tick that it asked for"
    clock.advance(0.001)
    runner.drain()
    assert operator.fired == 10
    runner.close()
    bus.close()


def test_an_idle_runner_ticks_each_second_and_at_once_for_a_due_timer(bench: Bench) -> None:
    bench.hear(rank_event(0))
    bench.runner.drain()
    bench.pass_time(2.8, step=0.1)
    assert len(bench.on_bus(TOPIC_CLOCK)) == 2
    assert bench.incidents() == []
    bench.pass_time(0.2, step=0.1)
    assert bench.incidents() == [("j absent 0", 1)], "not a beat later"


def test_input_makes_ticks_unnecessary(bench: Bench) -> None:
    for _ in range(40):
        bench.hear(rank_event(0))
        bench.pass_time(0.25)
    assert bench.on_bus(TOPIC_CLOCK) == []


def test_before_any_input_there_is_no_time_to_keep(bench: Bench) -> None:
    bench.pass_time(20)
    assert bench.on_bus(TOPIC_CLOCK) == []


def test_after_five_beats_without_input_silence_is_logged_once_and_time_stands_still(bench: Bench) -> None:
    bench.hear(rank_event(0))
    bench.pass_time(60)
    ticks = [decode_logs(m.topic, m.value)[0] for m in bench.bus.read(0, 1000) if m.topic == TOPIC_CLOCK]
    named = [tick.name for tick in ticks if isinstance(tick, Event)]
    assert named.count(EventName.INPUT_SILENT) == 1
    assert named[-1] is EventName.INPUT_SILENT
    # 5 beats, one of them perhaps doubled by the timer that was due.
    assert 5 <= named.count(EventName.TICK) <= 6
    assert bench.incidents() == [("j absent 0", 1), ("input silent", 1)]


def test_when_input_returns_absence_timers_start_anew(bench: Bench) -> None:
    bench.hear(rank_event(0), rank_event(1))
    bench.pass_time(1)
    bench.hear(rank_event(1, EventName.RANK_EXIT))
    bench.pass_time(1.5)
    # The absence of rank 0 is due in half a second, but the machine sleeps for an hour.
    bench.clock.advance(3600)
    bench.runner.drain()
    assert bench.incidents() == [("j exit 1", 1)]
    bench.hear(rank_event(7))
    bench.pass_time(2.5)
    assert bench.incidents() == [("j exit 1", 1)], "it has its full time again"
    bench.pass_time(1)
    assert ("j absent 0", 1) in bench.incidents()


def test_after_a_silence_no_timer_fires_on_the_first_input(bench: Bench) -> None:
    bench.hear(rank_event(0))
    bench.pass_time(30)
    before = bench.incidents()
    bench.hear(rank_event(0))
    bench.pass_time(1)
    assert bench.incidents() == before


def test_a_runner_that_lags_writes_no_tick_of_its_own(tmp_path: Path) -> None:
    bench = Bench(tmp_path / "capture")
    for _ in range(2000):
        bench.hear(rank_event(0))
        bench.clock.advance(0.01)
    bench.runner.drain()
    assert bench.on_bus(TOPIC_CLOCK) == []
    assert bench.incidents() == []
    bench.runner.close()
    bench.bus.close()


def test_a_restart_after_an_outage_raises_no_false_alarm(tmp_path: Path) -> None:
    bench = Bench(tmp_path / "capture", tmp_path / "state.sqlite")
    bench.hear(*(rank_event(rank) for rank in range(40)))
    bench.pass_time(1)
    bench.runner.close()
    bench.bus.close()
    again = Bench(tmp_path / "capture", tmp_path / "state.sqlite")
    again.clock.ns = bench.clock.ns
    again.clock.advance(600)
    again.runner.drain()
    again.hear(*(rank_event(rank) for rank in range(40) if rank != 7))
    again.pass_time(2)
    again.hear(*(rank_event(rank) for rank in range(40) if rank != 7))
    again.pass_time(2)
    assert again.incidents() == [("j absent 7", 1)]
    again.runner.close()
    again.bus.close()


def test_what_cannot_be_read_goes_to_the_dead_letter_queue_with_its_reason(bench: Bench) -> None:
    bench.bus.append(TOPIC_BLOCKS, "j", b"\xff\xff")
    bench.bus.append(TOPIC_BLOCKS, "j", b"\xff\xfe")
    bench.hear(rank_event(0))
    bench.runner.drain()
    assert bench.runner.broken == 2
    assert [m.value for m in bench.bus.read(0, 100) if m.topic == TOPIC_DLQ] == [b"\xff\xff", b"\xff\xfe"]
    (first, _) = [m for m in bench.bus.read(0, 100) if m.topic == TOPIC_DLQ]
    assert b"2 bytes are not an OTLP logs request" in first.headers["whichrank.dlq.reason"]
    assert [type(r.payload) for r in bench.outputs] == [Broken, Broken]
    assert len(bench.watcher.calls) == 1
    assert len(bench.said) == 1, "said once, counted always"


def test_an_output_that_its_consumer_refused_is_handed_out_again(tmp_path: Path) -> None:
    clock = Clock()
    bus = open_bus(tmp_path, clock)
    seen: list[Record] = []

    def consume(record: Record) -> None:
        if isinstance(record.payload, Incident) and not any(isinstance(r.payload, Broken) for r in seen):
            seen.append(Record(topic="", key="", stamp_ns=0, payload=Broken(topic="", reason="", value=b"")))
            raise OSError("incidents.jsonl: no space left")
        seen.append(record)

    runner = EmbeddedRunner(bus, None, [Watcher(), Docket()], consume, live=True)
    bus.append(TOPIC_BLOCKS, "j", encode_events(rank_event(0, EventName.RANK_EXIT)))
    with pytest.raises(OSError, match="no space"):
        runner.drain()
    runner.drain()
    assert [type(r.payload) for r in seen] == [Finding, Broken, Incident, Event]
    assert [m.topic for m in bus.read(0, 100)][1:] == [TOPIC_FINDINGS, TOPIC_INCIDENTS, TOPIC_REQUESTS]
    runner.close()
    bus.close()


def test_a_replay_appends_nothing_and_time_passes_when_told(tmp_path: Path) -> None:
    bench = Bench(tmp_path / "capture")
    bench.hear(rank_event(0))
    bench.runner.drain()
    bench.runner.close()
    bench.bus.close()
    bus = EmbeddedBus(tmp_path / "capture", read_only=True)
    outputs: list[Record] = []
    runner = EmbeddedRunner(bus, None, [Watcher(), Docket()], outputs.append, live=False)
    runner.drain()
    assert outputs == []
    assert bus.last_position == 1
    runner.let_time_pass(2 * SECOND)
    assert outputs == []
    runner.let_time_pass(20 * SECOND)
    assert [type(r.payload) for r in outputs][:2] == [Finding, Incident]
    assert runner.now_ns == START_NS + 22 * SECOND
    runner.close()
    bus.close()


def test_a_gap_is_longer_than_any_pause_of_a_runner_that_keeps_time(bench: Bench) -> None:
    bench.hear(rank_event(0))
    bench.pass_time(60)
    stamps = [m.stamp_ns for m in bench.bus.read(0, 1000)]
    assert max(b - a for a, b in itertools.pairwise(stamps)) < GAP_NS
