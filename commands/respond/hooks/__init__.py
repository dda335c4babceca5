"""What hooks have in common. Each is a module: it does operations to targets, and says what it would do."""

from __future__ import annotations

from typing import Protocol

from ..planning.acts import Act, HookOperation, HookResult


class Hook(Protocol):
    """Blocking, bounded in time, called by one thread; raises nothing that its world may answer with."""

    @property
    def name(self) -> str:
        """The hook's name in ``respond_hooks`` and the audit file."""
        ...

    @property
    def can(self) -> frozenset[HookOperation]:
        """The operations that may be asked of the hook."""
        ...

    def describe(self, act: Act) -> str:
        """What ``do`` would do, in one line and without secrets."""
        ...

    def do(self, act: Act) -> HookResult:
        """Does the act: DONE, ALREADY, FAILED; REFUSED with ``why`` where only this hook can tell."""
        ...
