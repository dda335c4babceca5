"""Rows of large jobs with times no finer than anybody asks: what is below that is noise, and most of what is sent.

An age becomes that since a moment on a grid, so that a moment stays the same from flush to flush: of a millisecond, or,
of calls, of 17 ms, as when the node looked is told: far below the times that rules wait. Lengths and moments of steps
are told to a ten-thousandth of them, ends on devices to a thousandth, which is finer than they are looked at. What is
0, unknown or not finite stays so, and nothing becomes it.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from ...telemetry.records import Block
from ...telemetry.vocabulary import EventName

#: Of since when a rank is in its phase, its step, and lives: 2^20 ns; since when a call is open, and of looks: 2^24 ns.
_MOMENT_BITS, _LOOK_BITS = 20, 24
#: Of a step's length so many bits are told; of its length in moments on devices; of sums that no rule asks for.
_LENGTH_BITS, _DEVICE_BITS, _ROUGH_BITS = 13, 11, 6
#: A process's own cost: 2^16 ns. Its CPU time, for which no rule asks: 2^30 ns.
_COST_BITS, _CPU_BITS = 16, 30
#: Who has stood still for less than 2^30 ns moves: rules ask for two seconds and more.
_MOVES_BITS = 30
#: Of losses and norms.
_MANTISSA_BITS = 16
Times = NDArray[np.int64]


def coarse(block: Block, read_ns: int) -> Block:
    """The same block, coarser; one of another table as it is.

    read_ns: by the node's monotonic clock, when living ranks were looked at.
    """
    if not len(block.rows):
        return block
    make = _COARSE.get(block.name)
    if make is None:
        return block
    rows = block.rows.copy()
    make(rows, read_ns)
    return replace(block, rows=rows)


def _coarse_progress(rows: NDArray[np.void], read_ns: int) -> None:
    looks_ns = _look(rows["read_ns"])
    for column in ("phase_age_ns", "step_age_ns", "heartbeat_age_ns", "still_ns"):
        rows[column] = _since_grid(rows[column], rows["read_ns"], looks_ns, _MOMENT_BITS)
    rows["read_ns"] = looks_ns
    rows["still_ns"] = np.where((rows["still_ns"] > 0) & (rows["still_ns"] < 1 << _MOVES_BITS), -1, rows["still_ns"])
    rows["own_cost_ns"] = _on_grid(rows["own_cost_ns"], _COST_BITS)
    rows["cpu_ns"] = _on_grid(rows["cpu_ns"], _CPU_BITS)


def _coarse_groups(rows: NDArray[np.void], read_ns: int) -> None:
    for column in ("open_age_ns", "moved_age_ns"):
        rows[column] = _since_grid(rows[column], read_ns, _look(read_ns), _LOOK_BITS)
    # What a device has ended it has begun: of which of these it was last seen to begin nobody asks.
    rows["started"] = np.where(rows["started"] >= 0, np.maximum(rows["started"], rows["completed"]), rows["started"])


def _coarse_steps(rows: NDArray[np.void], read_ns: int) -> None:
    bits = _bits_below(rows["phase_ns"].sum(axis=1), _LENGTH_BITS)
    for column in ("phase_ns", "begin_ns", "end_ns"):
        rows[column] = _on_grid(rows[column], bits)
    rows["collective_ns"] = _on_grid(rows["collective_ns"], _bits_below(rows["collective_ns"], _LENGTH_BITS))
    for column in ("loss", "grad_norm"):
        rows[column] = _short(rows[column])


def _coarse_step_groups(rows: NDArray[np.void], read_ns: int) -> None:
    rows["collective_ns"] = _on_grid(rows["collective_ns"], _bits_below(rows["collective_ns"], _ROUGH_BITS))


def _coarse_devices(rows: NDArray[np.void], read_ns: int) -> None:
    """By how long a step's calls end, one after the other; where they end together, by how long devices stood."""
    known = rows["first_end_ns"][rows["first_end_ns"] > 0]
    steps = np.unique(rows["step"]).size
    whole_ns = (int(rows["last_end_ns"].max()) - int(known.min())) // steps if known.size else 0
    bits = _bits_below(np.array([whole_ns, *rows["stood_ns"].tolist()]).max(keepdims=True), _DEVICE_BITS)
    for column in ("stood_ns", "first_end_ns", "last_end_ns"):
        rows[column] = _on_grid(rows[column], bits)


#: By table, what makes its rows coarser; they are changed.
_COARSE = {
    EventName.BLOCK_PROGRESS: _coarse_progress,
    EventName.BLOCK_GROUP_PROGRESS: _coarse_groups,
    EventName.BLOCK_STEPS: _coarse_steps,
    EventName.BLOCK_STEP_GROUPS: _coarse_step_groups,
    EventName.BLOCK_DEVICE_STEPS: _coarse_devices,
}


def _bits_below(lengths_ns: Times, told: int) -> int:
    """How many low bits are left where of usual lengths the highest ``told`` are."""
    return max(int(np.median(lengths_ns)).bit_length() - told, 0)


def _look(read_ns: Times | int) -> Times | int:
    """When the node looked, by the grid: up to 17 ms later, so that no age comes to nothing."""
    return read_ns + (-read_ns & ((1 << _LOOK_BITS) - 1))


def _since_grid(ages_ns: Times, read_ns: Times | int, look_ns: Times | int, bits: int) -> Times:
    """The ages at ``look_ns`` of the grid's moments before: at most two steps of grids more."""
    moments_ns = (read_ns - ages_ns) & -(1 << bits)
    return np.where(ages_ns > 0, look_ns - moments_ns, ages_ns)


def _on_grid(times_ns: Times, bits: int) -> Times:
    """Down to the grid; what would become 0 is one step of it."""
    grid = 1 << bits
    return np.where(times_ns > 0, np.maximum(times_ns & -grid, grid), times_ns)


def _short(numbers: NDArray[np.float64]) -> NDArray[np.float64]:
    """Rounded to so few bits; what is too large or too small for a float of 32 bits as it is."""
    with np.errstate(over="ignore", invalid="ignore"):
        mantissa, exponent = np.frexp(numbers)
        short = np.ldexp(np.rint(np.ldexp(mantissa, _MANTISSA_BITS)), exponent - _MANTISSA_BITS)
        single = short.astype(np.float32).astype(np.float64)
    keeps = np.isfinite(single) & ((single != 0) | (numbers == 0))
    return np.where(keeps, single, numbers)
