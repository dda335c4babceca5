"""A node with eight of AMD's GPUs that do not exist: a ``libamd_smi.so`` that answers AMD's own package from a script.

``PlayedAmd`` owns a folder: ``script`` and ``events`` as in ``tests.played_gpu``, ``rocm`` (the library, and beside it
the real package ``amdsmi`` from the package index) and ``sys`` (what the PCI bus shows). A process with
``environment()`` that looks at that ``sys`` sees this node. Keys are those of ``profiles/*.txt``.
"""

from __future__ import annotations

import os
import subprocess
import sys
import uuid
from collections.abc import Mapping
from pathlib import Path

from tests.played_gpu.clients import client
from tests.played_gpu.played import can_be_built
from tests.stack.parts.cache import digest_of, made_once

FOLDER = Path(__file__).parent
_SCRIPT_SOURCES = FOLDER.parent / "played_gpu"
#: Of a release of ROCm, repackaged: AMD itself brings it with ROCm only.
PACKAGE = "amdsmi==7.0.2"
GPUS = 8
_BUSES = (0x05, 0x26, 0x46, 0x65, 0x85, 0xA6, 0xC6, 0xE5)
#: Numbers of amdsmi_status_t, of amdsmi_evt_notification_type_t, and of amdsmi_gpu_block_t.
NOT_SUPPORTED, NO_PERMISSION, DRIVER_NOT_LOADED, UNEXPECTED_DATA = 2, 10, 34, 43
VMFAULT, THERMAL_THROTTLE, PRE_RESET, POST_RESET, QUEUE_EVICTION = 1, 2, 3, 4, 9
UMC, GFX, XGMI_WAFL = 1, 4, 128


def site() -> Path | None:
    """The folder in which the real package lies; None: there is no compiler, or no package index."""
    bin_folder = client(PACKAGE) if can_be_built() else None
    return next(bin_folder.parent.glob("lib/python*/site-packages")) if bin_folder is not None else None


def library(site: Path) -> Path:
    """The library, compiled once, with the layouts of the package in ``site``."""
    sources = [*sorted(FOLDER.glob("*.[ch]")), FOLDER / "generate.py", *sorted(_SCRIPT_SOURCES.glob("script.[ch]"))]

    def make(target: Path) -> None:
        generated = target.with_name(target.name + ".c")
        subprocess.run([sys.executable, FOLDER / "generate.py", site, generated], check=True, timeout=60)
        flags = ["-O2", "-Wall", "-Wextra", "-Werror", "-std=gnu11", "-fvisibility=hidden", "-shared", "-fPIC"]
        flags += [f"-I{FOLDER}", "-Wl,-soname,libamd_smi.so", "-o", str(target)]
        files = [str(source) for source in sources if source.suffix == ".c"]
        subprocess.run(["cc", *flags, str(generated), *files, "-lpthread"], check=True, timeout=120)
        generated.unlink()

    return made_once("played-amd", digest_of([PACKAGE.encode(), *(source.read_bytes() for source in sources)]), make)


class PlayedAmd:
    """folder: of this node. site: where the real package lies (``site``)."""

    def __init__(self, site: Path, folder: Path, profile: str = "mi300x") -> None:
        self.folder = folder
        self.sys = folder / "sys"
        lines = (FOLDER / "profiles" / f"{profile}.txt").read_text().splitlines()
        self._script = dict(line.split(" ", 1) for line in lines if not line.startswith("#"))
        self.uuids = tuple(str(uuid.uuid5(uuid.NAMESPACE_OID, f"{profile}/{gpu}")) for gpu in range(GPUS))
        self.serials = tuple(f"{0xA1B2C3D400000000 + gpu:x}" for gpu in range(GPUS))
        self._processes: dict[int, dict[int, int]] = {gpu: {} for gpu in range(GPUS)}
        for gpu in range(GPUS):
            self._script[f"{gpu}/uuid"] = self.uuids[gpu]
            self._script[f"{gpu}/gpu_asic_info.asic_serial"] = self.serials[gpu]
            # amdsmi_bdf_t: three bits of function, five of device, eight of bus, then the domain.
            self._script[f"{gpu}/gpu_device_bdf"] = str(_BUSES[gpu] << 8)
            self._script[f"{gpu}/gpu_enumeration_info.hip_id"] = str(gpu)
            self._device(gpu)
        rocm = folder / "rocm"
        (rocm / "lib").mkdir(parents=True)
        (rocm / "share/amd_smi").mkdir(parents=True)
        (rocm / "lib/libamd_smi.so").symlink_to(library(site))
        (rocm / "share/amd_smi/amdsmi").symlink_to(site / "amdsmi")
        (folder / "events").touch()
        self._write()

    def environment(self) -> dict[str, str]:
        """For every process that is to see this node."""
        return {"ROCM_PATH": str(self.folder / "rocm"), "WHICHRANK_PLAYED_GPU": str(self.folder)}

    def pci_bus(self, gpu: int) -> str:
        return f"0000:{_BUSES[gpu]:02x}:00.0"

    def set(self, gpu: int, values: Mapping[str, object]) -> None:
        """``set(3, {"temp_metric/1/0": 91})``."""
        self._script |= {f"{gpu}/{key}": str(value) for key, value in values.items()}
        self._write()

    def set_all(self, values: Mapping[str, object | None]) -> None:
        """Of every GPU that has no line of its own; None takes the line away."""
        for key, value in values.items():
            self._script.pop(f"*/{key}", None)
            if value is not None:
                self._script[f"*/{key}"] = str(value)
        self._write()

    def event(self, gpu: int, kind: int, message: str = "1267:python3") -> None:
        with (self.folder / "events").open("a") as events:
            events.write(f"{gpu} {kind} {message}\n")

    def lose(self, gpu: int) -> None:
        """Nobody answers at its place on the bus any more: all bits are read as set, and the library finds nothing."""
        (self._place(gpu) / "config").write_bytes(b"\xff" * 64)
        self.set(gpu, {"lost": 1})

    def bring_back(self, gpu: int) -> None:
        self._device(gpu)
        del self._script[f"{gpu}/lost"]
        self._write()

    def attach(self, pid: int, gpu: int, memory_bytes: int = 1 << 30) -> None:
        self._processes[gpu][pid] = memory_bytes
        self.set(gpu, {"processes": ",".join(f"{pid}:{size}" for pid, size in self._processes[gpu].items())})

    def driver_gone(self) -> None:
        self._script["system/init"] = f"error:{DRIVER_NOT_LOADED}"
        self._write()

    def driver_back(self) -> None:
        """Loaded anew: clients of before must initialise again."""
        self._script.pop("system/init", None)
        self._script["system/generation"] = str(int(self._script.get("system/generation", "0")) + 1)
        self._write()

    def block(self) -> None:
        """Calls do not return until ``unblock``."""
        self._script["system/blocked"] = "forever"
        self._write()

    def unblock(self) -> None:
        del self._script["system/blocked"]
        self._write()

    def _place(self, gpu: int) -> Path:
        return self.sys / "bus/pci/devices" / self.pci_bus(gpu)

    def _device(self, gpu: int) -> None:
        place = self._place(gpu)
        place.mkdir(parents=True, exist_ok=True)
        (place / "vendor").write_text("0x1002\n")
        (place / "class").write_text("0x120000\n")
        (place / "config").write_bytes(bytes.fromhex("0210a174") + bytes(60))

    def _write(self) -> None:
        new = self.folder / "script.new"
        new.write_text("".join(f"{key} {value}\n" for key, value in self._script.items()))
        os.replace(new, self.folder / "script")
