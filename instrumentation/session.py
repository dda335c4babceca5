"""The one object that owns a rank's instrumentation: ring, hooks, heartbeat, level; and ``start_session``.

Created once per process by ``init`` or the bootstrap, in the main thread. Everything here fails open: whatever cannot
be had (a ring, a hook, a thread) is noted and left out, and the training goes on as without us. A forked child forgets
the session: it never writes to its parent's ring and never ends its parent's rank.
"""

from __future__ import annotations

import atexit
import os
import sys
import threading
from collections.abc import Sized
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..telemetry import ring_layout as layout
from ..telemetry.injection_words import allows_injection
from ..telemetry.vocabulary import HookState, Level, Phase
from . import attempt_token, levels
from .exceptions import ExceptionRecorder, frames_of_thread
from .heartbeat import Heartbeat
from .input_checks import InputChecks
from .rank_identity import RankPlace
from .ring_writer import RankRecorder
from .support.guard import Guard, HookHealth
from .support.import_hooks import PostImportFinder
from .support.patch import PatchSet
from .trackers.phases import CROSSING_NS, make_phase_tracker
from .trackers.saves import RankSaves
from .trackers.step_counter import make_step_counter

if TYPE_CHECKING:
    from .collectives import CollectiveHooks
    from .emergency.emergency_watch import EmergencyWatch
    from .hooks.context import HookContext

#: How long the end of the process waits for a thread of ours.
THREAD_PATIENCE_S = 0.5
#: Beats between two readings of the flight recorder while every group is on the host: a reading costs five beats.
HOST_STATUS_BEATS = 10


