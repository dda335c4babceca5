"""The newest checkpoint that is whole over all tiers, and each rank's part of it, from wherever it lies.

All ranks take part, and decide alike from the same words: what every node holds, and what each rank needs.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from .slot_files import PIECE_BYTES, CheckpointName, SlotFile, SlotManifest, slots_in
from .writers_group import as_tensor

#: Slots are looked for in so many on a node.
_MOST_SLOTS = 4096


@dataclass(frozen=True, slots=True)
class HeldPart:
    """A rank's part that lies on a node."""

    name: CheckpointName
    owner: int
    slot: int
    manifest: SlotManifest


@dataclass(frozen=True, slots=True, kw_only=True)
class Inventory:
    """What one rank tells the others. needs: fingerprint of its own state. parts: only of a node's lowest rank."""

    node: str
    needs: str
    parts: tuple[HeldPart, ...]
    persistent: tuple[CheckpointName, ...]


@dataclass(frozen=True, slots=True)
class RestorePlan:
    """name: None: there is none. holders: by rank, who reads its part; empty: it lies in the storage that stays."""

    name: CheckpointName | None
    holders: tuple[int, ...] = ()


def parts_in(folder: Path, world: int) -> tuple[HeldPart, ...]:
    """Of jobs of as many ranks; checksums are looked at only where a part is to be read."""
    found = []
    for slot in slots_in(folder)[:_MOST_SLOTS]:
        manifest = slot.manifest()
        if manifest is not None and manifest.world == world:
            found.append(HeldPart(manifest.name, slot.rank, slot.slot, manifest))
    return tuple(found)


def choose(told: Sequence[Inventory], bad: frozenset[tuple[str, int, int]], step: int | None) -> RestorePlan:
    """The newest whole one, or that of ``step``; near the job before storage, where both have it.

    told: by rank. bad: node, owner and slot of parts that are not what their manifests say.
    """
    held: dict[CheckpointName, dict[int, set[str]]] = {}
    for inventory in told:
        for part in inventory.parts:
            fits = part.owner < len(told) and part.manifest.fingerprint == told[part.owner].needs
            if fits and (inventory.node, part.owner, part.slot) not in bad:
                held.setdefault(part.name, {}).setdefault(part.owner, set()).add(inventory.node)
    near = {name for name, owners in held.items() if len(owners) == len(told)}
    # All have to see it: on storage that is mounted on some nodes only, it is no way back.
    stored = set.intersection(*(set(each.persistent) for each in told))
    names = [name for name in near | stored if step is None or name.step == step]
    if not names:
        return RestorePlan(None)
    name = max(names)
    if name not in near:
        return RestorePlan(name)
    first = {node: rank for rank, node in reversed(list(enumerate(each.node for each in told)))}
    holders = tuple(
        rank if told[rank].node in held[name][rank] else min(first[node] for node in held[name][rank])
        for rank in range(len(told))
    )
    return RestorePlan(name, holders)


def part_of(
    folder: Path, owner: int, name: CheckpointName, parts: Sequence[HeldPart]
) -> tuple[SlotFile, SlotManifest] | None:
    """The slot of this node in which an owner's part of a checkpoint lies."""
    for part in parts:
        if part.owner == owner and part.name == name:
            return SlotFile(folder, owner, part.slot), part.manifest
    return None


def carry_parts(
    choice: RestorePlan, rank: int, folder: Path, told: Sequence[Inventory], group: Any
) -> tuple[bytearray, SlotManifest]:
    """This rank's part. Each rank sends what others need of it, in the order of ranks.

    Raises OSError, ValueError, RuntimeError: a part is gone or broken, or another rank.
    """
    assert choice.name is not None
    parts = next(each.parts for each in told if each.node == told[rank].node)
    mine: tuple[bytearray, SlotManifest] | None = None
    for owner, holder in enumerate(choice.holders):
        if rank not in (owner, holder):
            continue
        manifest = _manifest(told, told[holder].node, owner, choice.name)
        size = manifest.tensor_bytes + manifest.value_bytes
        content = bytearray(size) if owner == rank else bytearray()
        pieces = iter(())  # type: Any
        if holder == rank:
            found = part_of(folder, owner, choice.name, parts)
            if found is None:
                raise ValueError(f"rank {owner}'s part of step {choice.name.step} is not here any more")
            pieces = found[0].pieces(0, size)
        for begin in range(0, size, PIECE_BYTES):
            end = min(size, begin + PIECE_BYTES)
            if holder == rank:
                piece = next(pieces)
                if owner == rank:
                    content[begin:end] = piece
                else:
                    dist.send(as_tensor(piece), owner, group=group)
            else:
                room = torch.frombuffer(content, dtype=torch.uint8)[begin:end]
                dist.recv(room, holder, group=group)
        if owner == rank:
            if zlib.crc32(content) != manifest.crc:
                raise ValueError(f"rank {owner}'s part of step {choice.name.step} is not what was saved")
            mine = content, manifest
    assert mine is not None
    return mine


def _manifest(told: Sequence[Inventory], node: str, owner: int, name: CheckpointName) -> SlotManifest:
    return next(
        part.manifest
        for each in told
        if each.node == node
        for part in each.parts
        if part.owner == owner and part.name == name
    )
