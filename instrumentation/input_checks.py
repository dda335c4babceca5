"""Which operation is the first that a rank feeds a NaN into: looked for only where somebody asks for it.

Under tensor parallelism, or with sharded parameters, a NaN of one rank is everybody's after the next sum, long before a
loss tells of it; who had it first shows in the inputs of the operations alone. Looking at them reads each input once
more, so this is off unless ``WHICHRANK_CHECK_INPUTS=1``. Infinities do not count: masks and maxima begin with them.

A tensor on the CPU is looked at where it is issued. On a GPU the first bad call is noted by the device itself, in
stream order, and copied out beside the work, as losses are (``loss``): nothing waits. Calls of a CUDA graph are not
looked at. Runs on the threads that issue.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from ..telemetry import ring_layout as layout
from ..telemetry.vocabulary import Op
from .support.guard import Guard

if TYPE_CHECKING:
    from .ring_writer import RankRecorder

#: Steps with a NaN that are told. From the first one on it is usually in all of them.
MOST_REPORTS = 8
#: Calls that are remembered, to tell what a rank had called before the bad one.
MOST_CALLS = 4096
#: What these have as inputs is not sent.
_SEND_NOTHING = frozenset({Op.RECV, Op.BARRIER, Op.MONITORED_BARRIER})
#: Of these only the root's inputs are.
_SENT_BY_ROOT = frozenset({Op.BROADCAST, Op.SCATTER})


class StepNumber(Protocol):
    @property
    def step(self) -> int:
        """The number of the training's step, as the step counter has it now."""


class _Call(NamedTuple):
    mark: int  # ring_layout's call_mark
    step: int
    peer: int


class InputChecks:
    """``check`` is called once for each operation, from C as well, after its number is known."""

    def __init__(self, writer: RankRecorder, rank: int, steps: StepNumber, guard: Guard) -> None:
        import torch

        from .trackers.loss import ScalarReader

        self._torch: Any = torch
        self._dtypes = frozenset({torch.float16, torch.bfloat16, torch.float32, torch.float64})
        self._writer = writer
        self._rank = rank
        self._steps = steps
        self._guard = guard
        self._calls: deque[_Call] = deque(maxlen=MOST_CALLS)
        #: Number of calls so far, so that a call is known by its count from 1 on.
        self._count = 0
        self._reports = 0
        self._reported_step = -1
        #: By device: count of its first bad call of this step, 0 for none, as a scalar on the device.
        self._first_bad: dict[Any, Any] = {}
        self._device_step = -1
        self._reader = ScalarReader(self._report_count, guard)

    def check(self, mark: int, op: int, peer: int, tensors: Any, /) -> None:
        """Looks for a NaN in the inputs of an operation, and reports the first in the ring. Never raises.

        mark: of the call; peer: root or peer, -1 for none; tensors: its inputs, as torch has them.
        """
        if not self._guard.enabled or self._reports >= MOST_REPORTS:
            return
        try:
            step = self._steps.step
            self._count = count = self._count + 1
            self._calls.append(_Call(mark, step, peer))
            if self._reader.pending and threading.current_thread() is threading.main_thread():
                self._reader.collect()
            if step == self._reported_step or op in _SEND_NOTHING or (op in _SENT_BY_ROOT and peer != self._rank):
                return
            with self._torch.no_grad():
                for tensor in self._readable(tensors):
                    highest = tensor.aminmax()[1]  # one pass, and a NaN in it is the result
                    if tensor.is_cpu:
                        if highest.isnan().item():
                            self._report_count(count)
                            return
                    elif tensor.is_cuda:
                        self._note_on_device(highest, count, step)
        except Exception as error:  # edge: hook
            self._guard.fail(error)

    def _readable(self, tensors: Any) -> Iterator[Any]:
        """Plain tensors of real numbers in what may be a tensor or a (nested) list of them."""
        torch = self._torch
        if isinstance(tensors, list | tuple):
            for each in tensors:
                yield from self._readable(each)
            return
        if type(tensors) not in (torch.Tensor, torch.nn.Parameter) or tensors.layout is not torch.strided:
            return
        if tensors.is_complex():
            tensors = torch.view_as_real(tensors.resolve_conj())
        if tensors.dtype in self._dtypes and tensors.numel() and not torch._C._len_torch_dispatch_stack():
            yield tensors.detach()

    def _note_on_device(self, highest: Any, count: int, step: int) -> None:
        torch = self._torch
        if torch.cuda.is_current_stream_capturing():
            return
        if step != self._device_step:
            self._device_step = step
            self._first_bad.clear()
        first = self._first_bad.get(highest.device)
        if first is None:
            first = torch.zeros((), dtype=torch.float64, device=highest.device)
        first = torch.where((first == 0) & highest.isnan(), float(count), first)
        self._first_bad[highest.device] = first
        self._reader.read_other(first)

    def _report_count(self, count: float) -> None:
        """The call with this count was fed a NaN; 0: none was, so far."""
        place = int(count) - 1 - (self._count - len(self._calls))
        if not count or place < 0:
            return
        call = self._calls[place]
        if call.step == self._reported_step:
            return
        self._reported_step = call.step
        self._reports += 1
        before: dict[int, int] = {}
        for older in list(self._calls)[:place]:
            row, seq, is_p2p = layout.read_call_mark(older.mark)
            if not is_p2p:
                before[row] = seq
        row, seq, is_p2p = layout.read_call_mark(call.mark)
        payload = {"step": call.step, "group": row, "seq": seq, "p2p": is_p2p, "peer": call.peer, "before": before}
        self._writer.define(layout.DEFINITION_BAD_INPUT, self._reports, payload)
        if self._reports == MOST_REPORTS:
            text = f"inputs of operations are not checked any more: NaN in {MOST_REPORTS} steps"
            self._writer.define(layout.DEFINITION_NOTE, 0, {"text": text})
