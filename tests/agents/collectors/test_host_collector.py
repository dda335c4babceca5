"""The host as its kernel tells it: trees written here, garbage in them, and this machine's own."""

from __future__ import annotations

import math
import os
import random
import re
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from whichrank.agents.collectors.base.collector import Collected, Timestamps
from whichrank.agents.collectors.base.small_files import decimal_number, keyed_numbers, read_text, whole_number
from whichrank.agents.collectors.host.cgroups import CgroupReader
from whichrank.agents.collectors.host.clock_state import ClockState, read_clock
from whichrank.agents.collectors.host.host_collector import HostCollector
from whichrank.agents.collectors.host.pressure import parse_pressure
from whichrank.telemetry.node_metrics import NodeMetricInstrument, node_metrics
from whichrank.telemetry.vocabulary import EventName

S = 1_000_000_000
MB = 1 << 20
NOW = Timestamps(wall_ns=1_800_000_000 * S, mono_ns=5_000 * S)
IN_TIME = ClockState(synchronized=True, offset_s=-0.000012, estimated_error_s=0.0002, max_error_s=0.003)

PRESSURE = "some avg10=12.50 avg60=1.00 avg300=0.10 total=2000000\nfull avg10=0.25 avg60=0.00 avg300=0.00 total=1000\n"
MEMINFO = """MemTotal:        1000000 kB
MemFree:          100000 kB
MemAvailable:     300000 kB
Buffers:           10000 kB
Cached:           200000 kB
SwapTotal:         50000 kB
SwapFree:          20000 kB
Dirty:               400 kB
Writeback:             8 kB
AnonPages:        600000 kB
Shmem:             30000 kB
SReclaimable:      40000 kB
SUnreclaim:        20000 kB
HugePages_Total:      16
HugePages_Free:        6
Hugepagesize:       2048 kB
"""
PROC: dict[str, str] = {
    "uptime": "5000.25 9000.00\n",
    "sys/kernel/random/boot_id": "0a0b0c0d-0000-4000-8000-000000000001\n",
    "pressure/cpu": PRESSURE.splitlines()[0] + "\n",
    "pressure/memory": PRESSURE,
    "pressure/io": PRESSURE,
    "meminfo": MEMINFO,
    "vmstat": "pswpin 7\npswpout 9\npgmajfault 11\nallocstall_dma 1\nallocstall_normal 4\noom_kill 2\n",
    "loadavg": "3.50 2.25 1.00 4/1234 99999\n",
    "stat": "cpu  1000 0 200 5000 300 0 40 5 0 0\n"
    "cpu0 500 0 100 2500 150 0 20 2 0 0\ncpu1 500 0 100 2500 150 0 20 3 0 0\n"
    "intr 123 4 5 6\nctxt 999\nbtime 1799995000\nprocesses 4242\nprocs_running 3\nprocs_blocked 1\nsoftirq 5 1 2\n",
    "sys/fs/file-nr": "2000\t0\t90000\n",
    "sys/kernel/pid_max": "4194304\n",
    "sys/kernel/threads-max": "100000\n",
    "self/mountinfo": "30 1 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n",
    "self/cgroup": "0::/system.slice/whichrank.service\n",
    "71/cgroup": "0::/slurm/job_7/step_0/task_3\n",
    "72/cgroup": "0::/slurm/job_7/step_0/task_3\n",
}
CG = "fs/cgroup"
JOB = f"{CG}/slurm/job_7"
SYS: dict[str, str] = {
    "class/thermal/thermal_zone0/temp": "45500\n",
    "class/thermal/thermal_zone0/type": "x86_pkg_temp\n",
    "class/thermal/thermal_zone1/temp": "-274000\n",
    "class/thermal/thermal_zone1/type": "iwlwifi\n",
    "devices/system/cpu/cpu0/cpufreq/scaling_cur_freq": "1000000\n",
    "devices/system/cpu/cpu0/cpufreq/scaling_max_freq": "3000000\n",
    "devices/system/cpu/cpu1/cpufreq/scaling_cur_freq": "2000000\n",
    "devices/system/cpu/cpu1/cpufreq/scaling_max_freq": "3000000\n",
    "devices/system/cpu/cpu0/topology/physical_package_id": "0\n",
    "devices/system/cpu/cpu1/topology/physical_package_id": "0\n",
    "devices/system/cpu/cpu0/thermal_throttle/package_throttle_count": "17\n",
    "devices/system/edac/mc/mc0/ce_count": "5\n",
    "devices/system/edac/mc/mc0/ue_count": "0\n",
    f"{CG}/system.slice/whichrank.service/memory.current": f"{20 * MB}\n",
    f"{CG}/system.slice/whichrank.service/memory.max": "max\n",
    f"{JOB}/memory.current": f"{900 * MB}\n",
    f"{JOB}/memory.max": f"{1000 * MB}\n",
    f"{JOB}/memory.high": "max\n",
    f"{JOB}/memory.stat": f"anon {500 * MB}\ninactive_file {300 * MB}\n",
    f"{JOB}/memory.events": "low 0\nhigh 0\nmax 12\noom 3\noom_kill 2\n",
    f"{JOB}/memory.pressure": PRESSURE,
    f"{JOB}/cpu.max": "200000 100000\n",
    f"{JOB}/cpu.stat": "usage_usec 5\nnr_throttled 3\nthrottled_usec 4500000\n",
    f"{JOB}/pids.current": "90\n",
    f"{JOB}/pids.max": "100\n",
    f"{JOB}/step_0/task_3/memory.current": f"{800 * MB}\n",
    f"{JOB}/step_0/task_3/memory.max": "max\n",
    f"{JOB}/step_0/task_3/pids.current": "90\n",
    f"{JOB}/step_0/task_3/pids.max": "max\n",
}


