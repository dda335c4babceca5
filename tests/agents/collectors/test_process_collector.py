"""Processes of a job: a written /proc with every state there is, garbage in it, and real processes of this machine."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from whichrank.agents.collectors.base.collector import Collected, Timestamps
from whichrank.agents.collectors.processes import blocked_ranks
from whichrank.agents.collectors.processes.blocked_ranks import waits_for
from whichrank.agents.collectors.processes.job_process import JobProcess
from whichrank.agents.collectors.processes.process_collector import ProcessCollector
from whichrank.agents.collectors.processes.process_files import parse_process
from whichrank.telemetry.node_metrics import node_metrics
from whichrank.telemetry.vocabulary import EventName

S = 1_000_000_000
HZ = os.sysconf("SC_CLK_TCK")
PAGE = os.sysconf("SC_PAGE_SIZE")


def at(seconds: float) -> Timestamps:
    return Timestamps(wall_ns=1_800_000_000 * S + int(seconds * S), mono_ns=int(seconds * S))


class Proc:
    """A /proc that says what it is told to."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.put("uptime", "5000.00 1.0")

    def put(self, name: str, text: str | bytes) -> None:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text if isinstance(text, bytes) else text.encode())

    def process(
        self,
        pid: int,
        parent: int = 1,
        *,
        state: str = "S",
        start: int = 100,
        threads: dict[int, str] | None = None,
        pages: int = 10,
        cpu_ticks: int = 0,
        read: int = 0,
    ) -> None:
        threads = {pid: state, **(threads or {})}
        numbers = ["0"] * 50
        numbers[0], numbers[1], numbers[9], numbers[11] = state, str(parent), "3", str(cpu_ticks)
        numbers[17], numbers[19], numbers[21] = str(len(threads)), str(start), str(pages)
        self.put(f"{pid}/stat", f"{pid} (pt main (x)) {' '.join(numbers)}\n")
        self.put(f"{pid}/io", f"rchar: {read * 2}\nwchar: 0\nread_bytes: {read}\nwrite_bytes: 7\n")
        self.put(f"{pid}/fd/0", "")
        self.put(f"{pid}/schedstat", "1000000000 2500000000 77\n")
        self.put(f"{pid}/status", "Name:\tx\nvoluntary_ctxt_switches:\t11\nnonvoluntary_ctxt_switches:\t5\n")
        for thread, letter in threads.items():
            self.put(f"{pid}/task/{thread}/stat", f"{thread} (pt) main) {letter} 1 2 3\n")
            self.put(f"{pid}/task/{thread}/comm", "pt_main\n")

    def blocked(self, pid: int, thread: int, stack: str, wchan: str = "", switches: int = 4) -> None:
        self.put(f"{pid}/task/{thread}/stack", stack)
        self.put(f"{pid}/task/{thread}/wchan", wchan)
        self.put(f"{pid}/task/{thread}/status", f"voluntary_ctxt_switches:\t{switches}\n")


NFS_STACK = (
    "[<0>] rpc_wait_bit_killable+0x1d/0x80 [sunrpc]\n[<0>] nfs_wait_bit_killable+0x1/0x2\n[<0>] vfs_read+0x1/0x2\n"
)


@pytest.fixture
def proc(tmp_path: Path) -> Proc:
    return Proc(tmp_path)


def collector(proc: Proc, *ranks: tuple[int, int]) -> ProcessCollector:
    """ranks: (pid, rank)"""
    return ProcessCollector(lambda: [JobProcess(pid=pid, job="j", rank=rank) for pid, rank in ranks], proc=proc.root)


def values(collected: Collected) -> dict[str, float]:
    """By "name rank other values"."""
    found: dict[str, float] = {}
    for point in collected.points:
        assert tuple(sorted(point.attributes)) == tuple(sorted(node_metrics()[point.name].attributes)), point.name
        assert point.attributes["whichrank.job.id"] == "j"
        others = [str(value) for key, value in point.attributes.items() if key != "whichrank.job.id"]
        found[" ".join((point.name, *others))] = point.value
    return found


