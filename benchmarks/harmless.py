"""Nothing of whichrank can hurt the job: the same losses bit by bit and the same exit code, whatever is done to us.

    python -m benchmarks.harmless [--quick] [--only NAME]... [--steps N] [--json]

Each line runs one real two-rank job twice: without whichrank, and watched while something of whichrank is abused,
before it starts or in mid-run. The abuse counts for itself how often it struck; one that did not strike is SHORT,
for it proved nothing. Full and read-only folders are small private tmpfs mounts (needs root or user namespaces).
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.report import Report

ROOT = Path(__file__).resolve().parents[1]
WORKLOAD = ROOT / "benchmarks" / "harmless_workload.py"
BOOTSTRAP = ROOT / "instrumentation" / "bootstrap"
RANKS = 2
TIMEOUT_S = 900
#: Step at which mid-run abuse strikes.
STRIKE_AT = 40


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
    #: "" not watched, "bootstrap" ring only, "run" the whole of ``whichrank run``.
    watched: str = "bootstrap"
    #: Called again and again while the job runs, with the steps done so far; returns True when it is finished.
    mid_run: Callable[[Run, int], bool] | None = None
    process: subprocess.Popen[bytes] | None = None
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

    def execute(self) -> None:
        """Run to the end; raises TimeoutError where the job hangs."""
        launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(RANKS)]
        job = [*launcher, str(WORKLOAD), str(self.directory), self.model, str(self.steps), str(self.asked_exit_code)]
        environment = {**os.environ, "OMP_NUM_THREADS": "1", **self.environment}
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
                finished = step >= STRIKE_AT and self.mid_run(self, step)
            time.sleep(0.05)


@dataclass(frozen=True, slots=True, kw_only=True)
class Abuse:
    """One way to treat us badly. ``prepare`` runs before the job and yields while it runs."""

    name: str
    prepare: Callable[[Run], Iterator[None]]
    model: str = "ddp"
    exit_code: int = 0


# --- abuse of the ring directory ------------------------------------------------------------------------------------
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


def nothing(run: Run) -> Iterator[None]:
    run.rings.mkdir(mode=0o700)
    yield
    run.struck = len(run.ring_files())  # here the proof is that we did record


def whole_run(run: Run) -> Iterator[None]:
    run.watched = "run"
    yield
    run.struck = int((run.directory / "out" / "run.json").exists())


def full_before(run: Run) -> Iterator[None]:
    with small_mount(run.rings, "size=256k,mode=700"):
        run.struck = fill(run.rings)
        yield
        run.struck *= not run.ring_files()


def too_small_before(run: Run) -> Iterator[None]:
    with small_mount(run.rings, "size=900k,mode=700"):
        yield
        run.struck = RANKS - len(run.ring_files())  # one ring fits, the other does not


def full_mid_run(run: Run) -> Iterator[None]:
    def strike(run: Run, step: int) -> bool:
        run.struck = fill(run.rings)
        return True

    run.mid_run = strike
    with small_mount(run.rings, "size=8m,mode=700"):
        yield
        run.struck *= len(run.ring_files()) == RANKS


def read_only_before(run: Run) -> Iterator[None]:
    with small_mount(run.rings, "size=8m,mode=700,ro"):
        try:
            (run.rings / "probe").touch()
        except OSError:
            run.struck = 1
        yield
        run.struck *= not run.ring_files()


def read_only_mid_run(run: Run) -> Iterator[None]:
    def strike(run: Run, step: int) -> bool:
        # Mapped files keep a mount busy, so it is covered instead: the folder's name now leads to a read-only one.
        subprocess.run(["mount", "-t", "tmpfs", "-o", "ro,size=4k", "whichrank-abuse", str(run.rings)], check=True)
        try:
            (run.rings / "probe").touch()
        except OSError:
            run.struck += 1
        return True

    run.mid_run = strike
    run.rings.mkdir(mode=0o700)
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", str(run.rings)], check=False)


def removed_before(run: Run) -> Iterator[None]:
    # A folder that cannot be made again either.
    run.environment["WHICHRANK_DIR"] = "/proc/whichrank-abuse/rings"
    run.struck = int(not Path("/proc/whichrank-abuse").exists())
    yield


def removed_mid_run(run: Run) -> Iterator[None]:
    def strike(run: Run, step: int) -> bool:
        run.struck = len(run.ring_files())
        shutil.rmtree(run.rings)
        return True

    run.mid_run = strike
    run.rings.mkdir(mode=0o700)
    yield
    run.struck *= not run.rings.exists()


def level_file_mid_run(run: Run) -> Iterator[None]:
    words = iter(["off", "status", "events", "\0\xff nonsense", "off", "events"] * 20)

    def strike(run: Run, step: int) -> bool:
        (run.rings / "level").write_bytes(next(words).encode("latin-1"))
        run.struck += 1
        return run.struck >= 100

    run.mid_run = strike
    run.rings.mkdir(mode=0o700)
    yield


# --- abuse of our code ----------------------------------------------------------------------------------------------
SABOTAGE = '''
"""Hidden behind the bootstrap, which runs it: every method of the ring writers raises, and counts that it did."""
import atexit, os, sys
if os.environ.get("RANK") and "--multiprocessing-fork" not in sys.argv:
    from pathlib import Path
    from whichrank.instrumentation import ring_writer
    folder, after_step = Path(os.environ["ABUSE_DIRECTORY"]), int(os.environ["ABUSE_AFTER_STEP"])
    struck, steps = {}, [0]
    NAMES = ("define", "define_group", "enqueue", "skip", "complete", "complete_through", "append_event", "set_phase",
             "end_step", "add_microstep", "set_loss", "set_level", "add_cost", "beat", "record_exception",
             "record_stack", "record_exit")
    def sabotage(owner, name):
        original = getattr(owner, name)
        def method(self, *args, **kwargs):
            if name == "end_step":
                steps[0] += 1
            if steps[0] < after_step:
                return original(self, *args, **kwargs)
            struck[name] = struck.get(name, 0) + 1
            raise OSError(28, "abuse: " + name)
        setattr(owner, name, method)
    writers = [ring_writer.RingWriter]
    try:
        from whichrank.instrumentation.ring_writer_native import NativeRingWriter
        writers.append(NativeRingWriter)
    except ImportError:
        pass
    for writer in writers:
        for name in NAMES:
            sabotage(writer, name)
    pid = os.getpid()
    def report():
        if os.getpid() == pid and struck:
            (folder / ("struck-%d" % pid)).write_text(repr(sum(struck.values())))
    atexit.register(report)
'''


def sabotaged(*, after_step: int, native: str) -> Callable[[Run], Iterator[None]]:
    def prepare(run: Run) -> Iterator[None]:
        run.rings.mkdir(mode=0o700)
        hidden = run.directory / "hidden"
        hidden.mkdir()
        (hidden / "sitecustomize.py").write_text(SABOTAGE)
        run.environment |= {
            "ABUSE_DIRECTORY": str(run.directory),
            "ABUSE_AFTER_STEP": str(after_step),
            "WHICHRANK_NATIVE": native,
        }
        run.hidden = str(hidden)
        yield
        run.struck = sum(int(file.read_text()) for file in run.directory.glob("struck-*"))

    return prepare


# --- abuse of the agent ---------------------------------------------------------------------------------------------
def agent_killed_mid_run(run: Run) -> Iterator[None]:
    def strike(run: Run, step: int) -> bool:
        assert run.process is not None
        os.kill(run.process.pid, signal.SIGKILL)
        run.struck = int(run.process.wait(10) == -signal.SIGKILL)
        return True

    run.watched = "run"
    run.mid_run = strike
    yield


def state_disk_full_before(run: Run) -> Iterator[None]:
    run.watched = "run"
    with small_mount(run.directory / "out", "size=64k,mode=700"):
        run.struck = fill(run.directory / "out")
        yield


def state_disk_full_mid_run(run: Run) -> Iterator[None]:
    def strike(run: Run, step: int) -> bool:
        run.struck = fill(run.directory / "out")
        return True

    run.watched = "run"
    run.mid_run = strike
    with small_mount(run.directory / "out", "size=16m,mode=700"):
        yield


ABUSES = (
    Abuse(name="ring only, DDP", prepare=nothing),
    Abuse(name="ring only, FSDP2", prepare=nothing, model="fsdp2"),
    Abuse(name="ring only, compiled", prepare=nothing, model="compiled"),
    Abuse(name="whichrank run, DDP, exit code 7", prepare=whole_run, exit_code=7),
    Abuse(name="ring folder full before", prepare=full_before),
    Abuse(name="ring folder too small before", prepare=too_small_before),
    Abuse(name="ring folder full in mid-run", prepare=full_mid_run),
    Abuse(name="ring folder read-only before", prepare=read_only_before),
    Abuse(name="ring folder read-only in mid-run", prepare=read_only_mid_run),
    Abuse(name="ring folder missing before", prepare=removed_before),
    Abuse(name="ring folder removed in mid-run", prepare=removed_mid_run),
    Abuse(name="level file switched in mid-run", prepare=level_file_mid_run),
    Abuse(name="every hook raises, Python writer", prepare=sabotaged(after_step=0, native="0")),
    Abuse(name="every hook raises, C recorder", prepare=sabotaged(after_step=0, native="1")),
    Abuse(name="every hook raises mid-run, FSDP2", prepare=sabotaged(after_step=40, native="0"), model="fsdp2"),
    Abuse(
        name="every hook raises in mid-run, compiled", prepare=sabotaged(after_step=40, native="1"), model="compiled"
    ),
    Abuse(name="agent killed in mid-run", prepare=agent_killed_mid_run),
    Abuse(name="state disk full before", prepare=state_disk_full_before),
    Abuse(name="state disk full in mid-run", prepare=state_disk_full_mid_run),
)
QUICK = ("ring only, DDP", "every hook raises, Python writer", "ring folder removed in mid-run")


def execute(run: Run, prepare: Callable[[Run], Iterator[None]]) -> None:
    run.directory.mkdir(parents=True)
    with contextmanager(prepare)(run):
        run.execute()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", action="append", metavar="NAME", help="run lines whose name contains NAME")
    parser.add_argument("--quick", action="store_true", help="three representative lines")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--keep", type=Path, help="folder to keep logs in")
    options = parser.parse_args()
    # Mounts and jobs are cleaned up on the way out, also when somebody's patience ends.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    chosen = [
        abuse
        for abuse in ABUSES
        if (not options.quick or abuse.name in QUICK)
        and (not options.only or any(name in abuse.name for name in options.only))
    ]
    report = Report(f"Harmless: {RANKS} ranks, {options.steps} steps, dropout, 2 loader workers", as_json=options.json)
    folder = options.keep or Path(tempfile.mkdtemp(prefix="whichrank-harmless-"))
    try:
        references: dict[tuple[str, int], Run] = {}
        for number, abuse in enumerate(chosen):
            judge(report, abuse, references, folder / f"{number:02d}", options.steps)
    finally:
        if options.keep is None:
            shutil.rmtree(folder, ignore_errors=True)
    return report.finish()


def judge(report: Report, abuse: Abuse, references: dict[tuple[str, int], Run], folder: Path, steps: int) -> None:
    """Run the job without us (once per kind) and with us; add one line."""
    key = (abuse.model, abuse.exit_code)
    print(f"... {abuse.name}", file=sys.stderr, flush=True)
    try:
        if key not in references:
            reference = Run(
                directory=folder / "reference",
                model=abuse.model,
                steps=steps,
                asked_exit_code=abuse.exit_code,
                watched="",
            )
            reference.directory.mkdir(parents=True)
            reference.execute()
            references[key] = reference
        reference = references[key]
        run = Run(directory=folder / "abused", model=abuse.model, steps=steps, asked_exit_code=abuse.exit_code)
        execute(run, abuse.prepare)
    except (TimeoutError, subprocess.CalledProcessError, OSError) as error:
        report.failed(abuse.name, str(error))
        return
    expected = RANKS * (steps + 2)
    same = sum(one == other for one, other in zip(run.losses, reference.losses, strict=False))
    if len(reference.losses) != expected:
        report.failed(
            abuse.name, f"the job without us ended with {reference.exit_code}, {len(reference.losses)} losses"
        )
    elif run.exit_code != reference.exit_code:
        report.failed(abuse.name, f"exit code {run.exit_code} instead of {reference.exit_code}")
    elif run.struck < 1:
        report.failed(abuse.name, "the abuse did not strike")
    else:
        report.all_of(f"{abuse.name} (struck {run.struck})", same if len(run.losses) == expected else 0, expected)


if __name__ == "__main__":
    sys.exit(main())
