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
        """How many Works there were whose end could not be asked for."""

    def __len__(self) -> int: ...
    def hold(self, work: Any, group: int, seq: int, flags: int, silent: bool = False) -> None:
        """Keeps the Work of an operation until its end is seen. silent: it may never say itself that it completed."""

    def poll(self) -> int:
        """Records the ends of Works that have ended, and returns how many these were."""

    def clear(self) -> None:
        """Lets go of every Work without recording its end."""

    def install_wait(self) -> None:
        """Wraps ``Work.wait``, so that the end of an operation is known at once when the script waits for it."""

    def uninstall_wait(self) -> None:
        """Puts torch's own ``Work.wait`` back."""


class CollectiveRecorder(Protocol):
    """One per process. completes: ends of operations are recorded, too."""

    writer: RankRecorder
    completes: bool
    switch: Switch
    completion: Completion
    sites: CallSites
    registry: GroupRegistry

    def begin_monitored_barrier(self, pg: Any) -> tuple[int, int] | None:
        """Records that a monitored barrier begins; (row, sequence) of it, None where not recorded. Never raises."""
        ...

    def end(self, row: int, seq: int, flags: int) -> None:
        """Record the end of one operation. Never raises."""
        ...

    def fail(self, error: BaseException) -> None:
        """Stops all hooks for good, as one of them raised this. Never raises."""
        ...
