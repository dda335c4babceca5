"""One job of benchmarks/harmless.py: how it is started and watched, what strikes it in mid-run, and what came out.

Also the small private mounts on which folders are full or read-only. Decides nothing.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
WORKLOAD = ROOT / "benchmarks" / "harmless_workload.py"
BOOTSTRAP = ROOT / "instrumentation" / "bootstrap"
RANKS = 2
TIMEOUT_S = 900
#: Step at which mid-run abuse strikes.
STRIKE_AT = 40
#: A user that exists nowhere.
SOMEBODY = 54321
#: Makes the job's user of a command. It may read everything (the interpreter may lie in somebody's home) and write, as
#: any user, only where it has the right to.
BECOME = (
    *("setpriv", f"--reuid={SOMEBODY}", f"--regid={SOMEBODY}", "--clear-groups"),
    *("--inh-caps=+dac_read_search", "--ambient-caps=+dac_read_search", "--"),
)


@dataclass(slots=True, kw_only=True)
class Run:
    """One job: where it runs, how it is watched, and what came out."""

    directory: Path
    model: str
    steps: int
    asked_exit_code: int = 0
    environment: dict[str, str] = field(default_factory=dict)
    #: Folder with a sitecustomize of its own, to which the bootstrap hands on.
    hidden: str = ""
    #: Whether the job runs as SOMEBODY.
    as_somebody: bool = False
    #: "" not watched, "bootstrap" ring only, "run" the whole of ``whichrank run``.
    watched: str = "bootstrap"
    #: Called again and again while the job runs, with the steps done so far; returns True when it is finished.
    mid_run: Callable[[Run, int], bool] | None = None
    process: subprocess.Popen[bytes] | None = None
    #: Wall time of the strike in mid-run.
    struck_ns: int = 0
    exit_code: int | None = None
    losses: tuple[str, ...] = ()
    struck: int = 0

    @property
    def rings(self) -> Path:
        return self.directory / "rings"

    def ring_files(self) -> list[Path]:
        """Rings that the job's ranks made."""
        folders = [self.rings, *self.directory.glob("ring-dirs/*")]
        return [ring for folder in folders for ring in folder.glob("*.ring")]

    def was_somebodys(self) -> bool:
        """Whether the ranks did run as SOMEBODY."""
        return {file.stat().st_uid for file in self.directory.glob("losses-*")} == {SOMEBODY}

    def execute(self) -> None:
        """Run to the end; raises TimeoutError where the job hangs."""
        launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(RANKS)]
        job = [*launcher, str(WORKLOAD), str(self.directory), self.model, str(self.steps), str(self.asked_exit_code)]
        environment = {**os.environ, "OMP_NUM_THREADS": "1", **self.environment}
        if self.as_somebody:
            job = [*BECOME, *job]
            os.chown(self.directory, SOMEBODY, SOMEBODY)
            environment["HOME"] = str(self.directory)
        # The job's own status goes to a file: its parent may be killed.
        status = self.directory / "exit_code"
        command = ["/bin/sh", "-c", '"$@"; code=$?; echo $code > "$0"; exit $code', str(status), *job]
        if self.watched == "bootstrap":
            path = [str(BOOTSTRAP), *filter(None, [self.hidden])]
            environment |= {"WHICHRANK_AUTO": "1", "PYTHONPATH": os.pathsep.join(path)}
            environment.setdefault("WHICHRANK_DIR", str(self.rings))
        elif self.watched == "run":
            start = "import sys; from whichrank.commands.main import main; sys.exit(main())"
            command = [sys.executable, "-c", start, "run", "--out", str(self.directory / "out"), "--", *command]
        with open(self.directory / "log", "wb") as log:
            self.process = subprocess.Popen(
                command, env=environment, cwd=self.directory, stdout=log, stderr=log, start_new_session=True
            )
            try:
                self._attend(status)
            finally:
                if self.process.poll() is None:
                    os.killpg(self.process.pid, signal.SIGKILL)
        with suppress(OSError):
            self.exit_code = int(status.read_text())
        for rank in range(RANKS):
            with suppress(OSError):
                self.losses += tuple((self.directory / f"losses-{rank}").read_text().split())

    def _attend(self, status: Path) -> None:
        assert self.process is not None
        deadline = time.monotonic() + TIMEOUT_S
        finished = self.mid_run is None
        while self.process.poll() is None or (self.watched == "run" and not status.exists()):
            if time.monotonic() > deadline:
                raise TimeoutError(f"{self.directory.name} still ran after {TIMEOUT_S} s")
            if not finished and self.mid_run is not None:
                step = 0
                with suppress(OSError, ValueError):
                    step = int((self.directory / "step").read_text())
                if step >= STRIKE_AT:
                    self.struck_ns = self.struck_ns or time.time_ns()
                    finished = self.mid_run(self, step)
            time.sleep(0.05)


@contextmanager
def small_mount(folder: Path, options: str) -> Iterator[None]:
    """A private tmpfs on ``folder``. Raises CalledProcessError where this user may not mount."""
    folder.mkdir(parents=True, exist_ok=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "whichrank-abuse", str(folder)], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=False)


def fill(folder: Path) -> int:
    """Write until the folder's file system has no byte left; returns the number of refusals (at least 1 proves it)."""
    refused = 0
    with open(folder / "filler", "ab", buffering=0) as file:
        for size in (1 << 16, 1 << 12, 1):
            try:
                while file.write(b"\0" * size) == size:
                    pass
            except OSError:
                refused += 1
    return refused
