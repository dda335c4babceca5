"""Saves of frameworks: Lightning, Hugging Face, Accelerate, DeepSpeed, Megatron, torchtitan, NVIDIA's resiliency.

What they write by torch is seen there; here is where the whole of a save begins and ends, and who completes one whose
call returns before: a queue of requests (Megatron, NVIDIA), a thread (Lightning), a future (torchtitan).
"""

from __future__ import annotations

import functools
import os
import sys
import weakref
from collections import deque
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any

from ...telemetry.checkpoint_states import SaveWay
from ..support.guard import Guard
from ..support.patch import Patch
from ..trackers.checkpoint_identity import checkpoint_number
from ..trackers.saves import MOST_PENDING, Save
from .context import HookContext
from .saving import PlaceOf, argument, by_futures, saving

_LIGHTNING = ("lightning.pytorch", "pytorch_lightning")
_FABRIC = ("lightning.fabric", "lightning_fabric")


def _no_place(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    return None


def _local_place(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """NVIDIA's local checkpoints: a folder of the manager's, and the iteration."""
    folder = getattr(args[0], "local_ckpt_dir", None) or getattr(args[0], "root_local_ckpt_dir", None)
    iteration = kwargs.get("iteration", args[2] if len(args) > 2 else None)
    return None if folder is None or iteration is None else os.path.join(os.fspath(folder), str(iteration))


#: module, class ("" = the module's own function), name, way, place, completed by
_CALLS: tuple[tuple[str, str, str, SaveWay, PlaceOf, str], ...] = (
    *(
        (f"{name}.trainer.trainer", "Trainer", "save_checkpoint", SaveWay.LIGHTNING, argument(1, "filepath"), "")
        for name in _LIGHTNING
    ),
    *(
        (
            f"{name}.plugins.io.torch_io",
            "TorchCheckpointIO",
            "save_checkpoint",
            SaveWay.LIGHTNING,
            argument(2, "path"),
            "",
        )
        for name in _FABRIC
    ),
    *((f"{name}.fabric", "Fabric", "save", SaveWay.FABRIC, argument(1, "path"), "") for name in _FABRIC),
    ("transformers.trainer", "Trainer", "_save_checkpoint", SaveWay.HUGGING_FACE, _no_place, ""),
    ("accelerate.accelerator", "Accelerator", "save_state", SaveWay.ACCELERATE, argument(1, "output_dir"), ""),
    ("safetensors.torch", "", "save_file", SaveWay.SAFETENSORS, argument(1, "filename"), ""),
    ("deepspeed.runtime.engine", "DeepSpeedEngine", "save_checkpoint", SaveWay.DEEPSPEED, _no_place, ""),
    (
        "megatron.core.dist_checkpointing.serialization",
        "",
        "save",
        SaveWay.MEGATRON,
        argument(1, "checkpoint_dir"),
        "queue",
    ),
    (
        "nvidia_resiliency_ext.checkpointing.local.ckpt_managers.base_manager",
        "BaseCheckpointManager",
        "save",
        SaveWay.NVIDIA_RESILIENCY,
        _local_place,
        "queue",
    ),
    (
        "torchtitan.components.checkpointer.dcp",
        "CheckpointManager",
        "dcp_save",
        SaveWay.TORCHTITAN,
        argument(2, "checkpoint_id"),
        "future",
    ),
)
#: Where saves that were asked for are started and ended: module, class.
_QUEUES = (
    ("megatron.core.dist_checkpointing.strategies.async_utils", "AsyncCallsQueue"),
    ("nvidia_resiliency_ext.checkpointing.async_ckpt.core", "AsyncCallsQueue"),
)
#: Packages that hand on the functions of a module above under their own name.
HANDED_ON = {"megatron.core.dist_checkpointing.serialization": "megatron.core.dist_checkpointing"}


def install(context: HookContext) -> None:
    """Lets each framework be patched as soon as it is imported; nothing is imported here."""
    if context.saves is None:
        return
    requests = _Requests(context)
    for module_name in dict.fromkeys(call[0] for call in _CALLS):
        context.imports.when_imported(module_name, functools.partial(_patch_calls, context, requests))
    for module_name, class_name in _QUEUES:
        context.imports.when_imported(module_name, functools.partial(requests.patch, class_name))
    for package in _LIGHTNING:
        context.imports.when_imported(f"{package}.plugins.io.async_plugin", functools.partial(_patch_thread, context))


def _patch_calls(context: HookContext, requests: _Requests, module: ModuleType) -> None:
    for module_name, class_name, name, way, place_of, completed_by in _CALLS:
        owner = getattr(module, class_name, None) if class_name else module
        if module_name != module.__name__ or name not in vars(owner or object):
            continue
        places = [(owner, name)]
        package = sys.modules.get(HANDED_ON.get(module_name, ""))
        if package is not None:
            places.append((package, name))
        completes = {"queue": requests.completes, "future": by_futures(context)}.get(completed_by)
        wrap = functools.partial(saving, context, way=way, place_of=place_of, completes=completes)
        context.patches.install(Patch(f"{module_name}.{name}", places, wrap))


def _patch_thread(context: HookContext, module: ModuleType) -> None:
    """Lightning's AsyncCheckpointIO: a thread of its own writes what the trainer's call has copied."""
    saves, owner = context.saves, getattr(module, "AsyncCheckpointIO", None)
    if saves is None or "save_checkpoint" not in vars(owner or object):
        return
    guard, place_of = Guard("lightning_async", context.health), argument(2, "path")

    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def save_checkpoint(*args: Any, **kwargs: Any) -> Any:
            if guard.enabled:
                try:
                    saves.hand_over(place=checkpoint_number(place_of(args, kwargs)), with_upload=True)
                except Exception as error:  # edge: hook
                    guard.fail(error)
            return original(*args, **kwargs)

        return save_checkpoint

    context.patches.install(Patch("lightning.async_save", [(owner, "save_checkpoint")], make))


class _Requests:
    """Saves that return a request, which the training loop puts into a queue, and asks now and then what has ended."""

    def __init__(self, context: HookContext) -> None:
        self._context, self._saves = context, context.saves
        self._guard = Guard("save_requests", context.health)
        #: Asked for, and in no queue yet, in order.
        self._unscheduled: deque[Save] = deque(maxlen=16)
        #: By queue, the oldest first: they end in that order, and the numbers that queues give are not always theirs.
        self._scheduled: weakref.WeakKeyDictionary[Any, deque[Save]] = weakref.WeakKeyDictionary()

    def completes(self, save: Save, result: Any) -> bool:
        """Whether the call's result is a request."""
        is_request = hasattr(result, "async_fn") and hasattr(result, "finalize_fns")
        if is_request:
            self._unscheduled.append(save)
        return is_request

    def patch(self, class_name: str, module: ModuleType) -> None:
        """Patches a class of queues."""
        owner = getattr(module, class_name, None)
        for name, make in (
            ("schedule_async_request", self._scheduling),
            ("maybe_finalize_async_calls", self._finalizing),
        ):
            if name in vars(owner or object):
                self._context.patches.install(Patch(f"{module.__name__}.{name}", [(owner, name)], make))

    def _scheduling(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def schedule_async_request(queue: Any, *args: Any, **kwargs: Any) -> Any:
            saves, save = self._saves, None
            if self._guard.enabled and saves is not None:
                try:
                    save = self._unscheduled.popleft() if self._unscheduled else self._begin()
                except Exception as error:  # edge: hook
                    self._guard.fail(error)
            try:
                number = original(queue, *args, **kwargs)
            except BaseException as error:
                if save is not None and saves is not None:
                    saves.failed(save, error)
                raise
            if save is not None and saves is not None:
                try:
                    self._scheduled.setdefault(queue, deque(maxlen=MOST_PENDING)).append(save)
                    saves.staged(save)
                except Exception as error:  # edge: hook
                    self._guard.fail(error)
            return number

        return schedule_async_request

    def _begin(self) -> Save | None:
        """A request that no save of ours returned: the save begins where it is put into the queue."""
        assert self._saves is not None
        entered = self._saves.enter(SaveWay.NVIDIA_RESILIENCY)
        save = self._saves.hand_over()
        self._saves.leave(entered)
        return save

    def _finalizing(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def maybe_finalize_async_calls(queue: Any, *args: Any, **kwargs: Any) -> Any:
            try:
                numbers = original(queue, *args, **kwargs)
            except Exception as error:
                self._over(queue, None, error)
                raise
            self._over(queue, numbers, None)
            return numbers

        return maybe_finalize_async_calls

    def _over(self, queue: Any, numbers: Any, error: Exception | None) -> None:
        """numbers: one for each request that has ended; None: the oldest one's writing raised ``error``."""
        saves = self._saves
        if saves is None or not self._guard.enabled:
            return
        try:
            known: deque[Save] = self._scheduled.get(queue, deque())
            if error is not None and known:
                saves.failed(known.popleft(), error)
            for _ in numbers or ():
                if known:
                    saves.durable(known.popleft())
        except Exception as failure:  # edge: hook
            self._guard.fail(failure)
