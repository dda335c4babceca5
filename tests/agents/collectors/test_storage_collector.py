"""Storage: tables of mounts and counters as kernels write them, and a file system that really stops answering."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.agents.collectors import stalling_fuse
from tests.agents.collectors.port_tree import write
from whichrank.agents.collectors.base.collector import Collected, NodeEvent, Timestamps
from whichrank.agents.collectors.storage.disks import parse_diskstats
from whichrank.agents.collectors.storage.lustre_client import parse_import, parse_statistics
from whichrank.agents.collectors.storage.mount_probes import MountProbe
from whichrank.agents.collectors.storage.mount_table import Mount, automount_roots, mount_of, parse_mounts, server_of
from whichrank.agents.collectors.storage.nfs_mountstats import parse_mountstats
from whichrank.agents.collectors.storage.storage_collector import StorageCollector
from whichrank.telemetry.node_metrics import node_metrics
from whichrank.telemetry.records import Point
from whichrank.telemetry.vocabulary import EventName

MOUNTINFO = r"""22 27 0:20 / /proc rw,nosuid shared:12 - proc proc rw
27 1 259:2 / / rw,relatime shared:1 - ext4 /dev/nvme0n1p2 rw,errors=remount-ro
60 27 259:2 /var/lib/kubelet /var/lib/kubelet/pods/x/volume rw,relatime shared:1 - ext4 /dev/nvme0n1p2 rw
61 27 0:51 / /mnt/home\040of\040all rw,relatime shared:30 - nfs4 nas1.example:/export/home rw,vers=4.2,hard
62 27 0:52 / /lustre rw,noatime - lustre 10.1.0.1@o2ib,10.1.0.2@o2ib:10.1.0.3@o2ib:/lfs rw,flock
63 27 8:1 / /scratch rw,noatime - xfs /dev/sda1 ro,attr2
64 27 0:53 / /run/user/0 rw - tmpfs tmpfs rw
65 27 0:60 / /home rw - autofs /etc/auto.home rw,fd=7
66 27 0:61 / /gcs rw - fuse.gcsfuse bucket rw
67 27 0:62 / /var/lib/lxcfs rw - fuse.lxcfs lxcfs rw
"""

MOUNTSTATS = """device proc mounted on /proc with fstype proc
device nas1:/export mounted on /mnt/data with fstype nfs4 statvers=1.1
\topts:\trw,vers=4.2,rsize=1048576,hard,proto=tcp,timeo=600,retrans=2
\tage:\t{age}
\tcaps:\tcaps=0xfffbc0bf,wtmult=512,dtsize=1048576,bsize=0,namlen=255
\tsec:\tflavor=1,pseudoflavor=1
\tevents:\t60 3 0 1 0 22 3 0 0 0 0 1 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0
\tbytes:\t10 20 0 0 4096 8192 1 2
\tRPC iostats version: 1.1  p/v: 100003/4 (nfs)
\txprt:\ttcp 832 0 1 0 24 60 60 0 60 5 2 0 0
\txprt:\ttcp 833 0 2 0 24 60 60 1 60 6 2 0 0
\tper-op statistics
\t        NULL: 1 1 0 44 24 0 1 1 0
\t        READ: {reads} {sent} 2 1 1 100 2000 2500 3
\t       WRITE: 10 10 0 1 1 7 8 9 0
\t      COMMIT: 1 1 0 1 1 1 1 1 0
\t     GETATTR: 20 20 0 1 1 2 40 44 1
device nas2:/old mounted on /mnt/old with fstype nfs statvers=1.1
\tage:\t5
\txprt:\tudp 832 0 60 60 1 60 5
\tper-op statistics
\t        READ: 4 4 0 1 1 1 1 1
"""

LLITE = """snapshot_time             1700000000.123456789 secs.nsecs
start_time                1690000000.000000000 secs.nsecs
read_bytes                200 samples [bytes] 4096 1048576 123456789
write_bytes               3 samples [bytes] 1 10 22
read                      200 samples [usecs] 1 900 44000 99
open                      12 samples [usecs] 3 880 1932
getattr                   9 samples [reqs]
"""

IMPORT = """import:
    name: lfs-OST0003-osc-ffff9a3e4c1b8000
    target: lfs-OST0003_UUID
    state: {state}
    connect_flags: [ write_grant, server_lock ]
    connection:
       failover_nids: [ 10.1.0.7@o2ib ]
       current_connection: 10.1.0.7@o2ib
       connection_attempts: 4
    rpcs:
       inflight: 0
       timeouts: 6
       avg_waittime: 912 usec
