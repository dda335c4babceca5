"""What hooks have in common. Each is a module: it does operations to targets, and says what it would do."""

from __future__ import annotations

from typing import Protocol

from ..planning.acts import Act, HookOperation, HookResult


class Hook(Protocol):
    """Blocking, bounded in time, called by one thread; raises nothing that its world may answer with."""

    @property
    def name(self) -> str:
        """As ``respond_hooks`` and the audit file have it."""
        ...

    @property
    def can(self) -> frozenset[HookOperation]:
        """What may be asked of it."""
        ...

    def describe(self, act: Act) -> str:
        """In one line and without secrets, what ``do`` would do."""
        ...

    def do(self, act: Act) -> HookResult:
        """DONE, ALREADY, FAILED; REFUSED with ``why`` where only this hook can tell."""
        ...
