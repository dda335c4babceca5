"""The process group: what torch calls, one in-order worker, and a watchdog that ends the process as NCCL's does.

A collective begins on the device when the compute stream has reached it and the worker has done all before it. Its
members then tell each other over gloo what they call; it ends when all have come and agree. If they do not agree it
never ends, as a NCCL kernel does not whose peers run another one. A broken connection or the time-out makes the
watchdog print NCCL's words and abort the process, whoever is to blame.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import Backend, PrefixStore, ProcessGroupGloo, Work

from .recorder import BACKEND, recorder
from .stream import Event, stream

#: Of NCCL's watchdog.
WATCH_S = 0.1
#: How long a process that leaves waits for the others, whose connections it closes.
FAREWELL_S = 5.0


class Gone(RuntimeError):
    """A member can no longer be reached."""


@dataclass(slots=True, eq=False)
class Call:
    """One collective on its way through the device. Times: monotonic seconds."""

    seq: int
    name: str
    numel_in: int
    numel_out: int
    enqueued: float
    ready: Event
    head: torch.Tensor
    transfer: Callable[[], None] | None
    entry: dict[str, Any] | None
    started: bool = False
    done: Event = field(default_factory=Event)
    began_ns: int = 0


class DeviceWork(Work):
    """Its ``wait`` makes the compute stream wait, not the host."""

    def __init__(self, call: Call, results: Sequence[torch.Tensor]) -> None:
        super().__init__()
        self._call = call
        self._results = list(results)

    @property
    def done(self) -> Event:
        return self._call.done

    def wait(self, timeout: object = None) -> bool:
        stream().wait_event(self._call.done)
        return True

    def synchronize(self) -> None:
        self.wait()

    def is_completed(self) -> bool:
        return self._call.done.query()

    def get_future(self) -> Any:
        """Done from the host's view, as the future of a CUDA stream is; the stream waits at its next kernel."""
        _unwaited.append(self._call.done)
        future: Any = torch.futures.Future()
        future.set_result(self._results)
        return future


#: Futures handed to C++ (DDP), whose wait is a wait of the stream: it is put before the next kernel.
_unwaited: deque[Event] = deque()


def wait_for_futures() -> None:
    """What is launched from now on begins after the collectives whose futures were taken."""
    while _unwaited:
        stream().wait_event(_unwaited.popleft())


