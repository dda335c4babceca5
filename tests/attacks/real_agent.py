"""``whichrank agent`` itself, with Kafka away and under the memory limit of its documents: what it spools is read."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from tests.attacks.users import AGENT_LIMIT_MB, MemoryLimit
from whichrank.telemetry.otlp import decode_logs
from whichrank.telemetry.records import Block, Event
from whichrank.telemetry.topics import TOPIC_BLOCKS
from whichrank.transport.bus import Message
from whichrank.transport.segments import SegmentReader

_PROGRAM = "from whichrank.commands.entry import main; main()"
_TICK_S = 1 / os.sysconf("SC_CLK_TCK")


class RealAgent:
    """The process and all that it starts; ``new_messages`` gives what it would have sent, a second after it did."""

    def __init__(self, folder: Path, rings: Path) -> None:
        self.limit = MemoryLimit(AGENT_LIMIT_MB)
        self._spool = folder / "data" / "spool"
        self._errors = folder / "agent.log"
        self._readers: dict[Path, SegmentReader] = {}
        words = [
            "agent",
            "--kafka",
            "127.0.0.1:9",
            "--data",
            str(folder / "data"),
            "--rings",
            str(rings / "whichrank-*"),
        ]
        environ = {name: value for name, value in os.environ.items() if not name.startswith("WHICHRANK_")}
        with self._errors.open("wb") as errors:
            self._process = subprocess.Popen(
                [sys.executable, "-c", f"import os, sys; sys.stdin.readline(); {_PROGRAM}", *words],
                stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=errors, cwd=folder, env=environ,
            )  # fmt: skip
        self.limit.put_in(self._process.pid)
        assert self._process.stdin is not None
        self._process.stdin.write(b"begin\n")
        self._process.stdin.close()

    @property
    def lives(self) -> bool:
        return self._process.poll() is None

    def said(self) -> list[str]:
        """Its lines."""
        return self._errors.read_text(errors="replace").splitlines()

    def new_messages(self) -> list[Message]:
        """What has been spooled since the last call, in the order of its numbers."""
        found: list[Message] = []
        with contextlib.suppress(FileNotFoundError):
            for path in self._spool.glob("*.spool"):
                if path not in self._readers:
                    self._readers[path] = SegmentReader(path, lambda path, offset, line: None)
        for reader in self._readers.values():
            while messages := reader.read(64, is_last=True):
                found += messages
        return sorted(found, key=lambda message: message.position)

    def processes(self) -> list[int]:
        """Its own and all that it has started, down to the last."""
        found = [self._process.pid]
        for pid in found:
            with contextlib.suppress(OSError):
                for task in os.listdir(f"/proc/{pid}/task"):
                    found += map(int, Path(f"/proc/{pid}/task/{task}/children").read_text().split())
        return found

    def helpers(self) -> list[int]:
        """Processes of users among them."""
        found = []
        for pid in self.processes():
            with contextlib.suppress(OSError):
                if Path(f"/proc/{pid}/comm").read_text().startswith("helper-"):
                    found.append(pid)
        return found

    def memory_mb(self) -> float:
        """Of all its processes: what they have alone, and their part of what they share (PSS)."""
        return sum(map(_pss_mb, self.processes()))

    def cpu_s(self) -> float:
        """Used by all its processes so far, those that have ended included."""
        used = 0.0
        for pid in self.processes():
            with contextlib.suppress(OSError):
                words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
                used += sum(map(int, words[11:15])) * _TICK_S
        return used

    def close(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(15)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        for reader in self._readers.values():
            reader.close()
        self.limit.close()


@contextlib.contextmanager
def real_agent(folder: Path, rings: Path) -> Iterator[RealAgent]:
    """A running agent, which has come so far that it watches."""
    agent = RealAgent(folder, rings)
    try:
        end_s = time.monotonic() + 60
        while not any("watches" in line for line in agent.said()) and agent.lives and time.monotonic() < end_s:
            time.sleep(0.1)
        yield agent
    finally:
        agent.close()


def payloads_of(messages: list[Message]) -> list[Block | Event]:
    """Records that operators read."""
    found = [each for m in messages if m.topic == TOPIC_BLOCKS for each in decode_logs(m.topic, m.value)]
    return [each for each in found if isinstance(each, Block | Event)]


def _pss_mb(pid: int) -> float:
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) / 1024
    return 0.0
