"""Every form of collective, on two real ranks: recorded once, with what must agree, and ended. Both ways of hooking."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.instrumentation.plain_ranks import run_with_each_writer
from tests.instrumentation.ring_groups import RingReader, dtype_of, flags_of, group_of, kind_of, op_of
from whichrank.telemetry import ring_layout as layout
from whichrank.telemetry.vocabulary import SIZE_COMPARABLE_OPS, EventFlag, EventKind, HookState, Op

SCRIPT = Path(__file__).with_name("collectives_script.py")


class RankRecord:
    """One rank's ring and what it says it issued."""

    def __init__(self, directory: Path, rank: int) -> None:
        self.said: dict[str, Any] = json.loads((directory / f"result-{rank}.json").read_text())
        reader = RingReader(Path(self.said["path"]))
        self.events = reader.events()
        self.groups = [reader.group(row) for row in range(8)]
        reader.close()
        self.sections: dict[str, list[Any]] = {}
        names = ["", *self.said["sections"]]
        current = ""
        for event in self.events:
            if kind_of(event) == EventKind.MARK:
                current = names[event[layout.E_VALUE]]
            elif kind_of(event) == EventKind.ENQUEUE:
                self.sections.setdefault(current, []).append(event)

    def ends(self) -> dict[tuple[int, int, int], Any]:
        """(group, P2P, sequence) -> COMPLETE event."""
        return {
            (group_of(event), flags_of(event) & EventFlag.P2P, event[layout.E_SEQ]): event
            for event in self.events
            if kind_of(event) == EventKind.COMPLETE
        }


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("rings")
    outputs = run_with_each_writer(SCRIPT, directory)
    # Looking at Work in the wrong way prints deprecation warnings into the user's log.
    assert all("deprecated, please ping" not in output for output in outputs)
    return directory


@pytest.fixture(scope="module", params=["python", "c"])
def records(request: pytest.FixtureRequest, directory: Path) -> list[RankRecord]:
    return [RankRecord(directory / request.param, rank) for rank in range(2)]


def test_nothing_failed(records: list[RankRecord]) -> None:
    for record in records:
        assert record.said["errors"] == 0
        assert record.said["open"] == 0
        assert record.said["state"] == HookState.COLLECTIVES_HOOKED | HookState.COMPLETION_HOOKED


def test_every_direct_call_is_recorded_as_it_was(records: list[RankRecord]) -> None:
    checked = 0
    for record in records:
        for name, said in record.said["sections"].items():
            if said["fixed"] is None:
                continue
            events = record.sections.get(name, [])
            assert [op_of(event) for event in events] == [expected[0] for expected in said["fixed"]], name
            for event, (op, nbytes, peer) in zip(events, said["fixed"], strict=True):
                assert nbytes is None or event[layout.E_VALUE] == nbytes, (name, Op(op).name)
                assert peer is None or event[layout.E_EXTRA] == peer + 1, (name, Op(op).name)
                checked += 1
    assert checked > 100


def test_every_other_way_is_counted_once(records: list[RankRecord]) -> None:
    for record in records:
        for name, said in record.said["sections"].items():
            if said["counted"] is None or name == "fake":
                continue
            seen = Counter(str(op_of(event)) for event in record.sections.get(name, []))
            assert dict(seen) == said["counted"], name
    sections = records[0].said["sections"]
    if "fully_sharded" in sections:
        assert sum(sections["fully_sharded"]["counted"].values()) >= 8


def test_each_group_counts_from_one_without_a_gap(records: list[RankRecord]) -> None:
    for record in records:
        numbers: dict[tuple[int, int], list[int]] = {}
        for events in record.sections.values():
            for event in events:
                sort = flags_of(event) & EventFlag.P2P
                numbers.setdefault((group_of(event), sort), []).append(event[layout.E_SEQ])
        for sequence in numbers.values():
            assert sorted(sequence) == list(range(1, len(sequence) + 1))
        world = record.groups[0]
        assert world["enqueued"] == len(numbers[0, 0]) == world["completed"]
        assert world["p2p_enqueued"] == len(numbers[0, EventFlag.P2P]) == world["p2p_completed"]
        assert (world["open"], world["oldest_open_ns"]) == (0, 0)


def test_members_agree_on_what_must_agree(records: list[RankRecord]) -> None:
    def signatures(record: RankRecord) -> dict[tuple[int, int], Any]:
        found = {}
        for events in record.sections.values():
            for event in events:
                flags = flags_of(event)
                if flags & EventFlag.P2P:
                    continue
                comparable = op_of(event) in SIZE_COMPARABLE_OPS and not flags & EventFlag.NO_SIZE
                size = (event[layout.E_VALUE], dtype_of(event)) if comparable else None
                found[group_of(event), event[layout.E_SEQ]] = (op_of(event), flags & EventFlag.NO_SIZE, size)
        return found

    first, second = (signatures(record) for record in records)
    assert first == second
    assert len(first) > 50


def test_sizes_that_may_differ_are_marked(records: list[RankRecord]) -> None:
    for record in records:
        marked = {op_of(event) for event in record.sections["world"] if flags_of(event) & EventFlag.NO_SIZE}
        assert marked == {Op.ALL_TO_ALL, Op.GATHER, Op.SCATTER}
        assert flags_of(record.sections["sparse"][0]) & EventFlag.NO_SIZE
        assert dtype_of(record.sections["world"][0]) == record.said["f32"] != dtype_of(record.sections["world"][1])


def test_every_operation_ends_and_python_waits_end_exactly(records: list[RankRecord]) -> None:
    for record in records:
        ends = record.ends()
        for name, events in record.sections.items():
            for event in events:
                end = ends[group_of(event), flags_of(event) & EventFlag.P2P, event[layout.E_SEQ]]
                assert end[layout.E_TIME_NS] >= event[layout.E_TIME_NS] == end[layout.E_VALUE]
                assert not flags_of(end) & EventFlag.FAILED
                if name in ("world", "early", "late", "inference"):
                    assert not flags_of(end) & EventFlag.POLLED, name


def test_own_cost_is_measured(records: list[RankRecord]) -> None:
    for record in records:
        # In Python every 64th operation of a group is timed, in C every 64th of all.
        if record.said["calls"]:
            assert 1_000 < record.said["cost_ns"] / record.said["calls"] < 150_000
    assert records[0].said["calls"] or records[0].said["writer"] == "python"
