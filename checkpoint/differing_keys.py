"""Keys under which ranks hold different values: of these storage keeps one rank's alone, and nobody would notice.

``torch.distributed.checkpoint`` takes a plain tensor, or a value, for the same on all ranks. Looked at is the beginning
and the end of each, so that it costs no time: random states and places in the data differ there.
"""

from __future__ import annotations

import pickle
import zlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

_END_BYTES = 4096
#: So many keys are looked at, and so many named.
MOST_KEYS, MOST_NAMED = 20_000, 3
#: Of thousands of ranks nobody gathers all keys: each puts its checksums into so many places, and those are compared.
PLACES = 1 << 16


def compare_ranks(state: Any, group: dist.ProcessGroup) -> str:
    """What a person is told of keys that differ by rank; on the group's first rank, "" elsewhere and for none.

    All ranks of the group (on CPUs) together. Raises RuntimeError where they do not meet.
    """
    try:
        mine = checksums(state)
    except Exception:  # edge: somebody's values; the others wait for this rank, and the upload must not fail for it
        mine = {}
    mixed: dict[int, int] = {}
    for key, number in mine.items():
        mixed[_place_of(key)] = mixed.get(_place_of(key), 0) ^ number
    told = torch.full((2, PLACES), -(1 << 62), dtype=torch.int64)
    numbers, places = torch.tensor(list(mixed.values()), dtype=torch.int64), list(mixed)
    told[0, places], told[1, places] = numbers, -numbers
    dist.all_reduce(told, op=dist.ReduceOp.MAX, group=group)
    has_other = (told[0] != -told[1]) & (told[0] >= 0)
    doubtful = {key: number for key, number in mine.items() if has_other[_place_of(key)]}
    is_first = dist.get_rank(group) == 0
    gathered: list[Any] | None = [None] * dist.get_world_size(group) if is_first else None
    dist.gather_object(doubtful, gathered, group_dst=0, group=group)
    return warning_text(differing_keys(gathered)) if gathered is not None else ""


def _place_of(key: str) -> int:
    return zlib.crc32(key.encode()) % PLACES


def checksums(state: Any) -> dict[str, int]:
    """By key, of what is neither sharded nor replicated by torch itself (DTensor)."""
    return {key: number for (key, number), _ in zip(_checksums(state, ""), range(MOST_KEYS), strict=False)}


def _checksums(node: Any, key: str) -> Iterator[tuple[str, int]]:
    if isinstance(node, dict):
        for name, each in node.items():
            yield from _checksums(each, f"{key}.{name}" if key else str(name))
    elif isinstance(node, torch.Tensor):
        if not is_traceable_wrapper_subclass(node):
            yield key, _of_tensor(node)
    elif isinstance(node, list | tuple) and any(isinstance(each, torch.Tensor | dict) for each in node):
        for at, each in enumerate(node):
            yield from _checksums(each, f"{key}.{at}")
    else:
        yield key, zlib.crc32(pickle.dumps(node))


def _of_tensor(tensor: torch.Tensor) -> int:
    raw = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
    ends = raw if raw.numel() <= 2 * _END_BYTES else torch.cat([raw[:_END_BYTES], raw[-_END_BYTES:]])
    return zlib.crc32(ends.numpy().tobytes())


def differing_keys(by_rank: Sequence[Mapping[str, int]]) -> list[str]:
    """Keys that several ranks have, with unlike values, in order. by_rank: ``checksums`` of each rank."""
    seen: dict[str, int] = {}
    found: dict[str, None] = {}
    for sums in by_rank:
        for key, number in sums.items():
            if seen.setdefault(key, number) != number:
                found[key] = None
    return list(found)


def warning_text(keys: Sequence[str]) -> str:
    """What a person is told of them, and what to do; "" for none."""
    if not keys:
        return ""
    more = f" and {len(keys) - MOST_NAMED} more" if len(keys) > MOST_NAMED else ""
    named = ", ".join(keys[:MOST_NAMED])
    return (
        f"{named}{more}: ranks hold different values under one key, and storage keeps one rank's alone; put the rank "
        "into the key, or store what is the same on all"
    )
