"""A node with eight GPUs that do not exist: a ``libnvidia-ml.so.1`` that answers from a script, which tests rewrite.

``PlayedGpus`` owns a folder: ``script`` (every value, replaced as a whole), ``events`` (appended to) and ``lib``. Any
process with ``environment()`` sees this node through NVML; what is changed here it sees at its next call.

Keys are those of ``profiles/*.txt``, where ``*`` stands for every GPU; a GPU's own line goes before. A value may be an
``NvmlStatus``, which the call then returns. No line: NOT_SUPPORTED.
"""

from __future__ import annotations

import shutil
import subprocess
import time
import uuid
from collections.abc import Mapping
from enum import Enum, IntEnum
from pathlib import Path

from tests.stack.parts.cache import digest_of, made_once

FOLDER = Path(__file__).parent
GPUS = 8
#: As the firmware of such boards numbers them: neither close together nor from zero.
_BUSES = (0x1B, 0x43, 0x52, 0x61, 0x9D, 0xC3, 0xD1, 0xDF)


class Profile(str, Enum):
    A100 = "a100-525"
    H100 = "h100-550"
    B200 = "b200-575"


class NvmlStatus(IntEnum):
    UNINITIALIZED = 1
    INVALID_ARGUMENT = 2
    NOT_SUPPORTED = 3
    NO_PERMISSION = 4
    DRIVER_NOT_LOADED = 9
    GPU_IS_LOST = 15
    RESET_REQUIRED = 16
    LIB_RM_VERSION_MISMATCH = 18
    UNKNOWN = 999


class EventType(IntEnum):
    ECC_CORRECTED = 0x1
    ECC_UNCORRECTED = 0x2
    XID = 0x8
    GPU_UNAVAILABLE = 0x4000
    RECOVERY_ACTION = 0x8000


#: Bits of the clock event reasons, by the words that ``nvidia-smi -q`` has for them.
THROTTLE_BITS = {
    "gpu_idle": 0x1,
    "applications_clocks_setting": 0x2,
    "sw_power_cap": 0x4,
    "hw_slowdown": 0x8,
    "sync_boost": 0x10,
    "sw_thermal_slowdown": 0x20,
    "hw_thermal_slowdown": 0x40,
    "hw_power_brake_slowdown": 0x80,
    "display_clock_setting": 0x100,
}

Value = int | float | str | NvmlStatus


def can_be_built() -> bool:
    return shutil.which("cc") is not None


def library(driver: int) -> Path:
    """The library of one driver branch, compiled once."""
    sources = sorted(FOLDER.glob("*.[ch]"))

    def make(target: Path) -> None:
        flags = ["-O2", "-Wall", "-Wextra", "-Werror", "-std=gnu11", "-fvisibility=hidden", "-shared", "-fPIC"]
        flags += ["-Wl,-soname,libnvidia-ml.so.1", f"-DDRIVER={driver}", "-o", str(target)]
        files = [str(source) for source in sources if source.suffix == ".c"]
        subprocess.run(["cc", *flags, *files, "-lpthread"], check=True, timeout=120)

    return made_once(f"played-gpu-{driver}", digest_of([source.read_bytes() for source in sources]), make)


