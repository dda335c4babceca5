"""What a hung task waits for is told by its stack; without one it is unknown."""

from __future__ import annotations

import pytest

from whichrank.diagnosis.kernel_log import KernelEvent, KernelLogReader
from whichrank.diagnosis.kernel_log.findings import Findings
from whichrank.diagnosis.kernel_log.hung_task import waits, waits_for

HUNG = "INFO: task python3:4711 blocked for more than 120 seconds."


def read(*lines: str) -> list[KernelEvent]:
    reader = KernelLogReader()
    return [event for line in lines for event in reader.read(line)] + list(reader.flush())


@pytest.mark.parametrize(
    ("name", "domain", "frames"),
    [
        ("nfs", "storage", ["wait_on_page_bit+0x3f/0x50", "nfs_wb_page+0x8c/0x150 [nfs]"]),
        ("nfs", "storage", ["rpc_wait_bit_killable+0x1e/0xa0 [sunrpc]", "nfs4_do_close+0x1/0x2 [nfsv4]"]),
        ("lustre", "storage", ["schedule_timeout+0x1/0x2", "ptlrpc_set_wait+0x4b5/0x8d0 [ptlrpc]"]),
        ("lustre", "storage", ["osc_extent_wait+0x1/0x2 [osc]", "vvp_io_fsync+0x1/0x2 [lustre]"]),
        ("gpfs", "storage", ["cxiWaitEventWait+0x208/0x330 [mmfslinux]"]),
        ("ceph", "storage", ["wait_for_completion+0x1/0x2", "ceph_mdsc_wait_request+0x1/0x2 [ceph]"]),
        ("beegfs", "storage", ["FhgfsOpsRemoting_readfileVec+0x1/0x2 [beegfs]"]),
        ("weka", "storage", ["schedule+0x1/0x2", "wekafs_wait+0x1/0x2 [wekafsio]"]),
        ("fuse", "storage", ["request_wait_answer+0x1/0x2", "fuse_simple_request+0x1/0x2"]),
        ("cifs", "storage", ["compound_send_recv+0x1/0x2 [cifs]"]),
        ("local_filesystem", "storage", ["rwsem_down_write_slowpath+0x1/0x2", "ext4_file_write_iter+0x1/0x2 [ext4]"]),
        ("local_filesystem", "storage", ["jbd2_log_wait_commit+0x1/0x2", "fsync_bdev+0x1/0x2"]),
        ("local_filesystem", "storage", ["xlog_grant_head_wait+0x1/0x2 [xfs]"]),
        ("block", "storage", ["blk_mq_freeze_queue_wait+0x1/0x2", "nvme_wait_freeze+0x1/0x2 [nvme_core]"]),
        ("page_io", "storage", ["io_schedule+0x1/0x2", "__lock_page+0x1/0x2", "do_read_fault+0x1/0x2"]),
        ("nvidia", "software", ["rwsem_down_read_slowpath+0x1/0x2", "os_acquire_rwlock_read+0x1/0x2 [nvidia]"]),
        ("amdgpu", "software", ["__mutex_lock+0x1/0x2", "amdgpu_vm_lock_pd+0x1/0x2 [amdgpu]"]),
        ("accelerator_driver", "software", ["dma_fence_default_wait+0x1/0x2"]),
        ("network_driver", "network", ["wait_for_completion+0x1/0x2", "mlx5_cmd_exec+0x1/0x2 [mlx5_core]"]),
        ("kernel_lock", "host", ["rwsem_down_write_slowpath+0x1/0x2", "khugepaged+0x1/0x2"]),
    ],
)
def test_the_innermost_frame_that_says_so_decides(name: str, domain: str, frames: list[str]) -> None:
    stack = ["Call Trace:", " <TASK>", " __schedule+0x24e/0x590", *(f" {frame}" for frame in frames), " </TASK>"]
    (event,) = read(HUNG, *stack)
    assert (event.facts["waits_for"], event.domain.value) == (name, domain)
    assert event.facts["frame"].split()[0] in " ".join(frames)
    assert (event.process, event.pid) == ("python3", 4711)


def test_without_a_stack_nothing_is_known() -> None:
    (event,) = read(HUNG)
    assert ("waits_for" in event.facts, event.domain.value, event.action.value) == (False, "host", "wait")


def test_frames_that_the_unwinder_doubts_count_only_where_there_are_no_others() -> None:
    doubted = " ? nfs_wb_page+0x8c/0x150 [nfs]"
    (event,) = read(HUNG, doubted, " schedule+0x1/0x2")
    assert "waits_for" not in event.facts
    (event,) = read(HUNG, doubted)
    assert event.facts["waits_for"] == "nfs"


def test_each_of_several_tasks_has_its_own_stack() -> None:
    events = read(
        "[10.0] INFO: task a:1 blocked for more than 120 seconds.",
        "[10.1]  nfs_wb_page+0x8c/0x150 [nfs]",
        "[10.2] INFO: task b:2 blocked for more than 120 seconds.",
        "[10.3]  fuse_simple_request+0x1/0x2",
        "[60.0]  ceph_mdsc_wait_request+0x1/0x2 [ceph]",
    )
    told = [(event.process, event.facts["waits_for"], event.monotonic_s) for event in events]
    assert told == [("a", "nfs", 10.0), ("b", "fuse", 10.2)]


def test_stacks_of_other_hosts_are_theirs() -> None:
    events = read(
        "Mar  4 05:06:07 n1 kernel: INFO: task a:1 blocked for more than 120 seconds.",
        "Mar  4 05:06:07 n2 kernel:  nfs_wb_page+0x8c/0x150 [nfs]",
        "Mar  4 05:06:07 n1 kernel:  fuse_simple_request+0x1/0x2",
    )
    assert [event.facts["waits_for"] for event in events] == ["fuse"]


def test_one_process_is_one_row_and_the_stack_is_kept() -> None:
    findings = Findings()
    first, later = "[100.0] " + HUNG, "[345.0] " + HUNG.replace("120", "245")
    findings.collect(read(first, later, "[345.1]  nfs_wb_page+0x8c/0x150 [nfs]", "[900.0] " + HUNG))
    (group,) = findings.groups
    assert (group.count, group.last_s) == (3, 900.0)
    assert (group.event.monotonic_s, group.event.facts["waits_for"]) == (100.0, "nfs")


def test_the_table_is_whole() -> None:
    assert all(wait.modules or wait.functions for wait in waits())
    assert waits_for([]) is None
