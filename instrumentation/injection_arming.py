"""Connects the faults of ``whichrank inject`` with a session, in a job that allowed them when it started."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from .background_thread import start_background_thread
from .injection.request_watch import RequestWatch

if TYPE_CHECKING:
    from .hooks.context import HookContext


def arm_injection(context: HookContext, directory: Path, rank: int) -> None:
    """Lets this rank listen for a fault that it is to do. Never raises: what does not fit this torch is left out.

    directory: where its ring is.
    """
    health, steps = context.health, context.steps
    watch = RequestWatch(
        directory,
        rank,
        step=lambda: steps.step,
        start_thread=start_background_thread,
        on_error=lambda error: health.note(f"injected faults: {type(error).__name__}: {error}"),
    )
    try:
        from .injection.inside_faults import install_faults

        context.undo += [install_faults(watch, context.patches), watch.stop]
        watch.start()
    except Exception as error:  # edge: torch's internals, threads
        health.report("injection", error)
