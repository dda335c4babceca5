"""Who is woken while nothing is wrong: days without a fault, in chunks of a seed each, kept and resumed."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from ...commands.run_folder.incident_log import read_incident_line
from ...simulator.ground_truth import TimeUse
from ...simulator.scenarios.grounds import HELD_OUT_SEED
from ...simulator.scenarios.sound_days import REDUCED, REFERENCE, SoundDayMode, sound_world
from ...simulator.scoring.statistics import poisson_upper, share_of
from ...simulator.scoring.summary import ScoreLine, not_run
from ...simulator.world import World
from ...telemetry.incident_document import word_of
from ...telemetry.vocabulary import Severity
from .kept_documents import NotKept, read_sound, write_sound
from .kept_runs import KeptRuns
from .matrix import score_lines
from .one_run import most_memory_bytes, run_apart
from .scored_run import Sound

_DAY_S = 86_400.0
_MOST_CHUNKS = 100_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """ranks, hours: of a chunk. asked_gpu_days: what issue 7 wants to see."""

    mode: SoundDayMode
    ranks: int
    hours: float
    asked_gpu_days: float
    words: str

    @property
    def chunk_gpu_days(self) -> float:
        """GPU-days of one chunk: one job, one GPU a rank."""
        return self.ranks * self.hours / 24.0


LOADS = {
    "reference": Load(mode=REFERENCE, ranks=64, hours=1.0, asked_gpu_days=500.0, words="2-s steps, all records"),
    "reduced": Load(mode=REDUCED, ranks=1024, hours=24.0, asked_gpu_days=300_000.0, words="20-s steps, step rows only"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """One job for some hours (``one_run.Run``)."""

    load: Load
    seed: int
    keep: Path | None = None

    @property
    def name(self) -> str:
        """The name under which ``KeptRuns`` has the chunk: load, size, length and seed."""
        return f"sound-{self.load.mode.name}-{self.load.ranks}-{self.load.hours:g}h-{self.seed}"

    @property
    def compares(self) -> bool:
        """Always False: the simple detector does not watch."""
        return False  # nobody asks what it would page on sound days

    @property
    def seconds(self) -> float:
        """Seconds of the simulation."""
        return 3600.0 * self.load.hours

    @property
    def most_memory_bytes(self) -> int:
        """The most that the run may hold, as for a run of the matrix with as many ranks."""
        return most_memory_bytes(self.load.ranks)

    def build(self) -> World:
        """A world in which nothing fails, on this seed's ground."""
        return sound_world(self.load.mode, self.load.ranks, self.seed, self.seconds)


def watch_sound_days(
    load: Load, kept: KeptRuns, *, gpu_days: float, seed: int = 0, jobs: int = 1, limit_s: float = 7200.0
) -> list[Sound]:
    """Watches as many chunks as make so many GPU-days, on held-out seeds and grounds, and says each on stderr.

    A chunk that fails raises nothing: its ``Sound`` has a ``problem`` and no GPU-days. What is kept, failed ones too,
    is not run again; what ran out of time is not kept. jobs: so many at a time; limit_s: for each, of wall time.
    Raises OSError: nothing can be kept.
    """
    count = min(math.ceil(gpu_days / load.chunk_gpu_days), _MOST_CHUNKS)
    chunks = [Chunk(load=load, seed=HELD_OUT_SEED + seed + number) for number in range(count)]

    def one(chunk: Chunk) -> Sound:
        before = _kept(kept, chunk)
        if before is not None:
            return before
        sound = _watch(chunk, limit_s)
        if not sound.is_late:
            kept.write(chunk.name, write_sound(sound))
        words = sound.problem or f"{sound.pages} pages in {sound.gpu_days:.2f} GPU-days; {', '.join(sound.said)}"
        print(f"  {chunk.name}: {words} [{sound.wall_s:.0f} s]", file=sys.stderr, flush=True)
        return sound

    with ThreadPoolExecutor(jobs) as pool:
        futures = [pool.submit(one, chunk) for chunk in chunks]
        try:
            return [future.result() for future in futures]
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def kept_sound_days(load: Load, kept: KeptRuns) -> list[Sound]:
    """What was kept of all chunks of this load."""
    found = (_kept(kept, Chunk(load=load, seed=seed)) for seed in kept_sound_seeds(load, kept))
    return [sound for sound in found if sound is not None]


def kept_sound_seeds(load: Load, kept: KeptRuns) -> list[int]:
    """The seeds of all kept chunks of this load, in no order."""
    prefix = f"sound-{load.mode.name}-{load.ranks}-{load.hours:g}h-"
    return [int(name.removeprefix(prefix)) for name in kept.names(f"{prefix}*")]


def sound_lines(load: Load, found: Sequence[Sound]) -> list[ScoreLine]:
    """Lines on pages, and how long nobody was woken.

    SHORT where a page came, or the time is less than what is asked.
    """
    name = f"pages without a fault, {load.mode.name} load ({load.words})"
    asked = f"0 in >= {load.asked_gpu_days:,.0f} GPU-days"
    scored = [sound for sound in found if not sound.problem]
    if not scored:
        return [not_run(name, asked)]
    pages, days = sum(sound.pages for sound in scored), math.fsum(sound.gpu_days for sound in scored)
    steps, wall_s = sum(sound.rank_steps for sound in scored), math.fsum(sound.wall_s for sound in scored)
    bound = poisson_upper(pages) / days * 1000.0
    silent = share_of([not sound.pages for sound in scored])
    lines = [
        ScoreLine(
            name=name,
            asked=asked,
            measured=f"{pages} in {days:,.1f} GPU-days; at most {bound:,.3g} per 1,000 GPU-days (95 %)",
            share=f"{silent.k} of {silent.n} chunks silent",
            ok=not pages and days >= load.asked_gpu_days,
        ),
        ScoreLine(
            name=f"{load.mode.name} load: ranks x steps per second of a process",
            asked="",
            measured=f"{steps / wall_s:,.0f}",
            share=f"{steps:,} in {wall_s / 3600.0:.2f} h",
        ),
    ]
    if problems := [sound.problem for sound in found if sound.problem]:
        words = f"{len(problems)}: {problems[0]}"
        lines.append(
            ScoreLine(name=f"{load.mode.name} load: chunks that failed", asked="0", measured=words, share="", ok=False)
        )
    return lines


def _kept(kept: KeptRuns, chunk: Chunk) -> Sound | None:
    content = kept.read(chunk.name)
    try:
        return None if content is None else read_sound(content)
    except NotKept:
        return None


def _watch(chunk: Chunk, limit_s: float) -> Sound:
    measured = run_apart(chunk, limit_s=limit_s)
    if measured.problem or measured.truth is None:
        return Sound(
            gpu_days=0.0,
            pages=0,
            rank_steps=0,
            wall_s=measured.wall_s,
            problem=measured.problem,
            is_late=measured.out_of_time,
        )
    score = score_lines(measured, measured.revisions)
    last = {incident.id: incident for incident in map(read_incident_line, measured.revisions)}
    paged = sorted(last.values(), key=lambda incident: incident.severity is not Severity.PAGE)
    steps = sum(int(span.bucket in (TimeUse.PRODUCTIVE, TimeUse.REWORK)) for span in measured.truth.spans)
    return Sound(
        gpu_days=score.gpu_days,
        pages=score.pages,
        rank_steps=steps * chunk.load.ranks,
        wall_s=measured.wall_s,
        said=tuple(f"{word_of(each.kind)} ({word_of(each.severity)})" for each in paged),
    )
