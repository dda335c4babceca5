"""The grid as a picture's data: ranks put into rows, three tables, their scales, packed for a page. Pure.

A row may stand for many ranks. It shows the one that is least like the others in that step, and says which it is.
"""

from __future__ import annotations

import base64
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from .grid import Grid, apart, most_apart

#: Rows of a picture that fits a screen; more ranks share rows.
MOST_ROWS = 512
#: Ranks above and below a suspect in the picture beside it, where ranks share rows.
NEIGHBOURS = 8
MOST_DETAILS = 3
#: Over so many columns a rank is told to be steadily apart; of the sorted ones these are averaged.
STEADY_COLUMNS, _MIDDLE = 9, slice(2, 7)
_RANKS_AT_ONCE = 1024
#: Of a number's 23 bits so many are kept: three digits, and zeros pack well.
_KEPT_BITS = 11
#: This share of all cells may lie outside of a scale, drawn as its end.
_OUTSIDE = 0.002
#: Where nine cells in ten lie in this share of a scale, their differences would not be seen: it shows roots, then.
_CROWDED = 0.1


#: (lowest, highest, power), in seconds.
Span = tuple[float, float, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Scales:
    """Of each table the scale: what most cells lie within, and all that a rank does steadily."""

    own: Span
    waited: Span
    apart: Span
    steady: Span


@dataclass(frozen=True, slots=True, kw_only=True)
class HeatMapHead:
    """size: ranks in a row; firsts: the first rank of each row; last: the last rank of all. marked: suspects in it.

    columns: (attempt, first step, last step, begin in Unix seconds, 1 where it was not finished).
    """

    title: str
    size: int
    firsts: tuple[int, ...]
    last: int
    marked: tuple[int, ...]
    scales: Scales
    columns: tuple[tuple[int, int, int, float, int], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class HeatMap:
    """What the page's script draws: ``head`` as JSON; ``body``: float32 tables own, waited, apart, steady, and for each
    the place of the rank that is shown within its row (uint16), packed by zlib, base64."""

    head: HeatMapHead
    body: str


def heat_maps(grid: Grid, suspects: Iterable[int]) -> list[HeatMap]:
    """Heat maps of all ranks; and where they share rows, of each suspect among its neighbours. suspects: ranks.

    Empty where no step was seen to end: what a job without steps did with its time is not known.
    """
    if all(column.unfinished for column in grid.columns):
        return []
    marked = sorted({rank for rank in suspects if 0 <= rank < grid.ranks})
    size = -(-grid.ranks // MOST_ROWS)
    steady = steadily_apart(grid)
    scales = _scales(grid, steady)
    maps = [_map_of(grid, steady, range(0, grid.ranks, size), size, marked, scales, f"All {grid.ranks} ranks")]
    for rank in marked[:MOST_DETAILS] if size > 1 else ():
        rows = range(max(0, rank - NEIGHBOURS), min(grid.ranks, rank + NEIGHBOURS + 1))
        maps.append(_map_of(grid, steady, rows, 1, marked, scales, f"Rank {rank} and its neighbours"))
    return maps


def steadily_apart(grid: Grid) -> np.ndarray:
    """(ranks, columns), seconds: a rank's own time against the others', over the columns around each.

    So what varies from step to step goes, and what looks a tenth of a second apart make of short waits. A step that was
    not finished stands for itself.
    """
    out: np.ndarray = grid.apart_s.copy()
    numbers = [(column.attempt, column.unfinished) for column in grid.columns]
    begin = 0
    for end in range(1, len(numbers) + 1):
        if end == len(numbers) or numbers[end] != numbers[begin]:
            if not numbers[begin][1]:
                for first in range(0, grid.ranks, _RANKS_AT_ONCE):
                    part = slice(first, first + _RANKS_AT_ONCE)
                    out[part, begin:end] = _middle_mean(grid.apart_s[part, begin:end])
            begin = end
    return out


def _middle_mean(values: np.ndarray) -> np.ndarray:
    """(ranks, columns): the mean of the middle ones around each column, of all where some are not known."""
    half = STEADY_COLUMNS // 2
    wide = np.pad(values, ((0, 0), (half, half)), constant_values=np.nan)
    around = np.sort(np.lib.stride_tricks.sliding_window_view(wide, STEADY_COLUMNS, axis=1), axis=-1)
    known = ~np.isnan(around)
    count = known.sum(axis=-1)
    whole = around[:, :, _MIDDLE].mean(axis=-1)
    some = np.where(known, around, 0.0).sum(axis=-1) / np.maximum(count, 1)
    return np.where(np.isnan(values), np.nan, np.where(count == STEADY_COLUMNS, whole, some)).astype(np.float32)


def _map_of(
    grid: Grid, steady: np.ndarray, firsts: range, size: int, marked: Sequence[int], scales: Scales, title: str
) -> HeatMap:
    """firsts: the first rank of each row; size: ranks in a row."""
    tables, whos = [], []
    chosen_by_own = _least_like_others(grid.apart_s, firsts, size)
    waited_apart = np.stack([apart(column) for column in grid.waited_s.T], axis=1)
    chosen_by_wait = _least_like_others(waited_apart, firsts, size)
    for table, chosen in (
        (grid.own_s, chosen_by_own),
        (grid.waited_s, chosen_by_wait),
        (grid.apart_s, chosen_by_own),
        (steady, _least_like_others(steady, firsts, size)),
    ):
        rows = np.asarray(firsts)[:, None] + chosen
        tables.append(_short(np.take_along_axis(table, rows, axis=0)))
        whos.append(chosen.astype("<u2"))
    body = b"".join(part.tobytes() for part in (*tables, *whos))
    head = HeatMapHead(
        title=title,
        size=size,
        firsts=tuple(firsts),
        last=min(firsts[-1] + size, grid.ranks) - 1,
        marked=tuple(rank for rank in marked if firsts[0] <= rank < firsts[-1] + size),
        scales=scales,
        columns=tuple(
            (each.attempt, each.first_step, each.last_step, round(each.begin_s, 3), int(each.unfinished))
            for each in grid.columns
        ),
    )
    return HeatMap(head=head, body=base64.b64encode(zlib.compress(_planes(body, tables), 9)).decode())


def _least_like_others(values: np.ndarray, firsts: range, size: int) -> np.ndarray:
    """(rows, columns): the place within its row of the rank that is most apart."""
    if size == 1:
        return np.zeros((len(firsts), values.shape[1]), np.int64)
    padded = np.full((len(firsts) * size, values.shape[1]), np.nan, np.float32)
    padded[: len(values)] = values
    return most_apart(padded.reshape(len(firsts), size, -1).transpose(0, 2, 1))


def _short(table: np.ndarray) -> np.ndarray:
    """Numbers of three digits: what is cut off was noise, and would not pack."""
    bits = np.ascontiguousarray(table, "<f4").view("<u4")
    kept = np.uint32((0xFFFFFFFF << (23 - _KEPT_BITS)) & 0xFFFFFFFF)
    return np.where(np.isnan(table), bits, bits & kept).view("<f4")


def _planes(body: bytes, tables: Sequence[np.ndarray]) -> bytes:
    """All first bytes of the numbers, then all second ones, and so on: they pack to half the size."""
    floats = sum(table.nbytes for table in tables)
    numbers = np.frombuffer(body[:floats], np.uint8).reshape(-1, 4)
    planes: bytes = numbers.T.tobytes()
    return planes + body[floats:]


def _scales(grid: Grid, steady: np.ndarray) -> Scales:
    return Scales(
        own=_span(grid, grid.own_s),
        waited=_span(grid, grid.waited_s),
        apart=_span(grid, np.abs(grid.apart_s), lowest=0.0),
        steady=_span(grid, np.abs(steady), lowest=0.0),
    )


def _span(grid: Grid, table: np.ndarray, *, lowest: float | None = None) -> Span:
    """table: (ranks, columns), seconds. lowest: where the scale begins; None: at what few cells lie below."""
    known = table[np.isfinite(table)]
    if not known.size:
        return 0.0, 1.0, 1.0
    low, common, high = (float(each) for each in np.quantile(known, [_OUTSIDE, 0.9, 1 - _OUTSIDE]))
    low = low if lowest is None else lowest
    whole = np.array([not column.unfinished for column in grid.columns])
    finite = np.where(np.isfinite(table), table, np.nan)
    for steady in (*finite[:, ~whole].T, *(_row_medians(finite[:, whole]))):
        highest = steady[~np.isnan(steady)].max(initial=high)
        high = max(high, float(highest))
    high = max(high, low + 1e-6)
    return low, high, 0.5 if common - low < _CROWDED * (high - low) else 1.0


def _row_medians(table: np.ndarray) -> list[np.ndarray]:
    """What each rank does in half of its steps; in one array."""
    if not table.size:
        return []
    known = ~np.isnan(table)
    rows = known.any(axis=1)
    return [np.nanmedian(table[rows], axis=1)] if rows.any() else []
