"""What all findings share: who is suspected, and who is hurt."""

from __future__ import annotations

import json

from whichrank.processors.finding_document import FindingBody, read_body, write_body
from whichrank.processors.job.findings.finding_body import MOST_SUSPECTS, body, share, suspect
from whichrank.processors.job.state.job_state import JobState
from whichrank.processors.job.state.rank_state import RankFacts
from whichrank.telemetry.vocabulary import Bucket, Kind, Scope, Severity


def said_of(guilty: range, ranks: int) -> FindingBody:
    job = JobState(job="j")
    job.ranks = {
        rank: RankFacts(node=f"node-{rank // 8:05d}", gpu=f"GPU-{rank:036x}", pid=rank) for rank in range(ranks)
    }
    job.world_size = ranks
    return body(
        job,
        Kind.RANK_SLOW,
        bucket=Bucket.SPEED_REGRESSION,
        scope=Scope.APPLICATION,
        severity=Severity.TICKET,
        suspects=[suspect(job, rank, share(guilty)) for rank in guilty],
        onset_ns=1,
        now=2,
        proof=[],
        confidence=0.9,
    )


def test_each_suspect_is_named() -> None:
    told = said_of(range(8, 16), 32)
    assert [item.rank for item in told.suspects] == list(range(8, 16))
    assert {item.probability for item in told.suspects} == {0.125}
    assert (told.victim_count, told.victims) == (24, "0-7,16-31")


def test_of_thousands_so_many_are_named_as_a_message_has_room_for() -> None:
    told = said_of(range(12_288, 16_384), 16_384)
    named = [item.rank for item in told.suspects]
    assert len(named) == len(set(named)) == MOST_SUSPECTS
    assert (named[0], named[-1]) == (12_288, 16_383)
    assert len({item.node for item in told.suspects}) == MOST_SUSPECTS
    assert {item.probability for item in told.suspects} == {0.004}
    assert (told.victim_count, told.victims) == (12_288, "0-12287")
    document = json.dumps(write_body(told))
    assert len(document) < 100_000
    assert read_body(json.loads(document)) == told
