"""What is advised: always something, for a fault of the program never another node, and nothing for ever."""

from __future__ import annotations

import itertools
import random
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.processors.cluster.conftest import Court, make_finding
from tests.processors.endings import raised_fact, row_of
from tests.processors.entity.node import Node
from whichrank.processors.cluster.advice import EVICTING, Situation, choose, fits
from whichrank.processors.cluster.advice_table import DOMAINS, HUMAN, MOTIONS, load_advice
from whichrank.processors.cluster.case_book import KEPT_NS
from whichrank.processors.cluster.failures import MAX_FAILURES, Precedents, error_of, last_end
from whichrank.telemetry.evidence_facts import FACT, EvidenceFact, How, SignalSender
from whichrank.telemetry.incident_document import EvidenceRow
from whichrank.telemetry.records import Finding
from whichrank.telemetry.vocabulary import Action, Bucket, Kind, Scope, Severity

EVICTING_WORDS = sorted(action.value for action in EVICTING)
WORDS = dict.fromkeys(
    ("entity", "device", "place", "suspect", "node", "step", "tries", "failures", "minutes", "attempts"), "something"
)
SITUATION = Situation(
    bucket="immediate_crash",
    kind="rank_died",
    scope="rank",
    severity="page",
    domain="none",
    asked="",
    device_kind="",
    raised="",
    is_changed=False,
    motion="",
    before=Precedents(),
)


def values(members: Any) -> list[str]:
    return [member.value for member in members]


# --- over everything that can be ------------------------------------------------------------------------------------
def test_a_fault_of_the_program_takes_no_node_out_whatever_else_is_said() -> None:
    """Every bucket, kind, scope and domain, with a cause that asks for a node to go, and without."""
    asked = [*EVICTING_WORDS, ""]
    evicted = of_program = 0
    everything = itertools.product(
        values(Bucket),
        values(Kind),
        values(Scope),
        sorted(DOMAINS),
        asked,
        (Precedents(), Precedents(elsewhere=True)),
    )
    for bucket, kind, scope, domain, wanted, before in everything:
        situation = replace(
            SITUATION, bucket=bucket, kind=kind, scope=scope, domain=domain, asked=wanted, before=before
        )
        evicts = choose(situation, WORDS).action in EVICTING
        innocent = scope == "application" or domain == "application" or before.elsewhere
        assert not (evicts and innocent), situation
        evicted, of_program = evicted + evicts, of_program + innocent
    assert evicted > 1000, "nodes are taken out at all, or the test says nothing"
    assert of_program > 50_000


situations = st.builds(
    Situation,
    bucket=st.sampled_from(values(Bucket)),
    kind=st.sampled_from(values(Kind)),
    scope=st.sampled_from(["", *values(Scope)]),
    severity=st.sampled_from(values(Severity)),
    domain=st.sampled_from(sorted(DOMAINS)),
    asked=st.sampled_from(["", *values(Action)]),
    device_kind=st.sampled_from(["", "code", "gpu"]),
    raised=st.sampled_from(["", "TypeError", "RuntimeError"]),
    is_changed=st.booleans(),
    before=st.builds(Precedents, alike=st.integers(0, 9), elsewhere=st.booleans(), recent=st.integers(1, 9)),
)


@given(situations)
def test_everything_is_answered_and_nothing_is_tried_for_ever(situation: Situation) -> None:
    advice = choose(situation, WORDS)
    assert isinstance(advice.action, Action)
    assert advice.by in ("automatic", "human")
    assert advice.text
    assert "{" not in advice.text
    if advice.action in ("retry", "restart", "restart_without_node") and situation.bucket != Bucket.PLANNED.value:
        assert advice.retry is not None, "who tries again says how often"
        assert advice.retry.number <= advice.retry.of
    if situation.before.alike >= 3:
        assert advice.by == HUMAN or advice.action in ("wait", "drain_after_job")
    if advice.action in EVICTING:
        assert not situation.before.elsewhere


