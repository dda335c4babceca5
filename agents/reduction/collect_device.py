"""DEVICE_STEPS rows: how long devices stood in collectives, by step and group, where not every step is shipped whole;
and when the first and the last of them ended.

Runs in the polling thread. A step's sum is told once its host has ended it and all its calls have ended on the device,
which may be steps later.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ...telemetry.tables import DEVICE_STEPS
from ...telemetry.vocabulary import EventFlag
from .collect_collectives import CollectedRows

#: Steps of one ring whose calls have not all ended: a host is not that far ahead of its device.
_MAX_OPEN_STEPS = 64
_STEP_BITS = 36
_P2P = np.uint8(EventFlag.P2P)
_NEVER = np.iinfo(np.int64).max
_NO_SUMS, _NO_RING = np.zeros(0, DEVICE_STEPS), np.zeros(0, np.uint16)


class DeviceSums:
    """Per ring, step and group: calls launched, calls ended, the time from their starts to their ends, and when the
    first and the last were seen to end."""

    def __init__(self) -> None:
        # slot -> step -> group -> launched, ended, ns, first and last end
        self._open: dict[int, dict[int, dict[int, list[int]]]] = {}
        self._ended = np.full(16, -1, np.int64)  # by slot: highest step that its host ended

    def forget(self, slot: int) -> None:
        """Drops the sums of a slot: another ring may take it."""
        self._open.pop(slot, None)
        if slot < len(self._ended):
            self._ended[slot] = -1

    def add(self, collected: CollectedRows, on_device: NDArray[np.bool_]) -> None:
        """Count rows of one flush. on_device: by row, whether a device does it and its step is not shipped whole."""
        chosen = on_device & ((collected.rows["flags"] & _P2P) == 0)
        if not chosen.any():
            return
        rows, ring, first = collected.rows[chosen], collected.ring[chosen].astype(np.uint64), collected.first[chosen]
        step = rows["step"].astype(np.uint64) & np.uint64((1 << _STEP_BITS) - 1)
        key = ring << np.uint64(52) | step << np.uint64(16) | rows["group"].astype(np.uint64)
        _, where, place = np.unique(key, return_index=True, return_inverse=True)
        ended = rows["done_ns"] > 0
        known = ended & (rows["started_ns"] > 0)
        stood_ns = np.where(known, np.maximum(rows["done_ns"] - rows["started_ns"], 0), 0)
        columns = [ring[where].tolist(), rows["step"][where].tolist(), rows["group"][where].tolist()]
        columns += [
            np.bincount(place, weights=each, minlength=where.size).astype(np.int64).tolist()
            for each in (first, ended, stood_ns)
        ]
        earliest, latest = np.full(where.size, _NEVER), np.zeros(where.size, np.int64)
        np.minimum.at(earliest, place[ended], rows["done_ns"][ended])
        np.maximum.at(latest, place[ended], rows["done_ns"][ended])
        columns += [earliest.tolist(), latest.tolist()]
        for slot, number, group, launched, over, ns, first_end, last_end in zip(*columns, strict=True):
            steps = self._open.get(slot)
            if steps is None:
                steps = self._open[slot] = {}
            groups = steps.get(number)
            if groups is None:
                if len(steps) >= _MAX_OPEN_STEPS:
                    del steps[next(iter(steps))]
                groups = steps[number] = {}
            sums = groups.get(group)
            if sums is None:
                groups[group] = [launched, over, ns, first_end, last_end]
            else:
                sums[0] += launched
                sums[1] += over
                sums[2] += ns
                sums[3] = min(sums[3], first_end)
                sums[4] = max(sums[4], last_end)

    def take(
        self, steps: NDArray[np.void], ring: NDArray[np.uint16], rank_of: NDArray[np.uint32]
    ) -> tuple[NDArray[np.void], NDArray[np.uint16]]:
        """DEVICE_STEPS rows of steps that are complete now, and the slot of each.

        steps: STEPS rows of this flush, one per ended step; ring: the slot of each; rank_of: by slot, the global rank.
        """
        if len(ring):
            missing = int(ring.max()) + 1 - len(self._ended)
            if missing > 0:
                self._ended = np.concatenate((self._ended, np.full(missing, -1, np.int64)))
            np.maximum.at(self._ended, ring, steps["step"])
        if not self._open:
            return _NO_SUMS, _NO_RING
        ended = self._ended.tolist()
        out: list[tuple[int, ...]] = []
        slots: list[int] = []
        for slot in sorted(self._open):
            over, known = ended[slot] if slot < len(ended) else -1, self._open[slot]
            complete = [
                step
                for step, groups in known.items()
                if step <= over and all(sums[0] == sums[1] for sums in groups.values())
            ]
            for step in complete:
                for group, (launched, _, *times) in known.pop(step).items():
                    out.append((int(rank_of[slot]), group, 0, launched, step, *times))
                    slots.append(slot)
        return np.array(out, DEVICE_STEPS), np.array(slots, np.uint16)