"""

DISKSTATS = """   7       0 loop0 9 0 9 9 0 0 0 0 0 0 0
 259       0 nvme0n1 100 5 800 50 200 7 1600 90 3 120 140 0 0 0 0
 259       1 nvme0n1p1 50 5 400 50 200 7 1600 90 3 120 140 0 0 0 0
   8       0 sda 1 0 8 4294967290 1 0 8 1 0 1 1
"""


def now() -> Timestamps:
    return Timestamps(wall_ns=time.time_ns(), mono_ns=time.monotonic_ns())


def at(seconds: float) -> Timestamps:
    return Timestamps(wall_ns=int((1_700_000_000 + seconds) * 1e9), mono_ns=int(seconds * 1e9))


def points(collected: Collected, name: str, **attributes: str) -> list[Point]:
    """Points of that name whose attributes end with these values, by the last part of the attribute's name."""

    def has(about: Mapping[str, object]) -> bool:
        short = {key.rpartition(".")[2]: value for key, value in about.items()}
        return all(short.get(key) == value for key, value in attributes.items())

    return [point for point in collected.points if point.name == name and has(point.attributes)]


def value(collected: Collected, name: str, **attributes: str) -> float:
    (point,) = points(collected, name, **attributes)
    return point.value


@pytest.fixture
def proc(tmp_path: Path) -> Path:
    return tmp_path / "proc"


@pytest.fixture
def collector(proc: Path, tmp_path: Path) -> StorageCollector:
    return StorageCollector(proc=proc, sys=tmp_path / "sys", probes=False)


# --- what is mounted --------------------------------------------------------------------------------------------------


def test_storage_is_told_from_what_the_kernel_shows_of_itself() -> None:
    assert [(mount.path, mount.server, mount.read_only, mount.is_network) for mount in parse_mounts(MOUNTINFO)] == [
        ("/", "", False, False),
        ("/gcs", "", False, True),
        ("/lustre", "10.1.0.1@o2ib", False, True),
        ("/mnt/home of all", "nas1.example", False, True),
        ("/scratch", "", True, False),
    ]
    assert automount_roots(MOUNTINFO) == ("/home/",)


@pytest.mark.parametrize(
    ("source", "server"),
    [
        ("nas1:/data", "nas1"),
        ("10.0.0.1:/", "10.0.0.1"),
        ("[fd00::7]:/data", "fd00::7"),
        ("//filer/share", "filer"),
        ("/dev/sda1", ""),
        ("bucket", ""),
        ("1.2.3.4@tcp:1.2.3.5@tcp:/lfs", "1.2.3.4@tcp"),
    ],
)
def test_who_serves_a_mount(source: str, server: str) -> None:
    assert server_of(source) == server


def test_a_folder_belongs_to_the_longest_mount_over_it() -> None:
    mounts = parse_mounts(MOUNTINFO)

    def path_of(folder: str) -> str:
        mount: Mount | None = mount_of(folder, mounts)
        return mount.path if mount else ""

    assert path_of("/lustre/team/probe") == "/lustre"
    assert path_of("/lustrous") == "/"
    assert path_of("/scratch") == "/scratch"
    assert path_of("relative") == ""


@given(st.text(max_size=300))
@settings(max_examples=200, deadline=None)
def test_any_text_is_read(text: str) -> None:
    for line in (text, "61 27 0:51 / " + text, "device a mounted on b with fstype nfs4 " + text, "\tREAD: " + text):
        parse_mounts(line)
        parse_mountstats("device a mounted on /b with fstype nfs statvers=1.1\n\tper-op statistics\n" + line)
        list(parse_diskstats(line))
        parse_statistics("lfs", line)
        parse_import("x", "osc", line)
        automount_roots(line)


