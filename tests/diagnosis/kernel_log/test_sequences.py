"""Faults of several lines, consequences, and what is said once although it is written twice."""

from __future__ import annotations

import pytest

from whichrank.diagnosis.kernel_log import KernelEvent, KernelLogReader
from whichrank.telemetry.vocabulary import CausalRole

XID = "NVRM: Xid (PCI:0000:{bus}:00): {code}, pid=1, name=x, text"


def read(*lines: str, driver: str | None = None) -> list[KernelEvent]:
    reader = KernelLogReader(driver)
    return [event for line in lines for event in reader.read(line)] + list(reader.flush())


def words(*lines: str) -> list[str]:
    return [event.event for event in read(*lines)]


def roles(*lines: str) -> list[tuple[str, str]]:
    return [(event.code, event.role.value) for event in read(*lines)]


def test_an_oom_kill_is_one_event_however_many_lines_tell_it() -> None:
    events = read(
        "[10.0] python3 invoked oom-killer: gfp_mask=0xcc0(GFP_KERNEL), order=0, oom_score_adj=0",
        "[10.1] oom-kill:constraint=CONSTRAINT_NONE,nodemask=(null),cpuset=/,mems_allowed=0-1,global_oom,"
        "task_memcg=/job,task=python3,pid=4711,uid=0",
        "[10.1] Out of memory: Killed process 4711 (python3) total-vm:9kB, anon-rss:8kB, file-rss:0kB",
        "[10.2] oom_reaper: reaped process 4711 (python3), now anon-rss:0kB",
    )
    assert [(e.event, e.process, e.pid, e.monotonic_s) for e in events] == [("oom_kill", "python3", 4711, 10.1)]


def test_two_processes_killed_one_after_the_other_are_two() -> None:
    assert words(
        "Out of memory: Killed process 1 (a) total-vm:9kB, anon-rss:8kB, file-rss:0kB",
        "Out of memory: Killed process 2 (b) total-vm:9kB, anon-rss:8kB, file-rss:0kB",
    ) == ["oom_kill", "oom_kill"]


def test_of_old_kernels_who_was_killed_counts_not_who_was_chosen() -> None:
    events = read(
        "a invoked oom-killer: gfp_mask=0x201da, order=0, oom_score_adj=0",
        "Task in /j1 killed as a result of limit of /j",
        "Memory cgroup out of memory: Kill process 10 (parent) score 990 or sacrifice child",
        "Killed process 11 (child) total-vm:9kB, anon-rss:8kB, file-rss:0kB",
    )
    assert [(e.event, e.device, e.process, e.pid) for e in events] == [("cgroup_oom_kill", "/j", "child", 11)]


def test_of_an_oom_kill_whose_lines_were_cut_off_the_last_one_counts() -> None:
    events = read("oom_reaper: reaped process 4711 (python3), now anon-rss:0kB, file-rss:0kB, shmem-rss:0kB")
    assert [(e.event, e.process, e.pid) for e in events] == [("oom_kill", "python3", 4711)]
    asked = "python3 invoked oom-killer: gfp_mask=0xcc0(GFP_KERNEL), order=0, oom_score_adj=0"
    assert [(e.event, e.pid) for e in read(asked)] == [("oom_kill", None)]


def test_an_oom_kill_cut_off_after_the_choice_is_told_at_the_end() -> None:
    events = read("Out of memory: Kill process 10 (parent) score 990 or sacrifice child")
    assert [(e.event, e.pid) for e in events] == [("oom_kill", 10)]


def test_of_kills_that_were_cut_off_after_the_choice_each_is_an_event() -> None:
    chosen = "[{}.0] Out of memory: Kill process {} (parent) score 990 or sacrifice child"
    events = read(chosen.format(100, 10), chosen.format(101, 11), chosen.format(102, 11), chosen.format(300, 11))
    assert [(e.pid, e.monotonic_s) for e in events] == [(10, 100.0), (11, 102.0), (11, 300.0)]


def test_a_limit_of_one_kill_is_not_that_of_the_next() -> None:
    assert words(
        "Memory cgroup out of memory: Killed process 1 (a) total-vm:9kB, anon-rss:8kB",
        "Out of memory: Killed process 2 (b) total-vm:9kB, anon-rss:8kB",
    ) == ["cgroup_oom_kill", "oom_kill"]


