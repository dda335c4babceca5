"""Round robin between owners: what one has much of does not keep out what another has little of."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator
from typing import TypeVar

_Item = TypeVar("_Item")


def in_turns(items: Iterable[tuple[Hashable, _Item]]) -> Iterator[_Item]:
    """The items of (owner, item) pairs, of each owner one in turn; an owner's own keep their order."""
    by_owner: dict[Hashable, list[_Item]] = {}
    for owner, item in items:
        by_owner.setdefault(owner, []).append(item)
    for turn in range(max(map(len, by_owner.values()), default=0)):
        yield from (of_owner[turn] for of_owner in by_owner.values() if turn < len(of_owner))
