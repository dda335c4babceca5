"""Time in the stages: nothing fires before what came before it, and none while nobody could be heard."""

from __future__ import annotations

from collections.abc import Sequence

from tests.processors.flink.local_stages import DictState
from tests.processors.runner_examples import SECOND, START_NS, Watcher, encode_events, rank_event
from whichrank.processors.cluster.operator import ClusterOperator
from whichrank.processors.flink.idleness import HEARD, IdlenessDetector
from whichrank.processors.flink.shard import Shard
from whichrank.processors.flink.stage_elements import (
    PHASE_MESSAGE,
    Element,
    ElementSort,
    KafkaOutput,
    Stage,
    StageOutput,
    StreamPlace,
    unpacked,
)
from whichrank.telemetry.topics import TOPIC_BLOCKS, TOPIC_FINDINGS


def mark(at_s: float, *, heard: bool) -> Element:
    place = StreamPlace(stamp_ns=START_NS + round(at_s * SECOND), phase=PHASE_MESSAGE)
    return Element(stage=Stage.IDLENESS, shard="all", sort=ElementSort.MARK, place=place, key=HEARD if heard else "")


def told(out: Sequence[StageOutput]) -> list[tuple[str, float]]:
    """What one shard is told, with its time in seconds."""
    return [
        (each.sort.value, (each.place.stamp_ns - START_NS) / SECOND)
        for each in out
        if isinstance(each, Element) and (each.stage, each.shard) == (Stage.JOBS, "0")
    ]


def ms(at_s: float) -> int:
    return (START_NS + round(at_s * SECOND)) // 1_000_000


def told_of(marks: Sequence[tuple[float, bool]], until_s: float) -> list[tuple[str, float]]:
    detector = IdlenessDetector(DictState())
    for at_s, heard in reversed(marks):
        detector.take(mark(at_s, heard=heard))
    return told(detector.advance(ms(until_s)))


def test_beats_alone_let_time_stand_after_six_seconds_until_something_is_heard() -> None:
    beats = [(0.25 * number, False) for number in range(1, 60)]
    assert told_of([(0.0, True), *beats, (15.0, True)], 20.0) == [("pause", 6.0), ("resume", 15.0)]


def test_a_job_that_speaks_lets_time_go_on() -> None:
    assert told_of([(0.5 * number, True) for number in range(40)], 30.0) == []


def test_where_nobody_kept_time_it_stood_from_the_last_word_on() -> None:
    assert told_of([(0.0, True), (1.0, True), (60.0, True)], 61.0) == [("pause", 1.0), ("resume", 60.0)]


def test_the_detector_goes_on_from_its_state() -> None:
    state = DictState()
    detector = IdlenessDetector(state)
    detector.take(mark(0.0, heard=True))
    detector.take(mark(3.5, heard=False))
    detector.take(mark(7.0, heard=False))
    assert told(detector.advance(ms(3.0))) == []
    assert told(IdlenessDetector(state).advance(ms(7.0))) == [("pause", 7.0)]
    again = IdlenessDetector(state)
    again.take(mark(8.0, heard=True))
    assert told(again.advance(ms(9.0))) == [("resume", 8.0)]


class OneShard:
    """A shard of jobs that runs ``Watcher``: 3 s without an event of a rank is a finding."""

    def __init__(self) -> None:
        self.state = DictState()
        self.shard = self.made()
        self._offset = 0

    def made(self) -> Shard:
        return Shard(Stage.JOBS, "0", self.state, [Watcher(), ClusterOperator()], print)

    def event(self, at_s: float, rank: int = 0) -> None:
        self._offset += 1
        self.take(ElementSort.MESSAGE, at_s, encode_events(rank_event(rank)))

    def take(self, sort: ElementSort, at_s: float, value: bytes = b"") -> None:
        phase = {ElementSort.PAUSE: 3, ElementSort.RESUME: 0}.get(sort, PHASE_MESSAGE)
        place = StreamPlace(START_NS + round(at_s * SECOND), phase, TOPIC_BLOCKS, 0, self._offset)
        element = Element(stage=Stage.JOBS, shard="0", sort=sort, place=place, topic=TOPIC_BLOCKS, key="j", value=value)
        self.shard.take(unpacked(Stage.JOBS, "0", element.packed()))

    def findings(self, until_s: float) -> list[KafkaOutput]:
        out = self.shard.advance(ms(until_s))
        return [each for each in out if isinstance(each, KafkaOutput) and each.topic == TOPIC_FINDINGS]


def test_an_absence_is_told_when_time_has_passed_and_not_before() -> None:
    one = OneShard()
    one.event(0.0)
    assert one.findings(2.9) == []
    assert one.shard.wake_ms() == ms(3.0)
    assert len(one.findings(3.5)) == 1


def test_a_backlog_is_read_before_any_timer_although_the_timer_is_long_due() -> None:
    one = OneShard()
    one.event(0.0)
    one.findings(0.5)
    one.shard = one.made()  # an outage: nobody read for 60 s, while the rank told of itself each second
    for second in range(60, 0, -1):
        one.event(float(second))
    assert one.findings(61.0) == []


def test_no_timer_fires_while_time_stands_and_it_runs_in_full_afterwards() -> None:
    one = OneShard()
    one.event(0.0)
    one.take(ElementSort.PAUSE, 1.0)
    assert one.findings(50.0) == []
    one.shard = one.made()
    one.take(ElementSort.RESUME, 60.0)
    assert one.findings(62.5) == []
    assert len(one.findings(63.5)) == 1


def test_what_waits_is_kept_over_a_restart() -> None:
    one = OneShard()
    one.event(0.0)
    one.event(1.0, rank=1)
    one.shard = one.made()
    assert one.shard.lag_of_state[1] == 2
    assert len(one.findings(3.2)) == 1
    assert len(one.findings(4.2)) == 1
