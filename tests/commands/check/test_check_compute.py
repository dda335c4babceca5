"""The short work on GPUs: torch's own operations, on a processor that plays several GPUs of different speed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.commands.check.checking import check as run_check
from tests.commands.check.checking import families
from whichrank.commands.check import compute
from whichrank.commands.check.check_setup import CheckMode, Setup
from whichrank.commands.check.expectations_file import expected_of
from whichrank.commands.check.expected import Expected
from whichrank.commands.check.finding import CheckFinding, Family
from whichrank.diagnosis.health_checks.outcome import CheckStatus

torch = pytest.importorskip("torch", reason="no torch")


class Told:
    def __init__(self) -> None:
        self.findings: list[CheckFinding] = []
        self.begun: list[tuple[str, CheckStatus]] = []

    def found(self, *findings: CheckFinding) -> None:
        self.findings += findings

    def begins(self, what: str, stuck: CheckStatus = CheckStatus.UNKNOWN) -> None:
        self.begun.append((what, stuck))

    def bad(self) -> set[tuple[str, str, str]]:
        return {
            (each.check, each.device, each.status.value) for each in self.findings if each.status is not CheckStatus.OK
        }


class PlayedCuda:
    """torch.cuda of ``count`` GPUs; ``slowness``: GPU -> how many times slower it is."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, count: int) -> None:
        self.current = 0
        self.slowness: dict[int, float] = {}
        self.free: dict[int, int] = {}
        self.wrong_at: dict[int, int] = {}
        self.products: dict[int, int] = {}
        cuda = torch.cuda
        for name, value in {
            "is_available": lambda: True,
            "device_count": lambda: count,
            "mem_get_info": lambda gpu: (self.free.get(gpu, 64 << 30), 80 << 30),
            "device": self._device,
            "Event": lambda **_: _Event(self),
            "synchronize": lambda: None,
            "empty_cache": lambda: None,
            "can_device_access_peer": lambda one, other: one != other,
            "get_device_name": lambda gpu: "NVIDIA H100 80GB HBM3",
        }.items():
            monkeypatch.setattr(cuda, name, value)
        monkeypatch.setattr(torch.Tensor, "cuda", lambda tensor: tensor)
        monkeypatch.setattr(torch.Tensor, "pin_memory", lambda tensor: tensor)
        for name in ("ones", "empty"):
            monkeypatch.setattr(torch, name, _on_processor(getattr(torch, name)))
        self._mm = torch.mm
        monkeypatch.setattr(torch, "mm", self._product)
        monkeypatch.setattr(compute, "_ORDER", 64)
        monkeypatch.setattr(compute, "_COPY_BYTES", 1 << 12)
        monkeypatch.setattr(compute, "_HOST_BYTES", 1 << 12)

    @contextmanager
    def _device(self, gpu: int) -> Iterator[None]:
        self.current = gpu
        yield

    def _product(self, left: Any, right: Any, *, out: Any) -> None:
        self._mm(left, right, out=out)
        self.products[self.current] = self.products.get(self.current, 0) + 1
        if self.products[self.current] >= self.wrong_at.get(self.current, 1 << 30):
            out[3, 5] += 1.0


class _Event:
    def __init__(self, played: PlayedCuda) -> None:
        self._played = played

    def record(self) -> None:
        return

    def synchronize(self) -> None:
        return

    def elapsed_time(self, end: object) -> float:
        return 1.0 * self._played.slowness.get(self._played.current, 1.0)


def _on_processor(make: Any) -> Any:
    def made(*arguments: Any, device: str = "cpu", **named: Any) -> Any:
        return make(*arguments, **named)

    return made


def checked(expected: Expected | None = None) -> Told:
    told = Told()
    setup = Setup(
        mode=CheckMode.PREFLIGHT, families=frozenset({Family.COMPUTE}), expected=expected or Expected(), limit_s=50.0
    )
    compute.check(setup, told)
    return told


def test_equal_gpus_are_ok_and_what_was_measured_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    PlayedCuda(monkeypatch, 4)
    told = checked()
    assert told.bad() == set()
    assert sorted({each.check for each in told.findings}) == ["gemm", "host_to_gpu", "memory", "peer"]
    (gemm,) = (each.value for each in told.findings if each.check == "gemm" and each.device == "GPU 2")
    assert gemm == pytest.approx(2.0 * 64**3 / 1e-3 / 1e12)


def test_a_slow_gpu_stands_out_and_a_very_slow_one_is_critical(monkeypatch: pytest.MonkeyPatch) -> None:
    PlayedCuda(monkeypatch, 8).slowness.update({2: 1.18, 5: 2.0})
    bad = checked().bad()
    kinds = ("gemm", "memory", "host_to_gpu", "peer")
    assert bad == {(k, "GPU 2", "WARN") for k in kinds} | {(k, "GPU 5", "CRITICAL") for k in kinds}


def test_an_expectation_counts_for_a_single_gpu_too(monkeypatch: pytest.MonkeyPatch) -> None:
    PlayedCuda(monkeypatch, 1)
    assert checked(expected_of({"compute": {"gemm_tflops": 600}}, "x")).bad() == {("gemm", "GPU 0", "CRITICAL")}


def test_a_gpu_that_computes_wrong_is_critical(monkeypatch: pytest.MonkeyPatch) -> None:
    cuda = PlayedCuda(monkeypatch, 4)
    cuda.wrong_at[3] = 2
    assert checked().bad() == {("repeatable", "GPU 3", "CRITICAL"), ("agrees", "GPU 3", "CRITICAL")}


def test_a_gpu_in_use_is_left_alone_and_one_that_fails_is_critical(monkeypatch: pytest.MonkeyPatch) -> None:
    cuda = PlayedCuda(monkeypatch, 3)
    cuda.free[1] = 1 << 30
    whole = torch.mm

    def fails(*arguments: Any, **named: Any) -> None:
        if cuda.current == 2:
            raise RuntimeError("CUDA error: uncorrectable ECC error encountered\nfollowed by advice")
        whole(*arguments, **named)

    monkeypatch.setattr(torch, "mm", fails)
    told = checked()
    assert told.bad() == {("in_use", "GPU 1", "WARN"), ("cuda", "GPU 2", "CRITICAL")}
    (failed,) = (each for each in told.findings if each.check == "cuda")
    assert failed.reason == "CUDA failed: CUDA error: uncorrectable ECC error encountered"


def test_from_the_start_of_cuda_on_a_hang_is_critical_where_gpus_are(monkeypatch: pytest.MonkeyPatch) -> None:
    PlayedCuda(monkeypatch, 1)
    told = checked(expected_of({"gpu": {"count": 1}}, "x"))
    assert told.begun[0] == ("torch was imported", CheckStatus.UNKNOWN)
    assert {stuck for _, stuck in told.begun[1:]} == {CheckStatus.CRITICAL}


def test_gpus_that_torch_does_not_see_are_critical_where_they_are_expected(tmp_path: Path) -> None:
    expect = tmp_path / "e.toml"
    expect.write_text("[gpu]\ncount = 8\n")
    hidden = {"CUDA_VISIBLE_DEVICES": ""}
    assert run_check(*families("compute"), "--expect", str(expect), environment=hidden).exit_status == 1
