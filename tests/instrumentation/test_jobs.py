"""Real two-rank torchrun jobs, watched without a line of code: steps, phases, losses, ends."""

from __future__ import annotations

import signal
import textwrap
from pathlib import Path

import pytest
import torch

from tests.instrumentation.jobs import JobResult, run_job
from tests.instrumentation.ring_contents import read_rings
from whichrank.telemetry import ring_layout as layout
from whichrank.telemetry.vocabulary import ExitState, StepFlag

TRAINING = """
    import math, os, sys, time, torch, torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(rank)
    model = DistributedDataParallel(torch.nn.Linear(4, 1))
    optimizers = [torch.optim.SGD([model.module.weight], 0.01), torch.optim.Adam([model.module.bias], 0.01)]
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0)
    data = torch.utils.data.TensorDataset(torch.randn(24, 4))
    loader = iter(torch.utils.data.DataLoader(data, batch_size=2, num_workers=1))
    for step in range(6):
        for part in range(2):  # gradient accumulation
            (x,) = next(loader)
            loss = model(x).square().mean()
            if step == 3:
                loss = loss * (math.inf if rank == 0 else 1.0)
            scaler.scale(loss).backward()
        for optimizer in optimizers:
            scaler.step(optimizer)
        scaler.update()
        for optimizer in optimizers:
            optimizer.zero_grad()
    if rank == 0:
        torch.save(model.module.state_dict(), os.devnull)
    time.sleep(2.0)  # the attempt token is asked for once a second
    dist.barrier()

    if sys.argv[1:] == ["fsdp2"]:
        from torch.distributed.fsdp import fully_shard
        torch.manual_seed(0)
        model = torch.nn.Sequential(*[torch.nn.Linear(8, 8) for _ in range(3)])
        for layer in model:
            fully_shard(layer)
        fully_shard(model)
        optimizer = torch.optim.AdamW(model.parameters(), 0.01)
        for step in range(3):
            model(torch.randn(2, 8)).square().mean().backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
        model.eval()
        with torch.no_grad():
            model(torch.randn(2, 8))
        model.train()
    dist.destroy_process_group()
"""
#: FSDP2 does not work on the CPU before torch 2.8.
HAS_FSDP2 = tuple(map(int, torch.__version__.split(".")[:2])) >= (2, 8)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> JobResult:
    """Six steps of DDP, then three of FSDP2."""
    job = run_job(textwrap.dedent(TRAINING), tmp_path_factory.mktemp("trained"), *(["fsdp2"] if HAS_FSDP2 else []))
    assert job.exit_code == 0, job.output
    return job


def test_ddp_with_accumulation_two_optimizers_and_a_skipped_update(trained: JobResult) -> None:
    assert [ring.rank for ring in trained.rings] == [0, 1]
    for ring in trained.rings:
        sharded = 3 if HAS_FSDP2 else 0
        assert ring.words["step"] == 6 + sharded
        assert ring.words["microsteps"] == 12 + sharded
        assert [bool(step.flags & StepFlag.SKIPPED) for step in ring.steps()[:6]] == [False] * 3 + [True] + [False] * 2
        # A step's batches, and its second optimizer at the beginning of the next step.
        body = ["data", "other", "forward", "other", "backward", "other"] * 2
        optimizers = ["optimizer", "other", "optimizer"]
        assert ring.phases(step=0) == [*body, "optimizer"]
        assert ring.phases(step=1) == ["other", *optimizers[2:], "other", *body, "optimizer"]
        after = ["other", "optimizer", "other", *(["checkpoint", "other"] if ring.rank == 0 else [])]
        assert ring.phases(step=6)[: len(after) + 1] == [*after, "forward" if HAS_FSDP2 else "exit"]
        assert ring.phases()[-2:] == ["other", "exit"]
        assert ring.words["exit_state"] == ExitState.NORMAL
        assert ring.hook_errors == 0
        assert ring.notes() == []
        assert ring.beats > 1
    assert trained.rings[0].losses()[3] == float("inf")
    assert trained.rings[1].losses()[3] < float("inf")
    tokens = {
        payload["token"]
        for ring in trained.rings
        for kind, payload in ring.definitions
        if kind == layout.DEFINITION_ATTEMPT
    }
    assert len(tokens) == 1


def test_the_wait_for_the_other_ranks_is_recorded(trained: JobResult) -> None:
    for ring in trained.rings:
        joining = [payload for kind, payload in ring.definitions if kind == layout.DEFINITION_JOINING]
        assert [entry["joined"] for entry in joining[:2]] == [False, True]
        assert joining[0]["time_ns"] < joining[1]["time_ns"]
        assert joining[0]["timeout_s"] == 1800.0  # torch's own for gloo


