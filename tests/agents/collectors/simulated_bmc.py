"""A management controller that OpenIPMI simulates (``ipmi_sim``), asked by the real ``ipmitool`` over loopback."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

HAS_TOOLS = shutil.which("ipmi_sim") is not None and shutil.which("ipmitool") is not None
NO_TOOLS = "ipmi_sim and ipmitool are not installed (Debian: openipmi, ipmitool)"
_WAIT_S = 30.0
_ALL_EVENTS = " ".join(["0" * 3 + "1" * 12] * 4)
_POWER_SUPPLY, _POWER_UNIT, _FAN, _HEAT, _PROCESSOR, _MEMORY = 8, 9, 4, 1, 7, 12
_LAN = """name "bmc"
set_working_mc 0x20
  startlan 1
    addr 127.0.0.1 {port}
    priv_limit admin
    allowed_auths_admin none md2 md5 straight
    guid a123456789abcdefa123456789abcdef
  endlan
  user 1 true "" "test" user 10 none md2 md5 straight
  user 2 true "admin" "test" admin 10 none md2 md5 straight
"""
#: Number, sort, entity and name of sensors that have states; the bit that is set where all is well.
_STATES = (
    (1, _POWER_SUPPLY, 0x6F, 0x0A, 1, "PS1 Status", 0),
    (2, _POWER_SUPPLY, 0x6F, 0x0A, 2, "PS2 Status", 0),
    (3, _POWER_UNIT, 0x0B, 0x15, 1, "PS Redundancy", 0),
    (4, _PROCESSOR, 0x6F, 0x03, 1, "CPU1 Status", 7),
    (5, _MEMORY, 0x6F, 0x20, 1, "DIMM A1", 6),
)
#: And of those that have a reading: unit, counts of it, and thresholds (upper ones first, the gravest first).
_READINGS = (
    (16, _FAN, 0x1D, 1, "FAN1", 18, 60, 100, (255, 255, 255, 20, 30, 40)),
    (17, _HEAT, 0x37, 1, "Inlet Temp", 1, 1, 25, (47, 42, 37, 0, 0, 0)),
)


@dataclass(frozen=True)
class SimulatedBmc:
    process: subprocess.Popen[bytes]
    port: int

    def do(self, *commands: str) -> None:
        """Commands of ipmi_sim_cmd(5)."""
        assert self.process.stdin is not None
        self.process.stdin.write("".join(f"{command}\n" for command in commands).encode())
        self.process.stdin.flush()
        time.sleep(0.3)

    def state(self, sensor: int, bit: int) -> None:
        self.do(f"sensor_set_bit_clr_rest 0x20 0 {sensor} {bit} 1 1")

    def reading(self, sensor: int, count: int) -> None:
        self.do(f"sensor_set_value 0x20 0 {sensor} {count} 1")

    def ask(self, words: Sequence[str]) -> str:
        who = ["-I", "lan", "-H", "127.0.0.1", "-p", str(self.port), "-U", "admin", "-P", "test", "-R", "1", "-N", "2"]
        done = subprocess.run(["ipmitool", *who, *words], capture_output=True, timeout=30.0, check=True)
        return done.stdout.decode()


@contextlib.contextmanager
def simulated_bmc(folder: Path) -> Iterator[SimulatedBmc]:
    with contextlib.closing(socket.socket(socket.AF_INET, socket.SOCK_DGRAM)) as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    (folder / "kept").mkdir(parents=True)
    (folder / "lan.conf").write_text(_LAN.format(port=port))
    (folder / "chassis.emu").write_text("\n".join(_commands()) + "\n")
    words = ["ipmi_sim", "-c", f"{folder}/lan.conf", "-f", f"{folder}/chassis.emu", "-s", f"{folder}/kept"]
    with (folder / "said").open("wb") as said:
        process = subprocess.Popen(
            words, stdin=subprocess.PIPE, stdout=said, stderr=said, env={**os.environ, "TERM": "dumb"}
        )
    bmc = SimulatedBmc(process, port)
    try:
        _await(bmc, folder)
        yield bmc
    finally:
        process.kill()
        process.wait()


def _await(bmc: SimulatedBmc, folder: Path) -> None:
    until = time.monotonic() + _WAIT_S
    while True:
        with contextlib.suppress(subprocess.SubprocessError):
            if "PS1 Status" in bmc.ask(["sdr", "elist", "all"]):
                return
        if time.monotonic() > until or bmc.process.poll() is not None:
            raise AssertionError((folder / "said").read_text(errors="replace")[-500:])
        time.sleep(0.2)


def _commands() -> Iterator[str]:
    yield "mc_setbmc 0x20"
    yield "mc_add 0x20 0 has-device-sdrs 0x23 9 8 0x9f 0x1291 0xf02 persist_sdr"
    yield "sel_enable 0x20 1000 0x0a"
    for number, sort, events, entity, instance, name, well in _STATES:
        yield f"sensor_add 0x20 0 {number} {sort} {events}"
        yield f"sensor_set_event_support 0x20 0 {number} enable scanning per-state {_ALL_EVENTS}"
        body = [0x20, 0, number, entity, instance, 0x67, 0x40, sort, events, *[0xFF, 3] * 3, 0xC0, 0, 0, 1, *[0] * 7]
        yield _sdr(number, 2, body, name)
        yield f"sensor_set_bit 0x20 0 {number} {well} 1 0"
    for number, sort, entity, instance, name, unit, factor, count, limits in _READINGS:
        yield f"sensor_add 0x20 0 {number} {sort} 1"
        yield f"sensor_set_event_support 0x20 0 {number} enable scanning per-state {_ALL_EVENTS}"
        yield f"sensor_set_value 0x20 0 {number} {count} 0"
        yield f"sensor_set_threshold 0x20 0 {number} settable 111111 {' '.join(map(str, limits))}"
        upper, lower = limits[:3], limits[3:]
        body = [0x20, 0, number, entity, instance, 0x7F, 0x68, sort, 1, *[0x95, 0x7A] * 2, 0x3F, 0x3F, 0, unit, 0, 0]
        body += [factor, *[0] * 5, 7, 0, 0, 0, 0xFF, 0, *upper, *lower, 2, 2, 0, 0, 0]
        yield _sdr(number, 1, body, name)
    yield "mc_enable 0x20"


def _sdr(number: int, sort: int, body: Sequence[int], name: str) -> str:
    """A sensor's record, as IPMI's table of sensors has it: sort 1 with a reading, 2 with states."""
    told = [*body, 0xC0 | len(name), *name.encode()]
    return "main_sdr_add 0x20 " + " ".join(f"0x{byte:02x}" for byte in [number, 0, 0x51, sort, len(told), *told])
