"""Which rank is on which GPU: by the driver, and without it by what CUDA makes of the rank's environment."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.agents.collectors.conftest import Start
from tests.played_gpu.played import NvmlStatus, PlayedGpus
from whichrank.agents.collectors.gpu.driver import Gpu, MigDevice
from whichrank.agents.collectors.gpu.pci_names import normalise_pci
from whichrank.agents.collectors.gpu.ranks import (
    GpuRankProcesses,
    RankProcess,
    parse_environment,
    place_rank,
    visible_devices,
)
from whichrank.agents.processes.processes import read_stat
from whichrank.telemetry.vocabulary import EventName


def _gpu(index: int, uuid: str, *, model: str = "H100", mig: tuple[str, ...] = ()) -> Gpu:
    return Gpu(
        uuid=uuid,
        index=index,
        pci_bus=f"0000:{index:02x}:00.0",
        model=model,
        serial="",
        vbios="",
        handle=None,
        mig=tuple(MigDevice(uuid=name, gpu_instance=at + 1, compute_instance=0) for at, name in enumerate(mig)),
    )


GPUS = (_gpu(0, "GPU-aaaa0000"), _gpu(1, "GPU-aaaa1111"), _gpu(2, "GPU-bbbb2222"), _gpu(3, "GPU-cccc3333"))
SPLIT = (_gpu(0, "GPU-aaaa0000", mig=("MIG-1111", "MIG-1122")), _gpu(1, "GPU-aaaa1111", mig=("MIG-2222",)))


@pytest.mark.parametrize(
    ("text", "indices"),
    [
        ("0,1,2,3", [0, 1, 2, 3]),
        ("3,1", [3, 1]),
        (" 2 , 0", [2, 0]),
        ("", []),
        ("-1", []),
        ("NoDevFiles", []),
        ("1,-1,2", [1]),
        ("1,7,2", [1]),
        ("2x,1", [2, 1]),
        ("x2,1", []),
        ("1,1", []),
        ("0,,2", [0]),
        ("99999999999999999999", []),
        ("GPU-cccc3333,GPU-aaaa1111", [3, 1]),
        ("GPU-c,GPU-b", [3, 2]),
        ("GPU-aaaa", []),
        ("GPU-c,GPU-aaaa,GPU-b", [3]),
        ("GPU-c,GPU-c", []),
        ("GPU-c,0", [3]),
        ("0,GPU-c", [0]),
        ("GPU-dddd", []),
    ],
)
def test_cuda_visible_devices(text: str, indices: list[int]) -> None:
    """CUDA's rules: the list ends at the first word that is no device, and is empty where one stands twice."""
    assert [choice.gpu.index for choice in visible_devices(text, GPUS)] == indices


@pytest.mark.parametrize(
    ("text", "chosen"),
    [
        ("MIG-1122", [(0, "MIG-1122")]),
        ("MIG-2222,MIG-1122", [(1, "MIG-2222")]),
        ("MIG-11", []),
        ("MIG-GPU-aaaa0000/2/0", []),
        ("MIG-GPU-aaaa1111/1/0", [(1, "MIG-2222")]),
    ],
)
def test_cuda_visible_devices_of_instances(text: str, chosen: list[tuple[int, str]]) -> None:
    gpus = (_gpu(0, "GPU-aaaa0000"), SPLIT[1]) if "GPU-aaaa0000" in text else SPLIT
    assert [(choice.gpu.index, choice.mig) for choice in visible_devices(text, gpus)] == chosen


def _rank(local_rank: int, **variables: str) -> RankProcess:
    given_variables = {"LOCAL_RANK": str(local_rank), **variables}
    return RankProcess(pid=1, start_ticks=1, executable="", variables=given_variables)