def test_a_panic_waits_for_the_line_that_says_where() -> None:
    events = read(
        "[5.0] Kernel panic - not syncing: Fatal exception",
        "[5.1] CPU: 4 UID: 0 PID: 112 Comm: kworker/4:1 Not tainted 6.12.1 #1",
        "[5.2] ---[ end Kernel panic - not syncing: Fatal exception ]---",
    )
    assert [(e.event, e.process, e.pid, e.facts["cpu"], e.monotonic_s) for e in events] == [
        ("kernel_panic", "kworker/4:1", 112, "4", 5.0)
    ]


def test_a_panic_that_is_the_last_line_is_told_when_nothing_follows() -> None:
    reader = KernelLogReader()
    assert list(reader.read("Kernel panic - not syncing: Fatal exception")) == []
    assert [event.event for event in reader.flush()] == ["kernel_panic"]


def test_the_lines_of_one_oops_are_one_event() -> None:
    assert words(
        "BUG: kernel NULL pointer dereference, address: 0000000000000008",
        "#PF: supervisor write access in kernel mode",
        "Oops: 0002 [#1] SMP NOPTI",
    ) == ["kernel_oops"]


OFF_THE_BUS = (
    "NVRM: The NVIDIA GPU 0000:1b:00.0",
    "NVRM: (PCI ID: 10de:2330) installed in this system has",
    "NVRM: fallen off the bus and is not responding to commands.",
)


def test_a_gpu_off_the_bus_on_three_lines() -> None:
    assert [(e.event, e.device) for e in read(*OFF_THE_BUS)] == [("gpu_off_the_bus", "0000:1b:00.0")]


def test_off_the_bus_and_xid_79_are_one_loss() -> None:
    assert words(XID.format(bus="1b", code=79), *OFF_THE_BUS) == ["xid"]
    assert [(e.event, e.role) for e in read(*OFF_THE_BUS, XID.format(bus="1b", code=79))] == [
        ("gpu_off_the_bus", CausalRole.INITIATING),
        ("xid", CausalRole.CASCADE),
    ]
    assert words(XID.format(bus="1c", code=79), *OFF_THE_BUS) == ["xid", "gpu_off_the_bus"]


def test_a_second_loss_much_later_is_told_again() -> None:
    first = [f"[100.0] {line}" for line in OFF_THE_BUS]
    assert words(*first, *(f"[399.0] {line}" for line in OFF_THE_BUS)) == ["gpu_off_the_bus"]
    assert words(*first, *(f"[401.0] {line}" for line in OFF_THE_BUS)) == ["gpu_off_the_bus"] * 2


def test_xid_45_is_a_consequence_only_after_another_on_the_same_device_soon_before() -> None:
    def at(time_s: float, bus: str, code: int) -> str:
        return f"[{time_s:.6f}] " + XID.format(bus=bus, code=code)

    assert roles(at(10, "1b", 79), at(11, "1b", 45)) == [("79", "initiating"), ("45", "cascade")]
    assert roles(at(10, "1b", 79), at(11, "1c", 45)) == [("79", "initiating"), ("45", "initiating")]
    assert roles(at(10, "1b", 79), at(100, "1b", 45)) == [("79", "initiating"), ("45", "initiating")]
    assert roles(at(10, "1b", 45), at(11, "1b", 45)) == [("45", "initiating"), ("45", "initiating")]
    assert roles(at(10, "1b", 48), at(11, "1b", 63), at(12, "1b", 171)) == [
        ("48", "initiating"),
        ("63", "cascade"),
        ("171", "cascade"),
    ]


def test_an_xid_that_names_its_cause_is_a_consequence() -> None:
    line = "NVRM: Xid (PCI:0000:1b:00): 45, pid=1, name=x, Ch 00000001, due to a previous Xid 13"
    _, event = read("NVRM: Xid (PCI:0000:1b:00): 13, pid=1, name=x, Graphics Exception", line)
    assert (event.role, event.facts["caused_by"]) == (CausalRole.CASCADE, "13")


