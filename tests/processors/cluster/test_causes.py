"""What a finding is to an incident that is there: here what comes after the incident has ended."""

from __future__ import annotations

from dataclasses import replace

import pytest

from whichrank.processors.cluster.causes import Relation, relate
from whichrank.processors.told_finding import ToldFinding, read_told
from whichrank.telemetry.vocabulary import Bucket, Kind


def body(kind: Kind, *, onset: float, detected: float, ranks: str = "") -> ToldFinding:
    suspects = [{"scope": "node", "id": "n0", "node": "n0", "rank": None, "ranks": ranks}] if ranks else []
    times = {"onset": onset, "detected": detected}
    told = {"kind": kind.value, "bucket": Bucket.COMMUNICATION_HANG.value, "suspects": suspects, "times": times}
    return read_told(told)


LOST = body(Kind.NODE_LOST, onset=3.0, detected=6.0, ranks="0-7")


@pytest.mark.parametrize("kind", [Kind.DEADLOCK, Kind.RANK_NOT_ENTERED, Kind.COLLECTIVE_STALLED])
def test_what_stands_after_a_node_is_back_is_what_its_loss_was_mistaken_for(kind: Kind) -> None:
    assert relate(LOST, body(kind, onset=4.0, detected=10.0), 8.0) is Relation.CORRECTION


def test_what_was_told_before_the_node_was_back_follows_from_its_loss() -> None:
    assert relate(LOST, body(Kind.DEADLOCK, onset=4.0, detected=7.0), 8.0) is Relation.CONSEQUENCE


def test_what_began_after_the_node_was_back_is_an_incident_of_its_own() -> None:
    assert relate(LOST, body(Kind.DEADLOCK, onset=9.0, detected=14.0), 8.0) is Relation.UNRELATED


def test_the_end_of_another_kind_of_incident_corrects_nothing() -> None:
    hang = body(Kind.RANK_NOT_ENTERED, onset=3.0, detected=6.0, ranks="3")
    assert relate(hang, body(Kind.DEADLOCK, onset=4.0, detected=10.0), 8.0) is Relation.CONSEQUENCE


@pytest.mark.parametrize("kind", [Kind.SLOW_TOGETHER, Kind.RANK_SLOW])
def test_steps_that_stay_slow_after_a_collective_went_on_are_what_it_was_mistaken_for(kind: Kind) -> None:
    """A leaf without uplinks: each exchange takes eight seconds, of which the first looks like a hang."""
    stalled = body(Kind.COLLECTIVE_STALLED, onset=3.0, detected=7.0)
    assert relate(stalled, body(kind, onset=2.0, detected=40.0), 8.0) is Relation.CORRECTION
    assert relate(stalled, body(kind, onset=2.0, detected=7.5), 8.0) is Relation.CONSEQUENCE
    assert relate(stalled, body(kind, onset=2.0, detected=40.0), None) is Relation.CONSEQUENCE
    assert relate(stalled, body(kind, onset=9.0, detected=40.0), 8.0) is Relation.UNRELATED


def test_all_becoming_slower_is_no_part_of_a_rank_that_was_always_slow() -> None:
    slow_rank = body(Kind.RANK_SLOW, onset=1.0, detected=4.0, ranks="2")
    together = body(Kind.SLOW_TOGETHER, onset=60.0, detected=64.0)
    assert relate(slow_rank, together, None) is Relation.SAME_CAUSE
    assert relate(replace(slow_rank, always=True), together, None, always=True) is Relation.UNRELATED


def test_a_save_that_failed_just_before_an_earlier_ones_end_was_noticed_is_an_incident_of_its_own() -> None:
    """A full disk has room again, and the same save's upload finds no server: both within a moment."""
    full = body(Kind.CHECKPOINT_FAILED, onset=3.0, detected=3.5)
    upload = body(Kind.CHECKPOINT_FAILED, onset=14.2, detected=14.7)
    assert relate(full, upload, 14.6) is Relation.UNRELATED
    assert relate(full, upload, None) is Relation.SAME_CAUSE
    raised = body(Kind.RANK_RAISED, onset=14.2, detected=14.7)
    assert relate(full, raised, 14.6) is relate(full, raised, None)
