"""NaN in the inputs of NCCL's operations: the device notes the first one itself, and the host never waits for it.

One command, with the other tests of GPUs: ``.venv/bin/python -m pytest tests/gpu -rs``.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.instrumentation.jobs import run_job
from tests.instrumentation.test_input_checks import bad_inputs_in

torch = pytest.importorskip("torch", reason="no torch")
pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU: NCCL was not tried")

SCRIPT = """
import torch
import torch.distributed as dist

torch.cuda.set_device(0)
dist.init_process_group("nccl")
good, bad = torch.ones(1 << 20, device="cuda"), torch.full((8,), float("nan"), device="cuda")
dist.all_reduce(good)
torch.cuda.synchronize()
torch.cuda.set_sync_debug_mode("error")  # anything that makes the host wait for the device raises from here on
for _ in range(5):
    dist.all_reduce(good)
dist.all_reduce(bad)  # collective 7
for _ in range(50):
    dist.all_reduce(good)
torch.cuda.set_sync_debug_mode("default")
torch.cuda.synchronize()
dist.all_reduce(good)
dist.destroy_process_group()
"""


@pytest.mark.parametrize("native", ["1", "0"])
def test_the_first_nan_is_reported_without_waiting_for_the_device(tmp_path: Path, native: str) -> None:
    environment = {"WHICHRANK_NATIVE": native, "WHICHRANK_CHECK_INPUTS": "1"}
    result = run_job(SCRIPT, tmp_path, ranks=1, environment=environment)
    assert result.exit_code == 0, result.output
    (found,) = bad_inputs_in(result.directory)[0]
    assert found["seq"] == 7