def test_each_row_of_the_table_can_hold() -> None:
    """A row that others hide is a mistake: over all situations each is chosen once at least."""
    rows = load_advice().rows
    held: set[int] = set()
    choices: tuple[tuple[Any, ...] | list[Any], ...] = (
        values(Bucket),
        values(Kind),
        ["", "application", "node", "link"],
        ("page", "info"),
        ["", *values(Action)],
        ("", "code"),
        ("", "TypeError"),
        (False, True),
        (Precedents(), Precedents(elsewhere=True), Precedents(recent=9), Precedents(stuck=3)),
        ("", *MOTIONS),
    )
    # Drawn until each was chosen; where one is not, all of them in their order.
    draw = random.Random(7)
    drawn = (tuple(draw.choice(each) for each in choices) for _ in range(60_000))
    last = len(rows) - 1
    for situation_words in itertools.chain(drawn, itertools.product(*choices)):
        if len(held - {last}) == last:
            break
        bucket, kind, scope, severity, asked, device, raised_type, changed, before, motion = situation_words
        situation = replace(
            SITUATION,
            bucket=bucket,
            kind=kind,
            scope=scope,
            severity=severity,
            asked=asked,
            device_kind=device,
            raised=raised_type,
            is_changed=changed,
            before=before,
            motion=motion,
        )
        history = frozenset(
            word
            for word, holds in (
                ("elsewhere", before.elsewhere),
                ("storm", before.recent > 4),
                ("stuck", before.stuck > 2),
            )
            if holds
        )
        held.add(next(index for index, row in enumerate(rows) if fits(row, situation, history)))
    assert sorted(set(range(len(rows))) - held - {last}) == []


# --- single ones -----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("finding", "expected"),
    [
        (make_finding(Kind.RANK_DIED, 2, at=1.0), ("retry", "automatic")),
        (make_finding(Kind.RANK_RAISED, 2, at=1.0), ("retry", "human")),
        (make_finding(Kind.RANK_NOT_ENTERED, 2, at=1.0), ("restart", "automatic")),
        (make_finding(Kind.COLLECTIVE_STALLED, None, at=1.0, scope="link"), ("restart", "automatic")),
        (make_finding(Kind.RANK_NOT_ENTERED, 0, at=1.0, scope="application"), ("fix_code", "human")),
        (make_finding(Kind.DESYNC, 2, at=1.0, scope="application"), ("fix_code", "human")),
        (make_finding(Kind.NODE_LOST, 2, at=1.0, scope="node"), ("restart_without_node", "automatic")),
        (make_finding(Kind.RANK_NEVER_JOINED, 2, at=1.0, severity=Severity.INFO), ("wait", "automatic")),
        (make_finding(Kind.RANK_NEVER_JOINED, 2, at=1.0, severity=Severity.PAGE), ("restart", "automatic")),
        (make_finding(Kind.RANK_SLOW, 2, at=1.0), ("ask_a_human", "human")),
        (make_finding(Kind.RANK_SLOW, 2, at=1.0, scope="node"), ("drain_after_job", "human")),
        (make_finding(Kind.RANK_SLOW, None, at=1.0, scope="application"), ("fix_code", "human")),
        (make_finding(Kind.SLOW_TOGETHER, None, at=1.0, scope="job"), ("ask_a_human", "human")),
        (make_finding(Kind.NUMERIC_FIRST_RANK, 2, at=1.0), ("roll_back", "human")),
        (make_finding(Kind.NUMERIC_ALL, None, at=1.0), ("fix_code", "human")),
        (make_finding(Kind.PLANNED_STOP, None, at=1.0), ("wait", "automatic")),
        (make_finding(Kind.AGENT_SILENT, None, at=1.0, bucket="telemetry"), ("ask_a_human", "human")),
    ],
    ids=lambda value: value.body["kind"] + ":" + value.body["scope"] if isinstance(value, Finding) else value[0],
)
def test_without_a_cause(court: Court, finding: Finding, expected: tuple[str, str]) -> None:
    court.hear(finding)
    (document,) = court.pages
    assert (document["advice"]["action"], document["advice"]["by"]) == expected


def test_a_mistake_that_will_come_again_is_not_tried_again(court: Court) -> None:
    court.hear(raised("TypeError: unsupported operand", attempt="a1", at=0.0))
    assert court.pages[0]["advice"]["action"] == "fix_code"


def raised(
    words: str, *, attempt: str, at: float, node: str = "n1", rank: int = 2, step: int = 30, **more: Any
) -> Finding:
    fact = raised_fact(words, rank=rank, file="/job/train.py", line=88, step=step, phase="forward")
    evidence = [row_of("rank.exception", f"rank {rank}", at, fact)]
    found = make_finding(Kind.RANK_RAISED, rank, at=at, attempt=attempt, step=step, evidence=evidence, **more)
    return moved(found, node)