@pytest.mark.parametrize(
    ("local_rank", "variables", "index", "method", "certainty"),
    [
        (2, {"CUDA_VISIBLE_DEVICES": "3,1,0,2"}, 0, "cuda_visible_devices", "likely"),
        (1, {"CUDA_VISIBLE_DEVICES": "GPU-c,GPU-b"}, 2, "cuda_visible_devices", "likely"),
        # A single one left is the rank's, whatever its number: a launcher that gives each rank its own.
        (5, {"CUDA_VISIBLE_DEVICES": "3"}, 3, "cuda_visible_devices", "likely"),
        (1, {}, 1, "local_rank", "doubtful"),
        (1, {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}, 1, "local_rank", "doubtful"),
        # In a container that was given two GPUs, numbers count those.
        (1, {"NVIDIA_VISIBLE_DEVICES": "2,3", "CUDA_VISIBLE_DEVICES": "1,0"}, 2, "cuda_visible_devices", "doubtful"),
        (0, {"NVIDIA_VISIBLE_DEVICES": "GPU-bbbb2222"}, 2, "local_rank", "doubtful"),
        (1, {"NVIDIA_VISIBLE_DEVICES": "all", "CUDA_VISIBLE_DEVICES": "0,3"}, 3, "cuda_visible_devices", "likely"),
    ],
)
def test_placing(local_rank: int, variables: dict[str, str], index: int, method: str, certainty: str) -> None:
    place = place_rank(_rank(local_rank, **variables), GPUS)
    assert place is not None
    assert (place.gpu.index, place.method, place.certainty) == (index, method, certainty)
    assert bool(place.why) == (certainty == "doubtful")


@pytest.mark.parametrize(
    "variables",
    [
        {"CUDA_VISIBLE_DEVICES": ""},
        {"CUDA_VISIBLE_DEVICES": "0,1,2"},
        {"NVIDIA_VISIBLE_DEVICES": "none"},
        {"CUDA_VISIBLE_DEVICES": "GPU-aaaa"},
    ],
)
def test_no_place_is_better_than_a_wrong_one(variables: dict[str, str]) -> None:
    assert place_rank(_rank(3, **variables), GPUS) is None


@pytest.mark.parametrize(
    ("order", "certainty"), [("", "doubtful"), ("FASTEST_FIRST", "doubtful"), ("PCI_BUS_ID", "likely")]
)
def test_numbers_among_different_gpus_depend_on_cudas_order(order: str, certainty: str) -> None:
    gpus = (GPUS[0], _gpu(1, "GPU-dddd", model="A10"))
    variables = {"CUDA_VISIBLE_DEVICES": "1,0", **({"CUDA_DEVICE_ORDER": order} if order else {})}
    place = place_rank(_rank(0, **variables), gpus)
    assert place is not None
    assert (place.certainty, place.gpu.index) == (certainty, 1)
    named = place_rank(_rank(0, **{**variables, "CUDA_VISIBLE_DEVICES": "GPU-dddd,GPU-aaaa0000"}), gpus)
    assert named is not None
    assert named.certainty == "likely"


@settings(max_examples=300, deadline=None)
@given(
    text=st.one_of(
        st.text(max_size=60), st.lists(st.sampled_from(["0", "1", "-1", "GPU-a", "GPU-", "MIG-", ",", "9" * 40]))
    ),
    local_rank=st.integers(0, 20),
)
def test_no_environment_makes_it_fail(text: str | list[str], local_rank: int) -> None:
    words = text if isinstance(text, str) else ",".join(text)
    for variables in ({"CUDA_VISIBLE_DEVICES": words}, {"NVIDIA_VISIBLE_DEVICES": words}):
        place = place_rank(_rank(local_rank, **variables), GPUS)
        assert place is None or place.gpu in GPUS


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=500))
def test_any_bytes_are_an_environment(raw: bytes) -> None:
    found = parse_environment(b"LOCAL_RANK=3\0" + raw + b"\0CUDA_VISIBLE_DEVICES=" + b"\xff" * 10_000)
    assert found["LOCAL_RANK"] == "3"
    assert all(len(value) <= 4096 for value in found.values())


def test_nothing_else_of_an_environment_is_kept() -> None:
    raw = b"WANDB_API_KEY=secret\0LOCAL_RANK=1\0RANK=9\0XRANK=8\0LOCAL_RANK=2\0"
    assert parse_environment(raw) == {"LOCAL_RANK": "1", "RANK": "9"}


@pytest.mark.parametrize(
    ("text", "normal"),
    [
        ("00000000:1B:00.0", "0000:1b:00.0"),
        ("0000:1b:00", "0000:1b:00.0"),
        ("00010000:C3:00.0", "10000:c3:00.0"),
        ("1B:00.0", "0000:1b:00.0"),
        ("no place", "no place"),
    ],
)
def test_pci_addresses_are_written_as_sysfs_does(text: str, normal: str) -> None:
    assert normalise_pci(text) == normal