def write(root: Path, files: Mapping[str, str | bytes]) -> None:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text.encode() if isinstance(text, str) else text)


@pytest.fixture
def make(tmp_path: Path) -> Callable[..., HostCollector]:
    write(tmp_path / "proc", PROC)
    write(tmp_path / "sys", SYS)
    (tmp_path / "shm").mkdir()

    def make_one(clock: Callable[[], ClockState] = lambda: IN_TIME) -> HostCollector:
        return HostCollector(
            lambda: (71, 72, 73),
            proc=tmp_path / "proc",
            sys=tmp_path / "sys",
            shared_memory=tmp_path / "shm",
            clock=clock,
        )

    return make_one


def values(collected: Collected) -> dict[str, float]:
    """By "name value value …" of the attributes."""
    found = {" ".join((point.name, *map(str, point.attributes.values()))): point.value for point in collected.points}
    assert len(found) == len(collected.points), "two points of the same name and attributes"
    return found


def check_points(collected: Collected) -> None:
    """Each is of a metric that is known, with the attributes that it has, and a number."""
    for point in collected.points:
        metric = node_metrics()[point.name]
        assert tuple(sorted(point.attributes)) == tuple(sorted(metric.attributes)), point.name
        assert math.isfinite(point.value), point
        assert metric.instrument is not NodeMetricInstrument.COUNTER or point.value >= 0


