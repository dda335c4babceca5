"""Forward passes of models that neither DDP nor FSDP wraps: plain ones and tensor-parallel ones.

Which module the training loop calls is not known beforehand, and a hook on every module would cost every layer. So the
modules whose ``train``, ``eval``, ``parameters`` or ``named_parameters`` somebody called from outside are candidates,
and each gets torch's own place for a call of one instance, ``_compiled_call_impl``, which torch leaves out of pickles
and copies. A candidate that runs inside another forward pass is no root: it gives the place back at once. Only a model
that has been called with gradients counts in evaluation, so teachers and metrics do not.

torch.compile must never meet the wrapper: when a compilation begins, candidates give the place back, but those that
are running, which are outside of what is traced. After it no module becomes a candidate any more, and the functions
that told of them are torch's own again.
"""

from __future__ import annotations

import functools
import sys
import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch.compiler import is_dynamo_compiling

from ...telemetry.vocabulary import Phase
from ..support.patch import Patch
from .context import HookContext
from .forward import SEEN

_FORWARD, _EVAL = int(Phase.FORWARD), int(Phase.EVAL)
PLACE = "_compiled_call_impl"
#: Modules that wait to be called; a script that freezes layer by layer makes one of each.
MAX_CANDIDATES = 16


class RootCall:
    """Stands in ``_compiled_call_impl`` of one module. Holds it weakly; pickled or copied it is None."""

    __slots__ = ("_candidates", "_module", "running", "trained")

    def __init__(self, module: Any, candidates: Candidates) -> None:
        self._module = weakref.ref(module)
        self._candidates = candidates
        self.running = 0
        self.trained = False

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        # Whoever copied the module's __dict__ (nn.DataParallel does) copied us with it: call what was really called.
        caller = sys._getframe(1)
        own: Any = self._module()
        module = caller.f_locals["self"] if caller.f_code is _CALL_CODE else own
        del caller
        candidates = self._candidates
        tracker = candidates.tracker
        if not tracker.enabled or is_dynamo_compiling() or module is not own:
            return module._call_impl(*args, **kwargs)
        if tracker.shown == _FORWARD:
            candidates.give_back(module)
            return module._call_impl(*args, **kwargs)
        if torch.is_grad_enabled():
            phase = _FORWARD
            if not self.trained:
                self.trained = True
                candidates.context.add_root(module)
            candidates.context.end_stale_evaluation()
        elif self.trained:
            phase = _EVAL
        else:
            return module._call_impl(*args, **kwargs)
        entered = tracker.enter(phase)
        self.running += 1
        try:
            result = module._call_impl(*args, **kwargs)
        except BaseException as error:
            tracker.leave_by_exception(entered, error)
            raise
        finally:
            self.running -= 1
        tracker.leave(entered)
        return result

    def __reduce__(self) -> tuple[Any, ...]:
        return type(None), ()

    def __copy__(self) -> None:
        return None

    def __deepcopy__(self, memo: Any) -> None:
        return None


class Candidates:
    """The modules that have a RootCall. Main thread only."""

    def __init__(self, context: HookContext) -> None:
        self.context = context
        self.tracker = context.tracker
        self._guard = context.guard("plain_forward")
        self._calls: dict[int, tuple[weakref.ref[Any], RootCall]] = {}
        self._closed = False
        #: Patches that only serve to find candidates.
        self.finders: list[Patch] = []

    def add(self, module: Any) -> None:
        """Lets this module's calls be seen, as somebody named it from outside. Cheap when it is known already.

        Nothing once closed, or for a module with its own ``__call__``; beyond ``MAX_CANDIDATES`` one is given up.
        """
        if self._closed or not self._guard.enabled or PLACE in module.__dict__ or id(module) in self.context.roots:
            return
        try:
            kind = type(module)
            if not self.tracker.in_main_thread() or kind.__call__ is not torch.nn.Module.__call__:
                return
            if hasattr(kind.forward, SEEN):
                return
            if len(self._calls) >= MAX_CANDIDATES:
                self._forget_one()
            call = RootCall(module, self)
            module.__dict__[PLACE] = call
            self._calls[id(module)] = (weakref.ref(module), call)
        except Exception as error:  # edge: modules are the user's, and may do anything
            self._guard.fail(error)

    def give_back(self, module: Any) -> None:
        """Takes our RootCall off this module, if it has one."""
        self._calls.pop(id(module), None)
        if type(module.__dict__.get(PLACE)) is RootCall:
            del module.__dict__[PLACE]

    def close(self, *, all_of_them: bool = False) -> None:
        """Takes no more candidates, and gives back those that are not running; all_of_them: every one.

        A compilation begins, or the session ends.
        """
        self._closed = True
        while self.finders:
            self.finders.pop().uninstall()
        for reference, call in list(self._calls.values()):
            module = reference()
            if module is not None and (all_of_them or not call.running):
                self.give_back(module)

    def _forget_one(self) -> None:
        """The oldest that has never been trained, or the oldest."""
        for untrained in (True, False):
            for identity, (reference, call) in self._calls.items():
                if untrained and (call.trained or call.running):
                    continue
                module = reference()
                del self._calls[identity]
                if module is not None:
                    self.give_back(module)
                return


_CALL_CODE = getattr(torch.nn.Module.__call__, "__code__", None)


def install(context: HookContext) -> None:
    """Patches what scripts call on the model as a whole, so that its forward passes are seen.

    ``train`` itself is patched by ``evaluation``. Nothing on a torch whose calls go another way.
    """
    module_class = torch.nn.Module
    if not hasattr(module_class, PLACE) or _CALL_CODE is None or PLACE not in _CALL_CODE.co_names:
        return  # a torch whose calls go another way: such models' forward passes show as ``other``
    candidates = Candidates(context)
    context.candidates = candidates

    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def named(self: Any, *args: Any, **kwargs: Any) -> Any:
            # ``recurse=False`` is how wrappers walk through a model, module by module.
            if not is_dynamo_compiling() and not args and kwargs.get("recurse", True):
                candidates.add(self)
            return original(self, *args, **kwargs)

        return named

    def make_scripting(original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def create_script_module(nn_module: Any, *args: Any, **kwargs: Any) -> Any:
            for module in nn_module.modules():
                candidates.give_back(module)
            return original(nn_module, *args, **kwargs)

        return create_script_module

    # TorchScript compiles every attribute that it finds.
    scripting = [(torch.jit._recursive, "create_script_module")]
    context.patches.install(Patch("plain_forward_scripting", scripting, make_scripting))
    for name in ("parameters", "named_parameters"):
        finder = Patch(f"plain_forward_{name}", [(module_class, name)], make)
        if context.patches.install(finder):
            candidates.finders.append(finder)
    context.undo.append(lambda: candidates.close(all_of_them=True))
