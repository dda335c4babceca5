"""The played library beside NVML's binding: versions of structs, buffers in two calls, what each driver branch has."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

from tests.played_gpu.played import NvmlStatus, PlayedGpus, Profile, can_be_built

_PREFACE = """
import ctypes, json, sys, time
import pynvml as nvml
nvml.nvmlInit()
library = ctypes.CDLL("libnvidia-ml.so.1")
device = nvml.nvmlDeviceGetHandleByIndex(0)
def status(call, *arguments):
    try:
        call(*arguments)
        return 0
    except nvml.NVMLError as error:
        return error.value
"""


@pytest.fixture(params=Profile, ids=lambda profile: str(profile.value))
def played(request: pytest.FixtureRequest, tmp_path: Path) -> PlayedGpus:
    if not can_be_built():
        pytest.skip("a C compiler is needed for the played GPUs, and there is none")
    return PlayedGpus(request.param, tmp_path)


def _ask(played: PlayedGpus, script: str) -> Any:
    """What a Python with pynvml says: ``script`` leaves it in ``answer``."""
    whole = f"{_PREFACE}\n{textwrap.dedent(script)}\njson.dump(answer, sys.stdout)"
    environment = {**os.environ, **played.environment()}
    done = subprocess.run([sys.executable, "-c", whole], env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_a_struct_of_another_version_is_refused(played: PlayedGpus) -> None:
    answer = _ask(
        played,
        """
        right, wrong = nvml.c_nvmlMemory_v2_t(), nvml.c_nvmlMemory_v2_t()
        right.version, wrong.version = nvml.nvmlMemory_v2, nvml.nvmlMemory_v2 + (1 << 24)
        answer = [
            library.nvmlDeviceGetMemoryInfo_v2(device, ctypes.byref(right)),
            library.nvmlDeviceGetMemoryInfo_v2(device, ctypes.byref(wrong)),
            right.used,
            nvml.nvmlDeviceGetMemoryInfo(device).used,
        ]
        """,
    )
    used, reserved = int(played.value(0, "memory.used")), int(played.value(0, "memory.reserved"))
    assert answer == [0, 25, used, used + reserved]


def test_buffers_in_two_calls(played: PlayedGpus) -> None:
    """A buffer that is too small is not written to, and told its size; so in each version of the call."""
    for pid in (11, 12, 13):
        played.attach(pid, 0, pid << 20)
    answer = _ask(
        played,
        """
        answer = []
        for name, kind in (
            ("nvmlDeviceGetComputeRunningProcesses_v3", nvml.c_nvmlProcessInfo_v3_t),
            ("nvmlDeviceGetComputeRunningProcesses_v2", nvml.c_nvmlProcessInfo_v2_t),
        ):
            call, count = getattr(library, name), ctypes.c_uint(0)
            first = call(device, ctypes.byref(count), None)
            small, two = (kind * 2)(), ctypes.c_uint(2)
            second = call(device, ctypes.byref(two), small)
            whole, three = (kind * 3)(), ctypes.c_uint(3)
            third = call(device, ctypes.byref(three), whole)
            answer.append([first, count.value, second, two.value, small[0].pid, third, [p.pid for p in whole]])
        answer.append([p.usedGpuMemory for p in nvml.nvmlDeviceGetComputeRunningProcesses(device)])
        """,
    )
    assert answer[0] == answer[1] == [7, 3, 7, 3, 0, 0, [11, 12, 13]]
    assert answer[2] == [pid << 20 for pid in (11, 12, 13)]


def test_each_branch_has_its_calls(played: PlayedGpus) -> None:
    names = {
        "nvmlDeviceGetCurrentClocksThrottleReasons": 0,
        "nvmlDeviceGetCurrentClocksEventReasons": 535,
        "nvmlDeviceGetRunningProcessDetailList": 535,
        "nvmlDeviceGetGpuFabricInfoV": 545,
        "nvmlDeviceGetSramEccErrorStatus": 550,
        "nvmlDeviceGetTemperatureV": 565,
        "nvmlDeviceGetMarginTemperature": 565,
    }
    branch = int(played.profile.value.partition("-")[2])
    answer = _ask(played, f"answer = [hasattr(library, name) for name in {list(names)!r}]")
    assert answer == [branch >= since for since in names.values()]


def test_versioned_structs_of_newer_branches(played: PlayedGpus) -> None:
    branch = int(played.profile.value.partition("-")[2])
    missing = 13
    answer = _ask(
        played,
        """
        fabric2, fabric3 = nvml.c_nvmlGpuFabricInfo_v2_t(), nvml.c_nvmlGpuFabricInfo_v3_t()
        sram = nvml.c_nvmlEccSramErrorStatus_v1_t()
        answer = [
            status(nvml.nvmlDeviceGetTemperatureV, device, 0),
            status(nvml.nvmlDeviceGetGpuFabricInfoV, device, ctypes.byref(fabric2)),
            status(nvml.nvmlDeviceGetGpuFabricInfoV, device, ctypes.byref(fabric3)),
            status(nvml.nvmlDeviceGetSramEccErrorStatus, device, ctypes.byref(sram)),
            status(nvml.nvmlDeviceGetMarginTemperature, device),
            fabric2.state,
        ]
        """,
    )
    since_565 = 0 if branch >= 565 else missing
    since_545 = 0 if branch >= 545 else missing
    third = {525: missing, 550: 25, 575: 0}[branch]
    assert answer == [since_565, since_545, third, since_545, since_565, 3 if branch >= 545 else 0]


def test_field_values_have_a_status_each(played: PlayedGpus) -> None:
    played.set(0, **{"temperature.memory": 77, "field.193": -4, "remapped.corrected": NvmlStatus.UNKNOWN})
    answer = _ask(
        played,
        """
        values = nvml.nvmlDeviceGetFieldValues(device, [82, 142, 150, 9999, (138, 0xFFFFFFFF), (138, 3), (138, 17)])
        answer = [[v.nvmlReturn, v.value.uiVal if v.nvmlReturn == 0 else None] for v in values]
        """,
    )
    links = int(played.value(0, "nvlink.count"))
    one = int(played.value(0, "nvlink.*.tx_kib"))
    last = [0, one] if links == 18 else [3, None]
    assert answer == [[0, 77], [999, None], [3, None], [2, None], [0, one * links], [0, one], last]


def test_event_waits_time_out(played: PlayedGpus) -> None:
    answer = _ask(
        played,
        """
        events = nvml.nvmlEventSetCreate()
        nvml.nvmlDeviceRegisterEvents(device, nvml.nvmlEventTypeXidCriticalError, events)
        began = time.monotonic()
        answer = [status(nvml.nvmlEventSetWait, events, 200)]
        answer.append(0.19 < time.monotonic() - began < 2)
        nvml.nvmlEventSetFree(events)
        """,
    )
    assert answer == [10, True]


def test_a_call_before_the_initialisation_is_refused(played: PlayedGpus) -> None:
    answer = _ask(
        played,
        """
        nvml.nvmlShutdown()
        answer = [status(nvml.nvmlDeviceGetCount), status(nvml.nvmlShutdown)]
        nvml.nvmlInit()
        answer.append(status(nvml.nvmlDeviceGetCount))
        """,
    )
    assert answer == [1, 1, 0]


def test_handles_by_name(played: PlayedGpus) -> None:
    answer = _ask(
        played,
        f"""
        answer = [
            nvml.nvmlDeviceGetIndex(nvml.nvmlDeviceGetHandleByUUID({played.uuids[6]!r})),
            nvml.nvmlDeviceGetIndex(nvml.nvmlDeviceGetHandleByPciBusId(b"00000000:9D:00.0")),
            status(nvml.nvmlDeviceGetHandleByUUID, "GPU-nobody"),
            status(nvml.nvmlDeviceGetHandleByIndex, 8),
        ]
        """,
    )
    assert answer == [6, 4, 6, 2]
