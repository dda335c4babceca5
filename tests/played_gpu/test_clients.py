"""Programs that know nothing of whichrank read from the played library what stands in the script."""

from __future__ import annotations

import json
import os
import random
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.played_gpu.clients import GPUSTAT, NVITOP, client
from tests.played_gpu.played import PlayedGpus, Profile, can_be_built

#: Run by nvitop's own Python: its device class asks some forty things of NVML.
_NVITOP_SCRIPT = """
import json, sys
from nvitop import Device
def of(d):
    return {
        "name": d.name(), "uuid": d.uuid(), "bus": d.bus_id(), "serial": d.serial(),
        "gpu": d.gpu_utilization(), "memory": d.memory_utilization(), "temperature": d.temperature(),
        "power": d.power_usage(), "limit": d.power_limit(), "sm": d.sm_clock(), "mem": d.memory_clock(),
        "max_sm": d.max_sm_clock(), "used": d.memory_used(), "total": d.memory_total(),
        "ecc": d.total_volatile_uncorrected_ecc_errors(), "persistence": d.persistence_mode(),
        "tx": d.pcie_tx_throughput(), "links": len(d.nvlink_throughput()),
        "performance": d.performance_state(), "mig": d.mig_mode(), "pids": sorted(d.processes()),
    }
json.dump({"driver": Device.driver_version(), "cuda": Device.cuda_driver_version(),
           "gpus": [of(d) for d in Device.all()]}, sys.stdout)
"""


@pytest.fixture(params=Profile, ids=lambda profile: str(profile.value))
def played(request: pytest.FixtureRequest, tmp_path: Path) -> PlayedGpus:
    """Each GPU with values of its own."""
    if not can_be_built():
        pytest.skip("a C compiler is needed for the played GPUs, and there is none")
    played = PlayedGpus(request.param, tmp_path)
    draw = random.Random(5)
    for gpu in range(played.gpus):
        played.set(
            gpu,
            **{
                "utilization.gpu": draw.randrange(101),
                "utilization.memory": draw.randrange(101),
                "temperature.gpu": draw.randrange(20, 95),
                "power.usage": draw.randrange(60_000, 700_000),
                "clock.sm": draw.randrange(300, 1900),
                "memory.used": draw.randrange(1 << 30, 70 << 30),
                "ecc.volatile.uncorrected": draw.randrange(5),
            },
        )
    played.attach(os.getpid(), 3, 5 << 30)
    return played


def _run(command: list[str], played: PlayedGpus) -> dict[str, Any]:
    clean = {key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "CUDA"))}
    environment: Mapping[str, str] = {**clean, **played.environment()}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert "Error" not in done.stderr, done.stderr
    answer = json.loads(done.stdout)
    assert isinstance(answer, dict)
    return answer


def _number(played: PlayedGpus, gpu: int, key: str) -> int:
    return int(played.value(gpu, key))


def test_nvitop_reads_what_the_script_says(played: PlayedGpus) -> None:
    tools = client(NVITOP)
    if tools is None:
        pytest.skip(f"{NVITOP} cannot be installed here")
    told = _run([str(tools / "python"), "-c", _NVITOP_SCRIPT], played)
    assert told["driver"] == {"a": "525.147.05", "h": "550.90.07", "b": "575.57.08"}[played.profile.value[0]]
    for gpu, seen in enumerate(told["gpus"]):
        assert seen == {
            "name": played.value(gpu, "name"),
            "uuid": played.uuids[gpu],
            "bus": played.value(gpu, "pci.bus_id"),
            "serial": played.value(gpu, "serial"),
            "gpu": _number(played, gpu, "utilization.gpu"),
            "memory": _number(played, gpu, "utilization.memory"),
            "temperature": _number(played, gpu, "temperature.gpu"),
            "power": _number(played, gpu, "power.usage"),
            "limit": _number(played, gpu, "power.limit"),
            "sm": _number(played, gpu, "clock.sm"),
            "mem": _number(played, gpu, "clock.memory"),
            "max_sm": _number(played, gpu, "clock.sm.max"),
            "used": _number(played, gpu, "memory.used"),
            "total": _number(played, gpu, "memory.total"),
            "ecc": _number(played, gpu, "ecc.volatile.uncorrected"),
            "persistence": "Enabled",
            "tx": _number(played, gpu, "pcie.tx_kb_per_s"),
            "links": _number(played, gpu, "nvlink.count"),
            "performance": "P0",
            "mig": "Disabled",
            "pids": [os.getpid()] if gpu == 3 else [],
        }
    assert len(told["gpus"]) == played.gpus


def test_gpustat_reads_what_the_script_says(played: PlayedGpus) -> None:
    tools = client(GPUSTAT)
    if tools is None:
        pytest.skip(f"{GPUSTAT} cannot be installed here")
    told = _run([str(tools / "gpustat"), "--json", "--no-color"], played)
    for gpu, seen in enumerate(told["gpus"]):
        assert seen["uuid"] == played.uuids[gpu]
        assert seen["temperature.gpu"] == _number(played, gpu, "temperature.gpu")
        assert seen["utilization.gpu"] == _number(played, gpu, "utilization.gpu")
        assert seen["power.draw"] == pytest.approx(_number(played, gpu, "power.usage") / 1000, abs=1)
        assert seen["memory.used"] == _number(played, gpu, "memory.used") >> 20
        assert [process["pid"] for process in seen["processes"]] == ([os.getpid()] if gpu == 3 else [])
    assert len(told["gpus"]) == played.gpus


def test_a_change_is_seen_by_a_program_that_runs(tmp_path: Path) -> None:
    """The library reads its script again while the program holds it open."""
    tools = client(NVITOP)
    if tools is None or not can_be_built():
        pytest.skip(f"{NVITOP} cannot be installed here, or no C compiler")
    played = PlayedGpus(Profile.H100, tmp_path)
    script = "from nvitop import Device\nfor _ in sys.stdin: print(Device(1).temperature(), flush=True)"
    with subprocess.Popen(
        [str(tools / "python"), "-c", f"import sys\n{script}"],
        env={**os.environ, **played.environment()},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as program:
        assert program.stdin is not None
        assert program.stdout is not None
        for celsius in (41, 87):
            played.set(1, **{"temperature.gpu": celsius})
            program.stdin.write("\n")
            program.stdin.flush()
            assert int(program.stdout.readline()) == celsius
        program.stdin.close()