def test_a_megabyte_in_one_line_is_read_quickly() -> None:
    began = time.perf_counter()
    for filler in ("a ", "\\040", "1 ", "- ", "samples [usecs] "):
        text = "61 27 0:51 / " + filler * (1_000_000 // len(filler))
        parse_mounts(text)
        parse_mountstats("device a mounted on /b with fstype nfs statvers=1.1\nper-op statistics\nREAD: " + text)
        parse_statistics("lfs", text)
        parse_import("x", "osc", text)
    assert time.perf_counter() - began < 3


# --- counters ---------------------------------------------------------------------------------------------------------


def test_nfs_operations_by_class() -> None:
    first, second = parse_mountstats(MOUNTSTATS.format(age=100, reads=50, sent=53))
    assert (first.path, first.age_s, first.read_bytes, first.written_bytes) == ("/mnt/data", 100, 4096, 8192)
    assert (first.connects, first.bad_xids, first.backlog) == (3, 1, 11)
    read = first.classes["read"]
    assert (read.operations, read.retransmissions, read.timeouts, read.errors) == (50, 3, 2, 3)
    assert (read.queue_ms, read.rtt_ms, read.execution_ms) == (100, 2000, 2500)
    assert first.classes["write"].operations == 11
    assert first.classes["metadata"].operations == 21
    assert (second.path, second.backlog, second.classes["read"].errors) == ("/mnt/old", 5, 0)


def test_nfs_counters_begin_at_the_mount(proc: Path, collector: StorageCollector) -> None:
    write(proc, {"self/mountinfo": MOUNTINFO, "self/mountstats": MOUNTSTATS.format(age=100, reads=50, sent=53)})
    seen = collector.collect(at(0))
    (point,) = points(seen, "whichrank.nfs.operations", mountpoint="/mnt/data", operation="read")
    assert (point.value, point.start_ns) == (50, at(-100).wall_ns)
    assert value(seen, "whichrank.nfs.round_trip_time", mountpoint="/mnt/data", operation="read") == 2.0
    # Mounted again: younger, although it has already done more.
    write(proc, {"self/mountstats": MOUNTSTATS.format(age=3, reads=70, sent=70)})
    (point,) = points(collector.collect(at(5)), "whichrank.nfs.operations", mountpoint="/mnt/data", operation="read")
    assert (point.value, point.start_ns) == (70, at(0).wall_ns)


def test_disks(proc: Path, collector: StorageCollector) -> None:
    write(proc, {"self/mountinfo": "", "diskstats": DISKSTATS})
    seen = collector.collect(at(0))
    assert {point.attributes["system.device"] for point in seen.points} == {"nvme0n1", "sda"}
    assert value(seen, "system.disk.io", device="nvme0n1", direction="read") == 800 * 512
    assert value(seen, "system.disk.operation_time", device="nvme0n1", direction="write") == 0.09
    assert value(seen, "system.disk.io_time", device="nvme0n1") == 0.12
    assert value(seen, "whichrank.disk.pending", device="nvme0n1") == 3
    # The kernel's milliseconds wrap at 32 bits.
    write(proc, {"diskstats": DISKSTATS.replace("4294967290", "10")})
    later = value(collector.collect(at(5)), "system.disk.operation_time", device="sda", direction="read")
    assert later == pytest.approx((2**32 + 10) / 1000)


@pytest.mark.parametrize("root", ["proc/fs/lustre", "sys/kernel/debug/lustre", "sys/fs/lustre"])
def test_lustre_wherever_a_release_puts_it(root: str, tmp_path: Path, proc: Path, collector: StorageCollector) -> None:
    target = f"{root}/osc/lfs-OST0003-osc-ffff9a3e4c1b8000/import"
    write(tmp_path, {f"{root}/llite/lfs-ffff9a3e4c1b8000/stats": LLITE, target: IMPORT.format(state="FULL")})
    write(proc, {"self/mountinfo": ""})
    seen = collector.collect(at(0))
    assert value(seen, "whichrank.lustre.io", filesystem="lfs", direction="read") == 123456789
    assert value(seen, "whichrank.lustre.operations", filesystem="lfs", operation="open") == 12
    assert value(seen, "whichrank.lustre.operation_time", filesystem="lfs", operation="open") == pytest.approx(0.001932)
    assert value(seen, "whichrank.lustre.targets", kind="osc", state="FULL") == 1
    assert value(seen, "whichrank.lustre.target.timeouts", target="lfs-OST0003") == 6
    assert points(seen, "whichrank.lustre.target.up") == []
    write(tmp_path, {target: IMPORT.format(state="DISCONN")})
    seen = collector.collect(at(5))
    assert value(seen, "whichrank.lustre.target.up", target="lfs-OST0003", server="10.1.0.7@o2ib") == 0
    write(tmp_path, {target: IMPORT.format(state="FULL")})
    assert value(collector.collect(at(10)), "whichrank.lustre.target.up", target="lfs-OST0003") == 1
    assert points(collector.collect(at(15)), "whichrank.lustre.target.up") == []


def test_a_mount_that_goes_and_one_that_becomes_read_only(proc: Path, collector: StorageCollector) -> None:
    write(proc, {"self/mountinfo": MOUNTINFO})
    collector.collect(at(0))
    changed = MOUNTINFO.replace("nvme0n1p2 rw,errors", "nvme0n1p2 ro,errors")
    write(proc, {"self/mountinfo": "\n".join(line for line in changed.splitlines() if "lustre" not in line)})
    seen = collector.collect(at(5))
    assert value(seen, "whichrank.mount.present", mountpoint="/lustre", server="10.1.0.1@o2ib") == 0
    assert value(seen, "whichrank.mount.read_only", mountpoint="/") == 1
    write(proc, {"self/mountinfo": MOUNTINFO})
    assert value(collector.collect(at(10)), "whichrank.mount.present", mountpoint="/lustre") == 1


def test_what_the_automounter_takes_away_is_not_missed(proc: Path, collector: StorageCollector) -> None:
    user = "70 65 0:70 / /home/ada rw - nfs4 nas1:/home/ada rw\n"
    write(proc, {"self/mountinfo": MOUNTINFO + user})
    assert value(collector.collect(at(0)), "whichrank.mount.present", mountpoint="/home/ada") == 1
    write(proc, {"self/mountinfo": MOUNTINFO})
    assert points(collector.collect(at(5)), "whichrank.mount.present", mountpoint="/home/ada") == []


def test_a_node_whose_mounts_cannot_be_read_says_so(collector: StorageCollector) -> None:
    (problem,) = collector.collect(at(0)).problems
    assert "self/mountinfo" in problem


def test_every_point_is_a_metric_that_is_written_down(proc: Path, tmp_path: Path) -> None:
    collector = StorageCollector(proc=proc, sys=tmp_path / "sys", probe_period_s=0)
    root = str(tmp_path)
    write(
        proc,
        {
            "self/mountinfo": f"27 1 8:2 / {root} rw - ext4 /dev/x rw\n28 1 8:3 / {root}/gone rw - ext4 /dev/y rw\n",
            "self/mountstats": MOUNTSTATS.format(age=1, reads=1, sent=1),
            "diskstats": DISKSTATS,
            "fs/lustre/llite/lfs-ffff/stats": LLITE,
            "fs/lustre/osc/lfs-OST0003-osc-ffff/import": IMPORT.format(state="DISCONN"),
        },
    )
    seen: list[Point] = []
    written_down = {name for name in node_metrics() if storage_metric(name)}

    def look() -> bool:
        seen.extend(collector.collect(now()).points)
        return names(seen) >= written_down  # one mount answers, and the other gives an error: whichever is first

    wait_for(look)
    assert names(seen) == written_down
    for point in seen:
        assert set(point.attributes) == set(node_metrics()[point.name].attributes), point.name
    collector.close()


def names(found: list[Point]) -> set[str]:
    return {point.name for point in found}


def storage_metric(name: str) -> bool:
    own = (
        *("system.disk.", "whichrank.disk.", "whichrank.nfs.", "whichrank.lustre.", "whichrank.mount."),
        *("system.filesystem.", "whichrank.filesystem."),
    )
    of_others = ("whichrank.nfs.client.retransmissions", "whichrank.filesystem.unanswered")
    return name.startswith(own) and name not in of_others


def test_garbage_in_every_table(proc: Path, tmp_path: Path, collector: StorageCollector) -> None:
    dice = random.Random(3)
    texts = {
        "self/mountinfo": MOUNTINFO,
        "self/mountstats": MOUNTSTATS.format(age=1, reads=1, sent=1),
        "diskstats": DISKSTATS,
        "fs/lustre/llite/lfs-ffff/stats": LLITE,
        "fs/lustre/osc/lfs-OST0003-osc-ffff/import": IMPORT.format(state="FULL"),
    }
    for round_ in range(150):
        for name, text in texts.items():
            raw = bytearray(text.encode())
            for _ in range(dice.randrange(30)):
                raw[dice.randrange(len(raw))] = dice.choice((0, 10, 32, 45, 57, 255, dice.randrange(256)))
            write(proc, {name: bytes(raw[: dice.randrange(len(raw))])})
        collector.collect(at(round_ * 5))


# --- probes -----------------------------------------------------------------------------------------------------------


def wait_for(condition: Callable[[], object], limit_s: float = 10) -> None:
    deadline = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.01)


