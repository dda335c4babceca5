"""One line, one event: the shapes of the field, bare and in everything they come wrapped in."""

from __future__ import annotations

import pytest

from tests.diagnosis.kernel_log.cases import HOST, MONOTONIC_S, READ_S, TIME_S, WRAPPERS, Case, cases
from whichrank.diagnosis.kernel_log import KernelEvent, KernelLogReader
from whichrank.diagnosis.kernel_log.stamps import Calendar


def read(*lines: str, driver: str | None = None) -> list[KernelEvent]:
    reader = KernelLogReader(driver, calendar=Calendar(reference_s=READ_S))
    return [event for line in lines for event in reader.read(line)] + list(reader.flush())


@pytest.mark.parametrize("case", cases(), ids=lambda case: case.line[:70])
def test_a_line_of_the_field_is_read(case: Case) -> None:
    assert [(e.event, e.code, e.device) for e in read(case.line)] == [(case.event, case.code, case.device)]


@pytest.mark.parametrize("name", WRAPPERS)
def test_what_a_line_is_wrapped_in_changes_nothing_and_tells_time_and_host(name: str) -> None:
    wrapper = WRAPPERS[name]
    wrong = []
    for case in cases():
        # Fabric Manager's lines and those of services have a wrapper of their own.
        if case.line.startswith(("[", "systemd", "nvidia-persistenced", "mmfs", "NetworkManager", " ")):
            continue
        events: list[KernelEvent | None] = [*read(wrapper.wrap(case.line))]
        event, more = (events[0], events[1:]) if events else (None, [])
        if event is None or more or (event.event, event.code, event.device) != (case.event, case.code, case.device):
            wrong.append((case.line, event))
            continue
        assert event.time_s == (TIME_S if wrapper.has_time else None)
        assert event.monotonic_s == (pytest.approx(MONOTONIC_S) if wrapper.has_monotonic else None)
        assert event.host == (HOST if wrapper.has_host else "")
        assert event.text.startswith(case.line[:20])
    assert wrong == []


def test_a_date_without_a_year_is_the_last_one_before_the_log_was_written() -> None:
    line = "Dec 31 23:59:59 n1 kernel: Oops: 0000 [#1] SMP"
    for reference_s, time_s in ((1_735_700_000.0, 1_735_689_599.0), (None, None)):  # 2025-01-01
        reader = KernelLogReader(calendar=Calendar(reference_s=reference_s))
        assert [event.time_s for event in (*reader.read(line), *reader.flush())] == [time_s]


def test_of_a_whole_date_the_years_of_others_are_learnt() -> None:
    reader = KernelLogReader()
    reader.read("[Tue Mar  4 05:06:07 2025] EXT4-fs (sda1): Remounting filesystem read-only")
    (event,) = reader.read("Mar  4 05:06:09 n1 kernel: EXT4-fs (sdb1): Remounting filesystem read-only")
    assert event.time_s == TIME_S + 2


def test_a_zone_that_the_line_does_not_tell_is_the_callers() -> None:
    reader = KernelLogReader(calendar=Calendar(utc_offset_s=7200))
    (event,) = reader.read("[Tue Mar  4 07:06:07 2025] VFS: file-max limit 1 reached")
    assert event.time_s == TIME_S


def test_seconds_since_boot_become_a_time_where_the_boot_is_known() -> None:
    reader = KernelLogReader(boot_time_s=TIME_S - 100)
    (event,) = reader.read("[  100.000000] VFS: file-max limit 1 reached")
    assert event.time_s == TIME_S


def test_an_interface_is_a_fact_where_the_board_is_named() -> None:
    (event,) = read("mlx5_core 0000:5e:00.1 ens3f1np1: TX timeout detected")
    assert (event.device, event.facts["interface"]) == ("0000:5e:00.1", "ens3f1np1")


@pytest.mark.parametrize(
    ("driver", "kind"),
    [
        ("nvidia", "gpu"),
        ("amdgpu", "gpu"),
        ("mlx5_core", "nic"),
        ("ice", "nic"),
        ("nvme", "disk"),
        ("pcieport", "pcie"),
    ],
)
def test_whose_error_on_pcie_it_is_tells_the_driver_that_the_line_names(driver: str, kind: str) -> None:
    (event,) = read(f"{driver} 0000:5e:00.0: PCIe Bus Error: severity=Uncorrected (Fatal), type=Transaction Layer")
    assert (event.device_kind.value, event.device) == (kind, "0000:5e:00.0")


@pytest.mark.parametrize(
    "line",
    [
        "amdgpu 0000:c3:00.0: amdgpu: MES might be in unrecoverable state, issue a GPU reset",
        "amdgpu 0000:c3:00.0: amdgpu: uncorrectable hardware error(ERREVENT_ATHUB_INTERRUPT) detected!",
        "i915 0000:03:00.0: [drm] *ERROR* GT0: GuC communication failed, link down",
        "habanalabs hl0: Unrecoverable hardware error in NIC",
        "pcieport 0000:17:01.0: AER: device recovery failed",
    ],
)
def test_what_is_no_nic_is_not_given_to_one(line: str) -> None:
    assert [
        event.component for event in read(line) if event.component == "nic" or event.domain.value == "network"
    ] == []


def test_process_and_pid_of_an_xid() -> None:
    (event,) = read("NVRM: Xid (PCI:0000:1b:00): 31, pid='4711', name='my job:1', Ch 0000000a, MMU Fault: ENGINE")
    assert (event.process, event.pid, event.facts["channel"]) == ("my job:1", 4711, "0000000a")
    (event,) = read("NVRM: Xid (PCI:0000:1b:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.")
    assert (event.process, event.pid) == ("", None)


def test_what_a_page_fault_tells() -> None:
    (event,) = read(
        "NVRM: Xid (PCI:0000:1b:00): 31, pid=1, name=x, Ch 00000010, intr 00000000. MMU Fault: ENGINE GRAPHICS GPC6 "
        "GPCCLIENT_T1_1 faulted @ 0x7f12_34567000. Fault is of type FAULT_PDE ACCESS_TYPE_VIRT_READ"
    )
    facts = {"engine": "GRAPHICS", "gpc": "6", "client": "GPCCLIENT_T1_1", "address": "0x7f12_34567000"}
    assert event.facts.items() >= facts.items()


@pytest.mark.parametrize(
    "line",
    [
        "NVRM: Xid error: xyz",
        "NVRM: Xid (nonsense): 79, GPU has fallen off the bus.",
        "nvidia-nvswitch0: SXid (nonsense): 12028",
        "VFS: file-max limit 262144",
        "mlx5_core: Detected insufficient power on the PCIe slot (W).",
        "mlx5_core 0000:5e:00.1: mlx5_pcie_event:290:(pid 5): PCIe slot advertised sufficient power (27W).",
        "pci 0000:02:00.0: 4.000 Gb/s available PCIe bandwidth, limited by 5.0 GT/s PCIe x1 link at 0000:00:1c.0",
        "NVRM: The NVIDIA GPU no-address.0",
        "Buffer I/O error on dev dm-0",
        "I/O error, dev fd0, sector 0 op 0x0:(READ) flags 0x0",
        "veth12ab: Lost carrier",
        "---[ end Kernel panic - not syncing: Fatal exception ]---",
        " SUBSYSTEM=pci",
    ],
)
def test_what_only_looks_like_a_fault_is_none(line: str) -> None:
    assert read(line) == []
