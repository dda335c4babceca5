"""``whichrank check`` on real GPUs: NVML, NVLink and the short work, within its limit, with figures that can be."""

from __future__ import annotations

import pytest

from tests.commands.check.checking import check, families

torch = pytest.importorskip("torch", reason="no torch")
GPUS = torch.cuda.device_count() if torch.cuda.is_available() else 0
pytestmark = pytest.mark.skipif(not GPUS, reason="no GPU: the check was not tried on one")


def test_all_gpus_answer_and_are_measured() -> None:
    checked = check(*families("gpu", "nvlink", "compute"))
    assert checked.document["took_s"] <= 60.0
    assert checked.findings("gpu.present")[0]["value"] == GPUS
    measured = {each["device"]: each["value"] for each in checked.findings("compute.gemm")}
    assert set(measured) == {f"GPU {index}" for index in range(GPUS)}
    # The slowest GPU with bf16 does more, and none does so much.
    assert all(10.0 < tflops < 10_000.0 for tflops in measured.values())
    assert all(each["value"] > 100.0 for each in checked.findings("compute.memory"))
    assert checked.findings("compute.repeatable") == []


def test_a_prolog_takes_ten_seconds_at_most() -> None:
    assert check("--mode", "prolog").document["took_s"] <= 10.0
