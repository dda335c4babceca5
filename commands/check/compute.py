"""Short work on every GPU: a matrix product twice, copies within, to and between GPUs; against the others of the node.

The products must be equal bit for bit: a GPU that computes differently from itself, or from its twins, is broken
without any counter saying so. Takes some seconds a GPU; needs torch with CUDA.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from statistics import median
from typing import Any

from ...diagnosis.health_checks.outcome import CheckStatus
from .check_setup import Setup, Tell
from .expected import ExpectedCompute
from .finding import CheckFinding, Family
from .gpu_inventory import expected_gpus, inventory

_ORDER = 8192
_COPY_BYTES = 1 << 30
_HOST_BYTES = 256 << 20
#: Of each measurement: until so much time has gone, and the best of them counts.
_REPEAT_S = 0.6
_MOST_REPEATS = 30
#: A GPU with less free memory is in use.
_LEAST_FREE_BYTES = 4 << 30
_SLOW = "look at clocks, power limit and temperature (nvidia-smi -q -d PERFORMANCE); run dcgmi diag -r 3"
_WRONG = "drain the node: this GPU computes wrong without an error (run dcgmi diag -r 4)"

Measured = dict[str, dict[str, float]]


def check(setup: Setup, tell: Tell) -> None:
    """Measures every GPU with torch, as long as there is time; what cannot be measured is told."""
    wanted = setup.expected.gpu.count
    is_expected = wanted if wanted is not None else expected_gpus(inventory(setup.root))
    if wanted == 0:
        tell.found(_finding("present", CheckStatus.OK, "no GPU here"))
        return
    tell.begins("torch was imported")
    try:
        import torch
    except ImportError as error:
        reason = f"torch cannot be imported, so nothing was measured ({error})"
        tell.found(_finding("present", CheckStatus.UNKNOWN if is_expected else CheckStatus.OK, reason))
        return
    tell.begins("CUDA was started", CheckStatus.CRITICAL if is_expected else CheckStatus.UNKNOWN)
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if count == 0:
        reason = "no GPU here" if not is_expected else f"torch {torch.__version__} sees none of {is_expected} GPUs"
        remedy = "compare the driver with torch.version.cuda; look at nvidia-smi" if is_expected else ""
        status = CheckStatus.CRITICAL if is_expected else CheckStatus.OK
        tell.found(_finding("present", status, reason, remedy=remedy))
        return
    until_s = time.monotonic() + max(setup.limit_s - 5.0, 2.0)
    measured: Measured = {}
    checksums: dict[str, int] = {}
    for index in range(count):
        if time.monotonic() > until_s:
            reason = f"no time was left for GPUs {index} to {count - 1}"
            tell.found(_finding("time", CheckStatus.UNKNOWN, reason, remedy="give --timeout more"))
            break
        tell.found(*_measure(torch, index, measured, checksums, tell))
    tell.found(*_compare(torch, measured, checksums, setup.expected.compute))


def _measure(
    torch: Any, index: int, measured: Measured, checksums: dict[str, int], tell: Tell
) -> Iterator[CheckFinding]:
    name = f"GPU {index}"
    tell.begins(f"{name} was started", CheckStatus.CRITICAL)
    try:
        free, _ = torch.cuda.mem_get_info(index)
        if free < _LEAST_FREE_BYTES:
            reason = f"only {free / 2**30:.1f} GiB are free: it is in use and was not measured"
            yield _finding("in_use", CheckStatus.WARN, reason, device=name, remedy="end what runs on it (nvidia-smi)")
            return
        with torch.cuda.device(index), torch.no_grad():
            found = measured.setdefault(name, {})
            tell.begins(f"{name} multiplied matrices", CheckStatus.CRITICAL)
            found["gemm"], checksum, is_equal = _gemm(torch)
            checksums[name] = checksum
            if not is_equal:
                reason = "the same matrix product gave two results"
                yield _finding("repeatable", CheckStatus.CRITICAL, reason, device=name, remedy=_WRONG)
            tell.begins(f"{name} copied within its memory", CheckStatus.CRITICAL)
            found["memory"] = _copy_within(torch)
            tell.begins(f"{name} copied from the host", CheckStatus.CRITICAL)
            found["host_to_gpu"] = _copy_from_host(torch)
            following = (index + 1) % torch.cuda.device_count()
            if following != index and torch.cuda.can_device_access_peer(index, following):
                tell.begins(f"{name} copied to GPU {following}", CheckStatus.CRITICAL)
                found["peer"] = _copy_to_peer(torch, following)
            torch.cuda.empty_cache()
    except RuntimeError as error:  # CUDA's own words: the GPU, its driver or its memory
        reason = f"CUDA failed: {str(error).splitlines()[0][:200]}"
        remedy = "look into the kernel log for an Xid of this GPU; reset it (nvidia-smi -r)"
        yield _finding("cuda", CheckStatus.CRITICAL, reason, device=name, remedy=remedy)


def _gemm(torch: Any) -> tuple[float, int, bool]:
    """(TFLOP/s, checksum, whether two products of the same matrices are equal)."""
    made = torch.Generator(device="cpu").manual_seed(20)
    tile = torch.randn(_ORDER // 8, _ORDER // 8, generator=made).to(torch.bfloat16)
    left = tile.cuda().repeat(8, 8)
    right = left.t().contiguous()
    first = left @ right
    second = torch.empty_like(first)
    best_s = _best_s(torch, lambda: torch.mm(left, right, out=second))
    checksum = int(second.view(torch.int16).to(torch.int64).sum().item())
    return 2.0 * _ORDER**3 / best_s / 1e12, checksum, bool(torch.equal(first, second))


def _copy_within(torch: Any) -> float:
    """GB/s, read and written."""
    source = torch.ones(_COPY_BYTES, dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    return 2.0 * _COPY_BYTES / _best_s(torch, lambda: target.copy_(source)) / 1e9


def _copy_from_host(torch: Any) -> float:
    """GB/s over PCIe or the like, from pinned memory."""
    source = torch.ones(_HOST_BYTES, dtype=torch.uint8).pin_memory()
    target = torch.empty(_HOST_BYTES, dtype=torch.uint8, device="cuda")
    return _HOST_BYTES / _best_s(torch, lambda: target.copy_(source, non_blocking=True)) / 1e9


def _copy_to_peer(torch: Any, peer: int) -> float:
    source = torch.ones(_HOST_BYTES, dtype=torch.uint8, device="cuda")
    target = torch.empty(_HOST_BYTES, dtype=torch.uint8, device=f"cuda:{peer}")
    return _HOST_BYTES / _best_s(torch, lambda: target.copy_(source, non_blocking=True)) / 1e9


def _best_s(torch: Any, work: Callable[[], Any]) -> float:
    """Seconds of the fastest of several, by the GPU's own clock."""
    work()
    torch.cuda.synchronize()
    until_s = time.monotonic() + _REPEAT_S
    best_ms = float("inf")
    for _ in range(_MOST_REPEATS):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        work()
        end.record()
        end.synchronize()
        best_ms = min(best_ms, begin.elapsed_time(end))
        if time.monotonic() > until_s:
            break
    return float(max(best_ms, 1e-6)) / 1e3


