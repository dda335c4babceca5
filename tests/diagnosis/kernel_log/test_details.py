"""Lines that tell of a fault what its own does not: process and device of a GPU, the part of a firmware report."""

from __future__ import annotations

import io

import pytest

from whichrank.diagnosis.kernel_log import KernelEvent, KernelLogReader
from whichrank.diagnosis.kernel_log.blocks import read_log
from whichrank.diagnosis.kernel_log.cper import kind_of
from whichrank.diagnosis.kernel_log.findings import Findings

TIMEOUT = "[9.1] [drm:amdgpu_job_timedout [amdgpu]] *ERROR* ring gfx timeout, signaled seq=5, emitted seq=7"
OLD_PROCESS = (
    "[9.1] [drm:amdgpu_job_timedout [amdgpu]] *ERROR* Process information: process python3 pid 77 thread python3 pid 77"
)
RESET = "[9.2] amdgpu 0000:03:00.0: amdgpu: GPU reset begin!"
FAULT = "[9.1] amdgpu 0000:03:00.0: amdgpu: [gfxhub] page fault (src_id:0 ring:24 vmid:8 pasid:32771"


def read(*lines: str) -> list[KernelEvent]:
    reader = KernelLogReader()
    return [event for line in lines for event in reader.read(line)] + list(reader.flush())


@pytest.mark.parametrize(
    ("event", "lines"),
    [
        ("gpu_job_timeout", (TIMEOUT, OLD_PROCESS, RESET)),
        (
            "gpu_job_timeout",
            (
                "[9.1] amdgpu 0000:03:00.0: amdgpu: ring comp_1.0.0 timeout, signaled seq=5, emitted seq=7",
                "[9.1] amdgpu 0000:03:00.0: amdgpu:  Process python3 pid 77 thread python3 pid 77",
            ),
        ),
        ("gpu_page_fault", (f"{FAULT}, for process python3 pid 77 thread python3 pid 77)",)),
        (
            "gpu_page_fault",
            (f"{FAULT})", "[9.1] amdgpu 0000:03:00.0: amdgpu:  Process python3 pid 77 thread a pid 78)"),
        ),
        ("gpu_page_fault", (f"{FAULT})", "[9.1] amdgpu 0000:03:00.0: amdgpu:  for process python3 pid 77 thread a)")),
    ],
)
def test_the_next_lines_name_process_and_device(event: str, lines: tuple[str, ...]) -> None:
    first = next(found for found in read(*lines) if found.event == event)
    assert (first.device, first.process, first.pid) == ("0000:03:00.0", "python3", 77)
    assert [found.event for found in read(*lines)].count("gpu_driver_error") == 0


def test_an_error_without_a_device_has_that_of_the_reset_it_brings() -> None:
    error = "[9.0] [drm:amdgpu_ras_reset_gpu [amdgpu]] *ERROR* uncorrectable hardware error(ERREVENT_ATHUB_INTERRUPT)!"
    assert next((e.event, e.device) for e in read(error, RESET)) == ("gpu_memory_error", "0000:03:00.0")
    late = RESET.replace("9.2", "99.2")
    assert next((e.event, e.device) for e in read(error, late)) == ("gpu_memory_error", "")


def test_another_gpu_between_them_is_not_the_device() -> None:
    other = "[9.1] amdgpu 0000:83:00.0: amdgpu:  Process other pid 1 thread other pid 1"
    (first, *_) = read(f"{FAULT})", other, "[9.1] amdgpu 0000:03:00.0: amdgpu:  Process mine pid 2 thread mine pid 2)")
    assert (first.device, first.process) == ("0000:03:00.0", "mine")


def report(severity: str, *lines: str) -> list[str]:
    return [f"[5.0] {{7}}[Hardware Error]: {line}" for line in (f"event severity: {severity}", *lines)]


@pytest.mark.parametrize(
    ("severity", "lines", "expected"),
    [
        (
            "fatal",
            (
                " Error 0, type: fatal",
                "  section_type: PCIe error",
                "  port_type: 0, PCIe end point",
                "  device_id: 0000:1b:00.0",
                "  vendor_id: 0x10de, device_id: 0x2330",
                "  class_code: 030200",
            ),
            ("fatal", "gpu", "0000:1b:00.0", "pcie"),
        ),
        (
            "recoverable",
            ("  section_type: PCIe error", "  device_id: 0000:5e:00.1", "  vendor_id: 0x15b3, device_id: 0x1021"),
            ("error", "nic", "0000:5e:00.1", "pcie"),
        ),
        (
            "corrected",
            ("  section_type: memory error", "  error_type: 2, single-bit ECC", "  DIMM location: CPU0 DIMM_A1"),
            ("warning", "memory", "CPU0 DIMM_A1", "memory"),
        ),
        ("corrected", ("  section_type: general processor error",), ("warning", "cpu", "", "cpu")),
        ("fatal", (), ("fatal", "host", "", "firmware")),
    ],
)
def test_a_report_of_the_firmware_names_the_part(
    severity: str, lines: tuple[str, ...], expected: tuple[str, ...]
) -> None:
    (event,) = read(*report(severity, *lines))
    assert (event.severity.value, event.device_kind.value, event.device, event.component) == expected