def test_every_value_of_a_written_tree(make: Callable[..., HostCollector]) -> None:
    collected = make().collect(NOW)
    check_points(collected)
    found = values(collected)
    expected = {
        "system.uptime": 5000.25,
        "whichrank.pressure.share memory some": 0.125,
        "whichrank.pressure.time memory full": 0.001,
        "system.memory.limit": 1_024_000_000,
        "system.memory.usage used": 650_000 * 1024,
        "system.memory.usage cached": 240_000 * 1024,
        "system.memory.linux.available": 300_000 * 1024,
        "system.memory.linux.slab.usage unreclaimable": 20_000 * 1024,
        "system.memory.linux.hugepages.usage used": 10,
        "whichrank.memory.usage dirty": 400 * 1024,
        "system.paging.usage used": 30_000 * 1024,
        "system.paging.operations out": 9,
        "system.paging.faults major": 11,
        "whichrank.memory.oom_kills": 2,
        "whichrank.memory.reclaim_stalls": 5,
        "whichrank.memory.errors mc0 corrected": 5,
        "system.cpu.load_average.5m": 2.25,
        "system.cpu.time iowait": 300 / os.sysconf("SC_CLK_TCK"),
        "system.cpu.logical.count": 2,
        "system.process.count blocked": 1,
        "system.process.created": 4242,
        "whichrank.cpu.frequency": 1.5e9,
        "whichrank.cpu.frequency.limit": 3e9,
        "whichrank.cpu.throttles 0": 17,
        "whichrank.file_descriptors.usage": 2000,
        "whichrank.file_descriptors.limit": 90_000,
        "whichrank.threads.usage": 1234,
        "whichrank.threads.limit": 100_000,
        "whichrank.clock.synchronized": 1,
        "whichrank.clock.offset": -0.000012,
        "whichrank.thermal_zone.temperature thermal_zone0 x86_pkg_temp": 45.5,
        "whichrank.cgroup.memory.usage /slurm/job_7": 900 * MB,
        "whichrank.cgroup.memory.working_set /slurm/job_7": 600 * MB,
        "whichrank.cgroup.memory.limit /slurm/job_7": 1000 * MB,
        "whichrank.cgroup.memory.oom_kills /slurm/job_7": 2,
        "whichrank.cgroup.memory.pressure /slurm/job_7": 0.125,
        "whichrank.cgroup.memory.usage /system.slice/whichrank.service": 20 * MB,
        "whichrank.cgroup.cpu.limit /slurm/job_7": 2,
        "whichrank.cgroup.cpu.throttled /slurm/job_7": 4.5,
        "whichrank.cgroup.pids.usage /slurm/job_7": 90,
        "whichrank.cgroup.pids.limit /slurm/job_7": 100,
        "whichrank.memory.available.share": 0.3,
        "system.paging.utilization used": 0.6,
        "whichrank.cpu.load_per_core": 1.75,
        "whichrank.file_descriptors.utilization": 2000 / 90_000,
        "whichrank.threads.utilization": 0.01234,
        "whichrank.cgroup.memory.utilization /slurm/job_7": 0.6,
        "whichrank.cgroup.pids.utilization /slurm/job_7": 0.9,
    }
    assert {name: found.get(name) for name in expected} == expected
    # A sensor that is not there, and a group without a limit, say nothing.
    assert not [name for name in found if "thermal_zone1" in name]
    assert "whichrank.cgroup.memory.limit /system.slice/whichrank.service" not in found
    assert "whichrank.cgroup.memory.utilization /system.slice/whichrank.service" not in found
    assert sum(value for name, value in found.items() if name.startswith("system.memory.usage")) == 1_024_000_000
    assert collected.problems == []


def test_the_boot_is_told_once_and_again_when_it_changes(make: Callable[..., HostCollector], tmp_path: Path) -> None:
    collector = make()
    (first,) = collector.collect(NOW).happenings
    assert first.name is EventName.CHANGE
    assert (first.attributes["what"], first.attributes["old"]) == ("boot", "")
    assert first.time_ns == NOW.wall_ns - int(5000.25 * S)
    assert collector.collect(NOW).happenings == []
    write(tmp_path / "proc", {"sys/kernel/random/boot_id": "another\n"})
    (second,) = collector.collect(NOW).happenings
    assert (second.attributes["old"], second.attributes["new"]) == (
        PROC["sys/kernel/random/boot_id"].strip(),
        "another",
    )