class DeviceGroup(Backend):
    """One group. Calls come from the host's threads, ``_work`` and ``_watch`` are threads of its own."""

    def __init__(self, store: Any, rank: int, size: int, timeout: timedelta) -> None:
        super().__init__(rank, size)
        self._member, self._members = rank, size
        self._store = store
        self._options = Backend.Options(BACKEND, timeout)
        self._timeout_s = timeout.total_seconds()
        # Our own time-out is the only one that counts.
        self._wire: Any = ProcessGroupGloo(PrefixStore("device", store), rank, size, timedelta(days=1))
        self._timing = os.environ.get("TORCH_NCCL_ENABLE_TIMING", "1") == "1"
        self._status = recorder().add_group(tuple(range(size)))
        self._number = len(recorder().groups) - 1
        self._calls: deque[Call] = deque()
        self._open: deque[Call] = deque()
        self._changed = threading.Condition()
        self._seq = 0
        self._failure = ""
        #: Sequence numbers in the order in which they ended.
        self.order: deque[int] = deque(maxlen=1000)
        self._closed = False
        #: Where set, the wire of this rank swallows what is sent: called when the device begins the first such call.
        self.swallows: Callable[[], object] | None = None
        _groups.append(self)
        for target, name in ((self._work, "device-comm"), (self._watch, "device-watchdog")):
            threading.Thread(target=target, name=f"{name}-{self._number}", daemon=True).start()

    # --- what torch asks --------------------------------------------------------------------------------------------
    def getBackendName(self) -> str:
        return BACKEND

    @property
    def options(self) -> Any:
        return self._options

    def allreduce(self, tensors: list[torch.Tensor], opts: Any = None) -> Work:
        def transfer() -> None:
            self._wire.allreduce(tensors, opts).wait() if opts is not None else self._wire.allreduce(tensors).wait()

        return self._issue("ALLREDUCE", tensors, tensors, transfer)

    def allreduce_coalesced(self, tensors: list[torch.Tensor], opts: Any = None) -> Work:
        def transfer() -> None:
            for tensor in tensors:
                self._wire.allreduce([tensor]).wait()

        return self._issue("ALLREDUCE_COALESCED", tensors, tensors, transfer)

    def broadcast(self, tensors: list[torch.Tensor], opts: Any = None) -> Work:
        return self._issue("BROADCAST", tensors, tensors, lambda: self._wire.broadcast(tensors, opts).wait())

    def reduce(self, tensors: list[torch.Tensor], opts: Any = None) -> Work:
        return self._issue("REDUCE", tensors, tensors, lambda: self._wire.reduce(tensors, opts).wait())

    def barrier(self, opts: Any = None) -> Work:
        work = self._issue("BARRIER", [], [], None)
        stream().synchronize()  # NCCL's barrier makes the host wait
        work.done.wait()
        return work

    def allgather(self, outputs: list[list[torch.Tensor]], inputs: list[torch.Tensor], opts: Any = None) -> Work:
        _stand_in(outputs[0], inputs[0])
        return self._issue("ALLGATHER", inputs, outputs[0], lambda: self._wire.allgather(outputs, inputs).wait())

    def all_gather_single(self, output: torch.Tensor, tensor: torch.Tensor, opts: Any = None) -> Work:
        parts = list(output.view(-1).chunk(self._members))
        flat = tensor.reshape(-1)
        _stand_in(parts, flat)
        return self._issue("_ALLGATHER_BASE", [tensor], [output], lambda: self._wire.allgather([parts], [flat]).wait())

    def reduce_scatter_single(self, output: torch.Tensor, tensor: torch.Tensor, opts: Any = None) -> Work:
        part = tensor.reshape(-1).chunk(self._members)[self._member]
        output.copy_(part.view_as(output) * (self._members if _sums(opts) else 1))

        def transfer() -> None:
            whole = tensor.reshape(-1).clone()
            self._wire.allreduce([whole]).wait()
            mine = whole.chunk(self._members)[self._member].view_as(output)
            output.copy_(mine if _sums(opts) else mine / self._members)

        return self._issue("_REDUCE_SCATTER_BASE", [tensor], [output], transfer)

    def shutdown(self) -> None:
        """Ends when the device has nothing left to do, or can do nothing more."""
        stream().synchronize(FAREWELL_S)
        with self._changed:
            self._changed.wait_for(lambda: not self._open, FAREWELL_S)
            self._closed = True
            self._changed.notify_all()

    # --- the host's side --------------------------------------------------------------------------------------------
    def _issue(
        self,
        name: str,
        inputs: Sequence[torch.Tensor],
        results: Sequence[torch.Tensor],
        transfer: Callable[[], None] | None,
        *,
        recorded: bool = True,
    ) -> DeviceWork:
        flow = stream()
        numel_in = sum(tensor.numel() for tensor in inputs)
        numel_out = sum(tensor.numel() for tensor in results)
        self._seq += recorded
        call = Call(
            seq=self._seq,
            name=name,
            numel_in=numel_in,
            numel_out=numel_out,
            enqueued=time.monotonic(),
            ready=flow.record_event(),
            head=torch.tensor([self._seq if recorded else 0, hash_of(name), numel_in], dtype=torch.int64),
            transfer=transfer if flow.blocking else None,
            entry=self._new_entry(name, numel_in) if recorded else None,
        )
        if recorded:
            self._status.enqueued = call.seq
        with self._changed:
            self._calls.append(call)
            self._open.append(call)
            self._changed.notify_all()
        if flow.blocking:
            call.done.wait()
        return DeviceWork(call, results)

    def _new_entry(self, name: str, numel: int) -> dict[str, Any]:
        return recorder().add_entry(
            {
                "pg_id": self._number,
                "process_group": [str(self._number), ""],
                "collective_seq_id": self._seq,
                "p2p_seq_id": 0,
                "profiling_name": f"nccl:{name.lower()}",
                "input_numel": numel,
                "time_created_ns": time.time_ns(),
                "time_discovered_started_ns": None,
                "time_discovered_completed_ns": None,
                "duration_ms": None,
                "state": "scheduled",
                "retired": False,
                "timeout_ms": int(self._timeout_s * 1000),
            }
        )

    def replay_graph(self, name: str = "ALLREDUCE", numel: int = 1) -> Event:
        """A collective inside a replayed graph: the device does it, no hook fires and no recorder hears of it."""
        tensor = torch.zeros(numel)
        work = self._issue(name, [tensor], [tensor], None, recorded=False)
        work.wait()
        return work.done

    # --- the device's side ------------------------------------------------------------------------------------------
    def _work(self) -> None:
        while True:
            with self._changed:
                while not self._calls:
                    if self._closed:
                        return
                    self._changed.wait()
                call = self._calls.popleft()
            call.ready.wait()
            call.began_ns = time.monotonic_ns()
            call.started = True
            try:
                self._meet(call)
            except RuntimeError as error:
                self._failure = str(error)
                return
            call.done.set()
            self.order.append(call.seq)
            with self._changed:
                self._changed.notify_all()

    def _meet(self, call: Call) -> None:
        """Returns when every member has come to the same call; for ever away if they called different things."""
        if self.swallows is not None:
            self.swallows()
            threading.Event().wait()
        heads = [torch.empty_like(call.head) for _ in range(self._members)]
        self._wire.allgather([heads], [call.head]).wait()
        if any(not torch.equal(head, call.head) for head in heads):
            threading.Event().wait()
        if call.transfer is not None:
            call.transfer()

    def _watch(self) -> None:
        while not self._closed:
            time.sleep(WATCH_S)
            self._note_progress()
            late = next((call for call in self._open if time.monotonic() - call.enqueued > self._timeout_s), None)
            if late is not None:
                ran_ms = int((time.monotonic() - late.enqueued) * 1000)
                self._abort(
                    f"Watchdog caught collective operation timeout: WorkNCCL(SeqNum={late.seq}, OpType={late.name}, "
                    f"NumelIn={late.numel_in}, NumelOut={late.numel_out}, Timeout(ms)={int(self._timeout_s * 1000)}) "
                    f"ran for {ran_ms} milliseconds before timing out."
                )
            if self._failure:
                self._abort(
                    "NCCL watchdog thread terminated with exception: NCCL error: remote process exited or there was a "
                    f"network error, NCCL version 2.27.5\nncclRemoteError: {self._failure.splitlines()[0]}"
                )

    def _note_progress(self) -> None:
        """What the recorder is told; ends are found here, not when they happen."""
        with self._changed:
            while self._open and self._open[0].done.query():
                call = self._open.popleft()
                self._record(call, "completed")
                if call.entry is not None:
                    self._status.completed = call.seq
                    self._status.started = call.seq if self._timing else -1
            if self._open and self._open[0].started and self._open[0].entry is not None:
                self._record(self._open[0], "started")
                self._status.started = self._open[0].seq if self._timing else -1
            self._changed.notify_all()

    def _record(self, call: Call, state: str) -> None:
        entry, now_ns = call.entry, time.time_ns()
        if entry is None:
            return
        if self._timing and entry["time_discovered_started_ns"] is None:
            entry["time_discovered_started_ns"] = now_ns
        if state == "completed":
            entry["time_discovered_completed_ns"] = now_ns
            entry["duration_ms"] = (time.monotonic_ns() - call.began_ns) / 1e6 if self._timing else None
            entry["retired"] = True
        if state == "completed" or self._timing:
            entry["state"] = state

    def _abort(self, words: str) -> None:
        rank = os.environ.get("RANK", str(self._member))
        if self._closed:
            return
        sys.stderr.write(f"[rank{rank}]:[E ProcessGroupNCCL.cpp:685] [Rank {self._member}] {words}\n")
        sys.stderr.flush()
        os.abort()


_groups: list[DeviceGroup] = []


def groups() -> list[DeviceGroup]:
    """All groups of this process, oldest first."""
    return list(_groups)


def hash_of(name: str) -> int:
    return sum(ord(letter) << 7 * (place % 8) for place, letter in enumerate(name))


def _stand_in(parts: Sequence[torch.Tensor], own: torch.Tensor) -> None:
    for part in parts:
        part.copy_(own.view_as(part))


def _sums(opts: Any) -> bool:
    return opts is None or opts.reduceOp == dist.ReduceOp.SUM


def _create(store: Any, rank: int, size: int, timeout: timedelta) -> DeviceGroup:
    return DeviceGroup(store, rank, size, timeout)


def register() -> None:
    """Makes "device" a backend of torch, once per process."""
    if BACKEND not in dist.Backend.backend_list:
        dist.Backend.register_backend(BACKEND, _create, devices=["cpu"])
