"""Whose a job is, and what an operator fails on: the same in shards as in one process."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tests.processors.flink.local_stages import DictState, LocalStages, documents
from tests.processors.runner_examples import SECOND, START_NS, Watcher, encode_events, rank_event
from tests.same_incidents.facts import facts_of, first_difference
from whichrank.evaluation.simulate.judge import Judge, MemoryBus
from whichrank.processors.cluster.operator import ClusterOperator
from whichrank.processors.doubts import SET_ASIDE
from whichrank.processors.flink.shard import Shard
from whichrank.processors.flink.stage_elements import (
    PHASE_MESSAGE,
    Element,
    ElementSort,
    KafkaOutput,
    Stage,
    StageOutput,
    StreamPlace,
)
from whichrank.processors.operator import Context
from whichrank.telemetry import attributes as names
from whichrank.telemetry.otlp import decode_logs, encode_payloads
from whichrank.telemetry.records import Event, Finding, Identity, Record
from whichrank.telemetry.topics import TOPIC_BLOCKS, TOPIC_DLQ
from whichrank.telemetry.vocabulary import EventName


def death(owner: str, node: str, at_ns: int, *, by: str) -> bytes:
    """One rank of job 4711 of that owner starts and is killed."""
    own = Identity(cluster="lab", run="4711", job="4711", attempt=f"a{owner}", node=node, rank=0, owner=owner)
    started = {"pid": 100, "world_size": 1, "local_rank": 0, "host": node, "id_by": by}
    return encode_payloads(
        [
            Event(name=EventName.RANK_STARTED, identity=own, time_ns=at_ns - SECOND, attributes=started),
            Event(name=EventName.RANK_EXIT, identity=own, time_ns=at_ns, attributes={"signal": 9, "exit_state": 1}),
        ]
    )


def test_two_owners_of_one_id_are_two_jobs_as_in_one_process() -> None:
    sent = [
        (START_NS + SECOND, death("1001", "n1", START_NS, by="claimed")),
        (START_NS + 2 * SECOND, death("1002", "n2", START_NS + SECOND, by="kernel")),
    ]
    bus = MemoryBus(ns=START_NS)
    judge, stages = Judge(bus, start_unix_ns=START_NS), LocalStages()
    for stamp_ns, value in sent:
        bus.advance(stamp_ns)
        bus.append(TOPIC_BLOCKS, "4711", value)
        judge.runner.drain()
        stages.send(TOPIC_BLOCKS, "4711", value, stamp_ns)
        stages.pass_to(stamp_ns // 1_000_000)
        stages.restart()
    for quarter in range(1, 60):
        at_ns = START_NS + 2 * SECOND + quarter * SECOND // 4
        bus.advance(at_ns)
        judge.runner.drain()
        stages.beat(at_ns)
        stages.pass_to(at_ns // 1_000_000)
    embedded = [facts_of(each.document) for each in judge.revisions]
    told = [facts_of(each) for each in documents(stages.incidents())]
    judge.close()
    assert len({each["id"] for each in told}) == 2
    assert first_difference(embedded, told) == ""


class FailsOnRank7(Watcher):
    """Raises at one record."""

    def process(self, records: Sequence[Record], ctx: Context) -> None:
        if any(isinstance(each.payload, Event) and each.payload.identity.rank == 7 for each in records):
            raise ValueError("rank 7")
        super().process(records, ctx)


def out_of(shard: Shard, at_s: float, *ranks: int, job: str = "j") -> list[StageOutput]:
    stamp_ns = START_NS + round(at_s * SECOND)
    for rank in ranks:
        place = StreamPlace(stamp_ns, PHASE_MESSAGE, TOPIC_BLOCKS, 0, round(at_s * 100) + rank)
        value = encode_events(rank_event(rank, job=job))
        shard.take(
            Element(
                stage=Stage.JOBS,
                shard="0",
                sort=ElementSort.MESSAGE,
                place=place,
                topic=TOPIC_BLOCKS,
                key=job,
                value=value,
            )
        )
    return shard.advance(stamp_ns // 1_000_000)


def handed_on(out: Sequence[StageOutput]) -> list[Finding]:
    """Findings for the next stage."""
    payloads: list[Any] = [
        payload for each in out if isinstance(each, Element) for payload in decode_logs(each.topic, each.value)
    ]
    return [payload for payload in payloads if isinstance(payload, Finding)]


def test_what_an_operator_fails_on_is_one_keys_trouble() -> None:
    state = DictState()
    shard = Shard(Stage.JOBS, "0", state, [FailsOnRank7(), ClusterOperator()], lambda line: None)
    out_of(shard, 0.0, 1, job="other")
    out = out_of(shard, 1.0, 7)
    (letter,) = [each for each in out if isinstance(each, KafkaOutput) and each.topic == TOPIC_DLQ]
    assert "ValueError: rank 7" in letter.headers[names.DLQ_REASON]
    assert "rank 7" in letter.headers[names.DLQ_TRACEBACK]
    assert any(finding.key.startswith("doubt/") for finding in handed_on(out))
    assert shard.contained == 1
    told = [finding.identity.job for finding in handed_on(out_of(shard, 3.5))]
    assert told == ["other"], "the other job is watched as before"


def test_that_a_key_failed_outlives_a_restart() -> None:
    state = DictState()

    def made() -> Shard:
        return Shard(Stage.JOBS, "0", state, [FailsOnRank7(), ClusterOperator()], lambda line: None)

    out_of(made(), 1.0, 7)
    out_of(made(), 2.0, 7)
    muted = made()
    out_of(muted, 3.0, 1)
    assert muted.contained == 0
    assert handed_on(out_of(muted, 8.0)) == [], "it is muted for an hour"


def test_a_book_is_told_that_nobody_will_end_what_a_failed_key_had_told() -> None:
    shard = Shard(Stage.JOBS, "0", DictState(), [FailsOnRank7(), ClusterOperator()], lambda line: None)
    out_of(shard, 0.0, 1)
    assert handed_on(out_of(shard, 3.5)), "an absence was told"
    ends = [finding for finding in handed_on(out_of(shard, 4.0, 7)) if finding.key.startswith(SET_ASIDE)]
    assert [(end.identity.job, end.cleared) for end in ends] == [("j", True)]
