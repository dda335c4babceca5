"""A Docker engine of the tests' own: Debian's, with its data in a folder that goes away, and the host's network rules
left as they are (no iptables, no forwarding: containers talk on their bridge, ports are published by a proxy)."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest

START_TIMEOUT_S = 120.0
COMMAND_TIMEOUT_S = 3600.0


class Engine:
    """A running engine; ``close`` ends it."""

    def __init__(self, folder: Path) -> None:
        """Skips without root or without Debian's docker.io."""
        if os.geteuid() != 0:
            pytest.skip("the Docker engine needs root")
        for program in ("/usr/sbin/dockerd", "/usr/bin/docker"):
            if not Path(program).exists():
                pytest.skip(f"there is no {program} (Debian: the package docker.io)")
        self.folder = folder
        self.address = f"unix://{folder}/docker.sock"
        self._log = folder / "dockerd.log"
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [
                    "/usr/sbin/dockerd",
                    f"--host={self.address}",
                    f"--data-root={folder}/data",
                    f"--exec-root={folder}/run",
                    f"--pidfile={folder}/docker.pid",
                    "--iptables=false",
                    "--ip-forward=false",
                    "--ip-masq=false",
                ],
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        deadline = time.monotonic() + START_TIMEOUT_S
        while self.run("docker", "version", check=False).returncode != 0:
            if self._process.poll() is not None or time.monotonic() > deadline:
                self.close()
                pytest.fail(f"the Docker engine does not start:\n{self._log.read_text()[-2000:]}")
            time.sleep(0.5)

    def run(
        self, *command: str | Path, check: bool = True, environment: dict[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        """A command that talks to this engine."""
        done = subprocess.run(
            ["/usr/bin/docker" if word == "docker" else str(word) for word in command],
            env={**os.environ, "DOCKER_HOST": self.address, **(environment or {})},
            capture_output=True,
            text=True,
            timeout=COMMAND_TIMEOUT_S,
            check=False,
        )
        if check and done.returncode != 0:
            pytest.fail(f"{' '.join(map(str, command))}:\n{done.stdout[-4000:]}\n{done.stderr[-4000:]}")
        return done

    def build(self, tag: str, folder: Path, *options: str) -> None:
        self.run("docker", "build", "--quiet", "--network=host", *options, f"--tag={tag}", folder)

    def close(self) -> None:
        """The engine, its containers and its data go."""
        self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(timeout=60)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        # The engine leaves the host's network namespace mounted.
        subprocess.run(["umount", self.folder / "run" / "netns" / "default"], capture_output=True, check=False)
        for part in ("data", "run"):
            shutil.rmtree(self.folder / part, ignore_errors=True)
