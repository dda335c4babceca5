"""Waiting for data: patches the ``__next__`` that all DataLoader iterators share."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch.utils.data.dataloader as dataloader
from torch.compiler import is_dynamo_compiling

from ...telemetry.vocabulary import Phase
from ..support.patch import Patch
from .context import HookContext

_DATA, _EVAL = int(Phase.DATA), int(Phase.EVAL)


def install(context: HookContext) -> None:
    """Patches ``__next__`` of DataLoader iterators: their time is the data phase.

    Custom batch iterators are not seen: their time shows as ``other``.
    """
    tracker = context.tracker
    enter, leave, unwind = tracker.enter, tracker.leave, tracker.leave_by_exception

    def make(original: Callable[[Any], Any]) -> Callable[[Any], Any]:
        @functools.wraps(original)
        def __next__(self: Any) -> Any:
            if is_dynamo_compiling():
                return original(self)
            if tracker.base == _EVAL:
                context.end_stale_evaluation()
            entered = enter(_DATA)
            try:
                batch = original(self)
            except BaseException as error:
                unwind(entered, error)
                raise
            leave(entered)
            return batch

        return __next__

    # ``for`` finds __next__ on the class; ``next`` is the Python 2 spelling some releases alias to it.
    context.patches.install(Patch("data", [(dataloader._BaseDataLoaderIter, "__next__")], make))
