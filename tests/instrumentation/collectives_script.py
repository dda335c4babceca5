"""Run as two ranks by test_collectives_coverage: issues every form of collective and says what the
ring must then contain.

    collectives_script.py RING_DIRECTORY WRITER        (each rank prints one JSON line to its file in RING_DIRECTORY)

A section is one way of communicating. Fixed sections list what they issue. On torch with official hooks the others are
checked against an independent counter at BackendSelect, which those hooks do not use.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from whichrank.instrumentation import collectives
from whichrank.instrumentation.operations import dtype_codes, family_of
from whichrank.instrumentation.ring_writer import open_ring_writer
from whichrank.telemetry.vocabulary import EventKind, Op

RANK, WORLD = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
PEER = 1 - RANK
F32 = dtype_codes(torch)[torch.float32]

Expected = tuple[int, int | None, int | None]
"""Operation, bytes (None: not checked), peer or root (None: not checked; -1: none)."""


class BackendSelectCounter:
    """Counts what reaches the dispatcher, by family."""

    def __init__(self) -> None:
        api: Any = torch
        self.counts: dict[int, int] = {}
        self.library = api.library.Library("c10d", "IMPL")
        internals = api._C
        after = internals._dispatch_keyset_full_after(internals.DispatchKey.BackendSelect)
        for schema in internals._jit_get_all_schemas():
            namespace, _, name = schema.name.partition("::")
            family = family_of(name) if namespace == "c10d" else None
            if family is not None:
                redispatch = getattr(api.ops.c10d, name).default.redispatch
                self.library.impl(name, self.make(int(family), redispatch, after), "BackendSelect", with_keyset=True)

    def make(self, family: int, redispatch: Any, after: Any) -> Any:
        def count(keyset: Any, *args: Any) -> Any:
            self.counts[family] = self.counts.get(family, 0) + 1
            return redispatch(keyset & after, *args)

        return count


def direct_calls(group: Any) -> list[Expected]:
    t = torch.ones(8)
    parts = [torch.ones(8) for _ in range(WORLD)]
    whole = torch.ones(8 * WORLD)
    dist.all_reduce(t, group=group)
    dist.all_reduce(t.to(torch.float64), group=group)
    dist.broadcast(t, 1, group=group)
    dist.reduce(t, 0, group=group)
    dist.all_gather(parts, t, group=group)
    dist.all_gather_into_tensor(whole, t, group=group)
    dist.reduce_scatter_tensor(t, whole, group=group)
    dist.all_to_all_single(whole, torch.ones(8 * WORLD), group=group)
    dist.gather(t, parts if RANK == 0 else None, 0, group=group)
    dist.scatter(t, parts if RANK == 1 else None, 1, group=group)
    dist.barrier(group=group)
    return [
        (Op.ALL_REDUCE, 32, -1),
        (Op.ALL_REDUCE, 64, -1),
        (Op.BROADCAST, 32, 1),
        (Op.REDUCE, 32, 0),
        (Op.ALL_GATHER, 32, -1),
        (Op.ALL_GATHER, 32, -1),
        (Op.REDUCE_SCATTER, 32 * WORLD, -1),
        (Op.ALL_TO_ALL, 32 * WORLD, -1),
        (Op.GATHER, 32, 0),
        (Op.SCATTER, None, 1),
        (Op.BARRIER, 0, -1),
    ]


def asynchronous() -> list[Expected]:
    works: Any = [dist.all_reduce(torch.ones(4), async_op=True) for _ in range(20)]
    for work in works:
        work.wait()
    return [(Op.ALL_REDUCE, 16, -1)] * 20


def point_to_point() -> list[Expected]:
    t = torch.ones(6)
    if RANK == 0:
        dist.send(t, 1)
        work: Any = dist.irecv(t, 1)
        work.wait()
    else:
        dist.recv(t, 0)
        work = dist.isend(t, 0)
        work.wait()
    ops = [dist.P2POp(dist.isend, torch.ones(3), PEER), dist.P2POp(dist.irecv, torch.ones(3), PEER)]
    for handle in dist.batch_isend_irecv(ops):
        handle.wait()
    first, second = (Op.SEND, Op.RECV) if RANK == 0 else (Op.RECV, Op.SEND)
    return [(first, 24, PEER), (second, 24, PEER), (Op.SEND, 12, PEER), (Op.RECV, 12, PEER)]


def monitored() -> list[Expected]:
    dist.monitored_barrier()
    return [(Op.MONITORED_BARRIER, 0, -1)]


def sparse() -> list[Expected]:
    dist.all_reduce(torch.eye(3).to_sparse())
    return [(Op.ALL_REDUCE, 0, -1)]


def coalescing() -> None:
    from torch.distributed.distributed_c10d import _coalescing_manager

    with _coalescing_manager():
        for _ in range(3):
            dist.all_reduce(torch.ones(4))


def objects() -> None:
    gathered: list[Any] = [None] * WORLD
    dist.all_gather_object(gathered, {"rank": RANK})
    dist.broadcast_object_list([RANK], 0)
    dist.gather_object(RANK, gathered if RANK == 0 else None, 0)
    dist.scatter_object_list([None], [1, 2] if RANK == 0 else None, 0)


def functional() -> None:
    import torch.distributed._functional_collectives as funcol

    t = torch.ones(4)
    world: Any = dist.group.WORLD
    for result in (
        funcol.all_reduce(t, "sum", world),
        funcol.all_gather_tensor(t, 0, world),
        funcol.reduce_scatter_tensor(torch.ones(4 * WORLD), "sum", 0, world),
    ):
        result.sum().item()


def distributed_tensor() -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard, distribute_tensor

    mesh = init_device_mesh("cpu", (WORLD,))
    distribute_tensor(torch.ones(4, 4), mesh, [Shard(0)]).full_tensor()


def data_parallel() -> None:
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(16, 16), bucket_cap_mb=1)
    for _ in range(3):
        model(torch.ones(2, 16)).sum().backward()


def fully_sharded() -> None:
    from torch.distributed.fsdp import fully_shard

    model = torch.nn.Sequential(torch.nn.Linear(16, 16), torch.nn.Linear(16, 16))
    for layer in model:
        fully_shard(layer)
    fully_shard(model)
    for _ in range(2):
        model(torch.ones(2, 16)).sum().backward()


def compiled() -> None:
    import torch.distributed._functional_collectives as funcol

    world: Any = dist.group.WORLD

    @torch.compile(backend="aot_eager")
    def run(t: torch.Tensor) -> torch.Tensor:
        total: torch.Tensor = funcol.all_reduce(t, "sum", world) + 1
        dist.all_reduce(total)
        return total * 2

    for _ in range(2):
        assert run(torch.ones(4)).tolist() == [(WORLD + 1) * WORLD * 2.0] * 4


def second_thread() -> None:
    import threading

    group: Any = dist.new_group()

    def issue() -> None:
        for _ in range(50):
            dist.all_reduce(torch.ones(4), group=group)

    thread = threading.Thread(target=issue)
    thread.start()
    for _ in range(50):
        dist.all_reduce(torch.ones(4))
    thread.join()


def inference() -> list[Expected]:
    with torch.inference_mode():
        dist.all_reduce(torch.ones(4))
    return [(Op.ALL_REDUCE, 16, -1)]


def fake() -> list[Expected]:
    from torch._subclasses.fake_tensor import FakeTensorMode

    try:
        with FakeTensorMode():
            dist.all_reduce(torch.ones(4))
    except Exception:
        pass  # some releases refuse; what matters is that nothing is recorded for a call that never ran
    return []


def main() -> None:
    directory = Path(sys.argv[1])
    writer = open_ring_writer(
        directory, rank=RANK, local_rank=RANK, world_size=WORLD, identity={}, native=sys.argv[2] == "c"
    )
    dist.init_process_group("gloo", init_method=f"file://{directory}/store", rank=RANK, world_size=WORLD)
    early = dist.new_group(group_desc="early")
    hooks = collectives.install(writer)
    late = dist.new_group(group_desc="late")
    assert hooks.native == (sys.argv[2] == "c")
    sections: list[tuple[str, Callable[[], list[Expected] | None]]] = [
        ("world", lambda: direct_calls(None)),
        ("early", lambda: direct_calls(early)),
        ("late", lambda: direct_calls(late)),
        ("asynchronous", asynchronous),
        ("point_to_point", point_to_point),
        ("monitored", monitored),
        ("sparse", sparse),
        ("inference", inference),
    ]
    if hooks.native:
        sections.append(("fake", fake))  # seconds of importing, once is enough
    if hooks.official:
        counted = [coalescing, objects, data_parallel, second_thread]
        if hooks.native:
            counted += [functional, distributed_tensor, fully_sharded, compiled]
        sections += [(section.__name__, section) for section in counted]
    counter = BackendSelectCounter() if hooks.official else None
    expected: dict[str, Any] = {}
    for number, (name, section) in enumerate(sections, start=1):
        writer.append_event(EventKind.MARK, value=number)
        if counter is not None:
            counter.counts.clear()
        fixed = section()
        expected[name] = {"fixed": fixed, "counted": None if counter is None else dict(counter.counts)}
    until = time.monotonic() + 30
    while hooks.poll_completions() and time.monotonic() < until:
        time.sleep(0.01)
    writer.append_event(EventKind.MARK, value=0)
    result = {
        "path": str(writer.path),
        "sections": expected,
        "errors": hooks.errors,
        "state": int(hooks.state),
        "official": hooks.official,
        "open": len(hooks.completion),
        "calls": hooks.switch.calls,
        "cost_ns": hooks.cost_ns,
        "f32": F32,
        "writer": sys.argv[2],
    }
    (directory / f"result-{RANK}.json").write_text(json.dumps(result))
    # Not by destroy_process_group: torch 2.6, without us too, now and then hangs in it (a gloo thread that is the last
    # to let go of a tensor wants the GIL, which the thread that joins it holds).
    until = time.monotonic() + 30
    while len(list(directory.glob("result-*.json"))) < dist.get_world_size() and time.monotonic() < until:
        time.sleep(0.01)
    os._exit(0)


if __name__ == "__main__":
    main()
