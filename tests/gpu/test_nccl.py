"""NCCL itself, where there is a GPU: no synchronisation added, ends from the recorder, no Work held, graphs untouched.

One command: ``.venv/bin/python -m pytest tests/gpu -rs``. Ranks are as many as there are GPUs. Without one every test
is skipped, and counted as that. The manners themselves are tried without a GPU in ``tests/device_backend``.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.instrumentation.jobs import JobResult, run_job
from whichrank.telemetry.vocabulary import EventKind

torch = pytest.importorskip("torch", reason="no torch")
GPUS = torch.cuda.device_count() if torch.cuda.is_available() else 0
pytestmark = pytest.mark.skipif(not GPUS, reason="no GPU: NCCL was not tried")

SCRIPT = """
import json, os, pathlib, sys, time
import torch
import torch.distributed as dist

rank = int(os.environ["RANK"])
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
dist.init_process_group("nccl")
tensor = torch.ones(1 << 20, device="cuda")
seen = {}
dist.all_reduce(tensor)  # the communicator is made
torch.cuda.synchronize()

# Anything that makes the host wait for the device raises from here on.
torch.cuda.set_sync_debug_mode("error")
for _ in range(200):
    dist.all_reduce(tensor)
handle = dist.all_reduce(tensor, async_op=True)
handle.wait()
torch.cuda.set_sync_debug_mode("default")
del handle
torch.cuda.synchronize()

held = torch.cuda.memory_allocated()
for _ in range(50):
    dist.all_reduce(torch.ones(1 << 20, device="cuda"))
torch.cuda.synchronize()
time.sleep(1.0)  # what a watchdog lets go of, it has let go of by now
seen["held"] = torch.cuda.memory_allocated() - held

graph = torch.cuda.CUDAGraph()
side = torch.cuda.Stream()
with torch.cuda.stream(side):
    with torch.cuda.graph(graph, stream=side):
        dist.all_reduce(tensor)
for _ in range(100):
    graph.replay()
torch.cuda.synchronize()
time.sleep(1.0)
pathlib.Path(sys.argv[1], f"seen-{rank}.json").write_text(json.dumps(seen))
dist.destroy_process_group()
"""


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> JobResult:
    folder = tmp_path_factory.mktemp("nccl")
    return run_job(SCRIPT, folder, str(folder), ranks=GPUS, environment={"TORCH_NCCL_ENABLE_TIMING": "1"})


def test_the_job_runs_and_no_hook_made_the_host_wait_for_the_device(job: JobResult) -> None:
    assert job.exit_code == 0, job.output[-4000:]
    assert len(job.rings) == GPUS
    assert all(ring.hook_errors == 0 for ring in job.rings)


def test_ends_and_starts_come_from_the_flight_recorder(job: JobResult) -> None:
    for ring in job.rings:
        issued = [event for event in ring.events if event.kind is EventKind.ENQUEUE]
        ended = [event for event in ring.events if event.kind is EventKind.COMPLETE]
        assert len(issued) >= 252
        assert len(ended) >= 252


def test_no_work_and_with_it_no_memory_of_the_device_is_held(job: JobResult) -> None:
    for ring in job.rings:
        assert json.loads((Path(job.directory) / f"seen-{ring.rank}.json").read_text())["held"] == 0


def test_a_replayed_graph_is_silent_and_its_capture_went_through(job: JobResult) -> None:
    for ring in job.rings:
        issued = [event for event in ring.events if event.kind is EventKind.ENQUEUE]
        assert len(issued) < 300  # a hundred replays are not among them