@pytest.mark.deselect_if(not HAS_FSDP2)
def test_fsdp2(trained: JobResult) -> None:
    for ring in trained.rings:
        step = ["forward", "other", "backward", "other", "optimizer"]
        assert ring.phases(step=6)[-5:] == step
        assert ring.phases(step=7) == ring.phases(step=8) == ["other", *step]
        assert ring.phases(step=9) == ["other", "eval", "other", "exit"]
        assert ring.notes() == []


FAILING = """
    import os, signal, sys, time, torch, torch.distributed as dist
    from torch.distributed.elastic.multiprocessing.errors import record
    from torch.nn.parallel import DistributedDataParallel

    @record
    def main():
        dist.init_process_group("gloo")
        rank = dist.get_rank()

        class Model(torch.nn.Linear):
            def forward(self, x):
                if rank == 1 and steps == 2:
                    raise ValueError("bad sample")
                return super().forward(x)

        model = DistributedDataParallel(Model(4, 1))
        optimizer = torch.optim.SGD(model.parameters(), 0.01)
        for steps in range(5):
            model(torch.ones(1, 4)).sum().backward()
            optimizer.step()

    main()
"""


def test_an_exception_under_elastics_record(tmp_path: Path) -> None:
    job = run_job(textwrap.dedent(FAILING), tmp_path)
    assert job.exit_code != 0
    guilty = job.rings[1]
    assert guilty.exception == "ValueError: bad sample"
    assert guilty.exception_in_main
    file, line, function = guilty.exception_stack[-1].split("\t")
    assert (Path(file).name, function) == ("script.py", "forward")
    assert 'raise ValueError("bad sample")' in (tmp_path / "script.py").read_text().splitlines()[int(line) - 1]
    assert guilty.words["exit_state"] == ExitState.EXCEPTION
    assert guilty.words["step"] == 2
    (event,) = [event for event in guilty.events if event.kind.name == "EXCEPTION"]
    assert event.phase.name == "FORWARD"
    # The other rank was killed by the launcher, or failed with an error about its peer.
    victim = job.rings[0]
    assert victim.signal == signal.SIGTERM or victim.words["exit_state"] == ExitState.EXCEPTION


BY_HAND = """
    import os, shutil, signal, threading, time, torch, torch.distributed as dist
    import whichrank
    dist.init_process_group("gloo")
    assert whichrank.init()

    def evaluate():
        with whichrank.phase("eval"):
            time.sleep(2.5)

    def reduce_loss():
        dist.all_reduce(torch.ones(1))

    def wait_for_the_end():
        threading.Timer(0.5, os.kill, (os.getppid(), signal.SIGTERM)).start()
        time.sleep(60)

    for step in range(3):
        dist.all_reduce(torch.ones(1))
        whichrank.step(loss=float(step))
    evaluate()
    dist.barrier()
    if dist.get_rank() == 0:
        shutil.copytree(os.environ["WHICHRANK_DIR"], "rings_before_the_end")
        reduce_loss()
    wait_for_the_end()
"""


@pytest.fixture(scope="module")
def by_hand(tmp_path_factory: pytest.TempPathFactory) -> JobResult:
    """Watched from one line after init_process_group on; its launcher is told to stop."""
    job = run_job(textwrap.dedent(BY_HAND), tmp_path_factory.mktemp("by_hand"), watched=False)
    assert job.exit_code != 0
    return job


def test_one_line_after_init_process_group_and_a_stack_of_a_long_phase(by_hand: JobResult) -> None:
    rings = read_rings(by_hand.directory / "rings_before_the_end")
    assert [ring.rank for ring in rings] == [0, 1]
    for ring in rings:
        assert ring.losses() == [0.0, 1.0, 2.0]
        assert ring.phases() == ["eval", "init"]
        assert [line.split("\t")[2] for line in ring.stack] == ["<module>", "evaluate"]
        assert len([event for event in ring.events if event.kind.name == "ENQUEUE"]) >= 3
        assert ring.beats >= 20


def test_a_rank_that_waits_in_gloo_when_the_launcher_ends_it_leaves_its_stack(by_hand: JobResult) -> None:
    pytest.importorskip("whichrank.instrumentation._fatal", reason="the C module is not built (no C compiler)")
    for ring, function in zip(by_hand.rings, ["reduce_loss", "wait_for_the_end"], strict=True):
        assert ring.signal == signal.SIGTERM
        assert ring.stack_time_ns == ring.signal_time_ns  # of the end, not of the heartbeat
        frames = [line.split("\t") for line in ring.stack]
        own = [(int(line), name) for file, line, name in frames if Path(file).name == "script.py"]
        assert own[-1][1] == function
        lines = (by_hand.directory / "script.py").read_text().splitlines()
        assert lines[own[-1][0] - 1].strip() in ("dist.all_reduce(torch.ones(1))", "time.sleep(60)")
