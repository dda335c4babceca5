"""Puts one fault into a script that nobody has prepared for it: OUTSIDE_FAULT says what, where and when.

The fault happens in the script's own process and thread, at a place that the script comes to. What happened is written
to OUTSIDE_TRUTH before it happens, with the line of the script that came there; so is when it came first. Kind "": no
fault, only that is told.

Places: call (a function of torch.distributed), forward (the outermost module, training), backward, data (the next
batch), loader (a loader is begun for the first time), epochs (once more), evaluation_first and evaluation_later
(the first batch of an evaluation), save, sample (a token is drawn).
"""

import json
import os
import signal
import sys
import sysconfig
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any

#: Functions of torch.distributed that scripts call.
CALLS = ("all_reduce", "broadcast", "all_gather", "gather", "send", "recv", "barrier", "all_to_all", "reduce_scatter",
         "all_gather_into_tensor", "reduce_scatter_tensor", "all_to_all_single", "reduce")  # fmt: skip
INSTALLED = ("<", *(sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib")))


class Fault:
    """after_s: since the first time at this place; after_count: so many times before. share: of the usual time."""

    def __init__(self, values: dict[str, Any]) -> None:
        self.kind, self.place, self.rank = values["kind"], values["place"], values["rank"]
        self.manner = values.get("manner", "sleep")
        self.after_s, self.after_count = values["after_s"], values["after_count"]
        self.share = values["share"]
        self.first_ns = 0
        self.count = 0
        self.fired = False
        self.skip_next = False
        #: A tensor that becomes NaN once the script's call has returned.
        self.spoils: Any = None
        self.last_ns = 0
        self.lengths_ns: deque[int] = deque(maxlen=200)
        self.pid = os.getpid()

    def is_mine(self) -> bool:
        """Not in the workers of a loader, which are forked with all of this."""
        return os.getpid() == self.pid and bool(self.kind == "all" or int(os.environ.get("RANK", "-1")) == self.rank)

    def come(self, place: str, tensor: Any = None) -> None:
        """The script has come to this place."""
        if place != self.place or not self.is_mine() or threading.current_thread() is not threading.main_thread():
            return
        now_ns = time.monotonic_ns()
        if not self.first_ns:
            self.first_ns = now_ns
            self._write({"began": time.time()})
        self.count += 1
        if self.fired:
            self._go_on(tensor)
        elif self.kind and now_ns - self.first_ns >= self.after_s * 1e9 and self.count > self.after_count:
            self.fired = True
            self._write({"time": time.time(), "count": self.count, "where": own_frames()})
            self._happen(tensor)
        else:
            if self.last_ns:
                self.lengths_ns.append(now_ns - self.last_ns)
            self.last_ns = now_ns

    def _write(self, told: dict[str, Any]) -> None:
        with open(os.environ["OUTSIDE_TRUTH"], "a") as file:
            file.write(json.dumps({"rank": int(os.environ["RANK"]), **told}) + "\n")

    def _go_on(self, tensor: Any) -> None:
        """What lasts, each time that the script comes again."""
        if self.kind == "slow":
            usual_s = sorted(self.lengths_ns)[len(self.lengths_ns) // 2] / 1e9 if self.lengths_ns else 0.0
            self._spend(self.share * usual_s)

    def _spend(self, seconds: float) -> None:
        if self.manner == "sleep":
            time.sleep(seconds)
            return
        until = time.thread_time() + seconds
        while time.thread_time() < until:
            pass

    def _happen(self, tensor: Any) -> None:
        kind = self.kind
        if kind in ("hang", "all", "killed"):
            self._stand()
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
            self.spoils = _nearest_parameter(tensor)
        elif kind == "desync" and self.manner == "skip":
            self.skip_next = True
        elif kind == "desync":
            import torch.distributed as dist

            dist.barrier()

    def _stand(self) -> None:
        if self.manner == "blocked":
            os.read(os.pipe()[0], 1)
        while self.manner == "spin":
            pass
        time.sleep(3600)


def _nearest_parameter(tensor: Any) -> Any:
    """The parameter nearest to a loss in its graph, as the device's memory could spoil it; a tensor without a graph
    itself. From the next forward pass on the loss is bad, however a framework scales it on its way to ``backward``; the
    gradients of this step are not, or they would be everybody's before any loss tells of it."""
    nodes = deque([tensor.grad_fn])
    seen = set()
    while nodes:
        node = nodes.popleft()
        if node is None or node in seen:
            continue
        seen.add(node)
        if hasattr(node, "variable"):
            return node.variable
        nodes.extend(parent for parent, _ in node.next_functions)
    return tensor


def own_frames() -> list[str]:
    """FILE:LINE of the script's and its own modules' frames, innermost first; whichrank's hooks are nobody's."""
    package = os.path.dirname(str(getattr(sys.modules.get("whichrank"), "__file__", "/none/of/it")))
    foreign = (*INSTALLED, os.path.join(package, "instrumentation", ""), os.path.join(package, "telemetry", ""))
    found = []
    frame: Any = sys._getframe(1)
    while frame is not None:
        name = frame.f_code.co_filename
        if not name.startswith(foreign):
            found.append(f"{name}:{frame.f_lineno}")
        frame = frame.f_back
    return found


def patch(module: Any, name: str, place: str, fault: Fault) -> None:
    inner = getattr(module, name, None)
    if inner is None:
        return

    def outer(*args: Any, **values: Any) -> Any:
        fault.come(place, next((each for each in args if hasattr(each, "data_ptr")), None))
        if fault.skip_next:
            fault.skip_next = False
            return None
        if fault.spoils is None:
            return inner(*args, **values)
        spoils, fault.spoils = fault.spoils, None
        result = inner(*args, **values)
        spoils.data.mul_(float("nan"))
        return result

    setattr(module, name, outer)


def patch_modules(fault: Fault) -> None:
    """Forward of the outermost module; the first one in evaluation mode after one in training is an evaluation's."""
    import torch

    inner = torch.nn.Module.__call__
    depth, evaluations, was_training, has_trained = 0, 0, True, False

    def outer(self: Any, *args: Any, **values: Any) -> Any:
        nonlocal depth, evaluations, was_training, has_trained
        if depth:
            return inner(self, *args, **values)
        has_trained = has_trained or self.training
        if not has_trained:
            fault.come("forward")  # of a script that never trains it is the only one
        if self.training:
            fault.come("forward")
        elif was_training:
            evaluations += 1
            fault.come("evaluation_first" if evaluations == 1 else "evaluation_later")
        was_training = self.training
        depth += 1
        try:
            return inner(self, *args, **values)
        finally:
            depth -= 1

    torch.nn.Module.__call__ = outer  # type: ignore[method-assign]


def patch_loaders(fault: Fault) -> None:
    """The same loader begun again is between two epochs."""
    from torch.utils.data import DataLoader, dataloader

    inner: Callable[..., Any] = DataLoader.__iter__
    begun: set[int] = set()

    def outer(self: Any) -> Any:
        place = "epochs" if id(self) in begun else "loader"
        begun.add(id(self))
        fault.come(place)
        return inner(self)

    DataLoader.__iter__ = outer  # type: ignore[method-assign]
    patch(dataloader._BaseDataLoaderIter, "__next__", "data", fault)


def patch_torch() -> None:
    import torch
    import torch.distributed as dist

    fault = Fault(json.loads(os.environ["OUTSIDE_FAULT"]))
    if fault.place == "call":
        for name in CALLS:
            patch(dist, name, "call", fault)
    patch(torch.Tensor, "backward", "backward", fault)
    patch(torch, "save", "save", fault)
    if fault.place == "sample":
        patch(torch, "multinomial", "sample", fault)
        patch(torch.Tensor, "multinomial", "sample", fault)
    if fault.place in ("forward", "evaluation_first", "evaluation_later"):
        patch_modules(fault)
    with suppress(AttributeError):
        patch_loaders(fault)