def moved(finding: Finding, node: str) -> Finding:
    suspects = [{**suspect, "node": node} for suspect in finding.body["suspects"]]
    return replace(finding, body={**finding.body, "suspects": suspects})


def advice_by_attempt(court: Court) -> dict[str, Mapping[str, Any]]:
    return {document["job"]["attempt"]: document["advice"] for document in court.pages}


# --- attempts of one run ----------------------------------------------------------------------------------------------
def test_tried_again_as_often_as_allowed_then_a_person_is_told(court: Court) -> None:
    hour = 3600.0
    for number in range(4):
        found = make_finding(Kind.RANK_NOT_ENTERED, 2, at=number * hour, attempt=f"a{number}", step=number)
        court.hear(found)
    told = advice_by_attempt(court)
    assert [(told[f"a{n}"]["action"], told[f"a{n}"]["by"]) for n in range(4)] == [
        ("restart", "automatic"),
        ("restart", "automatic"),
        ("ask_a_human", "human"),
        ("ask_a_human", "human"),
    ]
    assert [told[f"a{n}"]["retry"] for n in range(3)] == [
        {"number": 1, "of": 2},
        {"number": 2, "of": 2},
        {"number": 2, "of": 2},
    ]
    assert "failed alike 2 times before" in told["a2"]["text"]


@pytest.mark.parametrize(
    ("before", "numbers"),
    [
        ((0, 100, 200, 300), [1, 1, 1, 1]),  # each time it has gone past where it failed before
        ((0, 40, 40, 40), [1, 2, 2, 2]),  # from the second one on at one step of the training
        ((0, 0, 0, 0), [1, 2, 2, 2]),  # nobody saw from where they began
    ],
    ids=["gets past it", "at one step", "checkpoints not seen"],
)
def test_what_the_training_has_passed_since_is_no_failure_alike(
    court: Court, before: tuple[int, ...], numbers: list[int]
) -> None:
    for number, steps_before in enumerate(before):
        step = 50 if not number or before[1] != 40 else 10
        body: dict[str, Any] = {"steps_before": steps_before} if steps_before else {}
        found = make_finding(Kind.RANK_NOT_ENTERED, 2, at=number * 7200.0, attempt=f"a{number}", step=step, **body)
        court.hear(found)
    told = advice_by_attempt(court)
    assert [told[f"a{number}"].get("retry", {"number": 0})["number"] for number in range(4)][:2] == numbers[:2]
    assert (told["a3"]["by"] == "automatic") == (numbers == [1, 1, 1, 1])


def test_what_went_wrong_before_in_the_first_attempt_hides_no_count_of_its_steps(court: Court) -> None:
    save = make_finding(Kind.CHECKPOINT_FAILED, 0, at=0.0, attempt="a0", step=250)
    first = raised("RuntimeError: the batch cannot be read", attempt="a0", at=3600.0, step=624)
    again = raised("RuntimeError: the batch cannot be read", attempt="a1", at=7200.0, step=370, steps_before=1350)
    court.hear(save, first, again)
    told = advice_by_attempt(court)["a1"]
    assert (told["action"], told["retry"]["number"]) == ("retry", 1)


@pytest.mark.parametrize("other", ["another error", "another place", "another kind", "another run"])
def test_what_is_not_alike_does_not_count(court: Court, other: str) -> None:
    first = raised("RuntimeError: a", attempt="a1", at=0.0)
    if other == "another error":
        second = raised("ConnectionError: b", attempt="a2", at=7200.0)
    elif other == "another place":
        second = raised("RuntimeError: a", attempt="a2", at=7200.0)
        rows = [{**row, FACT: {**row[FACT], "file": "/job/data.py", "line": 9}} for row in second.body["evidence"]]
        second = replace(second, body={**second.body, "evidence": rows})
    elif other == "another kind":
        second = make_finding(Kind.RANK_DIED, 2, at=7200.0, attempt="a2")
    else:
        second = raised("RuntimeError: a", attempt="a2", at=7200.0)
        second = replace(second, identity=replace(second.identity, run="r2", job="j2"))
    court.hear(first, second)
    assert advice_by_attempt(court)["a2"]["retry"]["number"] == 1


