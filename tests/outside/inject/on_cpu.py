"""Scripts that know only GPUs run on the CPU unchanged: devices and nccl that they name become cpu and gloo."""

import os
from collections.abc import Callable
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any


def is_other_device(value: Any) -> bool:
    """cuda, cuda:1, a torch.device of it, or a bare number, which names a GPU."""
    import torch

    if isinstance(value, str | torch.device):
        return str(value).startswith("cuda")
    return isinstance(value, int) and not isinstance(value, bool)


def moved(inner: Callable[..., Any]) -> Callable[..., Any]:
    def outer(self: Any, *args: Any, **values: Any) -> Any:
        import torch

        cpu = torch.device("cpu")
        args = tuple(cpu if is_other_device(each) else each for each in args)
        if is_other_device(values.get("device", "cpu")):
            values["device"] = cpu
        return inner(self, *args, **values)

    return outer


def pretend_accelerator() -> None:
    """For scripts that end where there is none: there are eight, each of them the CPU."""
    import torch

    accelerator: Any = torch.accelerator
    accelerator.is_available = lambda: True
    accelerator.device_count = lambda: 8
    accelerator.current_accelerator = lambda *args, **values: torch.device("cpu")
    accelerator.current_device_index = lambda: 0
    accelerator.current_stream = lambda *args: SimpleNamespace(is_capturing=lambda: False)
    accelerator.set_device_index = lambda *args: None
    accelerator.device_index = lambda *args: nullcontext()


def patch_torch() -> None:
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    torch.Tensor.to = moved(torch.Tensor.to)  # type: ignore[method-assign]
    torch.nn.Module.to = moved(torch.nn.Module.to)  # type: ignore[method-assign]
    for kind in (torch.Tensor, torch.nn.Module):
        kind.cuda = lambda self, *args, **values: self  # type: ignore[method-assign]
    torch.Tensor.pin_memory = lambda self, *args, **values: self  # type: ignore[method-assign]
    torch.cuda.set_device = lambda *args: None
    if os.environ["OUTSIDE_ON_CPU"] == "accelerator":
        pretend_accelerator()

    begin, wrap = dist.init_process_group, DistributedDataParallel.__init__

    def init_process_group(backend: Any = None, *args: Any, **values: Any) -> None:
        values.pop("device_id", None)
        begin("gloo", *args, **values)

    def init(self: Any, module: Any, *args: Any, **values: Any) -> None:
        values = {name: value for name, value in values.items() if name not in ("device_ids", "output_device")}
        wrap(self, module, None, None, *args[2:], **values)

    dist.init_process_group = init_process_group
    DistributedDataParallel.__init__ = init  # type: ignore[method-assign]