def test_a_probe_of_a_folder_that_is_well(tmp_path: Path) -> None:
    probe = MountProbe(str(tmp_path), str(tmp_path))
    probe.ask()
    wait_for(lambda: not probe.is_busy)
    result = probe.take()
    assert result is not None
    assert [(done.operation, done.error) for done in result.operations] == [("stat", ""), ("open", ""), ("write", "")]
    assert result.space is not None
    assert result.space.total_bytes >= result.space.free_bytes >= result.space.available_bytes > 0
    assert list(tmp_path.iterdir()) == []
    assert probe.take() is None
    probe.close()


def test_a_probe_says_what_is_wrong_by_its_name(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    probe = MountProbe(str(tmp_path), str(tmp_path / "file"))
    probe.ask()
    wait_for(lambda: not probe.is_busy)
    result = probe.take()
    assert result is not None
    assert result.operations[-1].error == "ENOTDIR"
    probe.close()


def test_a_folder_behind_a_symbolic_link_is_not_taken_for_the_mounts(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("/dev/shm")
    if os.stat("/dev/shm").st_dev == os.stat(tmp_path).st_dev:
        pytest.skip("/dev/shm and the tests' folder are one file system here")
    probe = MountProbe(str(tmp_path), str(tmp_path / "link"))
    probe.ask()
    wait_for(lambda: not probe.is_busy)
    result = probe.take()
    assert result is not None
    assert result.operations[-1].error == "EXDEV"
    probe.close()


def test_a_mount_that_blocks_is_asked_once(tmp_path: Path) -> None:
    """A probe that cannot come back (a pipe that nobody writes stands for it): one thread, one outstanding probe."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    began: list[float] = []

    class Blocked(MountProbe):
        def _timed(self, *_: object) -> tuple[None, str]:
            began.append(time.monotonic())
            pipe.open("rb").close()
            return None, "EIO"

    probe = Blocked(str(tmp_path))
    for _ in range(5):
        probe.ask()
        time.sleep(0.02)
    assert len(began) == 1
    assert probe.is_busy
    pipe.open("wb").close()
    wait_for(lambda: not probe.is_busy)
    probe.close()


@pytest.fixture
def stalling(tmp_path: Path) -> Iterator[tuple[Path, subprocess.Popen[str]]]:
    """(where it is mounted, its server)."""
    path = tmp_path / "fuse"
    path.mkdir()
    server = subprocess.Popen(
        [sys.executable, stalling_fuse.__file__, str(path), "nas1:/scratch"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert server.stdout is not None
    if server.stdout.readline() != "ready\n":
        server.wait()
        pytest.skip("no FUSE file system can be mounted here: /dev/fuse and CAP_SYS_ADMIN are needed")
    yield path, server
    server.kill()
    server.wait()
    server.stdout.close()
    if server.stderr is not None:
        server.stderr.close()
    stalling_fuse.unmount(str(path))


class Looks:
    """Collects again and again, as the agent does, and keeps what was told."""

    def __init__(self, collector: StorageCollector) -> None:
        self.collector = collector
        self.late: list[NodeEvent] = []
        self.longest_s = 0.0
        self.last = Collected()

    def look(self) -> Collected:
        began = time.monotonic()
        self.last = self.collector.collect(now())
        self.longest_s = max(self.longest_s, time.monotonic() - began)
        self.late += [happening for happening in self.last.happenings if happening.name is EventName.PROBE_LATE]
        time.sleep(0.05)
        return self.last


def test_a_file_system_that_stops_answering_and_answers_again(stalling: tuple[Path, subprocess.Popen[str]]) -> None:
    path, server = stalling
    looks = Looks(StorageCollector(probe_period_s=0.1, limit_s=0.5, write_folders=[str(path)]))
    wait_for(lambda: points(looks.look(), "whichrank.mount.probe.duration", mountpoint=str(path), operation="write"))
    assert looks.late == []
    assert points(looks.last, "whichrank.mount.probe.errors", mountpoint=str(path)) == []

    server.send_signal(signal.SIGSTOP)
    wait_for(lambda: looks.look() and len(looks.late) >= 5)
    ages_s = [happening.attributes["age_s"] for happening in looks.late]
    assert ages_s == sorted(ages_s)
    assert ages_s[0] >= 0.5
    first = looks.late[0].attributes
    assert {key: first[key] for key in ("mount", "fstype", "server", "source", "answered")} == {
        "mount": str(path),
        "fstype": "fuse.played",
        "server": "nas1",
        "source": "nas1:/scratch",
        "answered": False,
    }
    assert value(looks.last, "whichrank.mount.probe.age", mountpoint=str(path)) >= 0.5
    # The other mounts were asked all the while, and nobody waited.
    wait_for(lambda: points(looks.look(), "whichrank.mount.probe.duration", mountpoint="/", operation="stat"))
    assert looks.longest_s < 0.5

    server.send_signal(signal.SIGCONT)
    wait_for(lambda: looks.look() and looks.late[-1].attributes["answered"])
    wait_for(lambda: points(looks.look(), "whichrank.mount.probe.duration", mountpoint=str(path), operation="stat"))
    assert [happening.attributes["answered"] for happening in looks.late].count(True) == 1
    assert value(looks.last, "whichrank.mount.probe.age", mountpoint=str(path)) == 0
    looks.collector.close()


def test_a_dead_mount_that_is_taken_away(stalling: tuple[Path, subprocess.Popen[str]]) -> None:
    path, server = stalling
    looks = Looks(StorageCollector(probe_period_s=0.1, limit_s=0.2))
    wait_for(lambda: points(looks.look(), "whichrank.mount.probe.duration", mountpoint=str(path)))
    server.send_signal(signal.SIGSTOP)
    wait_for(lambda: looks.look() and looks.late)
    stalling_fuse.unmount(str(path))
    looks.look()
    assert looks.late[-1].attributes["answered"]
    assert looks.late[-1].attributes["error"] == "unmounted"
    assert value(looks.last, "whichrank.mount.present", mountpoint=str(path)) == 0
    looks.collector.close()


def test_this_machine() -> None:
    collector = StorageCollector()
    collector.collect(now())
    seen = collector.collect(now())
    wait_for(lambda: points(collector.collect(now()), "whichrank.mount.present", mountpoint="/"))
    assert seen.problems == []
    collector.close()