class _Ranks:
    """Processes that a launcher could have started: each sleeps."""

    def __init__(self) -> None:
        self.started: list[subprocess.Popen[bytes]] = []

    def start(self, **variables: str) -> int:
        clean = {key: value for key, value in os.environ.items() if "CUDA" not in key and "NVIDIA" not in key}
        process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"], env={**clean, **variables})
        self.started.append(process)
        wanted = f"LOCAL_RANK={variables['LOCAL_RANK']}\0".encode()
        while wanted not in Path(f"/proc/{process.pid}/environ").read_bytes():
            time.sleep(0.005)
        return process.pid

    def proc(self, folder: Path) -> Path:
        """A /proc in which nothing runs but these."""
        for process in self.started:
            (folder / str(process.pid)).symlink_to(f"/proc/{process.pid}")
        return folder


@pytest.fixture
def ranks() -> Iterator[_Ranks]:
    started = _Ranks()
    yield started
    for process in started.started:
        process.kill()
        process.wait()


@pytest.fixture
def proc(tmp_path: Path) -> Path:
    (tmp_path / "proc").mkdir()
    return tmp_path / "proc"


def _places(happenings: object) -> list[Mapping[str, object]]:
    return [item.attributes for item in happenings if item.name is EventName.RANK_DEVICE]  # type: ignore[attr-defined]


def test_the_driver_says_where_a_rank_is(played: PlayedGpus, start: Start, ranks: _Ranks, proc: Path) -> None:
    """Permuted CUDA_VISIBLE_DEVICES, each rank on the GPU that it names; told once, as soon as there is a context."""
    order = [3, 0, 7, 4]
    pids = [
        ranks.start(LOCAL_RANK=str(at), RANK=str(8 + at), CUDA_VISIBLE_DEVICES=",".join(map(str, order)))
        for at in range(len(order))
    ]
    collector = start(played, ranks.proc(proc))
    assert not _places(collector.collect().happenings)
    for pid, gpu in zip(pids, order, strict=True):
        played.attach(pid, gpu, 3 << 30)
    collected = collector.collect()
    places = {place["rank"]: place for place in _places(collected.happenings)}
    for at, gpu in enumerate(order):
        place = dict(places[8 + at])
        assert place == {
            "pid": pids[at],
            "rank": 8 + at,
            "local_rank": at,
            "gpu_uuid": played.uuids[gpu],
            "gpu_index": gpu,
            "pci_bus": played.pci_bus(gpu),
            "mig": "",
            "method": "nvml_processes",
            "certainty": "certain",
            "gpu_memory_bytes": 3 << 30,
            "expected": True,
        }
    assert [item.pid for item in collected.happenings] == [places[8 + at]["pid"] for at in (1, 0, 3, 2)]
    assert not _places(collector.collect().happenings)


def test_a_rank_on_a_gpu_that_is_not_its_own(h100: PlayedGpus, start: Start, ranks: _Ranks, proc: Path) -> None:
    """The classic: every rank has a context on GPU 0 as well."""
    pid = ranks.start(LOCAL_RANK="5", CUDA_VISIBLE_DEVICES="0,1,2,3,4,5,6,7")
    h100.attach(pid, 0)
    h100.attach(pid, 5)
    places = _places(start(h100, ranks.proc(proc)).collect().happenings)
    assert [(place["gpu_index"], place["expected"]) for place in places] == [(0, False), (5, True)]


def test_without_processes_the_environment_says_it(h100: PlayedGpus, start: Start, ranks: _Ranks, proc: Path) -> None:
    h100.set_all({"processes": NvmlStatus.NO_PERMISSION})
    for gpu in range(h100.gpus):
        h100.set(gpu, processes=NvmlStatus.NO_PERMISSION)
    pid = ranks.start(LOCAL_RANK="1", CUDA_VISIBLE_DEVICES=f"{h100.uuids[6]},{h100.uuids[2]}")
    collected = start(h100, ranks.proc(proc)).collect()
    (place,) = _places(collected.happenings)
    assert (place["pid"], place["gpu_index"], place["gpu_uuid"]) == (pid, 2, h100.uuids[2])
    assert (place["method"], place["certainty"]) == ("cuda_visible_devices", "likely")
    assert any("ranks are placed by their environment" in line for line in collected.problems)