def test_what_a_rank_and_its_children_use(proc: Proc) -> None:
    proc.process(10, cpu_ticks=500, read=1000, threads={11: "S", 12: "R"})
    proc.process(20, parent=10, cpu_ticks=HZ, read=500, pages=3)
    proc.process(21, parent=20, cpu_ticks=2 * HZ, read=600, pages=4)  # a grandchild, by a fork server
    proc.process(30, parent=10)  # another rank, launched by the first: no child of it
    collected = collector(proc, (10, 0), (30, 1)).collect(at(100))
    found = values(collected)
    expected = {
        "process.memory.usage 0 rank": 10 * PAGE,
        "process.memory.usage 0 children": 7 * PAGE,
        "process.thread.count 0 rank": 3,
        "process.thread.count 0 children": 2,
        "process.unix.file_descriptor.count 0": None,
        "process.context_switches 0 voluntary": 11,
        "process.context_switches 0 involuntary": 5,
        "process.disk.io 0 rank read": 1000,
        "process.disk.io 0 children read": 1100,
        "process.disk.io 0 children write": 14,
        "process.paging.faults 0": 3,
        "whichrank.process.run_delay 0": 2.5,
        "whichrank.process.read 0 children": 2200,
        "whichrank.process.children 0": 2,
        "whichrank.process.children 1": 0,
        "whichrank.process.children.cpu_time 0": 3,
        "whichrank.process.blocked 0": 0,
    }
    assert {name: found.get(name) for name in expected} == {
        name: found.get(name) if value is None else value for name, value in expected.items()
    }
    assert found["process.unix.file_descriptor.count 0"] > 0
    (started,) = {point.start_ns for point in collected.points if point.name == "whichrank.process.run_delay"} - {0}
    assert started == at(100).wall_ns - 5000 * S + 100 * S // HZ


def test_only_what_has_changed_is_told(proc: Proc) -> None:
    proc.process(10, pages=1000)
    collects = collector(proc, (10, 0))
    assert len(collects.collect(at(0)).points) > 10
    assert collects.collect(at(5)).points == []  # points every ten seconds
    assert collects.collect(at(10)).points == []
    proc.process(10, pages=1010)  # one per cent more
    assert collects.collect(at(20)).points == []
    proc.process(10, pages=1100, read=5)
    assert values(collects.collect(at(30))) == {
        "process.memory.usage 0 rank": 1100 * PAGE,
        "process.disk.io 0 rank read": 5,
        "whichrank.process.read 0 rank": 10,
    }
    assert len(collects.collect(at(61)).points) > 8  # now and then all of it


def test_counters_of_children_go_on_when_a_child_ends(proc: Proc) -> None:
    proc.process(10)
    proc.process(20, parent=10, read=500)
    proc.process(21, parent=10, read=300)
    collects = collector(proc, (10, 0))
    assert values(collects.collect(at(0)))["process.disk.io 0 children read"] == 800
    for path in sorted((proc.root / "20").rglob("*"), reverse=True):
        path.unlink() if path.is_file() else path.rmdir()
    (proc.root / "20").rmdir()
    proc.process(21, parent=10, read=350)
    proc.process(22, parent=10, read=40)
    assert values(collects.collect(at(31)))["process.disk.io 0 children read"] == 890
    # The pid of a child comes again, for another one that has read less.
    proc.process(21, parent=10, read=5, start=999)
    assert values(collects.collect(at(62)))["process.disk.io 0 children read"] == 895


def test_a_pid_that_came_again_is_another_rank(proc: Proc) -> None:
    proc.process(10, read=1000)
    collects = collector(proc, (10, 0))
    collects.collect(at(0))
    proc.process(10, read=10, start=5000)
    found = collects.collect(at(10))
    assert values(found)["process.disk.io 0 rank read"] == 10
    starts = [point.start_ns for point in found.points if point.name == "process.disk.io"]
    assert starts[0] == at(10).wall_ns - 5000 * S + 5000 * S // HZ


def test_a_rank_that_waits_uninterruptibly_is_told_when_it_is_sure(proc: Proc) -> None:
    proc.process(10, threads={11: "D"})
    proc.blocked(10, 11, NFS_STACK)
    collects = collector(proc, (10, 3))
    told = [collects.collect(at(5 * look)).happenings for look in range(13)]
    # Confirmed at the third look, then every 20 s.
    assert [look for look, happenings in enumerate(told) if happenings] == [2, 6, 10]
    (first,) = told[2]
    assert first.name is EventName.RANK_PROCESS
    # The wait began age_s before the time of the event.
    assert (first.pid, first.time_ns) == (10, at(10).wall_ns)
    assert dict(first.attributes) == {
        "state": "D",
        "over": False,
        "age_s": 10.0,
        "wchan": "rpc_wait_bit_killable",
        "waits_for": "nfs",
        "text": "pt_main waits in the kernel for 10 s, in rpc_wait_bit_killable (nfs)",
        "device_kind": "process",
        "device": "10",
        "threads": 1,
        "process_pid": 10,
        "thread_id": 11,
        "thread": "pt_main",
        "is_child": False,
        "moves": False,
        "kernel_functions": ("rpc_wait_bit_killable", "nfs_wait_bit_killable", "vfs_read"),
    }
    proc.process(10, threads={11: "S"})
    (over,) = collects.collect(at(70)).happenings
    assert (over.attributes["over"], over.attributes["state"]) == (True, "S")
    assert over.attributes["waits_for"] == "nfs"
    assert collects.collect(at(75)).happenings == []


