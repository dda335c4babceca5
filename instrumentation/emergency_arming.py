"""Connects emergency saves with a session: its steps, its phases, its ring, its last words."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from torch.compiler import is_dynamo_compiling
from torch.optim.optimizer import register_optimizer_step_post_hook

from ..telemetry.vocabulary import Phase
from .attempt_token import is_connected
from .background_thread import start_background_thread
from .emergency.emergency_saving import EmergencySaving
from .emergency.emergency_watch import EmergencyWatch
from .emergency.word_board import find_board

if TYPE_CHECKING:
    from .session import Session

#: An exception out of one of these leaves weights that are half of one step and half of the next, or a save of the
#: owner's half written.
_NOT_WHOLE = (int(Phase.OPTIMIZER), int(Phase.CHECKPOINT))


def arm(session: Session, save: Callable[..., Any], grace_s: float, lead_s: float) -> None:
    """Lets this rank listen for requests; the last function that was given is called. For the main thread.

    Raises OSError, RuntimeError or ValueError (not the main thread, seconds that are none).
    """
    if not 0 < grace_s < 1e6 or not 0 <= lead_s < 1e6:
        raise ValueError(f"grace_s is {grace_s}, lead_s {lead_s}: they must be seconds, grace_s above 0")
    steps = session.steps
    saving = EmergencySaving(save, session.saves, session.tracker, session.writer.define)
    if session.emergency is not None:
        session.emergency.stop()

    def may_save_now(error: BaseException) -> bool:
        return session.tracker.phase_of_exception(error) not in _NOT_WHOLE

    watch = EmergencyWatch(
        saving,
        rank=session.place.rank,
        local_rank=session.place.local_rank,
        world_size=session.place.world_size,
        directory=session.directory,
        find_board=lambda: find_board(os.environ, session.place.world_size, session.directory, is_connected),
        updates=lambda: steps.optimizer_calls,
        may_save_now=may_save_now,
        start_thread=start_background_thread,
        grace_s=grace_s,
        end_s=_time_limit(os.environ),
        lead_s=lead_s,
        on_error=lambda error: session.health.note(f"emergency saves: {type(error).__name__}: {error}"),
    )
    watch.start(steps.step)
    session.emergency = watch
    session.exceptions.before_leaving = watch.at_exception
    seen = steps.step

    # In Python, since Dynamo traces it. Behind the session's own hook, which counts the step.
    def after(optimizer: Any, args: Any, kwargs: Any) -> None:
        nonlocal seen
        if is_dynamo_compiling() or session.emergency is not watch:
            return
        step = steps.step
        if step != seen:
            seen = step
            if not session.steps_by_hand and session.tracker.in_main_thread():
                watch.at_boundary(step)

    hook = register_optimizer_step_post_hook(after)
    if session.context is not None:
        session.context.undo.append(hook.remove)


def _time_limit(environ: Mapping[str, str]) -> float:
    """When Slurm ends the job, as it was when the job started, in Unix seconds; 0 where it does not say."""
    said = environ.get("SLURM_JOB_END_TIME", "")
    return float(said) if said.isdecimal() else 0.0
