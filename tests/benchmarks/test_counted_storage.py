"""A real mount whose server counts by job, and is slow for everybody when one asks for much."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.counted_storage import job_of_process, name_of_file
from tests.agents.collectors.stalling_fuse import unmount
from tests.ports import free_ports

ROOT = Path(__file__).parents[2]
STAT = "import os, sys\nfor number in range(int(sys.argv[2])): os.stat(f'{sys.argv[1]}/sample-{number:05d}')"


@pytest.fixture
def storage(tmp_path: Path) -> Iterator[tuple[Path, int]]:
    if os.geteuid() != 0 or not Path("/dev/fuse").exists():
        pytest.skip("mounting needs root and /dev/fuse")
    (port,) = free_ports(1)
    path = tmp_path / "work"
    path.mkdir()
    command = [sys.executable, "-m", "benchmarks.counted_storage", str(path), str(port)]
    server = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert server.stdout is not None
    assert server.stdout.readline() == "ready\n"
    yield path, port
    unmount(str(path))
    server.wait(20)


def page(port: int) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        return str(answer.read().decode())


def seconds_for(path: Path, count: int) -> float:
    began = time.monotonic()
    for number in range(count):
        os.stat(path / name_of_file(number))
    return time.monotonic() - began


def test_operations_are_counted_for_the_job_of_the_process_that_asks(storage: tuple[Path, int]) -> None:
    path, port = storage
    for job, count in (("4711", 30), ("", 10)):
        environment = {name: value for name, value in os.environ.items() if name != "SLURM_JOB_ID"}
        environment |= {"SLURM_JOB_ID": job} if job else {}
        subprocess.run([sys.executable, "-c", STAT, str(path), str(count)], env=environment, check=True, timeout=60)
    counted = {
        line.split('jobid="')[1].split('"')[0]: int(line.rsplit(" ", 1)[1])
        for line in page(port).splitlines()
        if line.startswith("lustre_job_stats_total") and 'operation="getattr"' in line
    }
    nameless = next(job for job in counted if job != "4711")
    assert nameless.startswith("python")
    assert nameless.endswith(f".{os.getuid()}")
    assert counted["4711"] >= 30
    assert counted["4711"] == pytest.approx(3 * counted[nameless], rel=0.2)
    assert job_of_process(1 << 30, 7) == "unknown.7"


def test_who_asks_waits_for_all_that_were_asked_before(storage: tuple[Path, int]) -> None:
    path, _ = storage
    alone_s = seconds_for(path, 40)
    ended = threading.Event()

    def storm() -> None:
        while not ended.is_set():
            os.stat(path / name_of_file(1))

    others = [threading.Thread(target=storm) for _ in range(24)]
    for other in others:
        other.start()
    together_s = seconds_for(path, 40)
    ended.set()
    for other in others:
        other.join()
    assert together_s > 5 * alone_s