@pytest.mark.parametrize(("step_s", "told"), [(0.0, False), (0.4, False), (-3.0, True), (7200.0, True)])
def test_a_step_of_the_wall_clock_is_told(make: Callable[..., HostCollector], step_s: float, told: bool) -> None:
    collector = make()
    collector.collect(NOW)
    later = Timestamps(wall_ns=NOW.wall_ns + int((10 + step_s) * S), mono_ns=NOW.mono_ns + 10 * S)
    collected = collector.collect(later)
    assert [happening.attributes["what"] for happening in collected.happenings] == (["clock"] if told else [])
    assert values(collected)["whichrank.clock.steps"] == told


def test_a_clock_that_nobody_keeps_has_no_offset(make: Callable[..., HostCollector]) -> None:
    free = ClockState(synchronized=False, offset_s=0.0, estimated_error_s=16.0, max_error_s=16.0)
    collected = make(lambda: free).collect(NOW)
    assert values(collected)["whichrank.clock.synchronized"] == 0
    assert not any(name.startswith(("whichrank.clock.offset", "whichrank.clock.error")) for name in values(collected))
    assert any("offset stays unknown" in problem for problem in collected.problems)

    def refused() -> ClockState:
        raise PermissionError(1, "Operation not permitted")

    collected = make(refused).collect(NOW)
    assert "whichrank.clock.synchronized" not in values(collected)
    assert any("adjtimex: Operation not permitted" in problem for problem in collected.problems)


@pytest.mark.parametrize("missing", ["uptime", "pressure", "meminfo", "loadavg", "stat", "sys/fs/file-nr"])
def test_a_missing_file_is_one_problem_and_the_rest_goes_on(
    make: Callable[..., HostCollector], tmp_path: Path, missing: str
) -> None:
    whole = values(make().collect(NOW))
    path = tmp_path / "proc" / missing
    path.rename(tmp_path / "gone")
    collected = make().collect(NOW)
    assert len(collected.problems) == 1
    assert missing in collected.problems[0]
    assert len(whole) > len(values(collected)) > len(whole) - 20


def test_a_bare_machine_says_what_it_cannot_see(tmp_path: Path) -> None:
    collector = HostCollector(proc=tmp_path, sys=tmp_path, shared_memory=tmp_path / "absent", clock=read_clock)
    collected = collector.collect(NOW)
    assert len(collected.problems) >= 6
    assert all("\n" not in problem and len(problem) < 200 for problem in collected.problems)


# --- control groups -------------------------------------------------------------------------------------------------


def test_version_1_groups(tmp_path: Path) -> None:
    write(
        tmp_path / "proc",
        {
            "self/mountinfo": "31 1 0:27 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"
            "32 1 0:28 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n"
            "33 1 0:29 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n",
            "71/cgroup": "4:memory:/docker/abc/job\n2:cpu,cpuacct:/docker/abc\n0::/docker/abc\n",
        },
    )
    memory = "fs/cgroup/memory/docker/abc"
    cpu = "fs/cgroup/cpu,cpuacct/docker/abc"
    write(
        tmp_path / "sys",
        {
            f"{memory}/memory.usage_in_bytes": "700",
            f"{memory}/memory.limit_in_bytes": "1000",
            f"{memory}/memory.oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill 1\n",
            f"{memory}/memory.stat": "inactive_file 1\ntotal_inactive_file 200\n",
            f"{memory}/job/memory.usage_in_bytes": "600",
            f"{memory}/job/memory.limit_in_bytes": "9223372036854771712",
            f"{memory}/job/memory.oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill 3\n",
            f"{cpu}/cpu.cfs_quota_us": "150000",
            f"{cpu}/cpu.cfs_period_us": "100000",
            f"{cpu}/cpu.stat": "nr_periods 9\nnr_throttled 3\nthrottled_time 2500000000\n",
        },
    )
    reader = CgroupReader(tmp_path / "proc", tmp_path / "sys")
    found = reader.memory(71)
    assert found is not None
    assert (found.path, found.usage_bytes, found.limit_bytes) == ("/docker/abc", 700, 1000)
    assert (found.oom_kills, found.working_set_bytes) == (4, 500)
    limit = reader.cpu(71)
    assert limit is not None
    assert (limit.cores, limit.throttled_s) == (1.5, 2.5)
    assert reader.pids(71) is None
    assert reader.memory(72) is None