def test_an_xid_that_is_only_named_as_a_cause_is_told_once_for_its_device() -> None:
    line = "NVRM: Xid (PCI:0000:{}:00): 45, pid=1, name=x, Ch {} caused by previous Xid 149"
    events = read(*(line.format(bus, channel) for bus in ("1b", "1c") for channel in (1, 2)))
    assert [(e.code, e.device, e.role.value) for e in events if e.code == "149"] == [
        ("149", "0000:1b:00", "initiating"),
        ("149", "0000:1c:00", "initiating"),
    ]
    assert [(e.action.value, e.facts["told_by"]) for e in events if e.code == "149"] == [
        ("restart_without_node", "45"),
    ] * 2
    assert {e.role for e in events if e.code == "45"} == {CausalRole.CASCADE}


@pytest.mark.parametrize(
    ("words_of_154", "repair"),
    [
        ("0x0 (None) to 0x1 (GPU Reset Required)", "reset_gpu"),
        ("0x0 (None) to 0x2 (Node Reboot Required)", "reboot_node"),
        ("0x1 (GPU Reset Required) to 0x0 (None)", "ignore"),
        ("something else", "contact_support"),
    ],
)
def test_xid_154_says_in_words_what_it_takes(words_of_154: str, repair: str) -> None:
    (event,) = read(f"NVRM: Xid (PCI:0000:1b:00): 154, GPU recovery action changed from {words_of_154}")
    assert event.repair.value == repair


LOCKUP = "watchdog: BUG: soft lockup - CPU#7 stuck for 26s! [swapper/7:0]"
FRAME = " mlx5e_napi_poll+0x142/0x680 [mlx5_core]"


def test_a_soft_lockup_in_the_nics_polling_names_the_nic() -> None:
    assert words(LOCKUP, "CPU: 7 PID: 0 Comm: swapper/7", FRAME) == ["soft_lockup", "mlx5_napi_soft_lockup"]
    assert words(LOCKUP, f" ?{FRAME}") == ["soft_lockup"]
    assert words(FRAME) == []
    assert words(LOCKUP, *["filler"] * 150, FRAME) == ["soft_lockup"]


def test_a_link_that_comes_up_is_told_only_of_a_link_that_was_down() -> None:
    up, down = "mlx5_core 0000:5e:00.1 eth2: Link up", "mlx5_core 0000:5e:00.1 eth2: Link down"
    assert words(up) == []
    assert words(down, up, up) == ["nic_link_down", "nic_link_up"]


NVLINK5 = "NVRM: Xid (PCI:0009:01:00): 145, RLW_REMAP Nonfatal XC1 i0 Link 10 ({intrinfo} 0x00000040 0x00000000)"


def test_the_driver_decides_how_xid_145_is_read() -> None:
    def repair(intrinfo: str, *, driver: str | None, before: str = "") -> str:
        return read(before, NVLINK5.format(intrinfo=intrinfo), driver=driver)[-1].repair.value

    old, new = "0x00000082", "0x00000004"
    assert repair(old, driver="570.10.1") == repair(new, driver="580.10.1") == "reset_gpu"
    assert repair(new, driver="570.10.1") == repair(old, driver="580.10.1") == "ignore"
    learnt = "NVRM: loading NVIDIA UNIX x86_64 Kernel Module  570.10.01  Wed Jan  1 00:00:00 UTC 2025"
    assert repair(new, driver=None, before=learnt) == "ignore"
    assert repair(old, driver=None) == repair(new, driver=None) == "reset_gpu"


def test_an_error_of_rlw_rxpipe_can_be_promoted() -> None:
    line = "NVRM: Xid (PCI:0009:01:00): 145, RLW_RXPIPE Nonfatal XC1 i0 Link 10 ({} 0x00000001)"
    plain, promoted = read(line.format("0x00000006"), driver="580")[0], read(line.format("0x00000086"), driver="580")[0]
    assert (plain.severity.value, plain.repair.value) == ("warning", "ignore")
    assert (promoted.severity.value, promoted.repair.value) == ("fatal", "reset_gpu")


def test_a_gpus_uuid_is_learnt() -> None:
    uuid = "GPU-0a1b2c3d-1111-2222-3333-444455556666"
    events = read(f"NVRM: GPU at PCI:0000:1b:00: {uuid}", XID.format(bus="1b", code=31), XID.format(bus="1c", code=31))
    assert [event.facts.get("uuid") for event in events] == [uuid, None]
