"""Times of steps as people have them: JSON lines, CSV or TSV. Rows in; per-rank times or single operations out.

A row is a rank's step: ``rank`` and phases, ``step`` where it is one step and not a mean. Units stand at the end of a
column's name (``_ms``, ``_s``, ``_us``, ``_ns``), or are milliseconds. A row with ``optype``, ``start_ts`` and
``duration`` is one operation of a trace, in seconds. Bounded: what comes after MAX_ROWS is counted and left out.
"""

from __future__ import annotations

import csv
import itertools
import json
import math
from array import array
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from .pipeline_operations import PipelineOperation
from .self_time import StepTable
from .step_phases import STEP_WORDS, WORDS, RankTimes, StepPhase

MAX_ROWS = 1_000_000
MAX_COLUMNS = 256
#: As many as a grave verdict needs.
ENOUGH_STEPS = 20
_UNITS_S = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0, "sec": 1.0, "seconds": 1.0}
_RANK = ("rank", "global_rank", "worker")
_OPERATION = ("optype", "op", "operation", "name")


#: Columns of a row: the whole step, then each phase.
_COLUMNS: tuple[StepPhase | None, ...] = (None, *StepPhase)
_COLUMN_OF = {phase: at for at, phase in enumerate(_COLUMNS)}
_NOTHING = (math.nan,) * len(_COLUMNS)


@dataclass(slots=True)
class StepSeries:
    """What was read. ``first_bad``: the first line (1-based) that could not be, and why."""

    stages: dict[int, int] = field(default_factory=dict)
    nodes: dict[int, str] = field(default_factory=dict)
    operations: list[PipelineOperation] = field(default_factory=list)
    #: Steps that a mean is over, where a row says so.
    said_steps: int = 0
    bad_rows: int = 0
    left_out: int = 0
    first_bad: tuple[int, str] | None = None
    #: One entry per row; the step of a mean is -1. ``_seconds_of``: _COLUMNS one after the other, NaN: not said.
    _rank_of: array[int] = field(default_factory=lambda: array("q"))
    _step_of: array[int] = field(default_factory=lambda: array("q"))
    _seconds_of: array[float] = field(default_factory=lambda: array("d"))

    @property
    def rows(self) -> int:
        """How many rows could be read as times of a rank's step."""
        return len(self._rank_of)

    @property
    def is_trace(self) -> bool:
        """Whether most rows are single operations, not sums per rank."""
        return len(self.operations) > self.rows

    @property
    def ranks(self) -> list[int]:
        """All ranks that have a row, sorted."""
        return sorted(set(self._rank_of))

    @property
    def has_wait(self) -> bool:
        """Whether the waiting was measured, for most rows."""
        waits = self._table()[:, _COLUMN_OF[StepPhase.WAIT]]
        return int((~np.isnan(waits)).sum()) * 2 > self.rows

    @property
    def steps(self) -> int:
        """How many steps each time is typical of; where nothing says so, enough of them."""
        counted = len({step for step in self._step_of if step >= 0})
        return max(counted, self.said_steps) or ENOUGH_STEPS

    def json_lines(self, lines: Iterable[str]) -> None:
        """Takes the rows of a file of one JSON object per line; lines that are none are counted, the first is named."""
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
        """Takes the rows of a CSV or TSV file with a header.

        Lines that cannot be read are counted, the first is named.
        """
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
        """Takes one row, of line ``number``; one that cannot be read is counted, beyond ``MAX_ROWS`` it is left out."""
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
        if self.rows + len(self.operations) >= MAX_ROWS:
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
        """Each rank's typical step: medians over its steps."""
        table, whole = self._table(), self._whole_steps()
        order = np.argsort(np.frombuffer(self._rank_of, dtype=np.int64), kind="stable")
        found = []
        for rank, rows in itertools.groupby(order.tolist(), key=self._rank_of.__getitem__):
            places = list(rows)
            times_s = {}
            for phase in StepPhase:
                seconds = table[places, _COLUMN_OF[phase]]
                if (known := seconds[~np.isnan(seconds)]).size:
                    times_s[phase] = float(np.median(known))
            found.append(RankTimes(rank=rank, step_s=float(np.median(whole[places])), phases_s=times_s))
        return found

    def step_table(self) -> StepTable:
        """Times by step and rank, of those steps that at least half of the ranks have.

        So a file of scattered rows cannot fill the memory.
        """
        table, whole = self._table(), self._whole_steps()
        ranks, rank_at = np.unique(np.frombuffer(self._rank_of, dtype=np.int64), return_inverse=True)
        _steps, step_at, count = np.unique(
            np.frombuffer(self._step_of, dtype=np.int64), return_inverse=True, return_counts=True
        )
        is_kept = count * 2 >= len(ranks)
        place = np.cumsum(is_kept) - 1
        rows = is_kept[step_at]
        where = place[step_at[rows]], rank_at[rows]

        def spread(seconds: NDArray[np.float64]) -> NDArray[np.float64]:
            cells = np.full((int(is_kept.sum()), len(ranks)), np.nan)
            cells[where] = seconds[rows]
            return cells

        columns = {phase: table[:, _COLUMN_OF[phase]] for phase in StepPhase}
        has_stages, has_nodes = len(self.stages) == len(ranks), len(self.nodes) == len(ranks)
        return StepTable(
            ranks=tuple(ranks.tolist()),
            step_s=spread(whole),
            wait_s=spread(columns.pop(StepPhase.WAIT)),
            phases_s={phase: spread(each) for phase, each in columns.items() if not np.isnan(each).all()},
            stages=tuple(self.stages[rank] for rank in ranks.tolist()) if has_stages else (),
            nodes=tuple(self.nodes[rank] for rank in ranks.tolist()) if has_nodes else (),
        )

    def _table(self) -> NDArray[np.float64]:
        return np.frombuffer(self._seconds_of, dtype=np.float64).reshape(-1, len(_COLUMNS))

    def _whole_steps(self) -> NDArray[np.float64]:
        """The whole step, or the sum of what was measured."""
        table = self._table()
        said: NDArray[np.float64] = np.where(table[:, 0] > 0, table[:, 0], np.nansum(table[:, 1:], axis=1))
        return said

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
        node = _first(row, ("node", "host", "hostname"))
        if isinstance(node, str):
            self.nodes[rank] = node[:256]
        self._rank_of.append(rank)
        self._step_of.append(-1 if step is None else step)
        self._seconds_of.extend(_NOTHING)
        begin = len(self._seconds_of) - len(_COLUMNS)
        for phase, seconds in times.items():
            self._seconds_of[begin + _COLUMN_OF[phase]] = seconds

    def _operation(self, number: int, rank: int, row: Mapping[str, object]) -> None:
        name = _first(row, _OPERATION)
        start_s, duration_s = _seconds(_first(row, ("start_ts", "start")), 1.0), _seconds(row.get("duration"), 1.0)
        if not isinstance(name, str) or start_s is None or duration_s is None:
            self._bad(number, "an operation needs optype, start_ts and duration")
            return
        self.operations.append(
            PipelineOperation(
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
    # Compared before it is made a float: JSON has whole numbers that no float holds.
    return int(value) if 0 <= value < 1e9 and value == int(value) else None


def _first(row: Mapping[str, object], names: Iterable[str]) -> object:
    return next((row[name] for name in names if row.get(name) not in (None, "")), None)
