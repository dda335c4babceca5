"""Two nodes of one job for ``game_days``: network namespaces with names, so that ``ip -n NAME`` finds their ports."""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

from whichrank.telemetry.injection_words import ALLOW_VARIABLE

PORT = "eth0"
#: In its own host name, mounts and network; $0 is the node's name.
_ENTER = 'mount --bind "$HOSTS_OF_GAME_DAY" /etc/hosts && hostname "$0" && exec "$@"'


class JobOnTwoNodes:
    """``whichrank run -- torchrun --nnodes=2`` in each; the first node has the rendezvous and judges. For root."""

    def __init__(self, folder: Path, training: Sequence[str], *, ranks: int = 1) -> None:
        """ranks: of each node."""
        self.port = PORT
        mark = secrets.token_hex(3)
        self.names = (f"gd-{mark}-0", f"gd-{mark}-1")
        self._folder, self._training, self._ranks = folder, training, ranks
        self._hosts = folder / "hosts"
        self._jobs: list[subprocess.Popen[bytes]] = []
        self._addresses = ("10.91.7.1", "10.91.7.2")

    @property
    def judge(self) -> subprocess.Popen[bytes]:
        """The ``whichrank run`` of the first node."""
        return self._jobs[0]

    def __enter__(self) -> JobOnTwoNodes:
        for name in self.names:
            _ip("netns", "add", name)
        _ip("link", "add", "name", PORT, "netns", self.names[0], "type", "veth", "peer", PORT, "netns", self.names[1])
        for name, address in zip(self.names, self._addresses, strict=True):
            _ip("-n", name, "address", "add", f"{address}/24", "dev", PORT)
            _ip("-n", name, "link", "set", "lo", "up")
            _ip("-n", name, "link", "set", PORT, "up")
        names = "".join(f"{address} node-{number}\n" for number, address in enumerate(self._addresses))
        self._hosts.write_text("127.0.0.1 localhost\n" + names)
        self._jobs = [self._start(number) for number in range(2)]
        return self

    def _start(self, number: int) -> subprocess.Popen[bytes]:
        address = self._addresses[number]
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("WHICHRANK_", "OTEL_"))}
        environ = {**kept, "OMP_NUM_THREADS": "1", "HOSTS_OF_GAME_DAY": str(self._hosts), ALLOW_VARIABLE: "1"}
        inside = [
            "ip",
            "netns",
            "exec",
            self.names[number],
            "unshare",
            "--uts",
            "--mount",
            "sh",
            "-c",
            _ENTER,
            f"node-{number}",
        ]
        whichrank = [
            sys.executable,
            "-m",
            "whichrank.commands.main",
            "run",
            "--out",
            str(self._folder / f"node-{number}"),
        ]
        torchrun = [sys.executable, "-m", "torch.distributed.run", "--nnodes=2", f"--nproc-per-node={self._ranks}"]
        meet = [f"--rdzv-endpoint={self._addresses[0]}:29400", "--rdzv-backend=c10d", f"--local-addr={address}"]
        with (self._folder / f"node-{number}.log").open("wb") as log:
            return subprocess.Popen(
                [*inside, *whichrank, "--view", "none", "--", *torchrun, *meet, *self._training],
                env=environ,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for job in self._jobs:
            job.terminate()
        for job in self._jobs:
            try:
                job.wait(40)
            except subprocess.TimeoutExpired:
                os.killpg(job.pid, signal.SIGKILL)
                job.wait()
        for name in self.names:
            found = subprocess.run(["ip", "netns", "pids", name], capture_output=True, text=True, check=False)
            for pid in map(int, found.stdout.split()):
                os.kill(pid, signal.SIGKILL)
            _ip("netns", "delete", name)


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True, timeout=20)