def test_short_waits_are_no_news(proc: Proc) -> None:
    collects = collector(proc, (10, 0))
    for look in range(12):
        proc.process(10, threads={11: "D" if look % 3 else "S"})
        assert collects.collect(at(5 * look)).happenings == []


def test_a_child_that_waits_is_its_ranks_news(proc: Proc) -> None:
    proc.process(10)
    proc.process(20, parent=10, state="D")
    proc.blocked(20, 20, "", "io_schedule", switches=4)
    collects = collector(proc, (10, 0))
    collects.collect(at(0))
    collects.collect(at(5))
    proc.blocked(20, 20, "", "io_schedule", switches=9)
    (happening,) = collects.collect(at(10)).happenings
    assert happening.pid == 10
    assert happening.attributes["is_child"] is True
    assert happening.attributes["process_pid"] == 20
    assert happening.attributes["kernel_functions"] == ("io_schedule",)
    assert happening.attributes["moves"] is True


def test_many_threads_are_one_news_and_the_longest_speaks(proc: Proc) -> None:
    proc.process(10, threads={11: "D"})
    proc.blocked(10, 11, "[<0>] fuse_get_req+0x1/0x2\n")
    collects = collector(proc, (10, 0))
    collects.collect(at(0))
    proc.process(10, threads={thread: "D" for thread in range(11, 40)})
    told = [happening for look in range(1, 7) for happening in collects.collect(at(5 * look)).happenings]
    assert [happening.attributes["thread_id"] for happening in told] == [11, 11]
    assert told[-1].attributes["threads"] == 29


def test_ranks_that_are_gone_are_forgotten(proc: Proc) -> None:
    proc.process(10, state="D")
    ranks = [JobProcess(pid=10, rank=0)]
    collects = ProcessCollector(lambda: ranks, proc=proc.root)
    for look in range(3):
        collects.collect(at(5 * look))
    ranks.clear()
    assert collects.collect(at(15)) == Collected(points=[], happenings=[], problems=[])
    ranks.append(JobProcess(pid=10, rank=0))
    assert collects.collect(at(20)).happenings == []  # its wait begins anew


def test_what_may_not_be_read_is_said_in_one_line(proc: Proc) -> None:
    for pid in (10, 20):
        proc.process(pid)
        (proc.root / f"{pid}/io").unlink()
    collected = collector(proc, (10, 0), (20, 1)).collect(at(0))
    assert len(collected.problems) == 1
    assert "run the agent as root" in collected.problems[0]
    assert "process.memory.usage 1 rank" in values(collected)


@pytest.mark.parametrize(
    ("functions", "expected"),
    [
        (("rpc_wait_bit_killable", "__rpc_execute", "nfs4_proc_getattr"), "nfs"),
        (("folio_wait_bit_common", "filemap_read", "nfs_file_read"), "nfs"),
        (("folio_wait_bit_common", "filemap_read", "ext4_file_read_iter"), "local disk"),
        (("io_schedule", "folio_wait_bit_common"), "file data"),
        (("ptlrpc_set_wait", "cl_sync_io_wait", "ll_file_read"), "lustre"),
        (("request_wait_answer", "fuse_simple_request"), "fuse"),
        (("uvm_va_space_down_write",), "gpu driver"),
        (("_nv034256rm", "rm_ioctl"), "gpu driver"),
        (("wait_for_completion", "cmd_exec", "mlx5_cmd_do"), "rdma"),
        (("mem_cgroup_handle_over_high",), "memory"),
        (("__refrigerator",), "freezer"),
        (("rwsem_down_write_slowpath",), "a lock of the kernel"),
        (("some_new_function",), ""),
        ((), ""),
    ],
)
def test_what_it_waits_for(functions: tuple[str, ...], expected: str) -> None:
    assert waits_for(functions) == expected


def test_the_table_of_wait_sites_is_sound() -> None:
    """No word twice, and no prefix that an earlier line makes unreachable."""
    sites = blocked_ranks.wait_sites()
    words = [word for word, _ in sites]
    assert len(words) == len(set(words)) >= 10
    earlier: list[str] = []
    for _, prefixes in sites:
        assert prefixes
        assert [prefix for prefix in prefixes if prefix.startswith(tuple(earlier))] == []
        earlier += prefixes


