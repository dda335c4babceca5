"""Collectives of every process group, recorded: the one interface over three ways of seeing them.

torch >= 2.14: official pre/post hooks (collectives_hooks). Older: BackendSelect (collectives_dispatch). Below level
"events": flight-recorder status only (collectives_status). All three give the same events. ``install`` runs once per
process; afterwards hooks run on the threads that issue collectives and ``poll_completions`` on the heartbeat thread and
at phase edges. Nothing here raises into the job: a failure stops the hooks, is counted and makes the rank blind.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from time import monotonic_ns
from typing import Any, Protocol

from ..telemetry import ring_layout as layout
from ..telemetry.vocabulary import HOST_BACKENDS, EventFlag, EventKind, HookState, Level, Op
from .call_site_ring import CallSites
from .collectives_recorder import Completion
from .collectives_status import FlightRecorderStatus
from .completion import CompletionTracker
from .groups import GroupRegistry, RankGroup
from .hook_switch import CROSSING_NS_DISPATCH, CROSSING_NS_OFFICIAL, HookSwitch, Switch, estimate_cost_ns
from .ring_writer import RankRecorder

_POLLED = int(EventFlag.POLLED)
_P2P = int(EventFlag.P2P)


class CollectiveBackend(Protocol):
    """One way of seeing operations: official hooks, or the dispatcher."""

    def install(self) -> None:
        """Begin to see calls, of groups that exist and of those to come."""

    def uninstall(self) -> None:
        """Take every hook and patch off again; calls that are under way end as they would."""

    def hook_group(self, pg: Any, group: RankGroup) -> None:
        """Events of ``pg`` go to the ring row of ``group`` from now on."""

    def forget_group(self, group: RankGroup) -> None:
        """The group was destroyed; its ProcessGroup is no longer held."""

    def leave(self, groups: Sequence[RankGroup]) -> None:
        """Lets go of what torch holds of us, group by group; at the interpreter's end."""