class Session:
    """Instrumentation of this process. ``start`` installs, ``stop`` removes every trace."""

    def __init__(
        self, writer: RankRecorder, place: RankPlace, directory: Path, level: Level, cost_limit: float
    ) -> None:
        self.writer = writer
        self.place = place
        self.directory = directory
        self.pid = os.getpid()
        self.health = HookHealth()
        self.tracker = make_phase_tracker(writer.set_phase, Guard("phases", self.health))
        self.steps = make_step_counter(writer, Guard("steps", self.health))
        self.saves = RankSaves(writer.append_event, writer.define, self._steps_held, Guard("saves", self.health))
        self.exceptions = ExceptionRecorder(writer, self.tracker, Guard("exceptions", self.health), self.owns_rank)
        self.imports = PostImportFinder(self.health.report)
        self.patches = PatchSet(self.health.report)
        self.level = level
        self.collectives: CollectiveHooks | None = None
        self.context: HookContext | None = None
        self._level_file = levels.LevelFile(directory)
        self._cost_limit = levels.CostLimit(cost_limit)
        #: Level above which cost does not let us go; None while cost is fine.
        self._cost_cap: Level | None = None
        self._wanted = level
        self._hook_state = HookState.NONE
        self._published: tuple[int, int] | None = None
        self._cost_written_ns = 0
        self._calls_written = 0
        self._token_group: Any = None
        self._token_thread: threading.Thread | None = None
        #: After the last ``whichrank.step()``: how often optimizers had stepped; -1 before the first.
        self._optimizer_calls_by_hand = -1
        self._beats = 0
        self._status_every = 1
        self._flight_recorder = (layout.UNKNOWN_U64, layout.UNKNOWN_U64)
        self._signals_watched = False
        self._main_thread_id = threading.main_thread().ident or 0
        #: Armed by ``on_checkpoint``.
        self.emergency: EmergencyWatch | None = None
        self.heartbeat = Heartbeat(
            beat=self._beat,
            slow=self._look_around,
            stack=self._keep_stack,
            phase_changed_ns=writer.phase_since_ns,
            on_error=lambda error: self.health.report("heartbeat", error),
        )

    def owns_rank(self) -> bool:
        """Whether this process started the session; False in a forked child."""
        return os.getpid() == self.pid

    # --- start and stop ---------------------------------------------------------------------------------------------
    def start(self) -> None:
        """Install all hooks and start the heartbeat. Never raises for what cannot be installed."""
        self.exceptions.install()
        atexit.register(self._leave)
        self._watch_signals()
        self._install_collectives()
        self._install_hooks()
        if allows_injection(os.environ) and self.context is not None:
            from .injection_arming import arm_injection

            arm_injection(self.context, self.directory, self.place.rank)
        file_level = self._level_file.look()
        if file_level is not None:
            self._wanted = file_level
        self._apply_level()
        try:
            self.heartbeat.start()
        except RuntimeError as error:  # no more threads
            self.health.report("heartbeat", error)

    def stop(self) -> None:
        """Take every hook out again and close the ring (tests, and jobs that want to end the observation)."""
        self.heartbeat.stop()
        if self.emergency is not None:
            self.emergency.stop()
        atexit.unregister(self._leave)
        self.exceptions.uninstall()
        if self._signals_watched:
            from .fatal_signals import unwatch_fatal_signals

            unwatch_fatal_signals()
        self.imports.remove()
        self.patches.uninstall()
        context, self.context = self.context, None
        if context is not None:
            while context.undo:
                try:
                    context.undo.pop()()
                except Exception as error:  # edge: torch's handles
                    self.health.report("uninstall", error)
        collectives, self.collectives = self.collectives, None
        if collectives is not None:
            collectives.uninstall()
            atexit.register(collectives.leave)  # hooks of groups stay until then
        self.tracker.enabled = self.steps.enabled = False
        self.writer.close()

    def _watch_signals(self) -> None:
        try:
            from .fatal_signals import watch_fatal_signals

            self._signals_watched = bool(watch_fatal_signals(self.writer.path, self.writer.geometry.crash_offset))
        except ImportError:  # no C compiler where whichrank was built: the agent sees the exit status all the same
            pass
        except Exception as error:  # edge: signals are the kernel's affair
            self.health.report("fatal_signals", error)

    def _install_collectives(self) -> None:
        try:
            from . import collectives

            completes = os.environ.get("WHICHRANK_COMPLETION", "1") != "0"
            self.collectives = collectives.install(self.writer, lambda: self.level, completes=completes)
            if levels.checks_inputs(os.environ):
                checks = InputChecks(self.writer, self.place.rank, self.steps, Guard("input_checks", self.health))
                self.collectives.switch.check = checks.check
        except Exception as error:  # edge: torch without distributed, or internals that changed
            self.health.report("collectives", error)

    def _open_operations(self) -> Sized:
        """What hooks ask before they poll; in C it is the object itself, whose length costs no call in Python."""
        if self.collectives is None:
            return ()
        completion = self.collectives.completion
        open_work: Sized = getattr(completion, "open_work", completion)
        return open_work

    def _install_hooks(self) -> None:
        try:
            from .hooks import (
                backward,
                checkpoint,
                clip_grad,
                compilation,
                data,
                evaluation,
                forward,
                frameworks,
                grad_scaler,
                optimizer,
                plain_forward,
                process_group_end,
                rendezvous_hook,
            )
            from .hooks.context import HookContext
            from .trackers.loss import make_scalar_reader

            self.context = context = HookContext(
                health=self.health,
                tracker=self.tracker,
                steps=self.steps,
                losses=make_scalar_reader(self.steps.on_loss, Guard("loss", self.health)),
                grad_norms=make_scalar_reader(self.steps.on_grad_norm, Guard("grad_norm", self.health)),
                patches=self.patches,
                imports=self.imports,
                poll_completions=self._poll_completions,
                open_operations=self._open_operations(),
                append_event=self.writer.append_event,
                saves=self.saves,
            )
        except Exception as error:  # edge: a torch without the parts we need at all
            self.health.report("hooks", error)
            return
        try:
            rendezvous_hook.install(context, self.writer.define)
        except Exception as error:  # edge: as below
            self.health.report("joining", error)
        for module in (
            backward,
            optimizer,
            grad_scaler,
            data,
            forward,
            plain_forward,
            evaluation,
            checkpoint,
            compilation,
            clip_grad,
            process_group_end,
            frameworks,
        ):
            try:
                module.install(context)
            except Exception as error:  # edge: one hook that does not fit this torch costs only itself
                self.health.report(module.__name__.rpartition(".")[2], error)
        self._hook_state |= HookState.PHASES_HOOKED

    def _leave(self) -> None:
        """atexit, in forked children too. Others may still run after us, so functions of torch stay patched.

        No thread of ours may be inside torch when the interpreter ends: there it is unwound, which torch's destructors
        answer with an abort. So the threads end here, and what torch holds of us and we of it is let go.
        """
        owner = self.owns_rank()
        if owner:
            self.heartbeat.stop()
            if self._token_thread is not None:
                self._token_thread.join(THREAD_PATIENCE_S)
        if self.collectives is not None:
            self.collectives.leave(poll=owner)
        if owner:
            self._write_cost()
            if self.emergency is not None:
                self.emergency.at_exit()
            self.exceptions.mark_exit()

    def forget_in_child(self) -> None:
        """In a forked child (data-loader workers): no heartbeat thread exists here and the ring is the parent's."""
        self.tracker.enabled = self.steps.enabled = False
        self.writer.forget_in_child()
        if self.emergency is not None:
            self.emergency.forget_in_child()

    # --- heartbeat thread -------------------------------------------------------------------------------------------
    def _poll_completions(self) -> int:
        """Operations still open. Also called by hooks in the main thread."""
        if self.collectives is None or not self.level:
            return 0
        return self.collectives.poll_completions()  # guards itself

    def _beat(self) -> None:
        collectives = self.collectives
        if collectives is None or not self.level:
            self.writer.beat(self.hook_errors())
            return
        pending = collectives.poll_completions()
        self._beats += 1
        if self._beats % self._status_every == 0:
            self._flight_recorder = collectives.poll_status()
            # Without device groups nothing but two numbers comes from there, and those count below this level only.
            on_device = any(not group.on_cpu for group in collectives.registry.groups())
            self._status_every = 1 if on_device or self.level < Level.EVENTS else HOST_STATUS_BEATS
        enqueued, completed = self._flight_recorder
        self.writer.beat(self.hook_errors(), pending, enqueued, completed)

    def _look_around(self, now_ns: int) -> None:
        """Once a second."""
        file_level = self._level_file.look()
        if file_level is not None and file_level != self._wanted:
            self._wanted = file_level
            self._cost_cap = None  # a person asked for it: measure again before lowering again
        self._watch_cost(now_ns)
        self._apply_level()
        while self.health.notes:
            self.writer.define(layout.DEFINITION_NOTE, 0, {"text": self.health.notes.popleft()})
        self.exceptions.chain_again()
        self.imports.look_at_those_under_way()
        self._exchange_token()

    def _keep_stack(self) -> None:
        self.writer.record_stack(frames_of_thread(self._main_thread_id))

    def _write_cost(self) -> int:
        """Publish what all hooks cost the training threads since the last time; returns the total in ns."""
        own_ns = self.tracker.cost_ns + self.steps.cost_ns + self.tracker.calls * CROSSING_NS
        own_calls = self.tracker.calls + self.steps.calls
        if self.collectives is not None:
            own_ns += self.collectives.cost_ns
            own_calls += self.collectives.switch.calls
        # An estimate from samples may go down for a moment; what was published stays.
        if own_ns > self._cost_written_ns and own_calls >= self._calls_written:
            self.writer.add_cost(own_ns - self._cost_written_ns, own_calls - self._calls_written)
            self._cost_written_ns, self._calls_written = own_ns, own_calls
        return own_ns

    def _watch_cost(self, now_ns: int) -> None:
        total_ns = self._write_cost()
        if self._cost_limit.exceeded(now_ns, total_ns, self.steps.step) and self.level > Level.STATUS:
            # Status costs no collective hook; the phases that remain are far below the limit for any real step.
            self._cost_cap = levels.lowered(self.level)
            self.health.note(
                f"own cost {self._cost_limit.measured:.1%} of the step time is above the limit of "
                f"{self._cost_limit.limit:.1%}: level lowered to {self._cost_cap.name.lower()}"
            )

    def _apply_level(self) -> None:
        level = self._wanted if self._cost_cap is None else min(self._wanted, self._cost_cap)
        state = self._hook_state
        if self.collectives is not None:
            state |= self.collectives.state
        if self._cost_cap is not None:
            state |= HookState.COST_LIMITED
        if self.health.disabled:
            state |= HookState.DISABLED
        if (int(level), int(state)) == self._published:
            return
        self._published = (int(level), int(state))
        self.level = level
        self._status_every = 1
        # The page says "events" only while every call is recorded, whoever reads it in between.
        if self.collectives is not None and level == Level.EVENTS:
            self.collectives.set_enabled(True)
            self.collectives.poll_completions()  # what has ended meanwhile must not look open
        self.writer.set_level(level, state)
        if self.collectives is not None and level < Level.EVENTS:
            self.collectives.set_enabled(False)

    def hook_errors(self) -> int:
        """Errors of all hooks so far."""
        return self.health.errors + (0 if self.collectives is None else self.collectives.errors)

    def _exchange_token(self) -> None:
        """Once per default process group."""
        c10d = sys.modules.get("torch.distributed.distributed_c10d")
        if c10d is None:
            return
        group = c10d._world.default_pg
        if group is None or group is self._token_group:
            return
        self._token_group = group
        try:
            self._token_thread = attempt_token.exchange_token(c10d._get_default_store(), self._keep_token)
        except Exception as error:  # edge: the store is torch's affair
            self.health.report("attempt_token", error)

    def _keep_token(self, token: str) -> None:
        if self.owns_rank():
            self.writer.define(layout.DEFINITION_ATTEMPT, 0, {"token": token})

    # --- by hand ----------------------------------------------------------------------------------------------------
    def step(self, loss: Any, grad_norm: Any) -> None:
        """Ends a step because the script says so; loss and norm are read first, in the main thread only."""
        context = self.context
        if context is not None and threading.get_ident() == self._main_thread_id:
            if loss is not None:
                context.losses.read(loss)
            if grad_norm is not None:
                context.grad_norms.read(grad_norm)
            context.losses.collect()
            context.grad_norms.collect()
        self.steps.end_by_hand(None, None)
        self._optimizer_calls_by_hand = self.steps.optimizer_calls
        if self.emergency is not None and threading.get_ident() == self._main_thread_id:
            self.emergency.at_boundary(self.steps.step)

    @property
    def steps_by_hand(self) -> bool:
        """Whether the script ends its steps itself."""
        return self._optimizer_calls_by_hand >= 0

    def _steps_held(self) -> int:
        """Steps whose updates the weights hold: where the script ends its steps, an optimizer may be ahead of that."""
        calls = self._optimizer_calls_by_hand
        return self.steps.step + (0 <= calls < self.steps.optimizer_calls)


_PHASES_BY_NAME = {phase.name.lower(): int(phase) for phase in Phase}


def phase_number(name: str) -> int | None:
    """The number of the phase of this name, or None."""
    return _PHASES_BY_NAME.get(name.lower())
