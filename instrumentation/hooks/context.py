"""What every hook module is handed: where to note phases, steps and losses, and how to be undone."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Sized
from dataclasses import dataclass, field
from typing import Any, Protocol

from torch.compiler import is_dynamo_compiling

from ...telemetry.vocabulary import Phase
from ..support.guard import Guard, HookHealth
from ..support.import_hooks import PostImportFinder
from ..support.patch import PatchSet
from ..trackers.loss import Scalars
from ..trackers.phases import Phases
from ..trackers.saves import RankSaves
from ..trackers.step_counter import Steps

_EVAL, _OTHER = int(Phase.EVAL), int(Phase.OTHER)
#: In place of ``scaled_loss``: the loss of the backward pass under way has been read, whatever is passed on.
KNOWN = -1


class ModelCandidates(Protocol):
    """Modules that may turn out to be the model (``plain_forward.Candidates``)."""

    def add(self, module: Any) -> None:
        """Notes a module that somebody named from outside: it may be the model."""
        ...

    def give_back(self, module: Any) -> None:
        """Takes our wrapper off this module's calls."""
        ...

    def close(self) -> None:
        """Ends the search for the model: torch.compile begins, and modules that do not run now are unwrapped."""
        ...


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
    #: Publishes an event of the ring in the current phase and step: (kind, value=…, extra=…).
    append_event: Callable[..., None]
    #: What becomes of saves; None: nobody records it.
    saves: RankSaves | None = None
    #: Ways back that are not patches, such as torch's own hook handles.
    undo: list[Callable[[], None]] = field(default_factory=list)
    #: id of the last loss that a GradScaler scaled: its true value has been read. KNOWN: so has that of any other.
    scaled_loss: int = 0
    #: Not empty while a framework's own step is under way: what torch's optimizers do inside it are no steps.
    inside_step: list[int] = field(default_factory=list)
    #: Modules that may turn out to be the model of a job without DDP or FSDP; None where they are not looked for.
    candidates: ModelCandidates | None = None
    #: The model whose ``eval()`` began the evaluation.
    evaluated: Callable[[], Any] | None = None
    #: Modules whose mode tells training from evaluation, by id; a module that is gone leaves by itself. A plain dict:
    #: where torch.compile runs the model, each frame of Python that a hook calls would be one more to compile.
    roots: dict[int, weakref.ref[Any]] = field(default_factory=dict)

    def guard(self, name: str) -> Guard:
        """A new guard, for the hook of this name alone."""
        return Guard(name, self.health)

    def add_root(self, module: Any) -> None:
        """Remembers (weakly) a model whose train/eval mode is the job's mode."""
        self.roots[id(module)] = weakref.ref(module, functools.partial(self.roots.pop, id(module)))

    def wrapped(self, module: Any) -> None:
        """Notes that this model's forward passes are seen at its wrapper: it is a root, and no candidate any more."""
        self.add_root(module)
        if self.candidates is not None:
            self.candidates.give_back(module)

    def end_stale_evaluation(self) -> None:
        """Ends the evaluation phase if the evaluated model is in training mode again, or gone.

        Frameworks put ``training`` back without calling ``train``; data and forward passes look here.
        """
        if self.tracker.base == _EVAL:
            model = None if self.evaluated is None else self.evaluated()
            if model is None or model.training:
                self.tracker.set_base(_OTHER)


def phase_wrapper(
    original: Callable[..., Any],
    tracker: Phases,
    phase: int,
) -> Callable[..., Any]:
    """The function, so wrapped that it runs in a phase. Same signature, result and exceptions."""
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
