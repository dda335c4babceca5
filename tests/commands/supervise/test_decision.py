"""When a job is started again: what must never lead to it, whatever else the document says."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.commands.incidents.documents import document
from tests.commands.supervise.parts import ID, incident, motion, seen
from whichrank.commands.supervise.decision import (
    CRASH_SETTLE_S,
    SETTLE_S,
    STOPPED_SETTLE_S,
    Decision,
    End,
    Reason,
    RestartVerdict,
    SeenIncident,
    judge_ended,
    judge_running,
    like,
)
from whichrank.commands.supervise.limits import BREAKER_S, LONGEST_PAUSE_S, RestartLimits, Tried, pause_s, recent
from whichrank.commands.support.restart_trigger import Trigger
from whichrank.telemetry.incident_reading import read_incident
from whichrank.telemetry.vocabulary import Action, Bucket, Kind, Scope, Severity

ALL = frozenset(Trigger)
LIMITS = RestartLimits(restarts=5, per_hour=4, backoff_s=2.0)
LATE_S = 1000.0
CAUSE = {"condition": "xid_79", "entity": "node-1", "device_kind": "gpu", "device": "GPU-1", "domain": "hardware"}
ELIMINATED = {"condition": "no_node_fault", "entity": "node-1", "device_kind": "code", "domain": "application"}


def running(
    *found: SeenIncident, on: frozenset[Trigger] = ALL, tried: tuple[Tried, ...] = (), now_s: float = LATE_S
) -> Decision:
    return judge_running(found, on=on, tried=tried, limits=LIMITS, now_s=now_s)


def ended(
    *found: SeenIncident,
    exit_code: int = 1,
    was_asked: bool = False,
    ranks_seen: bool = True,
    on: frozenset[Trigger] = ALL,
    tried: tuple[Tried, ...] = (),
) -> Decision:
    end = End(exit_code=exit_code, was_asked=was_asked, ranks_seen=ranks_seen)
    return judge_ended(end, [one.incident for one in found], on=on, tried=tried, limits=LIMITS, now_s=LATE_S)


def test_a_hang_whose_suspect_does_nothing_is_restarted_once_it_has_held() -> None:
    assert running(seen(), now_s=SETTLE_S - 0.1).reason is Reason.YOUNG
    decision = running(seen(), now_s=SETTLE_S)
    assert (decision.verdict, decision.reason, decision.trigger) == (RestartVerdict.RESTART, Reason.HANG, Trigger.HANG)


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"severity": "ticket"}, Reason.NOT_A_PAGE),
        ({"severity": "info"}, Reason.NOT_A_PAGE),
        ({"state": "resolved"}, Reason.OVER),
        ({"state": "merged", "merged_into": "0" * 16}, Reason.OVER),
        ({"motions": ("moves",)}, Reason.MOVES),
        ({"motions": ("still", "moves")}, Reason.MOVES),
        ({"motions": ()}, Reason.MOVES),
        ({"suspects": []}, Reason.MOVES),
        ({"kind": "rank_never_joined", "motions": ()}, Reason.MOVES),
        ({"kind": "deadlock", "motions": ("moves",)}, Reason.MOVES),
        ({"kind": "desync"}, Reason.MOVES),
        ({"action": "fix_code"}, Reason.FOR_A_PERSON),
        ({"action": "ask_a_human"}, Reason.FOR_A_PERSON),
        ({"action": "roll_back"}, Reason.FOR_A_PERSON),
        ({"action": "raise_quota"}, Reason.FOR_A_PERSON),
        ({"action": "wait"}, Reason.FOR_A_PERSON),
        ({"action": "checkpoint_now"}, Reason.FOR_A_PERSON),
        ({"by": "human"}, Reason.NOT_AUTOMATIC),
        ({"job": {"id": "job-1", "now": "restarting"}}, Reason.OVER),
        ({"bucket": "telemetry", "kind": "agent_silent"}, Reason.NO_INCIDENT),
        ({"bucket": "planned", "kind": "planned_stop"}, Reason.NO_INCIDENT),
        ({"bucket": "numeric", "kind": "numeric_all"}, Reason.NO_INCIDENT),
        ({"bucket": "speed_regression", "kind": "rank_slow"}, Reason.NO_INCIDENT),
    ],
)
def test_a_command_that_runs_is_left_alone(fields: dict[str, Any], reason: Reason) -> None:
    decision = running(seen(**fields))
    assert (decision.verdict, decision.reason) == (RestartVerdict.NOTHING, reason)


def test_no_refusal_is_told_before_the_incident_has_held() -> None:
    raised = seen(bucket="immediate_crash", kind="rank_raised", motions=(), by="human")
    assert running(raised, now_s=CRASH_SETTLE_S - 0.1).reason is Reason.YOUNG
    assert running(raised, now_s=CRASH_SETTLE_S).reason is Reason.NOT_AUTOMATIC


WORDS = {
    "action": st.sampled_from([action.value for action in Action]),
    "by": st.sampled_from(["automatic", "human"]),
    "severity": st.sampled_from([severity.value for severity in Severity]),
    "bucket": st.sampled_from([bucket.value for bucket in Bucket]),
    "kind": st.sampled_from([kind.value for kind in Kind]),
    "scope": st.sampled_from([scope.value for scope in Scope]),
    "state": st.sampled_from(["open", "resolved", "merged"]),
    "motions": st.lists(st.sampled_from(["still", "in_io", "moves"]), max_size=3).map(tuple),
    "cause": st.sampled_from([None, CAUSE, ELIMINATED]),
}


@given(
    fields=st.fixed_dictionaries(WORDS),
    on=st.frozensets(st.sampled_from(list(Trigger))),
    age_s=st.floats(0.0, 100.0),
)
def test_whatever_a_document_says_a_healthy_command_is_never_ended(
    fields: dict[str, Any], on: frozenset[Trigger], age_s: float
) -> None:
    one = SeenIncident(incident=incident(**fields), since_s=0.0)
    decision = running(one, on=on, now_s=age_s)
    assert decision.verdict is not RestartVerdict.STOP
    if not decision.acts:
        return
    assert fields["state"] == "open"
    assert fields["severity"] == "page"
    assert "moves" not in fields["motions"] or decision.trigger is not Trigger.HANG
    assert decision.trigger in on
    assert age_s >= SETTLE_S
    assert fields["kind"] != "desync" or decision.trigger is not Trigger.HANG
    helps = {"retry", "restart", "restart_without_node"}
    by_elimination = fields["cause"] == ELIMINATED or fields["kind"] == "deadlock"
    by_elimination = by_elimination and decision.trigger is Trigger.HANG
    is_slow = decision.trigger is Trigger.SLOW_NODE and fields["action"] == "drain_after_job"
    assert by_elimination or (fields["by"] == "automatic" and (fields["action"] in helps or is_slow))


def test_a_stopped_process_and_a_death_are_given_longer() -> None:
    stopped = seen(kind="rank_stopped", motions=())
    assert running(stopped, now_s=STOPPED_SETTLE_S - 0.1).reason is Reason.YOUNG
    assert running(stopped, now_s=STOPPED_SETTLE_S).acts
    died = seen(kind="rank_died", bucket="immediate_crash", motions=(), action="retry")
    assert running(died, now_s=CRASH_SETTLE_S - 0.1).reason is Reason.YOUNG
    assert running(died, now_s=CRASH_SETTLE_S).acts  # its launcher does not end by itself
    lost = seen(kind="node_lost", bucket="immediate_crash", motions=(), action="restart_without_node")
    assert running(lost, now_s=SETTLE_S).verdict is RestartVerdict.WITHOUT_NODE


def test_a_hang_of_the_program_by_elimination_is_tried_as_the_owner_asked() -> None:
    eliminated = seen(action="fix_code", by="human", cause=ELIMINATED)
    assert running(eliminated).acts
    assert ended(eliminated).acts
    crash = seen(action="fix_code", by="human", cause=ELIMINATED, bucket="immediate_crash", kind="rank_raised")
    assert ended(crash).reason is Reason.FOR_A_PERSON


def test_a_slow_node_is_left_out_only_where_the_owner_asked_and_it_is_a_page() -> None:
    fields: dict[str, Any] = {
        "bucket": "speed_regression",
        "kind": "rank_slow",
        "scope": "node",
        "action": "drain_after_job",
    }
    decision = running(seen(**fields))
    assert (decision.verdict, decision.node) == (RestartVerdict.WITHOUT_NODE, "node-1")
    assert running(seen(**fields), on=frozenset({Trigger.HANG, Trigger.CRASH})).reason is Reason.NOT_ASKED
    assert not running(seen(**fields, severity="ticket")).acts


def test_which_node_is_left_out_follows_from_the_cause_or_the_suspects() -> None:
    found = running(seen(action="restart_without_node", cause=CAUSE))
    assert (found.verdict, found.node) == (RestartVerdict.WITHOUT_NODE, "node-1")
    other = running(seen(action="restart_without_node", cause={**CAUSE, "entity": "node-9"}))
    assert (other.verdict, other.reason) == (RestartVerdict.NOTHING, Reason.NODE_STAYS)


def test_after_an_end_the_owner_who_asked_for_it_gets_his_restart() -> None:
    died = seen(kind="rank_died", bucket="immediate_crash", motions=(), action="retry", by="human")
    assert ended(died).verdict is RestartVerdict.RESTART
    again = seen(kind="rank_died", bucket="immediate_crash", motions=(), action="ask_a_human", severity="ticket")
    assert ended(again).reason is Reason.FOR_A_PERSON  # it is as before, so nobody was called once more
    assert ended().verdict is RestartVerdict.RESTART  # nothing is known but the exit code
    assert ended(seen(motions=("moves",))).acts  # the job's own time-out has ended it: nobody moves any more


@pytest.mark.parametrize(
    ("found", "options", "reason"),
    [
        ((), {"exit_code": 0}, Reason.ENDED_WELL),
        ((), {"was_asked": True}, Reason.ASKED_TO_END),
        ((), {"ranks_seen": False}, Reason.NEVER_STARTED),
        ((), {"on": frozenset({Trigger.HANG})}, Reason.NOT_ASKED),
        (({"bucket": "immediate_crash", "kind": "rank_raised", "action": "fix_code"},), {}, Reason.FOR_A_PERSON),
        (({"bucket": "capacity", "kind": "rank_raised", "action": "raise_quota"},), {}, Reason.FOR_A_PERSON),
        (({"bucket": "numeric", "kind": "numeric_all", "action": "fix_code"},), {}, Reason.FOR_A_PERSON),
        (({"action": "ask_a_human"},), {}, Reason.FOR_A_PERSON),
        (({"bucket": "planned", "kind": "planned_stop", "severity": "info"},), {}, Reason.ASKED_TO_END),
    ],
)
def test_after_some_ends_nothing_is_started_again(
    found: tuple[dict[str, Any], ...], options: dict[str, Any], reason: Reason
) -> None:
    decision = ended(*(seen(**fields) for fields in found), **options)
    assert (decision.verdict, decision.reason) == (RestartVerdict.STOP, reason)


def test_the_third_time_at_one_step_is_for_a_person() -> None:
    hang = seen()
    twice = tuple(Tried(at_s=at_s, what=like(hang.incident)) for at_s in (-9e9, -8e9))
    assert running(hang, tried=twice[:1]).acts
    assert running(hang, tried=twice).reason is Reason.ALIKE
    assert ended(hang, tried=twice).reason is Reason.ALIKE
    elsewhere = seen(first_bad={"step": 42})
    assert running(elsewhere, tried=twice).acts


def test_a_deadlock_is_ended_once_and_at_its_second_time_at_one_step_it_is_for_a_person() -> None:
    deadlock = seen(kind="deadlock", scope="application", suspects=[], motions=(), action="fix_code", by="human")
    assert running(deadlock).verdict is RestartVerdict.RESTART
    assert ended(deadlock).verdict is RestartVerdict.RESTART  # its own time-out was faster
    once = (Tried(at_s=-9e9, what=like(deadlock.incident)),)
    assert running(deadlock, tried=once).reason is Reason.ALIKE
    assert ended(deadlock, tried=once).reason is Reason.ALIKE


def test_restarts_are_counted_in_all_and_within_an_hour() -> None:
    assert ended(tried=tuple(Tried(at_s=-9e9) for _ in range(5))).reason is Reason.USED_UP
    recent = tuple(Tried(at_s=LATE_S - 10.0) for _ in range(4))
    assert ended(tried=recent).reason is Reason.TOO_OFTEN
    assert ended(tried=tuple(Tried(at_s=LATE_S - BREAKER_S - 1.0) for _ in range(4))).acts


@given(number=st.integers(1, 10_000), seed=st.text(max_size=20), backoff_s=st.floats(0.1, 300.0))
def test_pauses_grow_are_bounded_and_the_same_for_the_same_job(number: int, seed: str, backoff_s: float) -> None:
    limits = RestartLimits(restarts=9, per_hour=9, backoff_s=backoff_s)
    pause = pause_s(number, limits, seed)
    assert pause == pause_s(number, limits, seed)
    assert 0.0 <= pause <= 1.25 * LONGEST_PAUSE_S
    assert pause_s(number + 2, limits, seed) >= pause or pause > 0.7 * LONGEST_PAUSE_S


def test_how_often_is_the_owners_to_say_and_no_advice() -> None:
    """Five failures within half an hour: the advice is to ask a person, the breaker of this run is not open."""
    storm = {"action": "ask_a_human", "by": "human", "text": "often"}
    calm = {**storm, "if_seldom": {"action": "restart", "by": "automatic"}}
    hopeless = {**storm, "if_seldom": {"action": "fix_code", "by": "human"}}
    for advice, acts in ((storm, False), (calm, True), (hopeless, False)):
        one = SeenIncident(incident=read_incident(document(ID, 1, advice=advice, evidence=[motion()])), since_s=0.0)
        assert running(one).acts is acts
        assert ended(one).acts is acts


def test_restarts_of_more_than_an_hour_ago_make_no_pause_longer() -> None:
    tried = tuple(Tried(at_s=LATE_S - before_s) for before_s in (9 * BREAKER_S, BREAKER_S + 1.0, 60.0))
    assert recent(tried, LATE_S) == 1
    assert recent(tried, LATE_S + 2 * BREAKER_S) == 0


def test_of_several_incidents_one_that_calls_for_it_is_enough_and_the_rest_is_told() -> None:
    assert running(seen(severity="ticket"), seen(id_="f" * 16)).acts
    nearest = running(seen(severity="ticket"), seen(id_="f" * 16, action="ask_a_human"))
    assert nearest.reason is Reason.FOR_A_PERSON
    assert motion()["value"] == "still"