@pytest.mark.parametrize(
    ("root", "group", "path"),
    [
        ("/", "/a/b", "/a/b"),  # on the host, or in a group name space
        ("/docker/x", "/docker/x", "/"),  # a container that is shown its own group only, by its full path
        ("/docker/x", "/docker/x/job", "/job"),
        ("/docker/x", "/docker/xyz", None),
        ("/", "/../other", None),  # beyond what we may see
    ],
)
def test_groups_of_containers(tmp_path: Path, root: str, group: str, path: str | None) -> None:
    write(
        tmp_path / "proc",
        {"self/mountinfo": f"30 1 0:26 {root} /sys/fs/cgroup rw - cgroup2 c rw\n", "71/cgroup": f"0::{group}\n"},
    )
    for folder in ("a/b", "", "job"):
        write(tmp_path / "sys/fs/cgroup" / folder, {"memory.current": "5", "memory.max": "9"})
    found = CgroupReader(tmp_path / "proc", tmp_path / "sys").memory(71)
    if path is None or found is None:
        assert path is None
        assert found is None
    else:
        # The lowest limit is the same at each level: the process's own group is named.
        assert found.path == path


def test_a_limit_above_is_found(tmp_path: Path) -> None:
    write(
        tmp_path / "proc",
        {"self/mountinfo": "30 1 0:26 / /sys/fs/cgroup rw - cgroup2 c rw\n", "71/cgroup": "0::/kubepods/pod7/box\n"},
    )
    base = tmp_path / "sys/fs/cgroup"
    write(base / "kubepods", {"memory.current": "90", "memory.max": "max"})
    write(base / "kubepods/pod7", {"memory.current": "80", "memory.max": "100", "memory.high": "95"})
    write(base / "kubepods/pod7/box", {"memory.current": "70", "memory.max": "200"})
    found = CgroupReader(tmp_path / "proc", tmp_path / "sys").memory(71)
    assert found is not None
    assert (found.path, found.usage_bytes, found.limit_bytes) == ("/kubepods/pod7", 80, 95)


# --- small parts ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "whole", "decimal"),
    [
        ("12\n", 12, 12.0),
        ("-3", -3, -3.0),
        ("1.50", None, 1.5),
        ("", None, None),
        ("max", None, None),
        ("1e9", None, None),
        ("nan", None, None),
        ("٣", None, None),
        ("9" * 5000, None, None),
        ("1.-5", None, None),
        ("0x10", None, None),
    ],
)
def test_numbers(text: str, whole: int | None, decimal: float | None) -> None:
    assert whole_number(text) == whole
    assert decimal_number(text) == decimal


def test_pressure_and_keyed_numbers_leave_out_what_they_do_not_know() -> None:
    assert parse_pressure("some avg10=x total=5\nfull\n\nother avg10=1.0 total=1\n\x00\xff") == {}
    assert keyed_numbers("a 1\nB:   2 kB\nc\nd x\n\n") == {"a": 1, "B": 2}


def test_garbage_in_every_file(make: Callable[..., HostCollector], tmp_path: Path) -> None:
    """8-bit garbage, half files, empty files, a megabyte without a line: nothing raises, and no number is made up."""
    chance = random.Random(5)
    begin_s = time.process_time()
    files = [*(("proc", name) for name in PROC), *(("sys", name) for name in SYS)]
    for turn in range(60):
        for root, name in chance.sample(files, 12):
            whole = (PROC if root == "proc" else SYS)[name].encode()
            damaged = chance.choice(
                (
                    chance.randbytes(chance.randrange(200)),
                    whole[: chance.randrange(len(whole))],
                    bytes(byte ^ (chance.random() < 0.05) for byte in whole),
                    whole.replace(b" ", b"\0"),
                    b"",
                    b"9" * (1_000_000 if turn % 20 == 0 else 5000),
                )
            )
            write(tmp_path / root, {name: damaged})
        check_points(make().collect(NOW))
    assert time.process_time() - begin_s < 5


