"""One measurement of benchmarks/overhead.py, in its own process under the interpreter that is being measured.

    overhead_worker.py CASE WRITER COMPLETION BLOCKS        (prints one JSON line)

CASE: tight (all_reduce in a loop), phases (steps and phases without collectives), ddp, fsdp (a real step, all on).
"""

from __future__ import annotations

import gc
import json
import os
import shutil
import statistics
import struct
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from whichrank.instrumentation import collectives
from whichrank.instrumentation.ring_writer import open_ring_writer
from whichrank.telemetry import ring_layout as layout
from whichrank.telemetry.vocabulary import EventKind, Op

CALLS_PER_BLOCK = 600
#: Calls before each block that are not timed: the loop is measured, not the caches after the garbage collector.
WARM_UP_CALLS = 100
STEPS_PER_BLOCK = 100
#: Steps before each block that are not timed: a start of the instrumentation is paid once by a job, not every step.
WARM_UP_STEPS = 10
ELEMENTS = 1024


def pin_to_one_core() -> None:
    """The last core: the first serves most interrupts."""
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[-1]})


def read_events(path: Path, count: int) -> list[tuple[int, ...]]:
    """The last ``count`` events, whole ones only, each as its eight words. Reads the file, as the agent does."""
    descriptor = os.open(path, os.O_RDONLY)
    # Closing it in the writer's process would drop the writer's lock; nobody waits for that lock here.
    try:
        header = os.pread(descriptor, layout.HEADER_BYTES, 0)
        head = struct.unpack_from("<Q", header, layout.H_EVENT_HEAD)[0]
        slots = struct.unpack_from("<Q", header, layout.H_EVENT_SLOTS)[0]
        offset = struct.unpack_from("<Q", header, layout.H_EVENTS_OFFSET)[0]
        events = []
        for index in range(max(0, head - min(count, slots)), head):
            raw = os.pread(descriptor, layout.EVENT_BYTES, offset + (index % slots) * layout.EVENT_BYTES)
            event = layout.EVENT_STRUCT.unpack(raw)
            if event[layout.E_BEGIN] == event[layout.E_END] == index + 1:
                events.append(event)
        return events
    finally:
        os.close(descriptor)


def read_head(path: Path) -> int:
    with open(path, "rb") as file:
        file.seek(layout.H_EVENT_HEAD)
        return int(struct.unpack("<Q", file.read(8))[0])


def count_whole_calls(events: list[tuple[int, ...]], *, completion: bool, op: Op | None, nbytes: int | None) -> int:
    """Operations with a signature, bytes, a start and (if asked) an end not before the start."""
    ends: dict[tuple[int, int], int] = {}
    for event in events:
        if event[layout.E_HEAD] & 0xFF == EventKind.COMPLETE:
            ends[event[layout.E_HEAD] >> 32 & 0xFFFF, event[layout.E_SEQ]] = event[layout.E_TIME_NS]
    whole = 0
    for event in events:
        word = event[layout.E_HEAD]
        if word & 0xFF != EventKind.ENQUEUE:
            continue
        good = event[layout.E_TIME_NS] > 0 and event[layout.E_SEQ] > 0
        if op is not None:
            good = good and word >> 8 & 0xFF == op and word >> 48 != 0 and event[layout.E_VALUE] == nbytes
        if completion:
            end = ends.get((word >> 32 & 0xFFFF, event[layout.E_SEQ]))
            good = good and end is not None and end >= event[layout.E_TIME_NS]
        whole += good
    return whole


def quartiles(values: list[float]) -> dict[str, float]:
    low, median, high = statistics.quantiles(values, n=4)
    return {"median": median, "low": low, "high": high}


def paired(off: Callable[[], float], on: Callable[[], float], blocks: int) -> tuple[list[float], list[float]]:
    """(differences of "on" to its neighbours, values of "off"), in microseconds per unit."""
    differences, offs = [], []
    for _ in range(blocks):
        first, middle, last = off(), on(), off()
        differences.append(middle - (first + last) / 2)
        offs += [first, last]
    return differences, offs


def time_units(work: Callable[[], None], units: int, warm_up: Callable[[], None] = lambda: None) -> float:
    """Microseconds per unit of a block; the garbage collector's pauses belong to no block.

    CPU time of all threads of the process. On one core with world size 1 nothing waits for anything but that core, so
    this is what a quiet machine's wall clock shows, and other processes on the core do not count.
    """
    gc.collect()
    gc.disable()
    warm_up()
    begin = time.process_time_ns()
    work()
    elapsed = time.process_time_ns() - begin
    gc.enable()
    return elapsed / units / 1000


