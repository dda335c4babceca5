"""Collectors run where they can hurt nobody: what one does never stops another, and a late one is told."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from whichrank.agents.collectors import schedule
from whichrank.agents.collectors.base.collector import Isolation
from whichrank.agents.collectors.collector_plans import node_plans
from whichrank.agents.collectors.options import NodeOptions
from whichrank.agents.collectors.schedule import CollectorPlan, NodeTelemetry, Seen

SAMPLES = "tests.agents.collectors.sample_collectors"


def plan(kind: str, isolation: Isolation = Isolation.THREAD, **options: str) -> CollectorPlan:
    return CollectorPlan(name=kind, factory=f"{SAMPLES}:{kind}", options=options, isolation=isolation)


@contextmanager
def telemetry(*plans: CollectorPlan) -> Iterator[tuple[NodeTelemetry, list[str]]]:
    said: list[str] = []
    node = NodeTelemetry(plans, report=said.append)
    node.start()
    yield node, said
    node.close()


def gather(node: NodeTelemetry, until: Callable[[list[Seen]], bool], timeout_s: float = 20.0) -> list[Seen]:
    seen: list[Seen] = []
    deadline = time.monotonic() + timeout_s
    while not until(seen):
        assert time.monotonic() < deadline, seen[-3:]
        seen += node.take()
        time.sleep(0.02)
    return seen


def looks_of(seen: list[Seen], name: str) -> list[float]:
    return [point.value for one in seen if one.collector == name for point in one.collected.points]


def pids(folder: Path) -> list[int]:
    """Of the processes in which ``hanging`` was made."""
    file = folder / "pids"
    return [int(word) for word in file.read_text().split()] if file.exists() else []


@pytest.mark.parametrize("isolation", list(Isolation))
def test_what_is_seen_comes_in_order_and_a_problem_is_told_once(isolation: Isolation) -> None:
    with telemetry(plan("seeing", isolation)) as (node, said):
        seen = gather(node, lambda seen: len(looks_of(seen, "seeing")) >= 5)
    looks = looks_of(seen, "seeing")
    assert looks == sorted(looks)
    assert said == ["seeing: no driver"]


@pytest.mark.parametrize("isolation", list(Isolation))
def test_one_that_raises_is_counted_told_once_and_stops_no_other(
    isolation: Isolation, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(schedule, "FIRST_PAUSE_S", 0.05)
    with telemetry(plan("raising"), plan("seeing", isolation)) as (node, said):
        gather(node, lambda seen: len(looks_of(seen, "seeing")) >= 3 and node.counters["collectors.failures"] >= 3)
    assert said.count("raising: OSError: the file is not there; tried again later") == 1


@pytest.mark.parametrize("isolation", list(Isolation))
def test_one_that_does_not_come_back_is_told_as_late(
    isolation: Isolation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(schedule, "LATE_S", 0.3)
    (tmp_path / "hang").touch()
    with telemetry(plan("hanging", isolation, folder=str(tmp_path)), plan("seeing")) as (node, _):
        gather(node, lambda seen: node.counters["collectors.late"] == 1)
        assert gather(node, lambda seen: len(looks_of(seen, "seeing")) >= 3)
        (tmp_path / "hang").unlink()
        gather(node, lambda seen: node.counters["collectors.late"] == 0 and len(looks_of(seen, "hanging")) >= 2)


def watching(seen: list[Seen], name: str) -> list[float]:
    """What was said of a collector, each time."""
    points = [point for one in seen if one.collector == "collectors" for point in one.collected.points]
    mine = [point for point in points if point.attributes["whichrank.collector"] == name]
    return [point.value for point in mine if point.name == schedule.METRIC_WATCHING]


@pytest.mark.parametrize("isolation", list(Isolation))
def test_who_sees_and_who_does_not_is_told(
    isolation: Isolation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(schedule, "_SELF_REPORT_S", 0.05)
    monkeypatch.setattr(schedule, "LATE_S", 0.3)
    plans = [plan(kind, isolation) for kind in ("seeing", "raising", "blind")]
    with telemetry(*plans, plan("hanging", isolation, folder=str(tmp_path))) as (node, _):
        seen = gather(node, lambda seen: all(1.0 in watching(seen, name) for name in ("seeing", "blind", "hanging")))
        (tmp_path / "hang").touch()
        late = gather(node, lambda seen: watching(seen, "hanging")[-1:] == [0.0])
        (tmp_path / "hang").unlink()
        gather(node, lambda seen: watching(seen, "hanging")[-1:] == [1.0])
    assert 1.0 not in watching(seen + late, "raising")
    assert 0.0 not in watching(late, "seeing")
    assert 0.0 not in watching(late, "blind")


def test_a_process_that_hangs_is_killed_and_begun_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schedule, "LATE_S", 0.2)
    monkeypatch.setattr(schedule, "KILL_S", 4.0)  # on a busy machine a process takes seconds to begin
    monkeypatch.setattr(schedule, "FIRST_PAUSE_S", 0.05)
    (tmp_path / "hang").touch()
    with telemetry(plan("hanging", Isolation.PROCESS, folder=str(tmp_path))) as (node, said):
        gather(node, lambda seen: len(pids(tmp_path)) >= 2, timeout_s=40.0)
        (tmp_path / "hang").unlink()
        gather(node, lambda seen: len(looks_of(seen, "hanging")) >= 2)
    first = pids(tmp_path)[0]
    assert "hanging: did not answer; tried again later" in said
    with pytest.raises(ProcessLookupError):
        os.kill(first, 0)


def test_processes_end_with_the_agent(tmp_path: Path) -> None:
    with telemetry(plan("hanging", Isolation.PROCESS, folder=str(tmp_path))) as (node, _):
        gather(node, lambda seen: len(looks_of(seen, "hanging")) >= 1)
    (child,) = pids(tmp_path)
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        try:
            os.kill(child, 0)
        except ProcessLookupError:
            return
        time.sleep(0.05)
    pytest.fail("the collector's process is still there")


def test_what_a_source_says_by_itself_comes_between_two_looks() -> None:
    with telemetry(plan("listening", Isolation.PROCESS)) as (node, _):
        seen = gather(node, lambda seen: len(looks_of(seen, "listening")) >= 4)
    assert looks_of(seen, "listening")[:4] == [1.0, 2.0, 3.0, 4.0]


#: Of no use to a collector, and 2 to 10 MB in each process of one.
HEAVY = ("numpy", "psutil", "google.protobuf", "opentelemetry", "pydantic", "rich", "typer", "kafka", "asyncio")


@pytest.mark.parametrize(
    "its_plan",
    [plan for plan in node_plans(NodeOptions(), dict) if plan.isolation is Isolation.PROCESS],
    ids=lambda its_plan: its_plan.name,
)
def test_a_collectors_process_imports_nothing_heavy(its_plan: CollectorPlan) -> None:
    module = its_plan.factory.partition(":")[0]
    code = (
        "import sys; from importlib import import_module; import whichrank.agents.collectors.collector_child; "
        f"import_module({module!r}, 'whichrank.agents.collectors'); print(*sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, check=True)
    assert set(HEAVY).isdisjoint(done.stdout.split())
