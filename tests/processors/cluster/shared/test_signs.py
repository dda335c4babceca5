"""Signs of what several jobs use: by which names, how much they say, and for whom one job is enough."""

from __future__ import annotations

import pytest

from tests.processors.cluster.conftest import START_S, MemoryTable
from tests.processors.cluster.shared.fleet import Fleet, joint_of, standing
from whichrank.processors.cluster.shared.landscape import Landscape
from whichrank.processors.cluster.shared.signs import Signs
from whichrank.processors.cluster.shared.told import read_load, read_places
from whichrank.processors.condition_document import ConditionReport
from whichrank.telemetry.vocabulary import Kind

STORAGE, SWITCH = frozenset({"storage"}), frozenset({"switch"})
FABRIC = frozenset({"fabric", "switch"})


def condition(kind: str, entity: str, device: str = "", **more: object) -> ConditionReport:
    fields = {"name": "bad", "severity": "error", "since": START_S, "last": START_S, **more}
    return ConditionReport(entity=entity, entity_kind=kind, device=device, **fields)  # type: ignore[arg-type]


@pytest.fixture
def landscape() -> Landscape:
    return Landscape(*(MemoryTable() for _ in range(4)))


def names_of(signs: Signs, kinds: frozenset[str], *names: str) -> list[str]:
    return [name for name in names if signs.of(name, kinds, START_S, 60.0)]


def test_a_server_goes_by_its_name_its_file_system_and_what_is_everybody_s(landscape: Landscape) -> None:
    signs = Signs(MemoryTable(), landscape)
    signs.take(condition("storage", "mds1.lab", "lfs-MDT0000/open"), START_S)
    asked = ("mds1", "MDS1.lab", "lfs", "the shared storage", "mds2", "lfs2", "the fabric")
    assert names_of(signs, STORAGE, *asked) == ["mds1", "MDS1.lab", "lfs", "the shared storage"]
    assert names_of(signs, SWITCH, *asked) == []


def test_a_server_is_a_part_of_what_it_counts_jobs_of_and_of_its_label(landscape: Landscape) -> None:
    load = {"entity": "mds1", "service": "lfs", "operation": "open", "rate": 9.0, "since": 1.0, "job": "4711"}
    landscape.take_load(read_load(load))
    landscape.take_places(read_places({"entity": "oss1", "labels": {"storage": "scratch"}}))
    signs = Signs(MemoryTable(), landscape)
    for server in ("mds1", "oss1"):
        signs.take(condition("storage", server, "server"), START_S)
    assert [len(signs.of(name, STORAGE, START_S, 60.0)) for name in ("lfs", "scratch")] == [1, 1]


def test_rows_bring_the_same_signs_back(landscape: Landscape) -> None:
    table = MemoryTable()
    signs = Signs(table, landscape)
    signs.take(condition("switch", "leaf-1.fabric", "Eth1/7"), START_S)
    assert names_of(Signs(table, landscape), SWITCH, "leaf-1", "leaf-2") == ["leaf-1"]
    signs.take(condition("switch", "leaf-1.fabric", "Eth1/7", tolerated=True, until=START_S + 3.0), START_S)
    assert not signs.are_any
    assert not Signs(table, landscape).are_any


def test_one_switch_is_not_the_fabric(landscape: Landscape) -> None:
    signs = Signs(MemoryTable(), landscape)
    for number, is_enough in ((1, False), (2, False), (3, True)):
        signs.take(condition("switch", f"leaf{number}"), START_S)
        assert bool(signs.of("the fabric", FABRIC, START_S, 60.0)) is is_enough


def switch_says(fleet: Fleet, leaf: str = "leaf1", *, at: float = 5.0, severity: str = "error") -> None:
    fleet.condition("port_rcv_errors", leaf, at, kind="switch", device_kind="port", device="Eth1/7", severity=severity)


def one_waits(fleet: Fleet) -> None:
    fleet.job("a", [*fleet.under(0, 0, 1), *fleet.under(1, 0, 1)]).tell(
        Kind.RANK_NOT_ENTERED, 40.0, onset=12.0, node="n1-0", phase="exchange"
    )


def test_one_job_is_enough_where_its_switch_says_that_it_is_at_fault() -> None:
    fleet = Fleet()
    one_waits(fleet)
    switch_says(fleet)
    court = fleet.run(200.0)
    joint = joint_of(court, Kind.SWITCH_FAULT)
    assert (joint["scope"], joint["suspects"][0]["id"]) == ("switch", "leaf1")
    assert len(standing(court)) == 1


@pytest.mark.parametrize(
    "about",
    [{"leaf": "leaf5"}, {"severity": "warning"}, {"at": -1000.0}, {"at": 100.0}],
    ids=["another switch", "it is only busy", "long before", "afterwards"],
)
def test_one_job_is_not_enough_where_the_switch_says_something_else(about: dict[str, object]) -> None:
    fleet = Fleet()
    one_waits(fleet)
    switch_says(fleet, **about)  # type: ignore[arg-type]
    assert {document["kind"] for document in standing(fleet.run(300.0))} == {"rank_not_entered"}


@pytest.mark.parametrize(("name", "is_switch"), [("port_down", False), ("port_rcv_errors", True)])
def test_a_neighbour_s_node_that_is_started_again_makes_nobody_slow(name: str, is_switch: bool) -> None:
    fleet = Fleet()
    job = fleet.job("a", [*fleet.under(0, 0, 1), *fleet.under(1, 0, 1)])
    job.tell(Kind.RANK_SLOW, 40.0, onset=12.0, node="n1-0", phase="exchange")
    fleet.condition(name, "leaf1", 5.0, kind="switch", device_kind="port", device="Eth1/30")
    kinds = {document["kind"] for document in standing(fleet.run(200.0))}
    assert kinds == ({"switch_fault"} if is_switch else {"rank_slow"})


def test_two_jobs_that_disturb_each_other_make_their_spine_busy_and_not_broken() -> None:
    """Contention is told by the switch too, as marks and discards: it stays contention."""
    fleet = Fleet()
    old = fleet.job("a", [*fleet.under(2, 0, 1), *fleet.under(3, 0, 1)])
    for i in range(3):
        fleet.job(f"well{i}", [f"n2-{4 + i}", f"n3-{4 + i}"])
    new = fleet.job("c", [*fleet.under(2, 2, 3), *fleet.under(3, 2, 3)], at=0.0)
    fleet.condition("congestion_marks", "spine1", 21.0, kind="switch", device_kind="port", severity="warning")
    old.tell(Kind.SLOW_TOGETHER, 60.0, onset=20.0)
    new.tell(Kind.SLOW_TOGETHER, 66.0, onset=22.0)
    assert joint_of(fleet.run(200.0), Kind.LINK_CONTENTION)["suspects"][0]["id"] == "spine1"