class RecordedCollectives:
    """The collective hooks of one process, which can be taken out between blocks (no other thread issues anything)."""

    def __init__(self, directory: Path, completion: bool) -> None:
        self.completion = completion
        self.writer = open_ring_writer(
            directory, rank=0, local_rank=0, world_size=1, identity={}, slots=32768, native=NATIVE
        )
        self.hooks = collectives.CollectiveHooks(self.writer, completes=completion)
        self.hooks.set_enabled(True)
        self.hooks.install()
        self.official = self.hooks.official
        self.installed = True
        assert not self.hooks.stopped

    def on(self) -> None:
        if self.installed:
            return
        backend: Any = self.hooks.backend
        if self.official:
            pg = dist.group.WORLD
            backend.hook_group(pg, self.hooks.registry.find(pg))
        else:
            backend.install()
        if self.completion:
            self.hooks.completion.install_wait()
        self.installed = True

    def off(self) -> None:
        if not self.installed:
            return
        if self.official:
            from whichrank.instrumentation.collectives_hooks import HOOK_ID

            pg: Any = dist.group.WORLD
            pg.unregister_pre_hook(HOOK_ID)
            pg.unregister_post_hook(HOOK_ID)
        else:
            backend: Any = self.hooks.backend
            backend._library._destroy()
        if self.completion:
            self.hooks.completion.uninstall_wait()
        self.installed = False


class EmptyDispatchHook:
    """The cheapest BackendSelect hook that Python can write: passes on, records nothing."""

    def __init__(self) -> None:
        self.library: Any = None

    def on(self) -> None:
        if self.library is not None:
            return
        api: Any = torch
        self.library = api.library.Library("c10d", "IMPL")
        after = api._C._dispatch_keyset_full_after(api._C.DispatchKey.BackendSelect)
        redispatch = api.ops.c10d.allreduce_.default.redispatch

        def empty(keyset: Any, *args: Any) -> Any:
            return redispatch(keyset & after, *args)

        self.library.impl("allreduce_", empty, "BackendSelect", with_keyset=True)

    def off(self) -> None:
        if self.library is not None:
            self.library._destroy()
            self.library = None


def measure_tight(directory: Path, completion: bool, blocks: int) -> dict[str, Any]:
    tensor = torch.ones(ELEMENTS)
    recorded = RecordedCollectives(directory, completion)
    empty = EmptyDispatchHook()
    found = expected = 0

    def loop(calls: int = CALLS_PER_BLOCK) -> None:
        all_reduce = dist.all_reduce
        for _ in range(calls):
            all_reduce(tensor)

    def time_loop() -> float:
        return time_units(loop, CALLS_PER_BLOCK, warm_up=lambda: loop(WARM_UP_CALLS))

    def off() -> float:
        recorded.off()
        empty.off()
        return time_loop()

    def on() -> float:
        nonlocal found, expected
        empty.off()
        recorded.on()
        value = time_loop()
        per_call = 2 if completion else 1
        events = read_events(recorded.writer.path, per_call * CALLS_PER_BLOCK)
        found += count_whole_calls(events, completion=completion, op=Op.ALL_REDUCE, nbytes=4 * ELEMENTS)
        expected += CALLS_PER_BLOCK
        return value

    def on_empty() -> float:
        recorded.off()
        empty.on()
        return time_loop()

    for _ in range(3):
        off(), on(), on_empty()
    gc.collect()
    gc.freeze()  # torch's own objects need not be looked at before every block
    found = expected = 0
    # The three sorts of pairs alternate, so that a machine that grows slower or faster does so for all of them.
    control: list[float] = []
    differences: list[float] = []
    empties: list[float] = []
    bases: list[float] = []
    for _ in range(blocks):
        control += paired(off, off, 1)[0]
        more, base = paired(off, on, 1)
        differences += more
        bases += base
        if not recorded.official:
            empties += paired(off, on_empty, 1)[0]
    off()
    result = {
        "official": recorded.official,
        "on": quartiles(differences),
        "control": quartiles(control),
        "base": statistics.median(bases),
        "found": found,
        "expected": expected,
        "stopped": recorded.hooks.stopped,
    }
    if empties:
        result["empty"] = quartiles(empties)
    return result


