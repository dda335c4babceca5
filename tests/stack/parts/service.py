"""A real program of the stack as a child process: started, waited for, ended, killed; its output kept in a file."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

#: Generous: these tests may run where nothing else gets a CPU for a while.
START_TIMEOUT_S = 180.0
STOP_TIMEOUT_S = 60.0
NO_HEADERS: Mapping[str, str] = {}


class Service:
    """One program. ``ready`` says whether it can be used; it may raise OSError while it cannot."""

    def __init__(
        self,
        name: str,
        command: Sequence[str | Path],
        *,
        log: Path,
        ready: Callable[[], bool],
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.name = name
        self.command = tuple(map(str, command))
        self.log = log
        self._ready = ready
        self._environment = {**os.environ, **(environment or {})}
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        assert self._process is not None, f"{self.name} has not been started"
        return self._process.pid

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self, *, wait: bool = True) -> None:
        assert not self.running, f"{self.name} is running already"
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                self.command, stdout=log, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, env=self._environment
            )
        if wait:
            self.wait_until_ready()

    def wait_until_ready(self) -> None:
        deadline = time.monotonic() + START_TIMEOUT_S
        while time.monotonic() < deadline and self.running:
            try:
                if self._ready():
                    return
            except OSError:
                pass
            time.sleep(0.1)
        pytest.fail(f"{self.name} did not become ready; it said:\n{self.output()[-4000:]}")

    def wait(self) -> int:
        """Of a program that ends by itself: its exit code."""
        assert self._process is not None
        return self._process.wait(timeout=START_TIMEOUT_S)

    def stop(self) -> int:
        """End it as an orderly shutdown does; its exit code."""
        assert self._process is not None
        self._process.terminate()
        return self._process.wait(timeout=STOP_TIMEOUT_S)

    def kill(self) -> None:
        """SIGKILL, as a crash or the kernel's memory killer does. Harmless when it is gone already."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def output(self) -> str:
        return self.log.read_text(errors="replace") if self.log.exists() else ""


def answers_http(url: str, headers: Mapping[str, str] = NO_HEADERS) -> bool:
    """200 within 5 s. Raises OSError while nobody listens."""
    try:
        with urllib.request.urlopen(urllib.request.Request(url, headers=dict(headers)), timeout=5) as answer:
            return bool(answer.status == 200)
    except urllib.error.HTTPError:
        return False


def get_json(url: str, headers: Mapping[str, str] = NO_HEADERS) -> Any:
    with urllib.request.urlopen(urllib.request.Request(url, headers=dict(headers)), timeout=30) as answer:
        return json.load(answer)


def listens(address: str) -> bool:
    host, port = address.rsplit(":", 1)
    with socket.socket() as attempt:
        attempt.settimeout(5)
        return attempt.connect_ex((host, int(port))) == 0


def eventually(question: Callable[[], bool], *, what: str, timeout_s: float = START_TIMEOUT_S) -> None:
    """Ask until the answer is yes; fails with ``what`` otherwise."""
    deadline = time.monotonic() + timeout_s
    while not question():
        if time.monotonic() > deadline:
            pytest.fail(f"not within {timeout_s:.0f} s: {what}")
        time.sleep(0.1)
