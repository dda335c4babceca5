"""Which of many names makes room where there are too many: the idlest of the owner who has most.

So what one owner has much of pushes out nothing of another one who has little. Among owners with as many, who was quiet
longest gives. Each step takes the same time however many names and owners there are.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator


class FairShare:
    """Names with their owners, "" where nobody knows whose it is. Follows from the order of the calls alone."""

    __slots__ = ("_by_count", "_most", "_names", "_newest", "_owners")

    def __init__(self, names: Iterable[tuple[str, str]] = ()) -> None:
        """names: (name, owner), the idlest first."""
        self._owners: dict[str, str] = {}  # by name
        self._names: dict[str, dict[str, None]] = {}  # by owner, the idlest first
        self._by_count: dict[int, dict[str, None]] = {}  # owners who have so many, the quietest first
        self._most = 0
        self._newest: tuple[str, str] | None = None
        for name, owner in names:
            self.touch(name, owner)

    def __len__(self) -> int:
        return len(self._owners)

    def __contains__(self, name: object) -> bool:
        return name in self._owners

    def __iter__(self) -> Iterator[str]:
        return iter(self._owners)

    def owner_of(self, name: str) -> str:
        """Whose it was when it was heard of last; "" of an unknown one."""
        return self._owners.get(name, "")

    def count_of(self, owner: str) -> int:
        """How many names the owner has."""
        return len(self._names.get(owner, ()))

    def names_of(self, owner: str) -> Iterator[str]:
        """The owner's names, the idlest first."""
        return iter(self._names.get(owner, ()))

    def idlest_of(self, owner: str) -> str:
        """The name of his that was not touched for longest. Raises KeyError where he has none."""
        return next(iter(self._names[owner]))

    def touch(self, name: str, owner: str) -> None:
        """The name is the newest of its owner's, and he of all with as many. It may have been another's before."""
        before = self._owners.get(name)
        if before is not None and before != owner:
            self.remove(name)
            before = None
        names = self._names.setdefault(owner, {})
        count = len(names)
        names.pop(name, None)
        names[name] = None
        self._owners[name] = owner
        self._move(owner, count, len(names))
        self._newest = name, owner

    def is_newest(self, name: str, owner: str) -> bool:
        """Whether nothing was touched or removed since this was, so that to touch it again changes nothing."""
        return self._newest == (name, owner)

    def remove(self, name: str) -> None:
        """Does nothing where it is not known."""
        self._newest = None
        owner = self._owners.pop(name, None)
        if owner is None:
            return
        names = self._names[owner]
        del names[name]
        self._move(owner, len(names) + 1, len(names))
        if not names:
            del self._names[owner]

    def first_to_go(self) -> str:
        """The name that makes room. Raises KeyError without any."""
        if not self._owners:
            raise KeyError("no names")
        owner = next(iter(self._by_count[self._most]))
        return next(iter(self._names[owner]))

    def _move(self, owner: str, before: int, after: int) -> None:
        if before:
            owners = self._by_count[before]
            del owners[owner]
            if not owners:
                del self._by_count[before]
        if after:
            self._by_count.setdefault(after, {})[owner] = None
        if after > self._most:
            self._most = after
        elif before == self._most and before not in self._by_count:
            self._most = after  # counts change by one