def test_a_file_that_never_ends_is_read_to_a_bound() -> None:
    text = read_text("/dev/zero", 100_000)
    assert text is not None
    assert len(text) <= 100_000


def test_this_machine() -> None:
    collector = HostCollector(lambda: (os.getpid(),))
    moment = Timestamps(wall_ns=time.time_ns(), mono_ns=time.monotonic_ns())
    collected = collector.collect(moment)
    check_points(collected)
    found = values(collected)
    assert found["system.memory.limit"] > 64 * MB
    assert 0 < found["system.memory.linux.available"] <= found["system.memory.limit"]
    assert found["system.cpu.logical.count"] == os.sysconf("SC_NPROCESSORS_ONLN")
    assert abs(found["system.uptime"] - time.clock_gettime(time.CLOCK_BOOTTIME)) < 5
    assert found["whichrank.file_descriptors.usage"] > 0
    assert len(found) > 30


def test_this_machines_cpu_counters_agree_with_psutil() -> None:
    psutil = pytest.importorskip("psutil")
    found = values(HostCollector().collect(Timestamps(wall_ns=time.time_ns(), mono_ns=time.monotonic_ns())))
    theirs = psutil.cpu_times()
    assert found["system.cpu.time user"] == pytest.approx(theirs.user, abs=5)
    assert found["system.cpu.time idle"] == pytest.approx(theirs.idle, abs=5)
    assert found["system.memory.linux.available"] == pytest.approx(psutil.virtual_memory().available, rel=0.2)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root: makes a control group")
def test_a_real_oom_kill_in_a_real_group() -> None:
    reader = CgroupReader(Path("/proc"), Path("/sys"))
    own = reader.memory(os.getpid())
    mounts = Path("/proc/self/mountinfo").read_text()
    root = next((Path(line.split()[4]) for line in mounts.splitlines() if line.endswith(",memory")), None)
    if own is None or root is None or not os.access(root, os.W_OK):
        pytest.skip("no memory controller of version 1 here that may be written")
    group = root / f"whichrank-test-{os.getpid()}"
    group.mkdir()
    try:
        (group / "memory.limit_in_bytes").write_text(str(32 * MB))
        script = "import sys; sys.stdin.read(1); x = bytearray(200 << 20)"
        child = subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE)
        (group / "cgroup.procs").write_text(str(child.pid))
        before = reader.memory(child.pid)
        assert before is not None
        assert (before.path, before.limit_bytes, before.oom_kills) == (f"/{group.name}", 32 * MB, 0)
        child.communicate(b"x")
        assert child.returncode == -9
        assert keyed_numbers((group / "memory.oom_control").read_text())["oom_kill"] == 1
    finally:
        group.rmdir()


def test_the_metrics_have_conventional_names_where_there_are_some_and_are_measured() -> None:
    published = pytest.importorskip("opentelemetry.semconv._incubating.metrics.system_metrics")
    of_processes = pytest.importorskip("opentelemetry.semconv._incubating.metrics.process_metrics")
    conventional = {
        value for module in (published, of_processes) for value in vars(module).values() if isinstance(value, str)
    }
    # Of the Collector's host metrics, which have no convention yet.
    conventional |= {f"system.cpu.load_average.{span}" for span in ("1m", "5m", "15m")}
    folder = Path(__file__).parents[3]
    sources = "".join(path.read_text() for path in (folder / "agents/collectors").rglob("*.py"))
    names = re.findall(r'^\["(.+)"\]$', (folder / "telemetry/node_metrics/host.toml").read_text(), re.MULTILINE)
    assert len(names) > 50
    assert [name for name in names if not name.startswith("whichrank.") and name not in conventional] == []
    assert [name for name in names if f'"{name}"' not in sources and "load_average" not in name] == []
