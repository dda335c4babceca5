"""A NaN that is everybody's before any loss tells of it: ``--check-inputs`` names the rank and the line, real jobs."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from tests.commands.incidents.documents import written_documents

TENSOR_PARALLEL = """
    import time, torch, torch.distributed as dist
    from torch.distributed.nn.functional import all_reduce
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    tensor = [dist.new_group([0, 1]), dist.new_group([2, 3])][rank // 2]
    data = [dist.new_group([0, 2]), dist.new_group([1, 3])][rank % 2]
    weights = [torch.nn.Parameter(torch.randn(16, 16) / 8) for _ in range(2)]
    optimizer = torch.optim.SGD(weights, lr=0.01)
    def layer(x, weight):
        return torch.tanh(all_reduce(x @ weight, group=tensor))  # line 11
    for step in range(160):
        if step == 60 and rank == 1:
            weights[1].data[3, 3] = float("nan")
        loss = layer(layer(torch.randn(8, 16), weights[0]), weights[1]).square().mean()
        loss.backward()
        for weight in weights:
            dist.all_reduce(weight.grad, group=data)
        optimizer.step()
        optimizer.zero_grad()
        time.sleep(0.03)
    dist.destroy_process_group()
"""

SHARDED = """
    import time, torch, torch.distributed as dist
    from torch.distributed.fsdp import fully_shard
    dist.init_process_group("gloo")
    model = torch.nn.Sequential(torch.nn.Linear(16, 16), torch.nn.Tanh(), torch.nn.Linear(16, 4))
    fully_shard(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(160):
        if step == 60 and dist.get_rank() == 1:
            model[2].weight._local_tensor.fill_(float("nan"))
        model(torch.randn(8, 16)).square().mean().backward()  # line 11
        optimizer.step()
        optimizer.zero_grad()
        time.sleep(0.03)
    dist.destroy_process_group()
"""


@pytest.mark.parametrize(("source", "ranks"), [(TENSOR_PARALLEL, 4), (SHARDED, 2)], ids=["tensor", "sharded"])
def test_the_rank_that_fed_the_first_nan_is_named_with_its_line(tmp_path: Path, source: str, ranks: int) -> None:
    script = tmp_path / "train.py"
    script.write_text(textwrap.dedent(source))
    environ = {k: v for k, v in os.environ.items() if not k.startswith(("WHICHRANK_", "OTEL_"))}
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}", str(script)]
    whichrank = [sys.executable, "-m", "whichrank.commands.main", "run", "--view", "none", "--check-inputs"]
    done = subprocess.run(
        [*whichrank, "--out", str(tmp_path / "run"), "--", *torchrun],
        capture_output=True,
        env={**environ, "OMP_NUM_THREADS": "1"},
        timeout=120,
    )
    assert done.returncode == 0, done.stderr.decode()
    documents = written_documents(tmp_path / "run" / "incidents.jsonl")
    assert len({document["id"] for document in documents}) == 1
    final = documents[-1]
    (suspect,) = final["suspects"]
    assert (final["kind"], suspect["rank"]) == ("numeric_first_rank", 1)
    assert (suspect["where"]["file"], suspect["where"]["line"]) == (str(script), 11)
    assert final["first_bad"]["step"] == 60
