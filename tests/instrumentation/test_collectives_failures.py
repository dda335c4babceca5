"""What goes wrong stays the job's affair: failing operations, failing hooks, dead peers, levels, groups that go."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as torch_distributed

from tests.instrumentation.plain_ranks import run_with_each_writer
from tests.instrumentation.ring_contents import RingContents, read_ring
from tests.instrumentation.ring_groups import RingReader
from whichrank.instrumentation.groups import GroupRegistry
from whichrank.instrumentation.ring_writer import open_ring_writer
from whichrank.telemetry import ring_layout as layout
from whichrank.telemetry.vocabulary import EventFlag, EventKind, HookState, Op

#: torch's stubs leave out what is used here.
dist: Any = torch_distributed
SCRIPT = Path(__file__).with_name("collectives_failures_script.py")
HOOKED = HookState.COLLECTIVES_HOOKED | HookState.COMPLETION_HOOKED


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("failures")
    run_with_each_writer(SCRIPT, directory, expected=(0, 3))
    return directory


@pytest.fixture(params=["python", "c"])
def results(request: pytest.FixtureRequest, directory: Path) -> Path:
    return directory / str(request.param)


def read_case(results: Path, case: str) -> list[Any]:
    """(what the rank said, its ring, its first groups' rows), by rank."""
    found = []
    for rank in range(2):
        said = json.loads((results / case / f"result-{rank}.json").read_text())
        reader = RingReader(Path(said["path"]))
        found.append((said, read_ring(Path(said["path"])), [reader.group(row) for row in range(4)]))
        reader.close()
    return found


def ends(ring: RingContents) -> dict[int, int]:
    """Sequence -> flags of the collectives of the first group that ended."""
    return {event.seq: event.flags for event in ring.events if event.kind is EventKind.COMPLETE and event.group == 0}


def starts(ring: RingContents, group: int = 0) -> list[int]:
    return [event.seq for event in ring.events if event.kind is EventKind.ENQUEUE and event.group == group]


def test_a_hook_that_raises_stops_and_says_so_and_the_job_goes_on(results: Path) -> None:
    for said, ring, _ in read_case(results, "hook_raises"):
        assert (said["before"], said["during"], said["after"]) == (4.0, 16.0, [4.0] * 5)
        assert said["state"] == HOOKED | HookState.DISABLED
        assert said["errors"] == 1
        assert [event.value for event in ring.events if event.kind is EventKind.HOOK_OFF] == [said["state"]]
        assert any("struck" in note for note in ring.notes())
        assert starts(ring) == [1], "recorded after it was stopped"


def test_a_call_that_torch_refuses_ends_failed(results: Path) -> None:
    for said, ring, _ in read_case(results, "issue_raises"):
        assert said["raised"] in ("RuntimeError", "ValueError")
        assert said["errors"] == 0
        flags = ends(ring)
        assert sorted(flags) == [1, 2, 3]
        assert [flags[seq] & EventFlag.FAILED for seq in (1, 2, 3)] == [0, EventFlag.FAILED, 0]


def test_a_dead_peer_raises_as_ever_and_the_end_is_failed(results: Path) -> None:
    (said, ring, rows), _ = read_case(results, "peer_dies")
    assert "peer" in said["raised"] or "reset" in said["raised"] or "closed" in said["raised"]
    last = max(starts(ring))
    assert ends(ring)[last] & EventFlag.FAILED
    assert not ends(ring)[last - 1] & EventFlag.FAILED
    assert rows[0]["open"] == 0


def test_numbers_go_on_while_recording_is_off(results: Path) -> None:
    for rank, (said, ring, rows) in enumerate(read_case(results, "level_changes")):
        silent = range(11 + 3 * rank, 21 + rank)
        assert starts(ring) == [seq for seq in range(1, 31) if seq not in silent]
        assert rows[0]["enqueued"] == 30
        assert said["open"] == 0


def test_an_operation_stays_open_until_the_peer_enters(results: Path) -> None:
    said, ring, rows = read_case(results, "open_operation")[0]
    assert (said["open_before"], said["open_after"]) == (1, 0)
    assert ends(ring)[2] & EventFlag.POLLED
    begin = next(event for event in ring.events if event.kind is EventKind.ENQUEUE and event.seq == 2)
    end = next(event for event in ring.events if event.kind is EventKind.COMPLETE and event.seq == 2)
    assert end.time_ns - begin.time_ns > 300_000_000
    assert rows[0]["completed"] == 3
    if said["status_before"] is not None:  # gloo writes into the flight recorder by itself from torch 2.11 on
        enqueued, completed = said["status_before"]
        assert enqueued == completed + 1
        assert said["status_after"] == [enqueued, enqueued]


def test_the_flight_recorder_completes_what_is_not_held(results: Path) -> None:
    said, ring, rows = read_case(results, "recorder_completes")[0]
    before, after = said["before"], said["after"]
    if before is None:
        assert ends(ring) == {}
        return
    assert (before[0], after[0]) == (3, 3)
    assert before[1] >= before[2] + 3
    assert after[1] == after[2]
    assert sorted(ends(ring)) == [1, 2, 3]
    assert all(flags & EventFlag.POLLED for flags in ends(ring).values())
    assert (rows[0]["completed"], rows[0]["open"]) == (3, 0)


def test_groups_come_and_go(results: Path) -> None:
    for said, ring, rows in read_case(results, "destroyed_and_made_again"):
        groups = [payload for number, payload in ring.definitions if number == layout.DEFINITION_GROUP]
        assert [group["desc"] for group in groups] == ["default_pg", "short-lived", "default_pg", "default_pg"]
        assert [group["default"] for group in groups] == [True, False, True, True]
        assert [group["ordinal"] for group in groups[:3:2]] == [0, 1]
        assert {group["ranks"] for group in groups} == {"0-1"}
        assert {group["timeout_s"] for group in groups} == {20.0, 1800.0}
        assert [row["in_use"] for row in rows[:3]] == [2, 2, 2]
        assert [row["enqueued"] for row in rows[:4]] == [1, 1, 2, 1]
        assert {event.op for event in ring.events if event.kind is EventKind.ENQUEUE} == {Op.ALL_REDUCE}
        assert said["again"] == HOOKED


def test_a_group_is_found_by_its_object_and_only_while_that_lives(tmp_path: Path) -> None:
    """Hooks find groups by id, which Python gives to another object as soon as the first is gone."""
    writer = open_ring_writer(tmp_path, rank=0, local_rank=0, world_size=2, identity={}, native=False)
    hooked: list[int] = []
    registry = GroupRegistry(writer, lambda pg, group: hooked.append(id(pg)))
    registry.install()
    try:
        kept, dropped, dying = (dist.ProcessGroup(dist.HashStore(), 0, 2) for _ in range(3))
        for name, pg in (("kept", kept), ("dropped", dropped), ("dying", dying)):
            registry.add(pg, name)
            found = registry.find_recorded(pg)
            assert found is not None
            assert registry.recorded[id(pg)] is found
        assert hooked == list(registry.recorded)
        registry.drop("dropped")
        assert registry.find_recorded(dropped) is None
        del dying, pg
        assert list(registry.recorded) == [id(kept)]
    finally:
        registry.uninstall()
        writer.close()
