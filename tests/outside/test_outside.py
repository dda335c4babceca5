"""What is measured of other people's logs and loops: the labelled set holds, one loop is run, and no line can lie."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from tests.outside import sound
from tests.outside.judging import Facts, facts_from, facts_of, problems_of
from tests.outside.kinds import HERE
from tests.outside.log_cases import cases_in, judge_all
from tests.outside.loop_lines import lines
from tests.outside.loops import alone
from tests.outside.outcomes import Outcome, Planned, kept
from tests.outside.plan import KINDS, ON_DEVICE, faults_of, plan
from tests.outside.record import RECORD, read_record, write_record
from tests.outside.runs import Launch, programs, run
from tests.outside.table import Line, print_table


@pytest.mark.parametrize("name", ["job_logs", "kernel_logs"])
@pytest.mark.parametrize("labelled", ["second_set", "third_set"])
def test_labelled_sets_are_read_as_well_as_their_tables_say(labelled: str, name: str) -> None:
    cases = cases_in(HERE / labelled / name)
    wrong = [
        f"{case.name}: {'; '.join(result.problems)}"
        for case, result in zip(cases, judge_all(cases), strict=True)
        if result.problems
    ]
    assert len(wrong) <= 0.05 * len(cases), wrong
    harmless = {case.name for case in cases if "harmless" in case.classes}
    assert [line for line in wrong if line.partition(":")[0] in harmless] == []


def launch(script: str) -> Launch:
    whichrank, torchrun = programs()
    return Launch(script=HERE / "scripts" / script, whichrank=whichrank, torchrun=torchrun)


def test_a_loop_without_an_optimizer_that_hangs_is_a_page_within_seconds(tmp_path: Path) -> None:
    """A real job of three ranks that updates its weights by hand; the fault is put in from outside."""
    planned = Planned(name="hang", script="hand_update.py", fault="hang", rank=1, after_s=6.0)
    outcome = run(planned, tmp_path / "run", launch("hand_update.py"))
    facts = facts_of(outcome, 1)
    assert problems_of(facts) == []
    assert facts.where == "hand_update.py:23"  # the call before which the rank stands still, and no line of the harness
    assert facts.formula_s is not None
    assert facts.paged_s is not None
    assert facts.formula_s - 1.0 <= facts.paged_s <= 20.0  # two cores start a job meanwhile
    assert kept(tmp_path / "run", planned) == outcome


def said(severity: str, kind: str, rank: int | None, after_s: float, where: str = "x.py:3") -> dict[str, object]:
    file, _, line = where.partition(":")
    suspect = {"rank": rank, "where": {"file": file, "line": int(line)} if where else None}
    return {
        "id": kind,
        "severity": severity,
        "kind": kind,
        "bucket": "communication_hang",
        "suspects": [] if rank is None else [suspect],
        "times": {"onset": 100.0},
        "evidence": [{"shows": "a wait at this place is a page from 7.0 s on"}],
        "seen": 100.0 + after_s,
    }


def facts(fault: str, *revisions: dict[str, object]) -> Facts:
    planned = Planned(name=fault, kind="trainer", script="x.py", fault=fault, rank=1)
    outcome = Outcome(planned=planned, fired=100.0, where=["x.py:3"], exit_code=1, revisions=list(revisions))
    return facts_of(outcome, 1)


@pytest.mark.parametrize(
    ("got", "wrong"),
    [
        (facts("hang", said("info", "rank_not_entered", 1, 3.0), said("page", "rank_not_entered", 1, 7.5)), ""),
        (facts("hang", said("info", "rank_not_entered", 1, 3.0)), "nothing was said"),
        (facts("hang", said("ticket", "rank_not_entered", 1, 3.0)), "no page"),
        (facts("hang", said("page", "rank_not_entered", 0, 7.5)), "names [0]"),
        (facts("hang", said("page", "rank_not_entered", 1, 7.5, "x.py:4")), "line x.py:4"),
        (facts("hang", said("page", "rank_not_entered", 1, 7.5, "")), "line not told"),
        (facts("hang", said("page", "rank_died", 1, 7.5)), "kind rank_died"),
        (facts("kill", said("page", "rank_died", 1, 0.2), said("page", "rank_slow", 1, 0.3)), "2 incidents"),
        (facts("kill", said("page", "rank_died", 1, 0.2, "")), ""),
        (facts("slow", said("ticket", "rank_slow", 1, -1.0)), "before the fault"),
        (facts("all", said("page", "rank_not_entered", None, 61.0)), ""),
        (facts("all", said("page", "rank_not_entered", 0, 7.5)), "names [0]"),
        (replace(facts("all", said("page", "rank_not_entered", 0, 7.5)), came=(0,)), ""),
        (facts("slow", said("ticket", "rank_slow", 1, 20.0)), ""),
        (facts("nan", said("ticket", "numeric_all", None, 20.0)), "kind numeric_all"),
        (facts("", said("ticket", "rank_not_entered", 0, 61.0)), "ticket rank_not_entered"),
    ],
)
def test_what_counts_as_wrong(got: Facts, wrong: str) -> None:
    problems = problems_of(got)
    assert (problems == []) if not wrong else any(wrong in problem for problem in problems)


def test_a_late_page_a_lost_run_and_a_run_that_was_not_made_all_count(capsys: pytest.CaptureFixture[str]) -> None:
    late = facts("hang", said("page", "rank_not_entered", 1, 11.0))
    found = {line.asked.partition(" >=")[0]: line for line in lines([late])}
    assert found["stands still, formula 7 s: page within 3 s of it"].state == "SHORT"
    assert "formula 7.0 s, paged 11.0 s" in found["stands still, formula 7 s: page within 3 s of it"].measured
    assert found["stands still where the job's formula gives 7 s"].k_of_n == "1 of 1"
    assert found["of which kill"].state == found["public scripts"].state == "not run"
    lost = Outcome(planned=Planned(name="x", script="x.py"), problem="it did not end in time")
    assert problems_of(facts_of(lost, 1)) == ["it did not end in time"]
    uneven = replace(lost.planned, environment={"UNEVEN": "save", "PAUSE_S": "9.00", "BEFORE_S": "0.00"})
    assert sound.lines([sound.facts_of(replace(lost, planned=uneven), 1)])[1].state == "SHORT"
    assert print_table([Line.of("a", 9, 10, 0.95), Line.of("b", 10, 10, 1.0)], "both") == 1
    assert "1 of 2 lines ok, 1 SHORT, 0 not run" in capsys.readouterr().out


def test_a_record_keeps_the_facts_and_another_plan_does_not_count(tmp_path: Path) -> None:
    got = facts("hang", said("page", "rank_not_entered", 1, 7.5))
    write_record(tmp_path / "record.jsonl", [got])
    assert read_record(tmp_path / "record.jsonl", facts_from) == {("hang", got.key): got}
    assert facts("kill").key != got.key
    planned = Planned(name="hang", script="x.py", fault="hang", rank=1)
    (tmp_path / "outcome.json").write_text(json.dumps(asdict(Outcome(planned=planned))))
    assert kept(tmp_path, planned) == Outcome(planned=planned)
    assert kept(tmp_path, replace(planned, rank=2)) is None


def test_two_commands_do_not_run_in_the_same_results(tmp_path: Path) -> None:
    with alone(tmp_path), pytest.raises(SystemExit, match="another command"), alone(tmp_path):
        pass
    with alone(tmp_path):
        pass


def test_every_kind_runs_with_every_fault_once_and_the_draw_is_the_seeds() -> None:
    planned = plan(3)
    assert len({each.name for each in planned}) == len(planned)
    for kind in KINDS:
        assert len([each for each in planned if each.kind == kind.name]) == len(faults_of(kind))
    assert {kind.script for kind in KINDS if kind.source == "own"} == {
        path.name for path in (HERE / "scripts").glob("*.py")
    }
    assert planned == plan(3) != plan(4)
    pauses = [
        float(each.environment["PAUSE_S"]) for each in sound.plan(1, 400) if each.environment["PAUSE_S"] != "0.00"
    ]
    assert 0.25 <= sum(pause > 60 for pause in pauses) / len(pauses) <= 0.45


def test_any_first_part_of_a_plan_has_all_kinds_and_all_faults_alike() -> None:
    part = plan(5)[: 2 * len(KINDS)]
    faults = [each.name.rpartition("-")[2] for each in part]
    assert set(ON_DEVICE) < set(faults)
    counts = [faults.count(fault) for fault in ON_DEVICE]  # those that every kind has
    assert max(counts) - min(counts) <= 1
    assert len({each.kind for each in part}) == len(KINDS)
    standing = [each for each in plan(5) if each.fault in ("hang", "killed", "all") and each.manner != "spin"]
    assert sum(each.known for each in standing) >= 0.5 * len(standing)


def test_a_place_is_one_that_the_kind_has_and_that_the_rank_comes_to() -> None:
    kinds = {kind.name: kind for kind in KINDS}
    for each in plan(6):
        places = [place for place in kinds[each.kind].places if place.name == each.place]
        assert not each.fault or any(not place.ranks or each.rank in place.ranks for place in places)


@pytest.mark.parametrize(("document", "leads"), [("README.md", "docs/figures.md#real-loops"), ("docs/figures.md", "")])
def test_documents_say_what_the_records_do(document: str, leads: str) -> None:
    """Their figures of other people's loops and of sound jobs are those of the newest records.

    leads: of the README's table, the rows that lead there.
    """
    told = [
        [cell.strip() for cell in line.split("|")[1:3]]
        for line in (HERE.parents[1] / document).read_text().splitlines()
        if line.startswith("|") and leads in line
    ]
    seeds = ("loops-3.jsonl", "loops-4.jsonl")
    facts = [each for name in seeds for each in read_record(RECORD / name, facts_from).values()]
    by_name = {line.asked.rpartition(" >= ")[0]: line.k_of_n for line in lines(facts)}
    jobs = read_record(RECORD / "sound-8.jsonl", lambda values: sound.Facts(**values)).values()
    (pages,) = [line.k_of_n for line in sound.lines(list(jobs)) if line.asked.startswith("no page")]
    for words, k_of_n in (
        ("kind, rank and line", by_name["loops with a fault: right kind, rank, line, one incident"]),
        ("30 % slower", by_name["of which slow"]),
        ("no page, no ticket", by_name["clean loops without a page or ticket"]),
        ("uneven jobs: no page", pages),
    ):
        assert [figure for what, figure in told if words in what] == [k_of_n], words