@pytest.mark.parametrize("text", ["", "1 (x) S", "1 x S 1", "1 (x) SS " + "1 " * 30, "1 (x) S " + "x " * 30])
def test_what_is_no_stat_line(text: str) -> None:
    assert parse_process(text) is None


def test_garbage_in_every_file(proc: Proc) -> None:
    chance = random.Random(3)
    proc.process(10, threads={11: "D"})
    proc.blocked(10, 11, NFS_STACK, "x")
    proc.process(20, parent=10, state="D")
    files = [path for path in proc.root.rglob("*") if path.is_file()]
    whole = {path: path.read_bytes() for path in files}
    begin_s = time.process_time()
    for turn in range(60):
        for path in chance.sample(files, 6):
            path.write_bytes(
                chance.choice(
                    (
                        chance.randbytes(chance.randrange(200)),
                        whole[path][: chance.randrange(len(whole[path]) + 1)],
                        bytes(byte ^ (chance.random() < 0.1) for byte in whole[path]),
                        b"(" * 1_000_000 if turn % 20 == 0 else b")",
                        b"",
                        whole[path],
                    )
                )
            )
        collects = collector(proc, (10, 0))
        for look in range(4):
            for happening in collects.collect(at(15 * look)).happenings:
                assert all(len(str(value)) < 8000 for value in happening.attributes.values())
    assert time.process_time() - begin_s < 5


# --- this machine ---------------------------------------------------------------------------------------------------

RANK = """
import subprocess, sys
script = "import sys; sys.stdin.read()"
child = subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE)
print(child.pid, flush=True)
sys.stdin.read()
child.communicate()
"""


@pytest.fixture
def rank() -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen([sys.executable, "-c", RANK], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    process.stdout.readline()
    yield process
    process.communicate(timeout=20)


def now() -> Timestamps:
    return Timestamps(wall_ns=time.time_ns(), mono_ns=time.monotonic_ns())


def test_a_real_rank_agrees_with_psutil(rank: subprocess.Popen[str]) -> None:
    psutil = pytest.importorskip("psutil")
    collects = ProcessCollector(lambda: [JobProcess(pid=rank.pid, job="j", rank=5)])
    collected = collects.collect(now())
    found = values(collected)
    theirs = psutil.Process(rank.pid)
    assert found["process.memory.usage 5 rank"] == pytest.approx(theirs.memory_info().rss, rel=0.1)
    assert found["process.thread.count 5 rank"] == theirs.num_threads()
    assert found["process.unix.file_descriptor.count 5"] == theirs.num_fds()
    assert found["whichrank.process.children 5"] == len(theirs.children(recursive=True)) == 1
    started = {point.start_ns for point in collected.points if point.start_ns}
    assert len(started) == 1
    assert started.pop() / 1e9 == pytest.approx(theirs.create_time(), abs=2)
    assert collected.problems == []


def _freezer() -> Path | None:
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        if " - cgroup " in line and line.endswith("freezer"):
            return Path(line.split()[4])
    return None


@pytest.mark.skipif(os.geteuid() != 0 or _freezer() is None, reason="needs root and a freezer of version 1")
def test_a_real_process_that_the_kernel_does_not_let_go(rank: subprocess.Popen[str]) -> None:
    """A frozen process is in state D, as one on a dead mount is."""
    freezer = _freezer()
    assert freezer is not None
    group = freezer / f"whichrank-test-{os.getpid()}"
    group.mkdir()
    collects = ProcessCollector(lambda: [JobProcess(pid=rank.pid, job="j", rank=5)])
    looks: Callable[[], Collected] = lambda: collects.collect(now())  # noqa: E731
    try:
        (group / "cgroup.procs").write_text(str(rank.pid))
        (group / "freezer.state").write_text("FROZEN")
        end_s = time.monotonic() + 10
        while (group / "freezer.state").read_text().strip() != "FROZEN" and time.monotonic() < end_s:
            time.sleep(0.01)
        told = [happening for _ in range(3) for happening in looks().happenings]
        assert len(told) == 1
        assert told[0].attributes["waits_for"] == "freezer"
        assert told[0].pid == rank.pid
        (group / "freezer.state").write_text("THAWED")
        while (Path(f"/proc/{rank.pid}/stat").read_text().split()[2]) == "D" and time.monotonic() < end_s:
            time.sleep(0.01)
        assert [happening.attributes["over"] for happening in looks().happenings] == [True]
    finally:
        (group / "freezer.state").write_text("THAWED")
        (freezer / "cgroup.procs").write_text(str(rank.pid))
        group.rmdir()
