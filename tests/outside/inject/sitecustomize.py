"""Puts one fault into a script that nobody has prepared for it: OUTSIDE_FAULT says what, where and when.

Standard library only until the script itself imports torch. The fault happens in the script's own process and thread,
at a place that the script comes to: before a collective, in backward, in fetching data, in torch.save. What happened
is written to OUTSIDE_TRUTH before it happens.
"""

import importlib.abc
import importlib.util
import json
import os
import signal
import sys
import time
from contextlib import suppress
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

FAULT: dict[str, Any] | None = json.loads(os.environ.get("OUTSIDE_FAULT", "null"))
#: Functions of torch.distributed that scripts call.
CALLS = ("all_reduce", "broadcast", "all_gather", "gather", "send", "recv", "barrier", "all_to_all", "reduce_scatter")


class Fault:
    def __init__(self, values: dict[str, Any]) -> None:
        self.kind, self.place, self.rank = values["kind"], values["place"], values["rank"]
        self.after_s, self.after_count = values["after_s"], values["after_count"]
        self.share = values.get("share", 0.3)
        self.first_ns = 0
        self.count = 0
        self.fired = False
        self.last_ns = 0
        self.lengths: list[int] = []

    def is_mine(self) -> bool:
        return bool(self.kind == "all") or int(os.environ.get("RANK", "-1")) == self.rank

    def come(self, place: str, tensor: Any = None) -> None:
        """The script has come to this place."""
        if place != self.place or not self.is_mine():
            return
        now_ns = time.monotonic_ns()
        self.first_ns = self.first_ns or now_ns
        self.count += 1
        if self.fired:
            self._go_on()
        elif now_ns - self.first_ns >= self.after_s * 1e9 and self.count > self.after_count:
            self.fired = True
            with open(os.environ["OUTSIDE_TRUTH"], "a") as file:
                file.write(
                    json.dumps({"time": time.time(), "rank": int(os.environ["RANK"]), "count": self.count}) + "\n"
                )
            self._happen(tensor)
        else:
            self._measure(now_ns)

    def _measure(self, now_ns: int) -> None:
        if self.last_ns:
            self.lengths = [*self.lengths[-200:], now_ns - self.last_ns]
        self.last_ns = now_ns

    def _go_on(self) -> None:
        if self.kind == "slow":
            usual_ns = sorted(self.lengths)[len(self.lengths) // 2] if self.lengths else 0
            until_ns = time.monotonic_ns() + self.share * usual_ns
            while time.monotonic_ns() < until_ns:
                pass

    def _happen(self, tensor: Any) -> None:
        kind = self.kind
        if kind in ("hang", "all", "killed"):
            time.sleep(3600)
        elif kind == "blocked":
            os.read(os.pipe()[0], 1)
        elif kind == "spin":
            while True:
                pass
        elif kind == "pause":
            time.sleep(self.share)
        elif kind == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        elif kind == "stop":
            os.kill(os.getpid(), signal.SIGSTOP)
        elif kind == "raise":
            raise ValueError("a bad sample")
        elif kind == "exit":
            os._exit(0)
        elif kind == "nan" and tensor is not None:
            tensor.data.mul_(float("nan"))
        elif kind == "extra":
            import torch.distributed as dist

            dist.barrier()


def patch(module: Any, name: str, place: str, fault: Fault) -> None:
    inner = getattr(module, name, None)
    if inner is None:
        return

    def outer(*args: Any, **values: Any) -> Any:
        tensor = next((each for each in args if hasattr(each, "data_ptr")), None)
        fault.come(place, tensor)
        return inner(*args, **values)

    setattr(module, name, outer)


def patch_torch(fault: Fault) -> None:
    import torch
    import torch.distributed as dist
    from torch.utils.data import dataloader

    for name in CALLS:
        patch(dist, name, "call", fault)
    patch(torch.Tensor, "backward", "backward", fault)
    patch(torch, "save", "save", fault)
    patch(dataloader._BaseDataLoaderIter, "__next__", "data", fault)


class AfterTorch(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Patches once the script has imported torch.distributed."""

    def __init__(self, fault: Fault) -> None:
        self.fault = fault
        self.inner: Any = None

    def find_spec(self, name: str, path: Any, target: Any = None) -> ModuleSpec | None:
        if name != "torch.utils.data":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        sys.meta_path.insert(0, self)
        if spec is None or spec.loader is None:
            return None
        self.inner, spec.loader = spec.loader, self
        return spec

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        made: ModuleType | None = self.inner.create_module(spec)
        return made

    def exec_module(self, module: ModuleType) -> None:
        with suppress(ValueError):
            sys.meta_path.remove(self)
        self.inner.exec_module(module)
        patch_torch(self.fault)


if FAULT and os.environ.get("RANK"):
    sys.meta_path.insert(0, AfterTorch(Fault(FAULT)))
