"""Times of steps as people have them: JSON lines, CSV or TSV. Rows in; per-rank times or single operations out.

A row is a rank's step: ``rank`` and phases, ``step`` where it is one step and not a mean. Units stand at the end of a
column's name (``_ms``, ``_s``, ``_us``, ``_ns``), or are milliseconds. A row with ``optype``, ``start_ts`` and
``duration`` is one operation of a trace, in seconds. Bounded: what comes after MAX_ROWS is counted and left out.
"""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from statistics import median

import numpy as np
from numpy.typing import NDArray

from .operations import Operation
from .phases import STEP_WORDS, WORDS, RankTimes, StepPhase
from .self_time import StepTable

MAX_ROWS = 1_000_000
MAX_COLUMNS = 256
_UNITS_S = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0, "sec": 1.0, "seconds": 1.0}
_RANK = ("rank", "global_rank", "worker")
_OPERATION = ("optype", "op", "operation", "name")


@dataclass(slots=True)
class StepSeries:
    """What was read. ``first_bad``: the first line (1-based) that could not be, and why."""

    #: (rank, step; -1: a mean) -> phase (None: the whole step) -> seconds
    times: dict[tuple[int, int], dict[StepPhase | None, float]] = field(default_factory=dict)
    stages: dict[int, int] = field(default_factory=dict)
    operations: list[Operation] = field(default_factory=list)
    #: Steps that a mean is over, where a row says so.
    said_steps: int = 0
    bad_rows: int = 0
    left_out: int = 0
    first_bad: tuple[int, str] | None = None

    @property
    def is_trace(self) -> bool:
        return len(self.operations) > len(self.times)

    @property
    def ranks(self) -> list[int]:
        return sorted({rank for rank, _ in self.times})

    @property
    def has_wait(self) -> bool:
        """Whether the waiting was measured, for most rows."""
        return sum(StepPhase.WAIT in each for each in self.times.values()) * 2 > len(self.times)

    @property
    def steps(self) -> int:
        """How many steps each time is typical of."""
        counted = len({step for _, step in self.times if step >= 0})
        return max(counted, self.said_steps) if counted or self.said_steps else 20

    def json_lines(self, lines: Iterable[str]) -> None:
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            try:
                entry = json.loads(line)
            except (ValueError, RecursionError):
                self._bad(number, "no JSON")
                continue
            if not isinstance(entry, dict):
                self._bad(number, "no JSON object")
                continue
            self.take(number, entry)

    def table(self, lines: Iterable[str], delimiter: str) -> None:
        """CSV or TSV with a header."""
        header: list[str] | None = None
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            try:
                cells = next(csv.reader([line.replace("\0", "")], delimiter=delimiter), [])
            except csv.Error as trouble:
                self._bad(number, str(trouble))
                continue
            if header is None:
                header = cells[:MAX_COLUMNS]
            else:
                self.take(number, dict(zip(header, cells, strict=False)))

    def take(self, number: int, entry: Mapping[str, object]) -> None:
        """One row, from whatever file."""
        row = {str(key).strip().lower(): value for key, value in list(entry.items())[:MAX_COLUMNS]}
        nested = next((row[key] for key in ("rank_ms", "rank_s", "ranks") if isinstance(row.get(key), dict)), None)
        if isinstance(nested, dict):
            unit = "_s" if "rank_s" in row else "_ms"
            shared = {key: value for key, value in row.items() if key in ("step", "steps")}
            for rank, phases in nested.items():
                if isinstance(phases, dict):
                    named = {f"{key}{'' if _unit_of(key)[1] else unit}": value for key, value in phases.items()}
                    self.take(number, {**shared, **named, "rank": rank})
            return
        if len(self.times) + len(self.operations) >= MAX_ROWS:
            self.left_out += 1
            return
        rank = _whole(_first(row, _RANK))
        if rank is None:
            self._bad(number, "no rank")
        elif "duration" in row and ("start_ts" in row or "start" in row):
            self._operation(number, rank, row)
        else:
            self._phases(number, rank, row)

    def rank_times(self) -> list[RankTimes]:
        """Each rank's median over its steps."""
        rows_of: dict[int, list[dict[StepPhase | None, float]]] = {}
        for (rank, _), each in self.times.items():
            rows_of.setdefault(rank, []).append(each)
        found = []
        for rank, rows in sorted(rows_of.items()):
            times_s = {
                phase: median(each[phase] for each in rows if phase in each)
                for phase in StepPhase
                if any(phase in each for each in rows)
            }
            found.append(RankTimes(rank=rank, step_s=median(map(_step_s, rows)), phases_s=times_s))
        return found

    def step_table(self) -> StepTable:
        ranks, steps = self.ranks, sorted({step for _, step in self.times})
        rank_at = {rank: at for at, rank in enumerate(ranks)}
        step_at = {step: at for at, step in enumerate(steps)}
        shape = (len(steps), len(ranks))
        seen = {phase for each in self.times.values() for phase in each}
        step_s, wait_s = np.full(shape, np.nan), np.full(shape, np.nan)
        phases_s: dict[StepPhase, NDArray[np.float64]] = {
            phase: np.full(shape, np.nan) for phase in StepPhase if phase in seen and phase is not StepPhase.WAIT
        }
        for (rank, step), each in self.times.items():
            place = step_at[step], rank_at[rank]
            step_s[place] = _step_s(each)
            wait_s[place] = each.get(StepPhase.WAIT, np.nan)
            for phase, seconds in each.items():
                if phase is not None and phase in phases_s:
                    phases_s[phase][place] = seconds
        has_stages = len(self.stages) == len(ranks)
        return StepTable(
            ranks=tuple(ranks),
            step_s=step_s,
            wait_s=wait_s,
            phases_s=phases_s,
            stages=tuple(self.stages[rank] for rank in ranks) if has_stages else (),
        )

    def _phases(self, number: int, rank: int, row: Mapping[str, object]) -> None:
        times: dict[StepPhase | None, float] = {}
        for key, value in row.items():
            word, scale = _unit_of(key)
            phase = WORDS.get(word)
            if phase is None and word not in STEP_WORDS:
                continue
            seconds = _seconds(value, scale or 1e-3)
            if seconds is not None:
                # Two columns of one phase are two parts of it.
                times[phase] = times.get(phase, 0.0) + seconds if phase is not None else seconds
        if not times:
            self._bad(number, "no phase with a time (input, h2d, forward, backward, optimizer, wait, step_time)")
            return
        step = _whole(row.get("step"))
        self.said_steps = max(self.said_steps, _whole(row.get("steps")) or 0)
        stage = _whole(_first(row, ("stage", "pp_stage", "pp_rank")))
        if stage is not None:
            self.stages[rank] = stage
        self.times[rank, -1 if step is None else step] = times

    def _operation(self, number: int, rank: int, row: Mapping[str, object]) -> None:
        name = _first(row, _OPERATION)
        start_s, duration_s = _seconds(_first(row, ("start_ts", "start")), 1.0), _seconds(row.get("duration"), 1.0)
        if not isinstance(name, str) or start_s is None or duration_s is None:
            self._bad(number, "an operation needs optype, start_ts and duration")
            return
        self.operations.append(
            Operation(
                worker=rank,
                data_rank=_whole(row.get("dp_rank")) or 0,
                stage=_whole(_first(row, ("stage", "pp_rank"))) or 0,
                step=_whole(row.get("step")) or 0,
                name=name[:128],
                start_s=start_s,
                duration_s=duration_s,
                sequence=_whole(_first(row, ("seq_id", "seq"))) or 0,
            )
        )

    def _bad(self, number: int, why: str) -> None:
        self.bad_rows += 1
        self.first_bad = self.first_bad or (number, why)


def _step_s(times: Mapping[StepPhase | None, float]) -> float:
    """The whole step, or the sum of what was measured."""
    return times.get(None) or sum(seconds for phase, seconds in times.items() if phase is not None)


def _unit_of(key: str) -> tuple[str, float | None]:
    """``forward_ms`` -> (forward, 0.001); no unit: None."""
    word, _, unit = key.rpartition("_")
    return (word, _UNITS_S[unit]) if word and unit in _UNITS_S else (key, None)


def _seconds(value: object, scale: float) -> float | None:
    """A time, 0 or more; None for anything else."""
    if isinstance(value, str):
        try:
            value = float(value[:64])
        except ValueError:
            return None
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    try:
        seconds = float(value) * scale
    except OverflowError:
        return None
    return seconds if math.isfinite(seconds) and 0 <= seconds < 1e12 else None


def _whole(value: object) -> int | None:
    if isinstance(value, str):
        text = value.strip()[:12]
        return int(text) if text.isascii() and text.isdigit() else None
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    return int(value) if math.isfinite(value) and value == int(value) and 0 <= value < 1e9 else None


def _first(row: Mapping[str, object], names: Iterable[str]) -> object:
    return next((row[name] for name in names if row.get(name) not in (None, "")), None)
