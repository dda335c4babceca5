"""What collectors saw reaches the bus as events of the right rank and as metrics that can be read back."""

from __future__ import annotations

import time
from collections.abc import Mapping

from tests.agents.collectors.test_schedule import plan
from whichrank.agents.base.priority import Priority
from whichrank.agents.collectors.base.collector import Collected, NodeEvent
from whichrank.agents.collectors.schedule import NodeTelemetry, Seen
from whichrank.agents.node_reports import MAX_EVENTS, NodeReports
from whichrank.telemetry.otlp import decode_logs
from whichrank.telemetry.otlp_metrics import decode_metrics
from whichrank.telemetry.records import Event, Identity, Point, Samples
from whichrank.telemetry.topics import TOPIC_BLOCKS, TOPIC_LOGS, TOPIC_METRICS
from whichrank.telemetry.vocabulary import EventName

OWN = Identity(cluster="c", node="n1", job="not ours", rank=9)


class Told(NodeTelemetry):
    """Says what a test wants to be seen."""

    def __init__(self) -> None:
        super().__init__([], report=print)
        self.seen: list[Collected] = []

    def take(self) -> list[Seen]:
        seen, self.seen = self.seen, []
        return [Seen(collector="test", collected=collected) for collected in seen]


class Desk:
    def __init__(self, metrics: list[str] | None = None) -> None:
        self.telemetry = Told()
        self.ranks: dict[int, Identity] = {}
        self.sent: list[tuple[str, str, bytes, Priority]] = []
        self.reports = NodeReports(
            self.telemetry,
            OWN,
            lambda *message: self.sent.append(message),
            rank_processes=self.rank_processes,
            request_bytes=100_000,
            metrics=metrics,
        )

    def rank_processes(self) -> Mapping[int, Identity]:
        return dict(self.ranks)

    def turn(self, *happenings: NodeEvent, points: tuple[Point, ...] = ()) -> None:
        self.telemetry.seen.append(Collected(points=points, happenings=happenings))
        self.reports.turn()

    @property
    def events(self) -> list[Event]:
        found = [p for topic, _, value, _ in self.sent if topic == TOPIC_BLOCKS for p in decode_logs(topic, value)]
        return [payload for payload in found if isinstance(payload, Event)]


def device(pid: int, gpu: str) -> NodeEvent:
    return NodeEvent(name=EventName.RANK_DEVICE, time_ns=1, pid=pid, attributes={"gpu_uuid": gpu})


def test_a_kernel_event_is_the_nodes_and_is_copied_for_people() -> None:
    desk = Desk()
    desk.turn(NodeEvent(name=EventName.KERNEL_EVENT, time_ns=5, attributes={"event": "xid", "code": "79"}))
    (event,) = desk.events
    assert event.identity == Identity(cluster="c", node="n1")
    assert event.attributes == {"event": "xid", "code": "79"}
    assert [(topic, priority) for topic, _, _, priority in desk.sent] == [
        (TOPIC_BLOCKS, Priority.RANK_EVENTS),
        (TOPIC_LOGS, Priority.COPIES),
    ]


def test_a_ranks_device_is_told_when_both_are_known_whichever_comes_first() -> None:
    desk = Desk()
    rank = Identity(cluster="c", run="r", job="j", attempt="a", node="n1", rank=3)
    desk.turn(device(40, "GPU-1"))
    assert desk.events == []
    desk.ranks[40] = rank
    desk.turn()
    desk.turn(device(41, "GPU-2"))
    desk.turn()
    (event,) = desk.events
    assert event.identity == rank
    assert event.attributes == {"pid": 40, "gpu_uuid": "GPU-1"}


def test_what_the_scheduler_says_of_a_job_gets_its_name_when_that_is_known() -> None:
    desk = Desk()
    limit = NodeEvent(
        name=EventName.SCHEDULER,
        time_ns=1,
        pid=40,
        attributes={"scheduler": "slurm", "what": "time_limit", "job": "4711", "end_s": 9.0},
    )
    desk.turn(limit)
    desk.ranks[40] = Identity(cluster="c", job="j", attempt="a", node="n1", rank=3)
    desk.turn()
    desk.turn()
    first, again = desk.events
    assert (first.identity.job, again.identity.job) == ("", "j")
    assert (first.time_ns, again.time_ns) == (1, 1)
    assert again.attributes == {**limit.attributes, "pid": 40}


def test_points_come_back_as_they_were_and_unknown_metrics_stay_here() -> None:
    desk = Desk()
    known = Point(name="whichrank.collector.late", value=2.5, attributes={"whichrank.collector": "gpu"}, time_ns=7)
    desk.turn(points=(known, Point(name="nobody.knows.this", value=1.0, time_ns=7)))
    ((topic, key, value, _),) = desk.sent
    assert (topic, key) == (TOPIC_METRICS, "n1")
    (samples,) = decode_metrics(topic, value, lambda name: True)
    assert isinstance(samples, Samples)
    assert (samples.identity.node, samples.identity.cluster) == ("n1", "c")
    (point,) = samples.points
    assert (point.name, point.value, point.time_ns) == (known.name, 2.5, 7)
    assert point.attributes["whichrank.collector"] == "gpu"


def test_where_nobody_reads_them_metrics_are_not_sent() -> None:
    desk = Desk(metrics=["whichrank.collector.failures"])
    desk.turn(points=(Point(name="whichrank.collector.late", value=2.5, time_ns=7),))
    assert desk.sent == []


def test_a_storm_is_cut_and_counted() -> None:
    desk = Desk()
    line = NodeEvent(name=EventName.KERNEL_EVENT, time_ns=5, attributes={"event": "xid", "code": "13"})
    desk.turn(*[line] * (MAX_EVENTS + 10))
    assert len(desk.events) == MAX_EVENTS
    assert desk.reports.counters["collectors.events_dropped"] == 10


def test_a_real_collector_is_heard_through() -> None:
    sent: list[tuple[str, str, bytes, Priority]] = []
    reports = NodeReports(
        NodeTelemetry([plan("seeing")], report=print),
        OWN,
        lambda *message: sent.append(message),
        rank_processes=dict,
        request_bytes=100_000,
    )
    reports.start()
    deadline = time.monotonic() + 20
    while not any(topic == TOPIC_METRICS for topic, *_ in sent) and time.monotonic() < deadline:
        reports.turn()
        time.sleep(0.02)
    reports.close()
    assert any(topic == TOPIC_METRICS for topic, *_ in sent)