def test_the_same_error_with_other_numbers_counts_over_the_jobs_of_a_run(court: Court) -> None:
    first = raised("RuntimeError: batch 17 of 0x7f00 is bad", attempt="a1", at=0.0)
    second = raised("RuntimeError: batch 23 of 0x7f10 is bad", attempt="a2", at=7200.0, rank=2)
    court.hear(first, replace(second, identity=replace(second.identity, job="j2")))
    told = advice_by_attempt(court)
    assert (told["a1"]["action"], told["a2"]["action"]) == ("retry", "fix_code")


def test_incidents_of_one_attempt_count_once(court: Court) -> None:
    court.hear(
        raised("RuntimeError: a", attempt="a1", at=0.0),
        raised("RuntimeError: a", attempt="a1", at=0.1),
        make_finding(Kind.NUMERIC_FIRST_RANK, 1, at=0.2, attempt="a1"),
    )
    assert all(document["advice"].get("retry", {"number": 1})["number"] == 1 for document in court.pages)


def test_the_same_step_on_other_nodes_is_the_programs_even_with_a_fault_of_the_device(court: Court) -> None:
    """The GPU of each node reports an error, and it is the batch that makes it."""
    for number, name in enumerate(("n1", "n7", "n9")):
        node = Node(name, court)
        at = number * 7200.0
        node.rank(2, f"GPU-{name}", at=at - 100.0, attempt=f"a{number}")
        node.xid(79, 2, at=at - 0.5)
        found = make_finding(Kind.RANK_DIED, 2, at=at + 0.3, onset=at, attempt=f"a{number}")
        court.hear(moved(found, name))
    told = advice_by_attempt(court)
    assert [told[f"a{n}"]["action"] for n in range(3)] == ["restart_without_node", "fix_code", "fix_code"]
    assert "step 30 on other nodes" in told["a1"]["text"]


def test_the_same_step_on_the_same_node_may_be_the_node(court: Court) -> None:
    node = Node(court=court)
    for number in range(2):
        at = number * 7200.0
        node.rank(2, "GPU-2", at=at - 100.0, attempt=f"a{number}")
        node.xid(79, 2, at=at - 0.5)
        court.hear(make_finding(Kind.RANK_DIED, 2, at=at + 0.3, onset=at, attempt=f"a{number}"))
    assert advice_by_attempt(court)["a1"]["action"] == "restart_without_node"
    assert advice_by_attempt(court)["a1"]["retry"] == {"number": 2, "of": 3}


def test_a_storm_of_different_failures_goes_to_a_person(court: Court) -> None:
    for number in range(5):
        court.hear(make_finding(Kind.RANK_DIED, number, at=number * 300.0, attempt=f"a{number}", step=number))
    told = advice_by_attempt(court)
    assert [told[f"a{n}"]["action"] for n in range(5)] == [*["retry"] * 4, "ask_a_human"]
    assert "5 failures of this run within 30 minutes" in told["a4"]["text"]
    assert told["a4"]["if_seldom"] == {"action": "retry", "by": "automatic"}
    assert "if_seldom" not in told["a3"]


def test_what_was_published_counts_after_the_state_is_lost(court: Court) -> None:
    for number in range(2):
        court.hear(make_finding(Kind.RANK_NOT_ENTERED, 2, at=number * 7200.0, attempt=f"a{number}"))
    court.lose_state()
    court.hear(make_finding(Kind.RANK_NOT_ENTERED, 2, at=14400.0, attempt="a2"))
    assert advice_by_attempt(court)["a2"]["by"] == HUMAN


def test_failures_are_bounded_and_forgotten_with_their_job(court: Court) -> None:
    for number in range(MAX_FAILURES + 9):
        at = number * 7200.0
        found = make_finding(Kind.RANK_NOT_ENTERED, 2, at=at, attempt=f"a{number}")
        court.hear(found, replace(found, cleared=True))
    rows = dict(court.table("failures").rows())
    assert list(rows) == ["r"]
    assert rows["r"].count(b'"incident"') == MAX_FAILURES
    court.pass_time(court.now / 1e9 - 1_700_000_000.0 + KEPT_NS / 1e9 + 1.0)
    assert dict(court.table("failures").rows()) == {}


