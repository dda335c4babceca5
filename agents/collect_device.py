"""DEVICE_STEPS rows: how long each rank's device stood in collectives, by step, where not every step is shipped whole.

Runs in the polling thread. A step's sum is told once its host has ended it and all its calls have ended on the device,
which may be steps later.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ..telemetry.tables import DEVICE_STEPS
from ..telemetry.vocabulary import EventFlag
from .collect_collectives import CollectedRows

#: Steps of one ring whose calls have not all ended: a host is not that far ahead of its device.
_MAX_OPEN_STEPS = 64
_STEP_BITS = 48
_P2P = np.uint8(EventFlag.P2P)


class DeviceSums:
    """Per ring and step: calls launched, calls ended, and the time from their starts to their ends."""

    def __init__(self) -> None:
        self._open: dict[int, dict[int, list[int]]] = {}  # slot -> step -> launched, ended, ns
        self._ended: dict[int, int] = {}  # slot -> highest step that its host ended

    def forget(self, slot: int) -> None:
        self._open.pop(slot, None)
        self._ended.pop(slot, None)

    def add(self, collected: CollectedRows, on_device: NDArray[np.bool_]) -> None:
        """Count rows of one flush. on_device: by row, whether a device does it and its step is not shipped whole."""
        chosen = on_device & ((collected.rows["flags"] & _P2P) == 0)
        if not chosen.any():
            return
        rows, ring, first = collected.rows[chosen], collected.ring[chosen].astype(np.int64), collected.first[chosen]
        unique, place = np.unique(ring << _STEP_BITS | rows["step"], return_inverse=True)
        ended = rows["done_ns"] > 0
        known = ended & (rows["started_ns"] > 0)
        stood_ns = np.where(known, np.maximum(rows["done_ns"] - rows["started_ns"], 0), 0)
        columns = [
            np.bincount(place, weights=each, minlength=unique.size).astype(np.int64).tolist()
            for each in (first, ended, stood_ns)
        ]
        for key, *more in zip(unique.tolist(), *columns, strict=True):
            slot, step = key >> _STEP_BITS, key & ((1 << _STEP_BITS) - 1)
            steps = self._open.setdefault(slot, {})
            if step not in steps and len(steps) >= _MAX_OPEN_STEPS:
                del steps[next(iter(steps))]
            sums = steps.setdefault(step, [0, 0, 0])
            for number, value in enumerate(more):
                sums[number] += value

    def take(
        self, steps: NDArray[np.void], ring: NDArray[np.uint16], rank_of: NDArray[np.uint32]
    ) -> tuple[NDArray[np.void], NDArray[np.uint16]]:
        """DEVICE_STEPS rows that are complete now, and the slot of each. steps: STEPS rows of this flush."""
        for slot, step in zip(ring.tolist(), steps["step"].tolist(), strict=True):
            self._ended[slot] = max(step, self._ended.get(slot, -1))
        out: list[tuple[int, int, int, int]] = []
        slots: list[int] = []
        for slot in sorted(self._open):
            over = self._ended.get(slot, -1)
            for step in [
                step for step, (launched, ended, _) in self._open[slot].items() if step <= over and launched == ended
            ]:
                launched, _, stood_ns = self._open[slot].pop(step)
                out.append((int(rank_of[slot]), launched, step, stood_ns))
                slots.append(slot)
        return np.array(out, DEVICE_STEPS), np.array(slots, np.uint16)