def make_training_step(case: str) -> Callable[[], None]:
    torch.manual_seed(0)
    layers: list[torch.nn.Module] = []
    for _ in range(4):
        layers += [torch.nn.Linear(64, 64), torch.nn.ReLU()]
    model: Any = torch.nn.Sequential(*layers, torch.nn.Linear(64, 8))
    if case == "ddp":
        model = torch.nn.parallel.DistributedDataParallel(model, bucket_cap_mb=0.02)
    elif case == "fsdp":
        from torch.distributed.fsdp import fully_shard

        for layer in model:
            if isinstance(layer, torch.nn.Linear):
                fully_shard(layer)
        fully_shard(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    data = torch.utils.data.TensorDataset(torch.randn(64 * 16, 64), torch.randn(64 * 16, 8))

    def batches() -> Any:
        while True:
            yield from torch.utils.data.DataLoader(data, batch_size=64)

    stream = batches()

    def step() -> None:
        inputs, targets = next(stream)
        loss: Any = torch.nn.functional.mse_loss(model(inputs), targets)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def measure_session(case: str, directory: Path, completion: bool, blocks: int) -> dict[str, Any]:
    """A training step with the whole instrumentation, started and stopped between blocks by its own session."""
    import whichrank
    from whichrank.instrumentation import api

    os.environ["WHICHRANK_DIR"] = str(directory)
    os.environ["WHICHRANK_COMPLETION"] = "1" if completion else "0"
    step = make_training_step(case)
    found = expected = 0
    steps_seen = collectives_seen = 0

    def block() -> None:
        for _ in range(STEPS_PER_BLOCK):
            step()

    def off() -> float:
        block_warm_up()
        return time_units(block, STEPS_PER_BLOCK)

    def block_warm_up() -> None:
        for _ in range(WARM_UP_STEPS):
            step()

    def on() -> float:
        nonlocal found, expected, steps_seen, collectives_seen
        whichrank.init()
        session: Any = api.current_session()
        assert session is not None
        block_warm_up()
        path = session.writer.path
        before = read_head(path)
        value = time_units(block, STEPS_PER_BLOCK)
        if session.collectives is not None:
            session.collectives.poll_completions()
        events = read_events(path, read_head(path) - before)
        steps = sum(event[layout.E_HEAD] & 0xFF == EventKind.STEP for event in events)
        enqueued = sum(event[layout.E_HEAD] & 0xFF == EventKind.ENQUEUE for event in events)
        steps_seen += steps
        if case == "phases":
            found += steps
            expected += STEPS_PER_BLOCK
        else:
            found += count_whole_calls(events, completion=completion, op=None, nbytes=None)
            expected += enqueued
            collectives_seen += enqueued
        api.stop()
        return value

    for _ in range(2):
        off(), on()
    gc.collect()
    gc.freeze()
    found = expected = steps_seen = collectives_seen = 0
    control: list[float] = []
    differences: list[float] = []
    bases: list[float] = []
    for _ in range(blocks):
        control += paired(off, off, 1)[0]
        more, base = paired(off, on, 1)
        differences += more
        bases += base
    return {
        "on": quartiles(differences),
        "control": quartiles(control),
        "base": statistics.median(bases),
        "found": found,
        "expected": expected,
        "collectives_per_step": collectives_seen / max(1, steps_seen),
    }


def main() -> int:
    global NATIVE
    case, writer, completion, blocks = sys.argv[1], sys.argv[2], sys.argv[3] == "1", int(sys.argv[4])
    NATIVE = writer == "c"
    pin_to_one_core()
    torch.set_num_threads(1)
    if case == "fsdp" and tuple(int(part) for part in torch.__version__.split(".")[:2]) < (2, 8):
        print(json.dumps({"unsupported": "FSDP2 does not run on the CPU before torch 2.8"}))
        return 0
    tmpfs = "/dev/shm" if Path("/dev/shm").is_dir() else None
    directory = Path(tempfile.mkdtemp(prefix="whichrank-overhead-", dir=tmpfs))
    c10d: Any = dist  # torch's stubs do not export HashStore
    try:
        dist.init_process_group("gloo", store=c10d.HashStore(), rank=0, world_size=1)
        if case == "tight":
            result = measure_tight(directory, completion, blocks)
        else:
            result = measure_session(case, directory, completion, blocks)
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    print(json.dumps(result), flush=True)
    # The group is not destroyed: torch 2.6, without us too, now and then hangs in that.
    os._exit(0)


NATIVE = False

if __name__ == "__main__":
    sys.exit(main())
