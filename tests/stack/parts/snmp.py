"""A switch whose tree is played behind a real snmpd, and the real snmp_exporter that asks it."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path

from tests.ports import free_ports
from tests.stack.parts.go_programs import SNMP_EXPORTER, built
from tests.stack.parts.placing import DEPLOY
from tests.stack.parts.service import Service, answers_http

SNMPD = shutil.which("snmpd", path=f"{os.environ.get('PATH', '')}:/usr/sbin")
NO_SNMPD = "snmpd is not installed (Debian: apt install snmpd)"
#: Tables of IF-MIB, ENTITY-MIB and ENTITY-SENSOR-MIB.
_INTERFACES, _MORE = "1.3.6.1.2.1.2.2.1", "1.3.6.1.2.1.31.1.1.1"
_PARTS, _SENSORS = "1.3.6.1.2.1.47.1.1.1.1", "1.3.6.1.2.1.99.1.1.1"
#: snmpd's own of the same tables: of this machine's interfaces.
_OWN_MODULES = "ifTable,ifXTable,interface,entity,entPhysicalTable"
UP, DOWN = 1, 2
OK, DOES_NOT_WORK = 1, 3
_PLAYED = Path(__file__).with_name("played_mib.py")


class Switch:
    """Ports and sensors by their names, numbered from 1. What is said of them stands in the tree at once."""

    def __init__(self, folder: Path, ports: list[str], sensors: list[str], community: str = "public") -> None:
        folder.mkdir()
        self._file = folder / "tree"
        self._asked = folder / "tree.asked"
        self._rows: dict[str, tuple[str, object, float]] = {}
        for index, name in enumerate(ports, start=1):
            self._port(index, name)
        for index, name in enumerate(sensors, start=1):
            self._rows[f"{_PARTS}.7.{index}"] = ("string", name, 0.0)
            self._rows[f"{_SENSORS}.5.{index}"] = ("integer", OK, 0.0)
        self._write()
        with closing(socket.socket(socket.AF_INET, socket.SOCK_DGRAM)) as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        self.address = f"127.0.0.1:{port}"
        configuration = folder / "snmpd.conf"
        tables = (_INTERFACES, _MORE, _PARTS, _SENSORS)
        lines = [f"rocommunity {community} 127.0.0.1"]
        lines += [f"pass_persist .{table} {sys.executable} {_PLAYED} {self._file}" for table in tables]
        configuration.write_text("\n".join(lines) + "\n")
        self.service = Service(
            "snmpd",
            [
                *(SNMPD or "snmpd", "-f", "-Lo", "-C", "-c", configuration, "-I", f"-{_OWN_MODULES}"),
                *("-p", folder / "snmpd.pid", f"udp:{self.address}"),
            ],
            log=folder / "snmpd.log",
            ready=lambda: "NET-SNMP version" in self.service.output(),
            environment={"SNMP_PERSISTENT_DIR": str(folder / "kept"), "MIBS": ""},
        )

    @property
    def asked(self) -> int:
        """Questions so far."""
        return self._asked.stat().st_size if self._asked.exists() else 0

    def say_port(self, index: int, state: int) -> None:
        self._say(f"{_INTERFACES}.8.{index}", "integer", state)

    def say_sensor(self, index: int, state: int) -> None:
        self._say(f"{_SENSORS}.5.{index}", "integer", state)

    def say_errors(self, index: int, per_second: float) -> None:
        self._say(f"{_INTERFACES}.14.{index}", "counter", 1000, per_second)

    def say_discards(self, index: int, per_second: float) -> None:
        self._say(f"{_INTERFACES}.19.{index}", "counter", 1000, per_second)

    def _port(self, index: int, name: str) -> None:
        table: Mapping[str, tuple[str, object, float]] = {
            f"{_INTERFACES}.1": ("integer", index, 0.0),
            f"{_INTERFACES}.2": ("string", name, 0.0),
            f"{_INTERFACES}.3": ("integer", 6, 0.0),
            f"{_INTERFACES}.7": ("integer", UP, 0.0),
            f"{_INTERFACES}.8": ("integer", UP, 0.0),
            f"{_INTERFACES}.13": ("counter", 1000, 0.001),
            f"{_INTERFACES}.14": ("counter", 1000, 0.001),
            f"{_INTERFACES}.19": ("counter", 1000, 0.001),
            f"{_INTERFACES}.20": ("counter", 1000, 0.001),
            f"{_MORE}.1": ("string", name, 0.0),
            f"{_MORE}.6": ("counter64", 10**12, 4e9),
            f"{_MORE}.10": ("counter64", 10**12, 4e9),
            f"{_MORE}.15": ("gauge", 400_000, 0.0),
            f"{_MORE}.18": ("string", "", 0.0),
        }
        self._rows |= {f"{column}.{index}": row for column, row in table.items()}

    def _say(self, name: str, kind: str, value: object, per_second: float = 0.0) -> None:
        self._rows[name] = (kind, value, per_second)
        self._write()

    def _write(self) -> None:
        lines = [f"{name}\t{kind}\t{value}\t{rate}\n" for name, (kind, value, rate) in self._rows.items()]
        new = self._file.with_name("tree.new")
        new.write_text("".join(lines))
        new.replace(self._file)


class SnmpExporter:
    """The real one, with the snmp.yml of its own module and ours for the sensors of a switch."""

    def __init__(self, folder: Path) -> None:
        (port,) = free_ports(1)
        self.address = f"127.0.0.1:{port}"
        tables = (own_table(), DEPLOY / "collector/snmp-sensors.yml")
        self.service = Service(
            "snmp_exporter",
            [
                *(str(built(SNMP_EXPORTER)), f"--web.listen-address={self.address}"),
                *(f"--config.file={table}" for table in tables),
            ],
            log=folder / "snmp_exporter.log",
            ready=lambda: answers_http(f"http://{self.address}/"),
        )


def own_table() -> Path:
    """snmp.yml, as it comes with snmp_exporter."""
    download = ["go", "mod", "download", "-json", f"{SNMP_EXPORTER.module}@{SNMP_EXPORTER.version}"]
    said = subprocess.run(download, cwd=Path.home(), capture_output=True, text=True, check=True).stdout
    module: Mapping[str, str] = json.loads(said)
    return Path(module["Dir"]) / "snmp.yml"