_KINDS: tuple[tuple[str, str, str, str], ...] = (
    ("gemm", "gemm_tflops", "TFLOP/s", "bf16 matrix product"),
    ("memory", "memory_gb_per_s", "GB/s", "its own memory"),
    ("host_to_gpu", "host_to_gpu_gb_per_s", "GB/s", "copies from the host"),
    ("peer", "peer_gb_per_s", "GB/s", "copies to the next GPU"),
)


def _compare(
    torch: Any, measured: Measured, checksums: Mapping[str, int], wanted: ExpectedCompute
) -> Iterator[CheckFinding]:
    models = {name: str(torch.cuda.get_device_name(int(name.split()[1]))) for name in measured}
    for kind, key, unit, shows in _KINDS:
        least = getattr(wanted, key)
        values = {name: found[kind] for name, found in measured.items() if kind in found}
        for name, value in values.items():
            peers = [other for peer, other in values.items() if models[peer] == models[name]]
            yield _judge(kind, name, value, unit, shows, median(peers) if len(peers) > 2 else None, least, wanted)
    for name, checksum in checksums.items():
        counts = Counter(other for peer, other in checksums.items() if models[peer] == models[name])
        usual, most = counts.most_common(1)[0]
        if checksum != usual and most > 1:
            reason = f"its matrix product is not that of {most} other GPUs"
            yield _finding("agrees", CheckStatus.CRITICAL, reason, device=name, remedy=_WRONG)


def _judge(
    kind: str,
    name: str,
    value: float,
    unit: str,
    shows: str,
    usual: float | None,
    least: float | None,
    wanted: ExpectedCompute,
) -> CheckFinding:
    reason, status = f"{shows}: {value:.4g} {unit}", CheckStatus.OK
    if least is not None and value < least:
        reason, status = f"{reason}, expected {least:g}", CheckStatus.CRITICAL
    elif usual is not None:
        slower = 100.0 * (1.0 - value / usual)
        if slower > wanted.slower_percent:
            reason += f", {slower:.0f} % less than the other GPUs ({usual:.4g})"
            status = CheckStatus.CRITICAL if slower > 2 * wanted.slower_percent else CheckStatus.WARN
    remedy = _SLOW if status is not CheckStatus.OK else ""
    return _finding(kind, status, reason, device=name, remedy=remedy, value=value)


def _finding(
    check: str, status: CheckStatus, reason: str, *, device: str = "", remedy: str = "", value: float | None = None
) -> CheckFinding:
    return CheckFinding(
        family=Family.COMPUTE, check=check, status=status, reason=reason, device=device, remedy=remedy, value=value
    )