@pytest.mark.parametrize(
    ("maker", "code", "kind"),
    [("10de", "068000", "nvswitch"), ("8086", "060400", None), ("144d", "010802", "disk"), ("1002", "120000", "gpu")],
)
def test_kind_of_a_pci_device(maker: str, code: str, kind: str | None) -> None:
    found = kind_of(maker, code)
    assert (found and found.value) == kind


def test_warnings_that_come_slowly_are_one_group_and_errors_are_not() -> None:
    warning = "[{t}.0] EDAC MC1: 1 CE memory read error on CPU_SrcID#0_MC#1_Chan#0_DIMM#0 (channel:0 slot:0)"
    error = "[{t}.0] python3[{t}]: segfault at 0 ip 00007f sp 00007f error 4 in python3[55+1]"
    for line, groups in ((warning, 1), (error, 5)):
        findings = Findings()
        findings.collect(read(*(line.format(t=100 * n) for n in range(1, 6))))
        assert len(findings.groups) == groups


def test_a_group_learns_the_process_from_a_later_line() -> None:
    xid = "[5.{n}] NVRM: Xid (PCI:0000:0f:00): 94, pid={pid}, name={name}, Contained"
    findings = Findings()
    findings.collect(read(xid.format(n=1, pid="'<unknown>'", name="<unknown>"), xid.format(n=2, pid=9, name="train")))
    assert [(g.event.process, g.event.pid, g.count) for g in findings.groups] == [("train", 9, 2)]


def test_one_crash_that_three_programs_tell_of_is_one() -> None:
    crash = "[5.0] python3[4711]: segfault at 0 ip 00007f sp 00007f error 4 in libtorch_cpu.so[55+1]"
    audit = (
        '[5.1] audit: type=1701 audit(1.2:3): auid=1 uid=1 gid=1 ses=3 pid=4711 comm="python3" exe="/x" sig=11 res=1'
    )
    dump = "[6.0] systemd-coredump[9]: Process 4711 (python3) of user 1000 dumped core."
    assert [e.event for e in read(crash, audit, dump)] == ["segfault_in_library"]
    assert [(e.event, e.pid) for e in read(audit, dump)] == [("segfault", 4711)]
    assert len(read(dump, dump.replace("4711", "4712"))) == 2


def test_a_signal_nobody_expected_is_of_the_process_in_the_next_line() -> None:
    (event,) = read("potentially unexpected fatal signal 11.", "CPU: 5 PID: 4711 Comm: python3 Tainted: P           OE")
    assert (event.event, event.device, event.process, event.pid) == ("segfault", "python3", "python3", 4711)


@pytest.mark.parametrize(
    ("lines", "stays"),
    [
        (("[900.0] mlx5_core 0000:5e:00.0 ibp94s0: Link down", "[990.0] something else"), True),
        (("[900.0] eth1: Link down", "[901.0] mlx5_core 0000:5e:00.0 ens1: Link down", "[990.0] eth1: Link up"), True),
        (("[900.0] mlx5_core 0000:5e:00.0 ibp94s0: Link down", "[930.0] something else"), False),
        (("[20.0] mlx5_core 0000:5e:00.0 ibp94s0: Link down", "[990.0] something else"), False),
        (
            (
                "[900.0] mlx5_core 0000:5e:00.0 ibp94s0: Link down",
                "[903.0] mlx5_core 0000:5e:00.0 ibp94s0: Link up",
                "[990.0] something else",
            ),
            False,
        ),
        (("mlx5_core 0000:5e:00.0 ibp94s0: Link down", "something else"), False),
    ],
)
@pytest.mark.parametrize("end", ["", "\n", "\n\n"])
def test_a_link_that_does_not_come_back_is_told_at_the_end(lines: tuple[str, ...], stays: bool, end: str) -> None:
    log = io.BytesIO(("\n".join(lines) + end).encode())
    found = [e for e in read_log(KernelLogReader(), log) if e.event == "nic_link_stays_down"]
    assert [(e.device, e.action.value) for e in found] == ([("0000:5e:00.0", "replace_link")] if stays else [])
