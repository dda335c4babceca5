"""The life of incidents: one page per cause, whatever order and repetition the findings come in."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from tests.processors.endings import raised_fact, row_of
from whichrank.processors.cluster.case_book import KEPT_NS, MAX_CASES_PER_JOB
from whichrank.processors.cluster.operator import ClusterOperator
from whichrank.telemetry.incident import SCHEMA_PATH
from whichrank.telemetry.vocabulary import Kind, Severity

START_S = 1_700_000_000.0


def test_a_finding_opens_one_incident_with_the_whole_document(court: Any, finding: Any) -> None:
    court.hear(finding(Kind.RANK_NOT_ENTERED, 2, at=5.0, onset=1.0))
    (document,) = court.revisions
    assert (document["change"], document["state"], document["revision"]) == ("opened", "open", 1)
    assert document["severity"] == "page"
    assert [s["rank"] for s in document["suspects"]] == [2]
    assert document["times"]["onset"] == START_S + 1.0
    assert document["times"]["detected"] == START_S + 5.0
    assert document["job"]["id"] == "j"
    Draft202012Validator(json.loads(SCHEMA_PATH.read_text())).validate(document)


def test_a_cluster_can_be_spared_until_it_has_an_incident(court: Any, finding: Any) -> None:
    assert ClusterOperator().spare(court)
    court.hear(finding(Kind.RANK_NOT_ENTERED, 2, at=5.0, onset=1.0))
    assert not ClusterOperator().spare(court)


@pytest.mark.parametrize("row", [b"\x00\x00\x00{", b"{", b"7", b'{"x": 1}', b"[[1], 2]", b"[" * 5000, b"\xff\xfe"])
@pytest.mark.parametrize("table", ["jobs", "concerned", "suspected"])
def test_a_damaged_list_of_another_job_or_node_keeps_no_incident_from_being_reported(
    court: Any, finding: Any, table: str, row: bytes
) -> None:
    court.table(table).put("other", row)
    court.hear(finding(Kind.RANK_NOT_ENTERED, 2, at=5.0, onset=1.0))
    assert [document["change"] for document in court.revisions] == ["opened"]


def test_the_same_words_again_change_nothing(court: Any, finding: Any) -> None:
    first = finding(Kind.RANK_NOT_ENTERED, 2, at=5.0)
    older = {
        "signal": "progress",
        "source": "rank 2",
        "time": START_S,
        "value": "5 s",
        "shows": "not moved for 5 s",
    }
    court.hear(first, first, finding(Kind.RANK_NOT_ENTERED, 2, at=5.0, evidence=[*first.body["evidence"], older]))
    assert [d["change"] for d in court.revisions] == ["opened", "updated"]
    aged = {**older, "value": "9 s", "shows": "not moved for 9 s"}
    court.hear(finding(Kind.RANK_NOT_ENTERED, 2, at=9.0, onset=5.0, evidence=[*first.body["evidence"], aged]))
    assert len(court.revisions) == 2, "an age that grows is no news"


def test_the_place_in_the_code_comes_as_a_later_revision(court: Any, finding: Any) -> None:
    first = finding(Kind.RANK_NOT_ENTERED, 2, at=5.0)
    court.hear(first)
    suspect = {**first.body["suspects"][0], "where": {"file": "train.py", "line": 88, "phase": "forward"}}
    court.hear(finding(Kind.RANK_NOT_ENTERED, 2, at=5.0, suspects=[suspect]))
    opened, updated = court.revisions
    assert opened["id"] == updated["id"]
    assert (updated["revision"], updated["suspects"][0]["where"]["line"]) == (2, 88)


def test_a_stack_is_asked_for_once_and_only_of_ranks_that_live(court: Any, finding: Any) -> None:
    court.hear(finding(Kind.RANK_NOT_ENTERED, 2, at=5.0), finding(Kind.RANK_NOT_ENTERED, 2, at=6.0, step=31, key="x"))
    (request,) = court.requests
    assert (request.attributes["action"], request.attributes["rank"], request.attributes["node"]) == ("stack", 2, "n1")
    court.hear(finding(Kind.RANK_DIED, 1, at=7.0, attempt="a2"))
    assert len(court.requests) == 1


def test_files_of_the_first_suspects_are_asked_for_once_where_agents_have_them(court: Any, finding: Any) -> None:
    court.asks_for_files = True
    court.hear(finding(Kind.RANK_DIED, 1, at=5.0), finding(Kind.RANK_DIED, 1, at=6.0, severity=Severity.PAGE))
    suspects = [
        {**finding(Kind.RANK_NOT_ENTERED, rank, at=0).body["suspects"][0], "node": f"n{rank}"} for rank in range(5)
    ]
    court.hear(finding(Kind.RANK_NOT_ENTERED, 0, at=70.0, attempt="a2", suspects=suspects))
    asked = [(r.attributes["action"], r.attributes["rank"], r.attributes["node"]) for r in court.requests]
    stacks = [("stack", rank, f"n{rank}") for rank in range(5)]
    wanted = ("log_tail", "history", "flight_recorder")
    files = [(action, rank, f"n{rank}") for rank in range(2) for action in wanted]
    kernel = [("kernel_log", rank, f"n{rank}") for rank in range(2)]
    assert asked == [("log_tail", 1, "n1"), ("kernel_log", 1, "n1"), *stacks, *files, *kernel]
    assert len({request.attributes["id"] for request in court.requests}) == len(court.requests)
    incidents = {request.identity.attempt: request.attributes["incident"] for request in court.requests}
    assert incidents == {document["job"]["attempt"]: document["id"] for document in court.pages}


def test_a_nodes_kernel_log_is_asked_for_once_and_not_where_nothing_blocks(court: Any, finding: Any) -> None:
    court.asks_for_files = True
    suspects = [finding(Kind.DESYNC, rank, at=0).body["suspects"][0] for rank in range(4)]
    court.hear(finding(Kind.DESYNC, 0, at=5.0, suspects=suspects), finding(Kind.DESYNC, 0, at=6.0, step=31, key="x"))
    kernel = [request for request in court.requests if request.attributes["action"] == "kernel_log"]
    assert [(request.attributes["node"], request.attributes["rank"]) for request in kernel] == [("n1", 0)]
    before = len(court.requests)
    court.hear(finding(Kind.PLANNED_STOP, at=7.0, attempt="a2"), finding(Kind.INPUT_SILENT, at=8.0, attempt="a3"))
    assert len(court.requests) == before


def test_where_a_hang_has_no_suspect_those_who_wait_are_witnesses(court: Any, finding: Any) -> None:
    court.asks_for_files = True
    court.hear(finding(Kind.COLLECTIVE_STALLED, at=5.0, victims={"count": 5, "ranks": "3,7-9,12"}))
    asked = [(r.attributes["action"], r.attributes["rank"]) for r in court.requests]
    assert asked == [(a, r) for r in (3, 7) for a in ("history", "flight_recorder")] + [("kernel_log", 3)]
    court.hear(finding(Kind.DEADLOCK, at=6.0, attempt="a2", victims={"count": 5, "ranks": "all of them"}))
    assert len(court.requests) == len(asked)


def test_cleared_resolves_and_back_again_reopens(court: Any, finding: Any) -> None:
    court.hear(
        finding(Kind.RANK_NOT_ENTERED, 2, at=5.0),
        finding(Kind.RANK_NOT_ENTERED, 2, at=9.0, onset=5.0, cleared=True),
        finding(Kind.RANK_NOT_ENTERED, 2, at=12.0, onset=5.0),
    )
    assert [d["change"] for d in court.revisions] == ["opened", "resolved", "reopened"]
    assert [d["times"]["resolved"] for d in court.revisions] == [None, START_S + 9.0, None]
    assert len(court.incidents) == 1


def test_cleared_without_an_incident_is_nothing(court: Any, finding: Any) -> None:
    court.hear(finding(Kind.RANK_SLOW, 2, at=5.0, cleared=True))
    assert court.revisions == []


def test_a_rank_missing_that_turns_out_dead_is_one_incident(court: Any, finding: Any) -> None:
    court.hear(finding(Kind.RANK_NOT_ENTERED, 2, at=5.0, onset=1.0), finding(Kind.RANK_DIED, 2, at=5.4, onset=1.2))
    (page,) = court.pages
    assert (page["kind"], page["bucket"], page["revision"]) == ("rank_died", "immediate_crash", 2)


def test_a_rank_killed_long_after_it_hung_stays_a_hang(court: Any, finding: Any) -> None:
    court.hear(finding(Kind.RANK_NOT_ENTERED, 2, at=5.0, onset=1.0), finding(Kind.RANK_DIED, 2, at=600.0))
    (page,) = court.pages
    assert page["kind"] == "rank_not_entered"
    assert any(row["signal"] == "rank.rank_died" for row in page["evidence"])


def test_aborts_after_a_hang_are_its_consequence_and_ruled_out(court: Any, finding: Any) -> None:
    court.hear(finding(Kind.RANK_NOT_ENTERED, 2, at=5.0, onset=1.0), finding(Kind.RANK_DIED, 0, at=61.0))
    (page,) = court.pages
    assert (page["kind"], [s["rank"] for s in page["suspects"]]) == ("rank_not_entered", [2])
    assert [row["who"] for row in page["ruled_out"]] == ["rank 0"]


def test_the_cause_moves_to_what_was_there_before_the_waiting_was_concluded(court: Any, finding: Any) -> None:
    court.hear(finding(Kind.RANK_NOT_ENTERED, 1, at=5.0, onset=2.0), finding(Kind.RANK_STOPPED, 3, at=5.2, onset=2.1))
    (page,) = court.pages
    assert (page["kind"], [s["rank"] for s in page["suspects"]]) == ("rank_stopped", [3])
    assert [row["who"] for row in page["ruled_out"]] == ["rank 1"]


def test_slowness_while_the_job_hangs_is_no_page(court: Any, finding: Any) -> None:
    court.hear(
        finding(Kind.RANK_STOPPED, 2, at=5.0),
        finding(Kind.RANK_STOPPED, 2, at=11.0, onset=5.0, cleared=True),
        finding(Kind.RANK_SLOW, 2, at=12.0, onset=6.0, step=31),
        finding(Kind.SLOW_TOGETHER, at=12.5, onset=7.0, step=31),
    )
    (page,) = court.pages
    assert (page["kind"], page["state"]) == ("rank_stopped", "resolved")


def test_slowness_after_the_hang_is_a_cause_of_its_own(court: Any, finding: Any) -> None:
    court.hear(
        finding(Kind.RANK_STOPPED, 2, at=5.0),
        finding(Kind.RANK_STOPPED, 2, at=11.0, onset=5.0, cleared=True),
        finding(Kind.RANK_SLOW, 2, at=40.0, onset=30.0, step=90),
    )
    assert [page["kind"] for page in court.pages] == ["rank_stopped", "rank_slow"]
    assert court.pages[1]["history"]["suspect_incidents"] == 1


def test_a_slow_rank_that_then_dies_becomes_a_page(court: Any, finding: Any) -> None:
    court.hear(finding(Kind.RANK_SLOW, 2, at=5.0, onset=1.0), finding(Kind.RANK_DIED, 2, at=50.0))
    (page,) = court.pages
    assert (page["kind"], page["severity"], page["revision"]) == ("rank_died", "page", 2)
    assert page["times"]["detected"] == START_S + 50.0


def test_another_rank_that_dies_is_another_cause_than_a_slow_one(court: Any, finding: Any) -> None:
    court.hear(finding(Kind.RANK_SLOW, 2, at=5.0), finding(Kind.RANK_DIED, 1, at=50.0))
    assert sorted(page["kind"] for page in court.pages) == ["rank_died", "rank_slow"]


def test_nan_on_one_rank_explains_nan_on_all_and_the_exception_about_it(court: Any, finding: Any) -> None:
    fact = raised_fact("FloatingPointError: loss is nan", rank=0)
    about_nan = [row_of("rank.exception", "rank 0", START_S + 7, fact)]
    court.hear(
        finding(Kind.NUMERIC_FIRST_RANK, 2, at=5.0),
        finding(Kind.NUMERIC_ALL, at=6.0, step=33),
        finding(Kind.RANK_RAISED, 0, at=7.0, step=34, evidence=about_nan),
    )
    (page,) = court.pages
    assert (page["kind"], [s["rank"] for s in page["suspects"]]) == ("numeric_first_rank", [2])


def test_slow_together_becomes_the_slow_rank(court: Any, finding: Any) -> None:
    court.hear(finding(Kind.SLOW_TOGETHER, at=5.0, onset=1.0), finding(Kind.RANK_SLOW, 2, at=6.0, onset=2.0))
    (page,) = court.pages
    assert (page["kind"], [s["rank"] for s in page["suspects"]]) == ("rank_slow", [2])


def test_two_incidents_that_turn_out_to_be_one_are_merged_into_the_earlier(court: Any, finding: Any) -> None:
    court.hear(
        finding(Kind.RANK_SLOW, 1, at=5.0),
        finding(Kind.RANK_SLOW, 3, at=6.0),
        finding(Kind.RANK_SLOW, 3, at=9.0, suspects=[{"scope": "rank", "id": "1", "rank": 1}]),
    )
    (page,) = court.pages
    merged = [d for d in court.incidents.values() if d["state"] == "merged"]
    assert len(merged) == 1
    assert merged[0]["merged_into"] == page["id"]
    assert merged[0]["change"] == "merged"
    assert page["suspects"][0]["rank"] == 1
    court.hear(finding(Kind.RANK_SLOW, 3, at=20.0, cleared=True), finding(Kind.RANK_SLOW, 1, at=21.0, cleared=True))
    assert [page["state"] for page in court.pages] == ["resolved"]


def test_a_planned_stop_ends_what_is_open_and_explains_what_follows(court: Any, finding: Any) -> None:
    court.hear(
        finding(Kind.RANK_NOT_ENTERED, 2, at=5.0),
        finding(Kind.PLANNED_STOP, at=20.0),
        finding(Kind.RANK_DIED, 0, at=20.3),
        finding(Kind.RANK_STOPPED, 1, at=21.0),
    )
    hang, planned = court.pages
    assert (hang["kind"], hang["state"], hang["times"]["resolved"]) == ("rank_not_entered", "resolved", START_S + 20.0)
    assert (planned["bucket"], planned["severity"], planned["suspects"]) == ("planned", "info", [])
    assert len(court.pages) == 2


def test_a_job_of_several_worlds_is_stopped_once(court: Any, finding: Any) -> None:
    court.hear(
        finding(Kind.PLANNED_STOP, at=5.0, step=None),
        finding(Kind.PLANNED_STOP, at=5.0, step=None, attempt="b1", key="b1/planned_stop/job"),
        finding(Kind.PLANNED_STOP, at=6.0, step=None, cleared=True),
    )
    assert [page["state"] for page in court.pages] == ["open"]
    court.hear(finding(Kind.PLANNED_STOP, at=6.0, step=None, attempt="b1", key="b1/planned_stop/job", cleared=True))
    assert [page["state"] for page in court.pages] == ["resolved"]
    court.hear(finding(Kind.PLANNED_STOP, at=90.0, step=None, attempt="a2", key="a2/planned_stop/job"))
    assert [page["state"] for page in court.pages] == ["resolved", "open"]


def test_an_attempt_is_stopped_once(court: Any, finding: Any) -> None:
    court.hear(
        finding(Kind.PLANNED_STOP, at=20.0, key="job"),
        finding(Kind.PLANNED_STOP, at=21.0, key="step 97"),
        finding(Kind.PLANNED_STOP, at=22.0, key="job", cleared=True),
        finding(Kind.PLANNED_STOP, at=22.0, key="step 97", cleared=True),
        finding(Kind.PLANNED_STOP, at=22.4, key="step 98"),
    )
    (planned,) = court.pages
    assert planned["state"] == "resolved"


def test_telemetry_incidents_stand_apart(court: Any, finding: Any) -> None:
    court.hear(finding(Kind.INPUT_SILENT, at=3.0, step=None), finding(Kind.RANK_DIED, 2, at=5.0))
    assert sorted(page["bucket"] for page in court.pages) == ["immediate_crash", "telemetry"]


def test_step_numbers_of_another_attempt_resolve_nothing(court: Any, finding: Any) -> None:
    """Each attempt counts from 0; JobOperator knows what lay before and says when the fault has been passed."""
    court.hear(finding(Kind.RANK_DIED, 2, at=5.0, step=30), finding(Kind.RANK_SLOW, 1, at=90.0, step=31, attempt="a2"))
    assert court.pages[0]["state"] == "open"


def test_the_same_fault_in_a_later_attempt_is_a_new_incident(court: Any, finding: Any) -> None:
    court.hear(finding(Kind.RANK_DIED, 2, at=5.0), finding(Kind.RANK_DIED, 2, at=90.0, attempt="a2"))
    assert len(court.pages) == 2
    assert court.pages[1]["history"]["suspect_incidents"] == 1


def test_what_the_job_does_now_is_told(court: Any, finding: Any) -> None:
    stopped = finding(Kind.RANK_DIED, 2, at=6.0, onset=5.0, job={"now": "stopped"})
    court.hear(finding(Kind.RANK_DIED, 2, at=5.0), stopped)
    assert [d["job"]["now"] for d in court.revisions] == [None, "stopped"]


def test_severity_rises_with_the_finding_and_never_falls(court: Any, finding: Any) -> None:
    court.hear(
        finding(Kind.RANK_NEVER_JOINED, 2, at=25.0, severity=Severity.INFO),
        finding(Kind.RANK_NEVER_JOINED, 2, at=90.0, onset=25.0, severity=Severity.PAGE),
    )
    assert [d["severity"] for d in court.revisions] == ["info", "page"]


def test_lists_are_bounded_and_old_incidents_forgotten(court: Any, finding: Any) -> None:
    rows = [{"signal": f"s{i}", "source": "x", "time": START_S, "value": "", "shows": ""} for i in range(500)]
    court.hear(finding(Kind.RANK_DIED, 2, at=1.0, evidence=rows))
    assert len(court.revisions[0]["evidence"]) <= 24
    for index in range(200):
        at = 10.0 * (index + 1)
        court.hear(
            finding(Kind.RANK_SLOW, 1, at=at, step=100 + index, attempt="a2"),
            finding(Kind.RANK_SLOW, 1, at=at + 5, onset=at, step=100 + index, attempt="a2", cleared=True),
        )
    assert len(list(court.table("incidents").rows())) <= MAX_CASES_PER_JOB + 1


def test_incidents_are_forgotten_a_week_after_the_last_of_their_job_has_ended(court: Any, finding: Any) -> None:
    week_s = KEPT_NS / 1e9
    court.hear(
        finding(Kind.RANK_SLOW, 1, at=5.0),
        finding(Kind.RANK_SLOW, 1, at=9.0, onset=5.0, cleared=True),
        finding(Kind.RANK_DIED, 2, at=20.0, attempt="a2"),
    )
    court.pass_time(2 * week_s)
    assert len(list(court.table("incidents").rows())) == 2, "one of them is open"
    end_s = 2 * week_s + 100.0
    court.hear(finding(Kind.RANK_DIED, 2, at=end_s, onset=20.0, attempt="a2", cleared=True))
    published = len(court.revisions)
    court.pass_time(end_s + week_s - 1.0)
    assert len(list(court.table("incidents").rows())) == 2
    court.pass_time(end_s + week_s + 1.0)
    of_incidents = ("incidents", "jobs", "ended", "conditions", "concerned", "suspected", "watched")
    assert not any(list(court.table(name).rows()) for name in of_incidents)
    assert (court.timers, len(court.revisions)) == ({}, published)


@pytest.mark.parametrize("body", [{}, {"kind": "rank_died"}, {"bucket": "planned"}])
def test_a_finding_that_is_no_conclusion_is_passed_over(court: Any, finding: Any, body: dict[str, Any]) -> None:
    template = finding(Kind.RANK_DIED, 2, at=1.0)
    court.hear(type(template)(identity=template.identity, key="k", cleared=False, time_ns=1, body=body))
    assert court.revisions == []


KINDS = [
    Kind.RANK_DIED,
    Kind.RANK_NOT_ENTERED,
    Kind.RANK_STOPPED,
    Kind.RANK_SLOW,
    Kind.SLOW_TOGETHER,
    Kind.NUMERIC_FIRST_RANK,
    Kind.NUMERIC_ALL,
    Kind.PLANNED_STOP,
    Kind.DESYNC,
]
STORY = st.lists(
    st.tuples(
        st.sampled_from(KINDS), st.integers(0, 2), st.integers(0, 20), st.booleans(), st.sampled_from(["a1", "a2"])
    ),
    max_size=14,
)


# The fixtures are functions that make things, nothing of them is shared between examples.
@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(story=STORY)
def test_any_story_is_told_the_same_twice_however_it_is_cut(finding: Any, new_court: Any, story: Any) -> None:
    nobody = {Kind.SLOW_TOGETHER, Kind.NUMERIC_ALL, Kind.PLANNED_STOP}
    findings = [
        finding(kind, None if kind in nobody else rank, at=30.0 + i, onset=30.0 + i - ago, cleared=cleared, attempt=a)
        for i, (kind, rank, ago, cleared, a) in enumerate(story)
    ]
    one, other = new_court(), new_court()
    one.hear(*findings)
    if findings:
        other.hear(*findings, batch=True)
    assert one.lines == other.lines
    seen: dict[str, int] = {}
    for document in one.revisions:
        assert document["revision"] == seen.get(document["id"], 0) + 1
        assert document["times"]["onset"] <= document["times"]["detected"]
        seen[document["id"]] = document["revision"]
    again = len(one.revisions)
    if findings:
        one.hear(findings[-1])
    assert len(one.revisions) == again, "a repeat changes nothing"


def test_after_a_lost_state_an_incident_goes_on_where_it_was(court: Any, finding: Any) -> None:
    opened = finding(Kind.RANK_NOT_ENTERED, 2, at=5.0)
    court.hear(opened, finding(Kind.RANK_DIED, 1, at=7.0, attempt="a2"))
    court.lose_state()
    published = len(court.revisions)
    court.hear(opened)
    assert len(court.revisions) == published, "the same words again change nothing"
    court.hear(finding(Kind.RANK_NOT_ENTERED, 2, at=9.0, onset=5.0, cleared=True))
    last = court.revisions[-1]
    assert (last["id"], last["change"]) == (court.revisions[0]["id"], "resolved")
    revisions = [d["revision"] for d in court.revisions if d["id"] == last["id"]]
    assert revisions == list(range(1, len(revisions) + 1))


def test_after_a_lost_state_what_follows_from_an_incident_opens_no_other(court: Any, finding: Any) -> None:
    court.hear(finding(Kind.RANK_NOT_ENTERED, 2, at=5.0))
    court.lose_state()
    court.hear(finding(Kind.RANK_DIED, 2, at=30.0))
    assert len({d["id"] for d in court.revisions}) == 1


def test_a_resolved_incident_stays_so_after_a_lost_state(court: Any, finding: Any) -> None:
    court.hear(
        finding(Kind.RANK_NOT_ENTERED, 2, at=5.0), finding(Kind.RANK_NOT_ENTERED, 2, at=9.0, onset=5.0, cleared=True)
    )
    court.lose_state()
    court.hear(finding(Kind.RANK_SLOW, 3, at=60.0))
    assert [d["state"] for d in court.revisions] == ["open", "resolved", "open"]


def test_a_disabled_kind_opens_nothing_and_an_open_one_goes_on(court: Any, finding: Any) -> None:
    court.hear(finding(Kind.RANK_SLOW, 2, at=5.0))
    court.disabled = frozenset({Kind.RANK_SLOW})
    court.hear(finding(Kind.RANK_SLOW, 3, at=60.0, attempt="a2"))
    assert len(court.revisions) == 1
    court.hear(finding(Kind.RANK_SLOW, 2, at=61.0, cleared=True))
    assert [d["change"] for d in court.revisions] == ["opened", "resolved"]
