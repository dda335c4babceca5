"""What ways of seeing collectives write to, as interfaces: ``collectives.CollectiveHooks`` and keepers of open Work."""

from __future__ import annotations

from typing import Any, Protocol

from .call_site_ring import CallSites
from .groups import GroupRegistry
from .hook_switch import Switch
from .ring_writer import RankRecorder


class Completion(Protocol):
    """Keeper of open Work: CompletionTracker, or its twin in C."""

    @property
    def errors(self) -> int:
        """Works whose end could not be asked for, so far."""

    def __len__(self) -> int: ...
    def hold(self, work: Any, group: int, seq: int, flags: int, silent: bool = False) -> None:
        """Keep the Work until its end is seen. silent: it may never say itself that it completed."""

    def poll(self) -> int:
        """Record the ends of Works that have ended; how many these were."""

    def clear(self) -> None:
        """Let go of every Work without recording its end."""

    def install_wait(self) -> None:
        """See it when the script waits for a Work: then its end is known at once."""

    def uninstall_wait(self) -> None:
        """Work.wait is torch's own again."""


class CollectiveRecorder(Protocol):
    """One per process. completes: ends of operations are recorded, too."""

    writer: RankRecorder
    completes: bool
    switch: Switch
    completion: Completion
    sites: CallSites
    registry: GroupRegistry

    def begin_monitored_barrier(self, pg: Any) -> tuple[int, int] | None:
        """(row, sequence) of it; None where it is not recorded. Never raises."""
        ...

    def end(self, row: int, seq: int, flags: int) -> None:
        """Record the end of one operation. Never raises."""
        ...

    def fail(self, error: BaseException) -> None:
        """A hook raised: all of them stop for good. Never raises."""
        ...
