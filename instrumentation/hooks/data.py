"""Waiting for data: patches the ``__next__`` that all DataLoader iterators share."""

from __future__ import annotations

import torch.utils.data.dataloader as dataloader

from ...telemetry.vocabulary import Phase
from ..patch import Patch
from .context import HookContext, phase_wrapper


def install(context: HookContext) -> None:
    """Patch DataLoader iterators. Custom batch iterators are not seen: their time shows as ``other``."""
    iterator = dataloader._BaseDataLoaderIter
    context.patches.install(
        Patch(
            "data",
            # ``for`` finds __next__ on the class; ``next`` is the Python 2 spelling some releases alias to it.
            [(iterator, "__next__")],
            lambda original: phase_wrapper(original, context.tracker, int(Phase.DATA)),
        )
    )
