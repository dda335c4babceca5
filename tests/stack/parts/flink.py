"""A real Flink cluster from the Python package: JobManagers, TaskManagers and ZooKeeper as processes of this machine.

Made by ``deploy/flink/home.sh`` from ``.venv-flink`` (``make setup-flink``), configured as compose has it, on loopback.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.ports import free_ports
from tests.stack.parts.placing import DEPLOY
from tests.stack.parts.service import Service, listens

ROOT = Path(__file__).parents[3]
ENVIRONMENT = ROOT / ".venv-flink"
PYTHON = ENVIRONMENT / "bin" / "python"
HOME_S, COMMAND_S = 60.0, 300.0


def require_flink() -> None:
    """Skips the test without what it needs."""
    for program, package in {"java": "a Java runtime (17)", "mvn": "Maven"}.items():
        if shutil.which(program) is None:
            pytest.skip(f"Flink needs {package}, which is not installed here")
    if not (ENVIRONMENT / "jars" / ".fetched").exists() or not PYTHON.exists():
        pytest.skip("Flink needs its own environment: make setup-flink")


class Flink:
    """slots: of each TaskManager. with_zookeeper: JobManagers are followed by others, and jobs survive them.

    metrics_ms: how old figures are that the JobManager tells.
    """

    def __init__(self, folder: Path, *, slots: int = 2, with_zookeeper: bool = False, metrics_ms: int = 10_000) -> None:
        require_flink()
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.home = folder / "home"
        self.rest = f"127.0.0.1:{free_ports(1)[0]}"
        rpc, self._zookeeper_port, *self._quorum_ports = free_ports(4)
        self.settings = {
            "jobmanager.rpc.address": "127.0.0.1",
            "jobmanager.rpc.port": str(rpc),
            "jobmanager.bind-host": "127.0.0.1",
            "jobmanager.memory.process.size": "900m",
            "taskmanager.bind-host": "127.0.0.1",
            "taskmanager.host": "127.0.0.1",
            "taskmanager.numberOfTaskSlots": str(slots),
            "taskmanager.memory.process.size": "1400m",
            "metrics.fetcher.update-interval": str(metrics_ms),
            "rest.address": "127.0.0.1",
            "rest.port": self.rest.rpartition(":")[2],
            "execution.checkpointing.dir": f"file://{folder}/checkpoints",
            "execution.checkpointing.savepoint-dir": f"file://{folder}/savepoints",
            "io.tmp.dirs": str(folder / "home" / "tmp"),
        }
        if with_zookeeper:
            self.settings |= {
                "high-availability.type": "zookeeper",
                "high-availability.zookeeper.quorum": f"127.0.0.1:{self._zookeeper_port}",
                "high-availability.storageDir": f"file://{folder}/ha",
                "high-availability.zookeeper.client.session-timeout": "15000",
            }
        self._with_zookeeper = with_zookeeper
        self._made()
        self._number = 0
        self.zookeeper = self._zookeeper_service() if with_zookeeper else None
        self.jobmanager = self._service("jobmanager", "jobmanager.sh")
        self.taskmanagers: list[Service] = []

    def start(self, taskmanagers: int = 2) -> None:
        if self.zookeeper is not None:
            self.zookeeper.start()
        self.jobmanager.start()
        for _ in range(taskmanagers):
            self.add_taskmanager()

    def add_taskmanager(self) -> Service:
        self._number += 1
        service = self._service(f"taskmanager{self._number}", "taskmanager.sh")
        self.taskmanagers.append(service)
        service.start(wait=False)
        return service

    def kill(self) -> None:
        for service in [*self.taskmanagers, self.jobmanager, *([self.zookeeper] if self.zookeeper else [])]:
            service.kill()

    @property
    def environment(self) -> Mapping[str, str]:
        home = self.home
        return {
            **os.environ,
            "FLINK_HOME": str(home),
            "FLINK_CONF_DIR": str(home / "conf"),
            "FLINK_LIB_DIR": str(home / "lib"),
            "FLINK_OPT_DIR": str(home / "opt"),
            "FLINK_PLUGINS_DIR": str(home / "plugins"),
            "FLINK_LOG_DIR": str(home / "log"),
            "FLINK_PID_DIR": str(home / "tmp"),
        }

    def command(self, *words: str) -> str:
        """Output of ``bin/flink``; the JobManager's address is added where it stands after the verb."""
        verb, *others = words
        done = subprocess.run(
            [self.home / "bin" / "flink", verb, "-m", self.rest, *others],
            env=dict(self.environment),
            capture_output=True,
            text=True,
            timeout=COMMAND_S,
            check=False,
        )
        assert done.returncode == 0, f"flink {' '.join(words)}: {done.stdout[-3000:]}{done.stderr[-3000:]}"
        return done.stdout

    def ask(self, path: str) -> Any:
        with urllib.request.urlopen(f"http://{self.rest}{path}", timeout=10) as answer:
            return json.load(answer)

    def job_state(self) -> str:
        """Of the newest job that is not over; "" where none is, or nobody answers."""
        try:
            jobs = self.ask("/jobs/overview")["jobs"]
        except OSError:
            return ""
        alive = [job for job in jobs if job["state"] not in ("CANCELED", "FAILED", "FINISHED")]
        return str(max(alive, key=lambda job: job["start-time"])["state"]) if alive else ""

    def job_id(self) -> str:
        jobs = self.ask("/jobs/overview")["jobs"]
        return str(max(jobs, key=lambda job: job["start-time"])["jid"])

    def completed_checkpoints(self) -> int:
        try:
            return int(self.ask(f"/jobs/{self.job_id()}/checkpoints")["counts"]["completed"])
        except (OSError, ValueError, KeyError):
            return 0

    def wait_for_state(self, state: str, within_s: float = 180.0) -> None:
        deadline = time.monotonic() + within_s
        while self.job_state() != state:
            assert time.monotonic() < deadline, f"the job is {self.job_state()!r}, not {state}: {self.why()}"
            time.sleep(0.3)

    def why(self) -> str:
        """Why the job failed last."""
        try:
            history = self.ask(f"/jobs/{self.job_id()}/exceptions")["exceptionHistory"]["entries"]
        except (OSError, ValueError, KeyError):
            return "nobody answers"
        return str(history[0]["stacktrace"])[:1500] if history else "no exception"

    def _made(self) -> None:
        pairs = [f"{name}={value}" for name, value in self.settings.items()]
        done = subprocess.run(
            [DEPLOY / "flink" / "home.sh", PYTHON, self.home, ENVIRONMENT / "jars", *pairs],
            env={**os.environ, "PYTHON_PATH": str(ENVIRONMENT / "path")},
            capture_output=True,
            text=True,
            timeout=HOME_S,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        (self.home / "conf" / "zoo.cfg").write_text(
            f"tickTime=1000\ninitLimit=5\nsyncLimit=2\ndataDir={self.folder}/zookeeper\n"
            f"clientPort={self._zookeeper_port}\nclientPortAddress=127.0.0.1\nadmin.enableServer=false\n"
            f"server.1=127.0.0.1:{self._quorum_ports[0]}:{self._quorum_ports[1]}\n"
        )

    def _zookeeper_service(self) -> Service:
        """By what zookeeper.sh starts: that script stays its parent, and to kill it would leave ZooKeeper alive."""
        configuration = self.home / "conf" / "zoo.cfg"
        return Service(
            "zookeeper",
            [self.home / "bin" / "flink-console.sh", "zookeeper", "--zkConfigFile", configuration, "--peerId", "1"],
            log=self.folder / "zookeeper.log",
            ready=lambda: listens(f"127.0.0.1:{self._zookeeper_port}"),
            environment={**self.environment, "JVM_ARGS": "-Xmx128m -Dzookeeper.jmx.log4j.disable=true"},
        )

    def _service(self, name: str, script: str, *words: str) -> Service:
        port = int(self.rest.rpartition(":")[2])
        return Service(
            name,
            [self.home / "bin" / script, "start-foreground", *words],
            log=self.folder / f"{name}.log",
            ready=lambda: script == "taskmanager.sh" or listens(f"127.0.0.1:{port}"),
            environment=dict(self.environment),
        )
