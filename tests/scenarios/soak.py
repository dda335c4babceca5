"""One healthy job for an hour with mixed habits: no incident, and whichrank neither grows nor costs more with time.

``run.py --soak`` runs it. A thread beside the job samples whichrank's own process; what the samples amount to is a
plain function over them.
"""

from __future__ import annotations

import itertools
import json
import random
import threading
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil

from .beside import busy_neighbours, suspend_ranks
from .catalogue.truths import NOTHING
from .plan import Ending, Scenario
from .report import Line
from .runner import Job

SAMPLES_FILE = "samples.json"
SAMPLE_S = 10.0
#: Between visits of the neighbours, and how long they stay; between suspends.
ALONE_S = (60.0, 180.0)
VISIT_S = (20.0, 60.0)
#: Imports, caches and the first windows are full after this share of the run.
WARM_SHARE = 1.0 / 6.0
CPU_ASKED = 0.02
#: The bus keeps the newest of the capture in memory, up to that size (``transport/embedded.py``).
MEMORY_GROWTH_ASKED_MIB = 16.0
#: The capture grows with what arrives, up to its limit; state, incidents and the rest must not.
CAPTURE_LIMIT_MIB = 2048.0
FILES_GROWTH_ASKED_MIB = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """At one moment: of the ``whichrank run`` process, of its capture, and of all else that it has written."""

    after_s: float
    cpu_s: float
    memory_mib: float
    capture_mib: float
    files_mib: float
    ring_mib: float
    threads: int
    open_files: int


def beside(job: Job, over: threading.Event) -> None:
    """Samples, with neighbours and suspends in between."""
    sampling = threading.Thread(target=_sample, args=(job, over), name="samples", daemon=True)
    sampling.start()
    drawn = random.Random(f"{job.plan.jitter_seed}/soak")
    while not over.wait(drawn.uniform(*ALONE_S)):
        if drawn.random() < 0.5:
            suspend_ranks(job, over)
            continue
        visit = threading.Event()
        neighbours = threading.Thread(target=busy_neighbours, args=(job, visit), daemon=True)
        neighbours.start()
        over.wait(drawn.uniform(*VISIT_S))
        visit.set()
        neighbours.join()
    sampling.join()


def _sample(job: Job, over: threading.Event) -> None:
    process, began, samples = psutil.Process(job.process.pid), time.monotonic(), []
    while not over.wait(SAMPLE_S):
        capture_mib = _size_mib(job.out / "capture")
        try:
            with process.oneshot():
                times = process.cpu_times()
                sample = Sample(
                    after_s=time.monotonic() - began,
                    cpu_s=times.user + times.system,
                    memory_mib=process.memory_info().rss / 2**20,
                    capture_mib=capture_mib,
                    files_mib=_size_mib(job.out) - capture_mib,
                    ring_mib=_rings_mib(job.out),
                    threads=process.num_threads(),
                    open_files=process.num_fds(),
                )
        except psutil.Error:
            break  # it has ended; the outcome says how
        samples.append(asdict(sample))
        (job.folder / SAMPLES_FILE).write_text(json.dumps(samples))


def _size_mib(folder: Path) -> float:
    """Of all files below; some go while we look."""
    total = 0
    for path in folder.rglob("*"):
        try:
            total += path.stat().st_size if path.is_file() else 0
        except OSError:
            continue
    return total / 2**20


def _rings_mib(out: Path) -> float:
    try:
        return _size_mib(Path(json.loads((out / "run.json").read_text())["ring_directory"]))
    except (OSError, ValueError, KeyError):
        return 0.0


def load_samples(folder: Path) -> list[Sample]:
    path = folder / SAMPLES_FILE
    return [Sample(**item) for item in json.loads(path.read_text())] if path.exists() else []


def soak_lines(samples: Sequence[Sample], asked_s: float) -> list[Line]:
    """The demands on an hour: length, processor, memory, files, threads and descriptors. Pure."""
    if len(samples) < 2:
        return [Line(name="soak: samples", asked=">= 2", measured=str(len(samples)), k=0, n=1, ok=False)]
    lasted_s = samples[-1].after_s
    warm = [sample for sample in samples if sample.after_s >= WARM_SHARE * lasted_s]
    pairs = [(late.cpu_s - early.cpu_s) / (late.after_s - early.after_s) for early, late in itertools.pairwise(warm)]
    cpu = (warm[-1].cpu_s - warm[0].cpu_s) / (warm[-1].after_s - warm[0].after_s)
    third = max(1, len(warm) // 3)
    memory = _mean([s.memory_mib for s in warm[-third:]]) - _mean([s.memory_mib for s in warm[:third]])
    files = max(s.files_mib for s in warm) - warm[0].files_mib
    capture_per_h = (warm[-1].capture_mib - warm[0].capture_mib) / (warm[-1].after_s - warm[0].after_s) * 3600.0
    rings = max(s.ring_mib for s in warm) - warm[0].ring_mib
    handles = max(s.open_files for s in warm) - warm[0].open_files
    threads = max(s.threads for s in warm) - warm[0].threads
    rows = (
        ("length", f">= {asked_s / 60:.0f} min", f"{lasted_s / 60:.1f} min", lasted_s >= asked_s - 2 * SAMPLE_S),
        (
            "processor time of whichrank run, mean (highest of 10 s)",
            f"<= {CPU_ASKED:.0%} of a core",
            f"{cpu:.2%} ({max(pairs):.2%})",
            cpu <= CPU_ASKED,
        ),
        (
            "resident memory, last third over first third",
            f"<= +{MEMORY_GROWTH_ASKED_MIB:g} MiB",
            f"{memory:+.1f} MiB, to {warm[-1].memory_mib:.0f} MiB",
            memory <= MEMORY_GROWTH_ASKED_MIB,
        ),
        (
            "state, incidents and other files",
            f"<= +{FILES_GROWTH_ASKED_MIB:g} MiB",
            f"{files:+.2f} MiB, to {warm[-1].files_mib:.2f} MiB",
            files <= FILES_GROWTH_ASKED_MIB,
        ),
        (
            "capture",
            f"<= {CAPTURE_LIMIT_MIB:g} MiB",
            f"{warm[-1].capture_mib:.1f} MiB, {capture_per_h:.1f} MiB/h",
            warm[-1].capture_mib <= CAPTURE_LIMIT_MIB,
        ),
        ("rings do not grow", "+0 MiB", f"{rings:+.2f} MiB", rings <= 0.01),
        ("descriptors and threads", "+4 at most", f"{handles:+d} and {threads:+d}", max(handles, threads) <= 4),
    )
    return [
        Line(name=f"soak: {name}", asked=asked, measured=measured, k=int(ok), n=1, ok=ok)
        for name, asked, measured, ok in rows
    ]


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


SOAK = Scenario(
    name="soak",
    truth=NOTHING,
    ending=Ending.RUNS,
    workloads=("ddp_transformer",),
    worlds=(2,),
    options={
        "loader_workers": 1,
        "first_step_s": 20.0,
        "vary_together": 2.0,
        "hiccups": 0.003,
        "hiccup_s": 2.0,
        "evaluate_every": 150,
        "evaluate_steps": (5, 10, 20),
        "checkpoint_every": 110,
        "checkpoint_steps": (5, 10, 20),
        "profile_every": 400,
    },
    clean_s=3600.0,
    alone=False,
    step_s=(0.3, 0.6),
    beside=beside,
)
