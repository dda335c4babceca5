"""Checkpoints written and read: ``torch.save``/``load`` and torch.distributed.checkpoint."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import torch
import torch.serialization

from ...telemetry.vocabulary import Phase
from ..patch import Patch
from .context import HookContext, phase_wrapper

DISTRIBUTED_CHECKPOINT = "torch.distributed.checkpoint"
#: name in torch.distributed.checkpoint, submodule that defines it, phase
_DISTRIBUTED = (
    ("save", "state_dict_saver", Phase.CHECKPOINT),
    ("async_save", "state_dict_saver", Phase.CHECKPOINT),
    ("load", "state_dict_loader", Phase.RESTORE),
)


def install(context: HookContext) -> None:
    """Patch the plain functions now and the distributed ones once they are imported."""

    def patch(name: str, places: list[tuple[Any, str]], phase: Phase) -> None:
        context.patches.install(
            Patch(name, places, lambda original: phase_wrapper(original, context.tracker, int(phase)))
        )

    patch("save", [(torch.serialization, "save"), (torch, "save")], Phase.CHECKPOINT)
    patch("load", [(torch.serialization, "load"), (torch, "load")], Phase.RESTORE)

    def patch_distributed(module: ModuleType) -> None:
        for name, submodule, phase in _DISTRIBUTED:
            places = [(module, name)]
            if hasattr(module, submodule):
                places.insert(0, (getattr(module, submodule), name))
            patch(f"dcp_{name}", places, phase)

    context.imports.when_imported(DISTRIBUTED_CHECKPOINT, patch_distributed)