@pytest.mark.parametrize(
    ("fact", "error"),
    [
        (EvidenceFact(how=How.RAISED, type="ValueError", message="bad 17 in /a/b"), "ValueError: bad # in #"),
        (EvidenceFact(how=How.RAISED, type="KeyError", in_thread=True), "KeyError"),
        (EvidenceFact(how=How.SIGNAL, signal=9, step=4, phase="data"), "SIGKILL"),
        (EvidenceFact(how=How.SIGNAL, signal=15, sender=SignalSender.PROCESS, sender_pid=77), "SIGTERM"),
        (EvidenceFact(how=How.ABORTED, signal=6, sender=SignalSender.ITSELF), "SIGABRT by itself"),
        (EvidenceFact(how=How.EXIT, exit_code=17), "exit code 17"),
        (EvidenceFact(how=How.VANISHED), "vanished"),
        (
            EvidenceFact(how=How.TOGETHER, endings=(EvidenceFact(how=How.EXIT, exit_code=1),) * 2),
            "exit code 1; exit code 1",
        ),
        (EvidenceFact(how=How.LEFT), ""),
    ],
)
def test_errors_are_compared_without_what_differs_each_time(fact: EvidenceFact, error: str) -> None:
    assert error_of(fact) == error


def test_how_it_ended_is_asked_of_the_suspect_before_those_that_are_only_counted() -> None:
    own = EvidenceFact(how=How.RAISED, rank=3, type="OSError", message="no", file="/x/train.py", line=88)
    counted = EvidenceFact(how=How.RAISED, ranks="2", type="OSError")
    rows = [EvidenceRow(signal="rank.exception", fact=fact) for fact in (counted, own)]
    assert last_end(rows) == own
    assert last_end([EvidenceRow(signal="rank.exception", shows="in words of no release")]) is None


def test_attempts_that_get_no_further_go_to_a_person_whatever_they_fail_of(court: Court) -> None:
    """Hours apart and of different ranks: no storm, and no failure like another."""
    kinds = (Kind.RANK_DIED, Kind.RANK_NOT_ENTERED, Kind.RANK_DIED, Kind.RANK_NOT_ENTERED)
    for number, kind in enumerate(kinds):
        step, at = (50 if number == 0 else 0), number * 7200.0
        court.hear(make_finding(kind, number, at=at, attempt=f"a{number}", step=step))
    told = advice_by_attempt(court)
    assert [told[f"a{n}"]["by"] for n in range(3)] == ["automatic"] * 3
    assert (told["a3"]["action"], told["a3"]["by"]) == ("ask_a_human", HUMAN)
    assert "3 attempts got no further" in told["a3"]["text"]


@pytest.mark.parametrize(
    ("steps", "before"),
    [
        ((50, 50, 50, 50), (0, 50, 100, 150)),  # each from the checkpoint that the one before has written
        ((50, 40, 30, 20), (0, 0, 0, 0)),  # nobody saw from where they began
        ((50, 0, 0, 70), (0, 0, 0, 50)),
        ((None, None, None, None), (0, 0, 0, 0)),
    ],
    ids=["gets on", "checkpoints not seen", "got on at last", "no steps"],
)
def test_attempts_that_get_on_or_of_which_nobody_knows_are_tried_again(
    court: Court, steps: tuple[int | None, ...], before: tuple[int, ...]
) -> None:
    for number, (step, steps_before) in enumerate(zip(steps, before, strict=True)):
        kind = Kind.RANK_DIED if number % 2 else Kind.RANK_NOT_ENTERED
        body: dict[str, Any] = {"steps_before": steps_before} if steps_before else {}
        court.hear(make_finding(kind, number, at=number * 7200.0, attempt=f"a{number}", step=step, **body))
    assert "no further" not in str(advice_by_attempt(court))


def test_attempts_that_stay_behind_a_checkpoint_are_stuck_by_their_counts(court: Court) -> None:
    for number in range(4):
        body: dict[str, Any] = {"steps_before": 100} if number else {}
        kind = Kind.RANK_DIED if number % 2 else Kind.RANK_NOT_ENTERED
        step = 30 - number if number else 130
        court.hear(make_finding(kind, number, at=number * 7200.0, attempt=f"a{number}", step=step, **body))
    assert "3 attempts got no further" in advice_by_attempt(court)["a3"]["text"]
