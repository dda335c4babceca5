"""Which checkpoint a job goes on from, and who reads whose part."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from whichrank.checkpoint.node_partners import keep_ranks, partners
from whichrank.checkpoint.restore import HeldPart, Inventory, choose
from whichrank.checkpoint.slot_files import CheckpointName, SlotManifest
from whichrank.checkpoint.uploads import whole_in

WORLD = 4
NODES = ("a", "a", "b", "b")


def part(owner: int, step: int, attempt_ns: int = 1, slot: int = 0, fingerprint: str = "") -> HeldPart:
    manifest = SlotManifest(
        rank=owner, world=WORLD, attempt_ns=attempt_ns, step=step, fingerprint=fingerprint or f"f{owner}",
        tensor_bytes=0, value_bytes=0, crc=0,
    )  # fmt: skip
    return HeldPart(manifest.name, owner, slot, manifest)


def told(on_a: list[HeldPart], on_b: list[HeldPart], persistent: dict[int, list[int]] | None = None) -> list[Inventory]:
    """By rank; a node's lowest one tells of its parts. persistent: by rank steps of attempt 1, others as rank 0."""
    said = persistent or {}
    return [
        Inventory(
            node=node, needs=f"f{rank}", parts=tuple({0: on_a, 2: on_b}.get(rank, [])),
            persistent=tuple(CheckpointName(1, step) for step in said.get(rank, said.get(0, []))),
        )
        for rank, node in enumerate(NODES)
    ]  # fmt: skip


def everybody(step: int, attempt_ns: int = 1, slot: int = 0) -> tuple[list[HeldPart], list[HeldPart]]:
    """Own parts, and the partners'."""
    parts = [part(owner, step, attempt_ns, slot) for owner in range(WORLD)]
    return parts, parts


def test_the_newest_that_all_have() -> None:
    a, b = everybody(5)
    choice = choose(told([*a, part(0, 6)], [*b, part(2, 6), part(3, 6)]), frozenset(), None)
    assert (choice.name, choice.holders) == (CheckpointName(1, 5), (0, 1, 2, 3))


def test_a_lost_nodes_parts_come_from_its_partner() -> None:
    choice = choose(told(everybody(5)[0], []), frozenset(), None)
    assert choice.holders == (0, 1, 0, 0)


def test_a_later_attempt_is_newer_also_at_an_earlier_step() -> None:
    old, new = everybody(9, 1), everybody(4, 2, slot=1)
    assert choose(told(old[0] + new[0], old[1] + new[1]), frozenset(), None).name == CheckpointName(2, 4)
    assert choose(told(old[0] + new[0], old[1] + new[1]), frozenset(), 9).name == CheckpointName(1, 9)


def test_parts_of_two_attempts_make_no_checkpoint() -> None:
    assert choose(told(everybody(5, 1)[0][:2], everybody(5, 2)[1][2:]), frozenset(), None).name is None


def test_a_part_that_is_broken_or_of_another_model_counts_for_nothing() -> None:
    a, b = everybody(5)
    bad = frozenset({("a", 1, 0)})
    assert choose(told(a, b), bad, None).holders == (0, 2, 2, 3)  # the partner's copy
    assert choose(told(a, b), bad | {("b", 1, 0)}, None).name is None
    other = [part(1, 5, fingerprint="another")]
    assert choose(told([a[0], *other], [b[2], b[3]]), frozenset(), None).name is None


def test_storage_where_it_is_newer_and_seen_by_all() -> None:
    a, b = everybody(5)
    newer = choose(told(a, b, {0: [4, 8]}), frozenset(), None)
    assert (newer.name, newer.holders) == (CheckpointName(1, 8), ())
    assert choose(told(a, b, {0: [4, 8], 3: [4]}), frozenset(), None).name == CheckpointName(1, 5)
    assert choose(told(a, b, {0: [5]}), frozenset(), None).holders  # the same: what is near is quicker


def test_partners_are_a_node_further_on() -> None:
    found = partners(NODES)
    assert found is not None
    assert found.is_apart
    assert found.next_rank == (2, 3, 0, 1)
    assert keep_ranks(0, NODES, found) == frozenset(range(4))
    assert keep_ranks(1, NODES, found) is None
    assert partners(("a", "a")) is None


@pytest.mark.parametrize("nodes", ["aabbcc", "abcabc", "aab", "abbb", "abcd", "aaabbc"])
def test_each_rank_has_one_partner_and_is_the_partner_of_one(nodes: str) -> None:
    found = partners(tuple(nodes))
    assert found is not None
    assert sorted(found.next_rank) == list(range(len(nodes)))
    assert all(found.previous_rank[found.next_rank[rank]] == rank for rank in range(len(nodes)))
    assert found.is_apart == all(nodes[rank] != nodes[found.next_rank[rank]] for rank in range(len(nodes)))
    assert found.is_apart or len(set(map(nodes.count, nodes))) > 1


def test_what_is_whole_in_storage(tmp_path: Path) -> None:
    for step, files in {3: (".metadata", "whichrank.json"), 4: (".metadata",), 5: ("whichrank.json",), 6: ()}.items():
        folder = tmp_path / f"step-{step}"
        folder.mkdir()
        for name in files:
            (folder / name).write_text(json.dumps({"attempt_ns": 7}))
    (tmp_path / "step-x").mkdir()
    assert whole_in(str(tmp_path)) == [CheckpointName(7, 3)]
    assert whole_in(str(tmp_path / "nowhere")) == whole_in(None) == []