class CollectiveHooks:
    """State shared by hooks, heartbeat and levels. ``enabled`` False: operations are only counted."""

    def __init__(self, writer: RankRecorder, *, completes: bool) -> None:
        self.writer = writer
        self.completes = completes
        self.errors = 0
        self.native = _is_native(writer)
        self.switch: Switch
        self.completion: Completion
        if self.native:
            from .collectives_native import NativeCompletion, make_switch

            self.switch = make_switch(self.fail)
            self.completion = NativeCompletion(writer)
        else:
            self.switch = HookSwitch()
            self.completion = CompletionTracker(writer)
        self.status = FlightRecorderStatus(writer)
        self.sites = CallSites(writer)
        self.registry = GroupRegistry(writer, self._hook_group, self._forget_group)
        self.backend: CollectiveBackend | None = None
        self._polling = threading.Lock()
        self._installed = False
        self._said_stopped = False
        self.official = False

    # --- installation -----------------------------------------------------------------------------------------------
    def install(self) -> None:
        """Hook every group, existing and future. Raises only what importing torch raises."""
        from . import collectives_hooks

        self.official = collectives_hooks.is_supported()
        self.backend = self._choose_backend(self.official)
        try:
            self.writer.track_completion(self.completes)
            self.backend.install()
            self.registry.install()
            if self.completes:
                self.completion.install_wait()
            self._installed = True
        except Exception as error:
            self.fail(error)

    def _choose_backend(self, official: bool) -> CollectiveBackend:
        if self.native:
            from .collectives_native import NativeDispatchHooks, NativeOfficialHooks

            return NativeOfficialHooks(self) if official else NativeDispatchHooks(self)
        if official:
            from .collectives_hooks import OfficialHooks

            return OfficialHooks(self)
        from .collectives_dispatch import DispatchHooks

        return DispatchHooks(self)

    def _forget_group(self, group: RankGroup) -> None:
        if self.backend is not None:
            self.backend.forget_group(group)

    def _hook_group(self, pg: Any, group: RankGroup) -> None:
        if self.backend is not None and not self.stopped:
            self.backend.hook_group(pg, group)

    def uninstall(self) -> None:
        """Stop for good and put patched functions back (tests, end of process). Registered hooks stay, idle."""
        self._said_stopped = self.switch.stopped = True
        self.registry.uninstall()
        if self.backend is not None:
            self.backend.uninstall()
        self.completion.uninstall_wait()
        self.completion.clear()

    def leave(self, *, poll: bool = False) -> None:
        """The process ends: let go of everything of torch's. ``poll``: record first what has ended by now.

        Main thread. Takes no lock without ``poll``, so that it may run in a forked child.
        """
        if poll:
            self.poll_completions()
        self._said_stopped = self.switch.stopped = True
        if self.backend is not None:
            try:
                self.backend.leave(self.registry.known())
            except Exception as error:
                self.fail(error)
        self.completion.clear()

    # --- level ------------------------------------------------------------------------------------------------------
    def set_enabled(self, enabled: bool) -> None:
        """Sets whether operations are recorded, or only counted.

        They are counted all the same, so that numbers agree between ranks when recording resumes.
        """
        self.switch.enabled = bool(enabled)

    @property
    def enabled(self) -> bool:
        """Whether operations are recorded. False: they are counted only, as below the level EVENTS."""
        return self.switch.enabled

    @property
    def stopped(self) -> bool:
        """Whether hooks do nothing any more: one has failed, or they were uninstalled."""
        return self.switch.stopped

    @property
    def cost_ns(self) -> int:
        """Estimate of what the hooks have cost the job so far, in nanoseconds."""
        return estimate_cost_ns(self.switch, CROSSING_NS_OFFICIAL if self.official else CROSSING_NS_DISPATCH)

    @property
    def state(self) -> HookState:
        """Bits for the progress page: what is hooked and why the rank may be blind."""
        state = HookState.NONE
        if self._installed:
            state |= HookState.COLLECTIVES_HOOKED
            if self.completes:
                state |= HookState.COMPLETION_HOOKED
        if self.stopped:
            state |= HookState.DISABLED
        if self.writer.groups_blind:
            state |= HookState.GROUPS_OVERFLOW
        return state

    # --- completion -------------------------------------------------------------------------------------------------
    def poll_completions(self) -> int:
        """Look once at everything open; returns how many operations still are. Never blocks: a second caller leaves."""
        if self.stopped or not self._installed or not self._polling.acquire(blocking=False):
            return len(self.completion)
        try:
            self.registry.define_waiting()
            self.completion.poll()
            return len(self.completion)
        except Exception as error:
            self.fail(error)
            return 0
        finally:
            self._polling.release()

    def poll_status(self) -> tuple[int, int]:
        """Read the flight recorder (heartbeat thread only); completes device groups from it.

        Returns (enqueued, completed) of the default group as its backend counts, UNKNOWN_U64 where unknown.
        """
        if self.stopped:
            return layout.UNKNOWN_U64, layout.UNKNOWN_U64
        try:
            backends: set[str] = set()
            waiting: list[tuple[RankGroup, str, int]] = []
            for group in self.registry.groups():
                backends.update(group.orders)
                if self.completes and not group.on_cpu:
                    waiting += [
                        (group, backend, self.writer.enqueued(group.row))
                        for backend in group.orders
                        if backend not in HOST_BACKENDS
                    ]
                    # What no recorder tells the end of must not look open for ever.
                    self.writer.complete_through(group.row, self.writer.enqueued(group.row, _P2P), _P2P | _POLLED)
            self.status.read(sorted(backends))
            for group, backend, before in waiting:
                self.status.complete_group(group.row, backend, group.orders[backend], before, _POLLED)
            return self.status.default_group()
        except Exception as error:
            self.fail(error)
            return layout.UNKNOWN_U64, layout.UNKNOWN_U64

    def begin_monitored_barrier(self, pg: Any) -> tuple[int, int] | None:
        """Record a monitored barrier, which official hooks do not see; (row, sequence), or None where not recorded."""
        if self.stopped:
            return None
        try:
            group = self.registry.find_or_default(pg)
            if group is None or not self.registry.define(group) or group.blind:
                return None
            if not self.enabled:
                self.writer.skip(group.row, 0)
                return None
            flags = int(EventFlag.NO_SIZE)
            seq = self.writer.enqueue(group.row, int(Op.MONITORED_BARRIER), 0, 0, -1, flags)
            self.sites.note(layout.call_mark(group.row, seq, flags))
            return group.row, seq
        except Exception as error:
            self.fail(error)
            return None

    def end(self, row: int, seq: int, flags: int) -> None:
        """Records the end of one operation (row and sequence number of its group); never raises."""
        try:
            self.writer.complete(row, seq, 0, flags)
        except Exception as error:
            self.fail(error)

    # --- failure ----------------------------------------------------------------------------------------------------
    def fail(self, error: BaseException) -> None:
        """A hook raised: stop all of them for good, count it, and say so in the ring. Never raises."""
        self.errors += 1
        if self._said_stopped:
            return
        self._said_stopped = self.switch.stopped = True
        try:
            text = layout.cut_text(f"collective hooks disabled: {type(error).__name__}: {error}", 500)
            self.writer.define(layout.DEFINITION_NOTE, 0, {"text": text, "time_ns": monotonic_ns()})
            self.writer.append_event(EventKind.HOOK_OFF, value=int(self.state))
        except Exception:
            self.errors += 1


def _is_native(writer: RankRecorder) -> bool:
    """Whether the ring is written by the C recorder, whose hooks then write to it directly."""
    try:
        from . import _recorder
    except ImportError:
        return False
    return isinstance(writer, _recorder.Recorder)


def install(
    writer: RankRecorder, level_getter: Callable[[], int] | None = None, *, completes: bool = True
) -> CollectiveHooks:
    """Hook the collectives of this process. ``level_getter`` gives the level to begin with (default: events)."""
    hooks = CollectiveHooks(writer, completes=completes)
    hooks.set_enabled(level_getter is None or level_getter() >= Level.EVENTS)
    hooks.install()
    return hooks
