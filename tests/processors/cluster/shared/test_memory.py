"""What is remembered over jobs: bounded, taken back by people's words, and unharmed by what cannot be."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.processors.cluster.conftest import START_S, MemoryTable
from tests.processors.cluster.shared.fleet import DAY_S, Fleet, joint_of
from tests.processors.cluster.shared.test_stories import ERRORS, busy_fleet, history
from whichrank.processors.cluster.shared import memory as memory_module
from whichrank.processors.cluster.shared import placements as placements_module
from whichrank.processors.cluster.shared.landscape import Landscape, NodeLoad, ToldLoad
from whichrank.processors.cluster.shared.memory import Memory
from whichrank.processors.cluster.shared.placements import Placements
from whichrank.processors.cluster.shared.rules import load_shared_rules
from whichrank.processors.cluster.shared.scoring import Candidate, choose, gamma_tail, lemon_probability
from whichrank.processors.cluster.shared.told import read_places
from whichrank.processors.cluster.shared.troubles import fingerprint
from whichrank.processors.placement_document import PlacementReport, read_placement
from whichrank.telemetry.vocabulary import Kind


def placement(
    job: str, nodes: dict[str, str], begin: float, end: float | None = None, attempt: str = "a1"
) -> PlacementReport:
    told = {"job": job, "attempt": attempt, "begin": begin, "end": end, "nodes": nodes, "world_size": 8}
    return read_placement(told)


def test_of_which_jobs_ran_where_the_oldest_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(placements_module, "MAX_ATTEMPTS", 50)
    table = MemoryTable()
    placements = Placements(table)
    for i in range(200):
        placements.take(placement(f"j{i}", {f"n{i % 7}": "0-7"}, 10.0 * i, 10.0 * i + 5.0))
    assert len(placements.attempts) == len(list(table.rows())) == 50
    assert "j199\ta1" in placements.attempts
    assert sum(map(len, placements.by_node.values())) == 50
    again = Placements(table)
    assert set(again.attempts) == set(placements.attempts)
    assert again.by_node.keys() == placements.by_node.keys()


def test_contradictions_are_counted_and_what_was_told_last_holds() -> None:
    placements = Placements(MemoryTable())
    placements.take(placement("j", {"n1": "0-7", "n2": "4-11"}, 0.0))
    assert [doubt.what for doubt in placements.doubts] == ["rank on two nodes"]
    placements.take(placement("j", {"n1": "0-7", "n3": "8-15"}, 100.0, attempt="a2"))
    assert placements.doubts[-1].what == "attempt without end"
    assert [a.attempt for a in placements.at("n1", 150.0)] == ["a2"]
    assert [a.attempt for a in placements.at("n2", 50.0)] == ["a1"]


@pytest.mark.parametrize(
    "body",
    [
        {"placement": {"job": "j"}},
        {"placement": "j on n1"},
        {"placement": {"job": "j", "attempt": "a", "begin": "noon", "end": None, "nodes": {"n": "0-"}}},
        {"placement": {"job": "j", "attempt": "a", "begin": 1.0, "end": None, "nodes": {"n": "0-x"}}},
        {"topology": {"entity": "n1", "labels": ["leaf"]}},
        {"topology": {}},
        {"change": {"entity": "n1"}},
        {"load": {"service": "s", "operation": "metadata"}},
        {"plan": {"what": "maintenance", "begin": "soon"}},
    ],
)
def test_what_cannot_be_read_is_passed_over_and_the_rest_works(body: Any) -> None:
    fleet = Fleet()
    fleet.say("odd", -1.0, body)
    jobs = [fleet.job(f"j{i}", [f"n2-{i}", f"n{4 + i}-0"]) for i in range(2)]
    for leaf in (0, 1, 3):
        fleet.job(f"well{leaf}", fleet.under(leaf, 5, 6))
    for i, job in enumerate(jobs):
        job.tell(Kind.COLLECTIVE_STALLED, 5.0 + i, onset=float(i))
    court = fleet.run(60.0)
    assert joint_of(court, Kind.SWITCH_FAULT)["suspects"][0]["id"] == "leaf2"
    assert Memory.current(None, court).problems["finding that cannot be read"] == 1


def test_unknown_nodes_and_jobs_without_a_placement_are_told_as_before() -> None:
    fleet = Fleet(labels=False)
    job = fleet.job("a", ["x1", "x2"])
    job.tell(Kind.RANK_DIED, 5.0, node="x1")
    fleet.findings = [each for each in fleet.findings if "placement" not in each[2].body]
    (document,) = fleet.run(60.0).pages
    assert (document["kind"], document["state"]) == ("rank_died", "open")


def test_a_wrong_label_takes_a_count_back() -> None:
    fleet = Fleet()
    busy_fleet(fleet)
    history(fleet, [(f"j{i}", -9.0 + 3 * i, "n0-5", error) for i, error in enumerate(ERRORS)])
    second_s = -5.0 * DAY_S
    late = [f for f in fleet.findings if f[0] >= second_s]
    fleet.findings = [f for f in fleet.findings if f[0] < second_s]
    court = fleet.run(second_s)
    assert len(court.pages) == 2
    for document in list(court.pages):
        label = {
            "incident": document["id"],
            "cause": "application",
            "wrong": True,
            "by": "p",
            "time": START_S + second_s,
        }
        fleet.findings = []
        fleet.say(f"label/{document['id']}", second_s + 10.0, {"label": label})
        fleet.run(second_s + 20.0)
        assert court.incidents[document["id"]]["label"]["wrong"] is True
    fleet.findings = late
    court = fleet.run(60.0)
    assert all(document["kind"] != "lemon_node" for document in court.pages)


def test_a_label_that_names_a_node_counts_against_it() -> None:
    fleet = Fleet()
    job = fleet.job("a", ["n1-0", "n1-1"])
    job.tell(Kind.COLLECTIVE_STALLED, 5.0)
    court = fleet.run(20.0)
    (document,) = court.pages
    fleet.findings = []
    fleet.say("label", 30.0, {"label": {"incident": document["id"], "cause": "node=n1-1", "wrong": False}})
    fleet.run(40.0)
    memory = Memory.current(None, court)
    assert memory.sums.of("n1-1", START_S + 50.0)[0] == 1.0


def test_the_number_of_remembered_incidents_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory_module, "MAX_TROUBLES", 40)
    fleet = Fleet(2, 4)
    job = fleet.job("a", ["n1-0", "n1-1"])
    for i in range(120):
        job.tell(Kind.RANK_SLOW, 100.0 * i, node="n1-0", step=i)
        job.well(100.0 * i + 50.0)
    court = fleet.run(13_000.0)
    memory = Memory.current(None, court)
    assert len(memory.troubles) == len(list(court.table("troubles").rows())) == 40
    assert sum(map(len, memory.by_run.values())) == 40


def test_labels_of_nodes_are_bounded_by_the_nodes() -> None:
    landscape = Landscape(MemoryTable(), MemoryTable(), MemoryTable(), MemoryTable())
    for i in range(30):
        landscape.take_places(read_places({"entity": "n1", "labels": {"leaf": f"l{i}"}}))
    assert landscape.values["leaf"] == {"l29": 1}


def test_what_nodes_ask_of_a_service_is_a_row_each_also_where_an_earlier_release_had_one_of_all() -> None:
    loads = MemoryTable()
    loads.put("storage\topen", json.dumps({"n2": {"usual": 3.0, "spells": [[5.0, None, 7.0]]}}).encode())
    landscape = Landscape(MemoryTable(), MemoryTable(), loads, MemoryTable())
    landscape.take_load(
        ToldLoad(node="n1", service="storage", operation="open", usual=None, since_s=1.0, until_s=2.0, rate=9.0)
    )
    known = {
        "n1": NodeLoad(spells=((1.0, 2.0, 9.0),)),
        "n2": NodeLoad(usual=3.0, spells=((5.0, None, 7.0),)),
    }
    assert landscape.loads == {"storage\topen": known}
    assert [name for name, _ in loads.rows()] == ["storage\topen\tn1", "storage\topen\tn2"]
    assert Landscape(MemoryTable(), MemoryTable(), loads, MemoryTable()).loads == landscape.loads


# --- arithmetic -----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("shape", "x", "tail"),
    [(1.0, 2.0, math.exp(-2.0)), (2.0, 3.0, 4.0 * math.exp(-3.0)), (0.5, 0.5, 0.317310507863), (5.0, 1.0, 0.996340153)],
)
def test_the_gamma_tail_against_known_values(shape: float, x: float, tail: float) -> None:
    assert gamma_tail(shape, x) == pytest.approx(tail, rel=1e-6)


@given(shape=st.floats(0.01, 50.0), x=st.floats(0.0, 200.0))
def test_the_gamma_tail_is_a_probability_that_falls(shape: float, x: float) -> None:
    assert 0.0 <= gamma_tail(shape, x + 0.5) <= gamma_tail(shape, x) + 1e-9 <= 1.0 + 1e-9


def test_a_lemon_is_told_by_its_rate_and_not_by_its_count() -> None:
    fleet_failures, fleet_hours = 40.0, 1_000_000.0
    assert lemon_probability(1.5, 100.0, fleet_failures, fleet_hours) > 0.95
    assert lemon_probability(1.5, 40_000.0, fleet_failures, fleet_hours) < 0.5
    assert lemon_probability(0.0, 0.0, fleet_failures, fleet_hours) < 0.95


def test_the_fewest_causes_are_taken_and_near_ties_do_not_decide() -> None:
    rule = load_shared_rules()["leaf_fault"]
    jobs = {f"t{i}": f"j{i}" for i in range(4)}

    def candidate(value: str, gain: float) -> Candidate:
        return Candidate(rule=rule, value=value, covers=dict.fromkeys(jobs, gain / 4))

    (clear,) = choose([candidate("l1", 20.0), candidate("l2", 9.0)], jobs)
    assert (clear.candidate.value, clear.decides) == ("l1", True)
    (tied,) = choose([candidate("l1", 20.0), candidate("l2", 19.9)], jobs)
    assert not tied.decides
    assert [r.value for r, _ in tied.rivals] == ["l2"]
    assert choose([candidate("l1", 2.0)], jobs) == []


def test_errors_are_alike_whatever_their_numbers() -> None:
    assert fingerprint("ValueError: token 50257") == fingerprint("valueerror: token 9")
    assert fingerprint("KeyError: a") != fingerprint("ValueError: a")


def test_ties_between_what_is_always_shared_are_told_as_undecided() -> None:
    """Each leaf has storage of its own, and two jobs wait under one: it may be either, and no node is taken out."""
    fleet = Fleet()
    for node in fleet.nodes:
        labels = fleet.labels[node]
        fleet.topology(node, {**labels, "storage": f"s{labels['leaf'][-1]}"}, at=-10 * DAY_S)
    for leaf in (0, 1, 3):
        fleet.job(f"well{leaf}", fleet.under(leaf, 0, 1))
    for i in range(2):
        job = fleet.job(f"j{i}", [f"n2-{i}", f"n{5 + i}-0"])
        job.tell(Kind.RANK_NOT_ENTERED, 6.0 + i, onset=1.0 + i, node=f"n2-{i}", phase=None)
    court = fleet.run(200.0)
    joint = next(d for d in court.pages if len(d["jobs"]) > 1)
    assert joint["scope"] in ("cluster", "switch")
    if joint["kind"] == "shared_cause":
        assert {s["id"] for s in joint["suspects"]} >= {"leaf2", "s2"}
        assert joint["advice"]["action"] == "ask_a_human"


def test_rows_that_cannot_be_read_are_kept_aside_and_the_memory_begins_anew() -> None:
    court = Fleet().court
    court.table("plans").put("broken", b'{"no": "plan"}')
    court.table("shared").put("version", b"17")
    memory = Memory.current(None, court)
    assert memory.plans == {}
    assert memory.problems == {"memory of all jobs that could not be read": 1}
    assert court.table("aside.plans").get("broken") == b'{"no": "plan"}'
