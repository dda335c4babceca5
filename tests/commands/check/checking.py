"""``whichrank check`` as people run it: a program, its exit status and its JSON."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).parents[3]
#: Names of the loader and of torch that a caller's shell may have set.
_FOREIGN = ("NVIDIA_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES", "KUBERNETES_SERVICE_HOST")


@dataclass(frozen=True, slots=True)
class Checked:
    exit_status: int
    took_s: float
    text: str
    errors: str
    document: Mapping[str, Any]

    def findings(self, check: str = "", status: str = "") -> list[dict[str, Any]]:
        """``check``: "gpu.lost"; empty: all."""
        return [
            each
            for each in self.document["findings"]
            if (not check or f"{each['family']}.{each['check']}" == check) and (not status or each["status"] == status)
        ]

    def bad(self) -> set[tuple[str, str, str]]:
        """(check, device, status) of what is not OK."""
        return {
            (f"{each['family']}.{each['check']}", each["device"], each["status"])
            for each in self.document["findings"]
            if each["status"] != "OK"
        }


def check(*arguments: str, environment: Mapping[str, str] | None = None, as_json: bool = True) -> Checked:
    own = {key: value for key, value in os.environ.items() if key not in _FOREIGN}
    began_s = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-c", "from whichrank.commands.main import main; main()", "check"]
        + (["--json"] if as_json else [])
        + list(arguments),
        env={**own, **(environment or {})},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    document = json.loads(done.stdout) if as_json and done.stdout.startswith("{") else {}
    return Checked(done.returncode, time.monotonic() - began_s, done.stdout, done.stderr, document)


def families(*names: str) -> list[str]:
    return [word for name in names for word in ("--only", name)]


def tree(folder: Path) -> Path:
    """A node without anything: the roots that --root asks for, and a process table with one process."""
    for name in ("proc/self", "sys/class/net", "sys/module", "etc", "dev/shm"):
        (folder / name).mkdir(parents=True)
    (folder / "proc/uptime").write_text("90000.00 100.00\n")
    (folder / "proc/self/mountinfo").write_text("")
    (folder / "proc/meminfo").write_text(
        "MemTotal: 2000000000 kB\nMemFree: 1500000000 kB\nMemAvailable: 1600000000 kB\n"
    )
    return folder


def gpus_on_bus(root: Path, count: int, *, model: str = "NVIDIA H100 80GB HBM3", in_driver: int | None = None) -> None:
    for index in range(count):
        address = f"0000:{0x10 + index:02x}:00.0"
        device = root / "sys/bus/pci/devices" / address
        device.mkdir(parents=True)
        (device / "vendor").write_text("0x10de\n")
        (device / "class").write_text("0x030200\n")
        if index < (count if in_driver is None else in_driver):
            folder = root / "proc/driver/nvidia/gpus" / address
            folder.mkdir(parents=True)
            (folder / "information").write_text(f"Model: \t\t {model}\nIRQ:   \t\t 18\n")
