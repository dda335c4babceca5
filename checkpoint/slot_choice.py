"""Which slot a save goes to: never one that holds the newest checkpoint known to be whole on all ranks, or the newest
whose parts all lie with their partners as well; never one that is being written or carried on.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from .slot_files import CheckpointName


@dataclass(slots=True)
class SlotStates:
    """By slot, what lies in it and who needs it. whole, copied: the newest that all ranks have, and all partners."""

    count: int
    whole: CheckpointName | None = None
    copied: CheckpointName | None = None
    held: dict[int, CheckpointName] = field(default_factory=dict)
    #: Written now, or carried to the storage that stays.
    in_use: dict[int, int] = field(default_factory=dict)

    def choose(self) -> int | None:
        """The slot to be written over: the oldest of those that have been used before, so that memory is taken when it
        is needed; else a new one. None: all are needed.
        """
        kept = {self.whole, self.copied} - {None}
        free = [slot for slot in range(self.count) if not self.in_use.get(slot) and self.held.get(slot) not in kept]
        used = [slot for slot in free if slot in self.held]
        return min(used, key=lambda slot: self.held[slot]) if used else min(free, default=None)

    def use(self, slot: int, name: CheckpointName | None = None) -> None:
        """Keeps a slot as it is until ``release``; with a name, that is written into it."""
        if name is not None:
            self.held[slot] = name
        self.in_use[slot] = self.in_use.get(slot, 0) + 1

    def release(self, slot: int) -> None:
        """The opposite of ``use``."""
        self.in_use[slot] = max(0, self.in_use.get(slot, 0) - 1)

    def became_whole(self, name: CheckpointName, *, is_copied: bool) -> None:
        """All ranks have this one; is_copied: so have their partners."""
        self.whole = max(self.whole or name, name)
        if is_copied:
            self.copied = max(self.copied or name, name)