def test_a_rank_that_the_driver_does_not_name(h100: PlayedGpus, start: Start, ranks: _Ranks, proc: Path) -> None:
    """It may come to its GPU yet: only at the second look its environment speaks, and the driver corrects it."""
    pid = ranks.start(LOCAL_RANK="1")
    collector = start(h100, ranks.proc(proc))
    assert not _places(collector.collect().happenings)
    (place,) = _places(collector.collect().happenings)
    assert (place["gpu_index"], place["certainty"]) == (1, "doubtful")
    assert "the driver knows of no process of it" in str(place["why"])
    assert not _places(collector.collect().happenings)
    h100.attach(pid, 1)
    (place,) = _places(collector.collect().happenings)
    assert (place["gpu_index"], place["certainty"]) == (1, "certain")
    h100.detach(pid)
    assert not _places(collector.collect().happenings)


def test_a_rank_in_a_mig_instance(h100: PlayedGpus, start: Start, ranks: _Ranks, proc: Path) -> None:
    uuids = h100.split(2, 2)
    pid = ranks.start(LOCAL_RANK="0", CUDA_VISIBLE_DEVICES=uuids[1])
    h100.attach(pid, 2, mig=(2, 0))
    (place,) = _places(start(h100, ranks.proc(proc)).collect().happenings)
    assert (place["gpu_index"], place["mig"], place["certainty"]) == (2, uuids[1], "certain")
    assert place["expected"]


def test_numbers_still_count_a_gpu_that_is_lost(h100: PlayedGpus, start: Start, ranks: _Ranks, proc: Path) -> None:
    for gpu in range(h100.gpus):
        h100.set(gpu, processes=NvmlStatus.NOT_SUPPORTED)
    collector = start(h100, proc)
    collector.collect()
    h100.lose(0)
    collector.collect()
    ranks.start(LOCAL_RANK="3", CUDA_VISIBLE_DEVICES="0,1,2,3")
    ranks.proc(proc)
    (place,) = _places(collector.collect().happenings)
    assert place["gpu_uuid"] == h100.uuids[3]


def test_helpers_that_inherit_a_rank_are_none() -> None:
    """A loader's worker has its rank's environment."""
    worker = "subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'], stdout=subprocess.DEVNULL)"
    process = subprocess.Popen(
        [sys.executable, "-c", f"import subprocess, sys, time; {worker}; print(flush=True); time.sleep(60)"],
        env={**os.environ, "LOCAL_RANK": "4"},
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == b"\n"
        running = [int(name) for name in os.listdir("/proc") if name.isdecimal()]
        assert len([pid for pid in running if _descends(pid, process.pid)]) == 2
        assert [pid for pid in GpuRankProcesses().look() if _descends(pid, process.pid)] == [process.pid]
    finally:
        os.killpg(process.pid, 9)
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


def _descends(pid: int, ancestor: int) -> bool:
    stat = read_stat(pid)
    return stat is not None and ancestor in (pid, stat.parent_pid)


def test_a_rank_that_was_just_being_started(tmp_path: Path) -> None:
    """Between fork and exec a process still has its launcher's environment."""
    folder = tmp_path / "77"
    folder.mkdir()
    (folder / "stat").write_text("77 (python) S 1 " + "0 " * 17 + "5000 " + "0 " * 30)
    (folder / "environ").write_bytes(b"PATH=/bin\0")
    processes = GpuRankProcesses(tmp_path)
    assert not processes.look()
    (folder / "environ").write_bytes(b"PATH=/bin\0LOCAL_RANK=6\0")
    assert [rank.local_rank for rank in processes.look().values()] == [6]


def test_ranks_that_end_are_forgotten(ranks: _Ranks, proc: Path) -> None:
    pid = ranks.start(LOCAL_RANK="0")
    ranks.proc(proc)
    processes = GpuRankProcesses(proc)
    assert set(processes.look()) == {pid}
    ranks.started[0].kill()
    ranks.started[0].wait()
    (proc / str(pid)).unlink()
    assert not processes.look()
    other = ranks.start(LOCAL_RANK="1")
    (proc / str(pid)).symlink_to(f"/proc/{other}")
    assert [rank.local_rank for rank in processes.look().values()] == [1]
