"""Rows of large jobs with times no finer than anybody asks: what is below that is noise, and most of what is sent.

An age becomes that since a moment on a grid of a millisecond, so that a moment stays the same from flush to flush; no
verdict looks at less. Lengths and moments of steps are told to a ten-thousandth of them, losses as accurately as
devices compute them. What is 0, unknown or not finite stays so, and nothing becomes it.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from ...telemetry.records import Block
from ...telemetry.vocabulary import EventName

#: Of since when: 2^20 ns.
_MOMENT_BITS = 20
#: Of a step's length so many bits are told.
_LENGTH_BITS = 13
#: A process's own cost: 2^16 ns.
_COST_BITS = 16
_AGES = {
    EventName.BLOCK_PROGRESS: ("phase_age_ns", "step_age_ns", "heartbeat_age_ns", "still_ns"),
    EventName.BLOCK_GROUP_PROGRESS: ("open_age_ns", "moved_age_ns"),
}
#: Of each table: the length by which all is measured, lengths, moments.
_LENGTHS = {
    EventName.BLOCK_STEPS: ("phase_ns", ("phase_ns", "collective_ns"), ("begin_ns", "end_ns")),
    EventName.BLOCK_STEP_GROUPS: ("collective_ns", ("collective_ns",), ()),
    EventName.BLOCK_DEVICE_STEPS: ("stood_ns", ("stood_ns",), ("first_end_ns", "last_end_ns")),
}
Times = NDArray[np.int64]


def coarse(block: Block, read_ns: int) -> Block:
    """The same block, coarser; one of another table as it is.

    read_ns: by the node's monotonic clock, when living ranks were looked at.
    """
    if not len(block.rows):
        return block
    if block.name in _AGES:
        rows = block.rows.copy()
        moment_ns = rows["read_ns"] if block.name is EventName.BLOCK_PROGRESS else read_ns
        for column in _AGES[block.name]:
            rows[column] = _since_grid(rows[column], moment_ns)
        if block.name is EventName.BLOCK_PROGRESS:
            rows["own_cost_ns"] = _on_grid(rows["own_cost_ns"], _COST_BITS)
            rows["cpu_ns"] = _on_grid(rows["cpu_ns"], _MOMENT_BITS)
        return replace(block, rows=rows)
    if block.name not in _LENGTHS:
        return block
    rows = block.rows.copy()
    measure, lengths, moments = _LENGTHS[block.name]
    whole_ns = rows[measure].sum(axis=1) if rows[measure].ndim > 1 else rows[measure]
    bits = max(int(np.median(whole_ns)).bit_length() - _LENGTH_BITS, 0)
    for column in (*lengths, *moments):
        rows[column] = _on_grid(rows[column], bits)
    if block.name is EventName.BLOCK_STEPS:
        for column in ("loss", "grad_norm"):
            rows[column] = _single(rows[column])
    return replace(block, rows=rows)


def _since_grid(ages_ns: Times, read_ns: Times | int) -> Times:
    """The ages of the grid's moments before: at most a millisecond more."""
    more = (read_ns - ages_ns) & ((1 << _MOMENT_BITS) - 1)
    return np.where(ages_ns > 0, ages_ns + more, ages_ns)


def _on_grid(times_ns: Times, bits: int) -> Times:
    """Down to the grid; what would become 0 is one step of it."""
    grid = 1 << bits
    return np.where(times_ns > 0, np.maximum(times_ns & -grid, grid), times_ns)


def _single(numbers: NDArray[np.float64]) -> NDArray[np.float64]:
    with np.errstate(over="ignore"):
        single = numbers.astype(np.float32).astype(np.float64)
    keeps = np.isfinite(single) & ((single != 0) | (numbers == 0))
    return np.where(keeps, single, numbers)
