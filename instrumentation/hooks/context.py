"""What every hook module is handed: where to note phases, steps and losses, and how to be undone."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Sized
from dataclasses import dataclass, field
from typing import Any

from torch.compiler import is_dynamo_compiling

from ..guard import Guard, HookHealth
from ..import_hooks import PostImportFinder
from ..loss import Scalars
from ..patch import PatchSet
from ..phases import Phases
from ..steps import Steps


@dataclass(slots=True, kw_only=True)
class HookContext:
    """Shared by all hooks of one session. Hooks run in the main thread unless their module says otherwise."""

    health: HookHealth
    tracker: Phases
    steps: Steps
    losses: Scalars
    grad_norms: Scalars
    patches: PatchSet
    imports: PostImportFinder
    #: Looks for completed collectives; called at edges where some are likely (end of backward, before the optimizer).
    poll_completions: Callable[[], object]
    #: The operations still open; without any there is nothing to poll for.
    open_operations: Sized
    #: Ways back that are not patches, such as torch's own hook handles.
    undo: list[Callable[[], None]] = field(default_factory=list)
    #: id of the last loss that a GradScaler scaled: its true value has been read.
    scaled_loss: int = 0
    #: Modules whose mode tells training from evaluation, by id; a module that is gone leaves by itself.
    roots: weakref.WeakValueDictionary[int, Any] = field(default_factory=weakref.WeakValueDictionary)

    def guard(self, name: str) -> Guard:
        """A guard of its own for one hook."""
        return Guard(name, self.health)

    def add_root(self, module: Any) -> None:
        """Remember a model whose train/eval mode is the job's mode."""
        self.roots[id(module)] = module


def phase_wrapper(
    original: Callable[..., Any],
    tracker: Phases,
    phase: int,
) -> Callable[..., Any]:
    """Wrap a function so that it runs in a phase. Same signature, result and exceptions."""
    enter, leave, unwind = tracker.enter, tracker.leave, tracker.leave_by_exception

    @functools.wraps(original)
    def in_phase(*args: Any, **kwargs: Any) -> Any:
        if is_dynamo_compiling():
            return original(*args, **kwargs)
        entered = enter(phase)
        try:
            result = original(*args, **kwargs)
        except BaseException as error:
            unwind(entered, error)
            raise
        leave(entered)
        return result

    return in_phase