class PlayedGpus:
    """folder: of this node, on a local file system (the library sleeps on inotify). name: of several such nodes."""

    def __init__(self, profile: Profile | str, folder: Path, *, gpus: int = GPUS, name: str = "") -> None:
        self.profile = Profile(profile)
        self.folder = folder
        self.gpus = gpus
        self.uuids = tuple(_uuid(f"{self.profile.value}/{name}{gpu}") for gpu in range(gpus))
        self._script = _read_profile(self.profile)
        self._script["system/gpus"] = str(gpus)
        self._processes: dict[int, dict[int, tuple[int, int, int]]] = {gpu: {} for gpu in range(gpus)}
        for gpu in range(gpus):
            self._script[f"{gpu}/uuid"] = self.uuids[gpu]
            self._script[f"{gpu}/serial"] = f"16530230{gpu:05d}"
            self._script[f"{gpu}/minor"] = str(gpu)
            self._script[f"{gpu}/pci.bus_id"] = f"00000000:{_BUSES[gpu % len(_BUSES)]:02X}:00.0"
        libraries = folder / "lib"
        libraries.mkdir(parents=True, exist_ok=True)
        (folder / "events").touch()
        (libraries / "libnvidia-ml.so.1").symlink_to(library(int(self._script["system/driver"])))
        self._write()

    def environment(self) -> dict[str, str]:
        """For every process that is to see this node."""
        return {"LD_LIBRARY_PATH": str(self.folder / "lib"), "WHICHRANK_PLAYED_GPU": str(self.folder)}

    def pci_bus(self, gpu: int) -> str:
        """As sysfs and the kernel log write it: "0000:1b:00.0"."""
        return self._script[f"{gpu}/pci.bus_id"][4:].lower()

    def value(self, gpu: int, key: str) -> str:
        """What the script says now. KeyError: nothing."""
        own = self._script.get(f"{gpu}/{key}")
        return own if own is not None else self._script[f"*/{key}"]

    def set(self, gpu: int, **values: Value) -> None:
        """``set(3, **{"temperature.gpu": 91})``."""
        for key, value in values.items():
            self._script[f"{gpu}/{key}"] = _written(value)
        self._write()

    def set_all(self, values: Mapping[str, Value | None]) -> None:
        """Of every GPU that has no line of its own; None takes the line away."""
        for key, value in values.items():
            if value is None:
                self._script.pop(f"*/{key}", None)
            else:
                self._script[f"*/{key}"] = _written(value)
        self._write()

    def set_system(self, **values: Value) -> None:
        """``set_system(driver_version="550.127.08")``."""
        for key, value in values.items():
            self._script[f"system/{key}"] = _written(value)
        self._write()

    def xid(self, gpu: int, code: int) -> None:
        self.event(gpu, EventType.XID, code)

    def event(self, gpu: int, kind: EventType, data: int = 0) -> None:
        whole_gpu = 0xFFFFFFFF
        with (self.folder / "events").open("a") as events:
            events.write(f"{gpu} {kind.value} {data} {whole_gpu} {whole_gpu}\n")

    def lose(self, gpu: int) -> None:
        """It has fallen off the bus: every call on it says so. No Xid comes with it: ``xid(gpu, 79)``."""
        self.set(gpu, lost=1)

    def bring_back(self, gpu: int) -> None:
        del self._script[f"{gpu}/lost"]
        self._write()

    def block(self, seconds: float | None = None, gpu: int | None = None) -> None:
        """Calls on the GPU (None: all calls) do not return for so long (None: until ``unblock``)."""
        until = "forever" if seconds is None else f"{time.monotonic() + seconds:.6f}"
        self._script["system/blocked" if gpu is None else f"{gpu}/blocked"] = until
        self._write()

    def unblock(self) -> None:
        for key in [key for key in self._script if key.endswith("/blocked")]:
            del self._script[key]
        self._write()

    def link_down(self, gpu: int, link: int) -> None:
        self.set(gpu, **{f"nvlink.{link}.state": 0})

    def link_up(self, gpu: int, link: int) -> None:
        self.set(gpu, **{f"nvlink.{link}.state": 1})

    def throttle(self, gpu: int, *reasons: str) -> None:
        """Slows the GPU to a third for these reasons (``THROTTLE_BITS``); none: full speed again."""
        full_mhz = int(_read_profile(self.profile)["*/clock.sm"])
        clock_mhz = full_mhz // 3 if reasons else full_mhz
        bits = sum(THROTTLE_BITS[reason] for reason in reasons)
        self.set(gpu, throttle=hex(bits), **{"clock.sm": clock_mhz, "clock.graphics": clock_mhz})

    def attach(self, pid: int, gpu: int, memory_bytes: int = 1 << 30, mig: tuple[int, int] | None = None) -> None:
        """A process opens a context there. mig: its GPU and compute instance."""
        whole_gpu = 0xFFFFFFFF
        instance = mig or (whole_gpu, whole_gpu)
        self._processes[gpu][pid] = (memory_bytes, *instance)
        self._write_processes(gpu)

    def detach(self, pid: int) -> None:
        for gpu, processes in self._processes.items():
            if processes.pop(pid, None) is not None:
                self._write_processes(gpu)

    def split(self, gpu: int, instances: int) -> tuple[str, ...]:
        """Puts the GPU into MIG mode, with so many equal instances: their UUIDs."""
        uuids = tuple(_uuid(f"{self.profile.value}/{gpu}/{mig}", "MIG") for mig in range(instances))
        values: dict[str, Value] = {"mig.mode": 1, "mig.mode.pending": 1}
        for mig, identifier in enumerate(uuids):
            self._script[f"{gpu}.mig.{mig}/uuid"] = identifier
            self._script[f"{gpu}.mig.{mig}/mig.gpu_instance"] = str(mig + 1)
            self._script[f"{gpu}.mig.{mig}/mig.compute_instance"] = "0"
            self._script[f"{gpu}.mig.{mig}/memory.total"] = str(int(self.value(gpu, "memory.total")) // 8)
            self._script[f"{gpu}.mig.{mig}/memory.used"] = "0"
        # What nobody can say of a GPU that is split.
        self.set(gpu, **values, **{"utilization.gpu": NvmlStatus.NOT_SUPPORTED})
        return uuids

    def driver_gone(self, status: NvmlStatus = NvmlStatus.DRIVER_NOT_LOADED) -> None:
        self._script["system/init"] = _written(status)
        self._write()

    def driver_back(self) -> None:
        """Loaded anew: clients of before must initialise again."""
        self._script.pop("system/init", None)
        self._script["system/generation"] = str(int(self._script.get("system/generation", "0")) + 1)
        self._write()

    def _write_processes(self, gpu: int) -> None:
        items = (f"{pid}:{memory}:{gi}:{ci}" for pid, (memory, gi, ci) in self._processes[gpu].items())
        self.set(gpu, processes=",".join(items))

    def _write(self) -> None:
        new = self.folder / "script.new"
        new.write_text("".join(f"{key} {value}\n" for key, value in self._script.items()))
        new.rename(self.folder / "script")


def _written(value: Value) -> str:
    return f"error:{value.value}" if isinstance(value, NvmlStatus) else str(value)


def _uuid(name: str, kind: str = "GPU") -> str:
    return f"{kind}-{uuid.uuid5(uuid.NAMESPACE_OID, name)}"


def _read_profile(profile: Profile) -> dict[str, str]:
    lines = (FOLDER / "profiles" / f"{profile.value}.txt").read_text().splitlines()
    return dict(line.split(" ", 1) for line in lines if not line.startswith("#"))
