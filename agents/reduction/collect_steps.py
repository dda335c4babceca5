"""STEPS and STEP_GROUPS rows: where each step's time went, from PHASE and STEP events of all rings at once.

Runs in the polling thread. Between two boundaries (a phase change or a step's end) a rank is in one phase; the lengths
of these segments, summed per step and phase, are the step row. A segment that crosses a flush or a step's end is cut
there, so every nanosecond is counted once.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from ...telemetry.spans import PHASE_SPANS
from ...telemetry.tables import STEP_GROUPS, STEPS
from ...telemetry.vocabulary import EventKind, Phase, StepFlag
from ..privacy.privacy_options import GRADIENT_NORM, LOSS
from .collect_collectives import CollectedRows

_PHASES = len(Phase)
_STEP, _PHASE = int(EventKind.STEP), int(EventKind.PHASE)
_PARTLY_SEEN, _INFERRED = int(StepFlag.PARTLY_SEEN), int(StepFlag.INFERRED)
#: Steps of one rank whose collectives were counted but that have not ended: async calls of the next step, no more.
_MAX_OPEN_STEPS = 64
#: What is shorter is seen in no step of any length that people look at.
_SHORTEST_PHASE_NS = 100_000
_NO_PHASES, _NO_RING = np.zeros(0, PHASE_SPANS), np.zeros(0, np.uint16)


@dataclass(slots=True)
class _GroupSums:
    count: int = 0
    collective_ns: int = 0
    last_seq: int = 0
    last_op: int = 0
    last_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectedSteps:
    """Rows of one flush, and the ring slot of each; ``groups["group"]`` holds agent-wide group numbers.

    phases: the single phases of PHASE_SPANS, where they are wanted.
    """

    steps: NDArray[np.void]
    steps_ring: NDArray[np.uint16]
    groups: NDArray[np.void]
    groups_ring: NDArray[np.uint16]
    phases: NDArray[np.void]
    phases_ring: NDArray[np.uint16]


def joined_steps(parts: Sequence[CollectedSteps]) -> CollectedSteps:
    """Steps and phases of several flushes, in their order, without their groups."""
    return CollectedSteps(
        steps=np.concatenate([part.steps for part in parts]),
        steps_ring=np.concatenate([part.steps_ring for part in parts]),
        groups=_NOTHING.groups,
        groups_ring=_NO_RING,
        phases=np.concatenate([part.phases for part in parts]),
        phases_ring=np.concatenate([part.phases_ring for part in parts]),
    )


#: Names of ``privacy_options``, their columns, and the flag that says so.
_NUMBERS = (
    (LOSS, "loss", int(StepFlag.LOSS_WITHHELD)),
    (GRADIENT_NORM, "grad_norm", int(StepFlag.GRAD_NORM_WITHHELD)),
)
#: Stands for every finite number that is withheld: all alike, so that none is out of line.
WITHHELD_VALUE = 1.0


class StepCollector:
    """Per ring: time of the last boundary, and what the unfinished step has summed up so far."""

    def __init__(self, *, single_phases: bool = False, withheld: Collection[str] = ()) -> None:
        """single_phases: whether to tell each phase by itself, too.

        withheld: names of ``privacy_options``; of these numbers only whether they are finite is told.
        """
        self._withheld = [(column, flag) for name, column, flag in _NUMBERS if name in withheld]
        self._single_phases = single_phases
        self._last_ns = np.zeros(16, np.int64)
        self._partial = np.zeros((16, _PHASES), np.int64)
        self._sums: dict[int, dict[int, dict[int, _GroupSums]]] = {}  # slot -> step -> group
        self._ended = np.full(16, -1, np.int64)  # by slot: highest step that ended

    def forget(self, slot: int) -> None:
        """Another ring may take this slot: its sums, its last step and its last event go."""
        self._sums.pop(slot, None)
        if slot < len(self._last_ns):
            self._last_ns[slot], self._ended[slot] = 0, -1
            self._partial[slot] = 0

    def add_collectives(self, collected: CollectedRows) -> None:
        """Adds the calls of one flush to the sums of their steps and groups; call before ``collect`` of that flush."""
        rows = collected.rows
        if not len(rows):
            return
        key = (
            (collected.ring.astype(np.uint64) << np.uint64(52))
            | ((rows["step"].astype(np.uint64) & np.uint64((1 << 36) - 1)) << np.uint64(16))
            | rows["group"].astype(np.uint64)
        )
        unique, inverse = np.unique(key, return_inverse=True)
        done = rows["done_ns"] != 0
        length = np.where(done, np.maximum(rows["done_ns"] - rows["enqueued_ns"], 0), 0)
        counts = np.bincount(inverse, weights=collected.first, minlength=len(unique))
        sums_ns = np.bincount(inverse, weights=length, minlength=len(unique))
        last = np.zeros(len(unique), np.intp)
        # Rows of a ring come in the order of their enqueue, so the last one written wins.
        last[inverse] = np.arange(len(rows))
        newest = rows.take(last)
        slots = (unique >> np.uint64(52)).astype(np.intp)
        self._grow(int(slots.max()) + 1)
        # The step row of a late completion has gone out.
        open_ = newest["step"] > self._ended[slots]
        newest = newest.compress(open_)
        columns = (
            slots[open_].tolist(),
            newest["step"].tolist(),
            newest["group"].tolist(),
            newest["seq"].tolist(),
            newest["op"].tolist(),
            newest["bytes"].tolist(),
            counts[open_].astype(np.int64).tolist(),
            sums_ns[open_].astype(np.int64).tolist(),
        )
        for slot, step, group, seq, op, nbytes, count, ns in zip(*columns, strict=True):
            steps = self._sums.get(slot)
            if steps is None:
                steps = self._sums[slot] = {}
            groups = steps.get(step)
            if groups is None:
                if len(steps) >= _MAX_OPEN_STEPS:
                    del steps[next(iter(steps))]
                groups = steps[step] = {}
            sums = groups.get(group)
            if sums is None:
                sums = groups[group] = _GroupSums()
            sums.count += count
            sums.collective_ns += ns
            if seq >= sums.last_seq:
                sums.last_seq, sums.last_op, sums.last_bytes = seq, op, nbytes

    def collect(
        self, events: NDArray[np.void], ring: NDArray[np.uint16], rank_of: NDArray[np.uint32]
    ) -> CollectedSteps:
        """Step rows of one flush's events (per ring contiguous and in their order)."""
        kind = events["kind"]
        chosen = (kind == _STEP) | (kind == _PHASE)
        events, ring = events.compress(chosen), ring[chosen]
        if not len(events):
            return _NOTHING
        self._grow(int(ring.max()) + 1)
        is_step = events["kind"] == _STEP
        ring_changes = np.empty(len(events), bool)
        ring_changes[0] = True
        np.not_equal(ring[1:], ring[:-1], out=ring_changes[1:])
        time_ns = events["time_ns"]
        before = np.empty(len(events), np.int64)
        before[1:] = time_ns[:-1]
        before[ring_changes] = self._last_ns[ring[ring_changes]]
        # After lost events the previous boundary is unknown; the event itself says when its phase or step began.
        own_begin = np.where(is_step, events["step"], events["value"].astype(np.int64))
        length = np.maximum(time_ns - np.maximum(before, own_begin), 0)
        phase = np.where(is_step, events["phase"].astype(np.int64), events["seq"])
        phase = np.where((phase >= 0) & (phase < _PHASES), phase, int(Phase.OTHER))
        # A bucket is one rank's (part of a) step: it ends after a STEP event or where the next ring begins.
        starts = ring_changes.copy()
        starts[1:] |= is_step[:-1]
        bucket = np.cumsum(starts) - 1
        buckets = int(bucket[-1]) + 1
        sums = np.bincount(bucket * _PHASES + phase, weights=length, minlength=buckets * _PHASES)
        phase_ns = sums.astype(np.int64).reshape(buckets, _PHASES)
        first_bucket = bucket[ring_changes]
        first_slot = ring[ring_changes]
        phase_ns[first_bucket] += self._partial[first_slot]
        self._partial[first_slot] = 0
        last_place = np.append(np.flatnonzero(starts)[1:], len(events)) - 1
        finished = is_step[last_place]
        rest = last_place[~finished]
        self._partial[ring[rest]] = phase_ns[~finished]
        ring_end = np.append(np.flatnonzero(ring_changes)[1:], len(events)) - 1
        self._last_ns[ring[ring_end]] = time_ns[ring_end]
        collected = self._rows(events[last_place[finished]], ring[last_place[finished]], phase_ns[finished], rank_of)
        if not self._single_phases:
            return collected
        step = np.where(is_step, events["seq"], events["step"])
        long = length >= _SHORTEST_PHASE_NS
        phases: NDArray[np.void] = np.zeros(int(long.sum()), PHASE_SPANS)
        phases["rank"] = rank_of[ring[long]]
        for column, values in (
            ("phase", phase),
            ("step", step),
            ("begin_ns", time_ns - length),
            ("end_ns", time_ns),
        ):
            phases[column] = values[long]
        return replace(collected, phases=phases, phases_ring=ring[long])

    def _rows(
        self,
        ends: NDArray[np.void],
        ring: NDArray[np.uint16],
        phase_ns: NDArray[np.int64],
        rank_of: NDArray[np.uint32],
    ) -> CollectedSteps:
        if not len(ends):
            return _NOTHING
        rows = np.zeros(len(ends), STEPS)
        rows["rank"] = rank_of[ring]
        rows["flags"] = ends["flags"]
        rows["step"] = ends["seq"]
        rows["begin_ns"] = ends["step"]
        rows["end_ns"] = ends["time_ns"]
        rows["phase_ns"] = phase_ns
        inferred = (rows["flags"] & _INFERRED) != 0
        if inferred.any():  # nothing has told these ranks that their start is over
            rows["phase_ns"][inferred, int(Phase.OTHER)] += rows["phase_ns"][inferred, int(Phase.INIT)]
            rows["phase_ns"][inferred, int(Phase.INIT)] = 0
        rows["loss"] = _as_floats(ends["value"])
        rows["grad_norm"] = _as_floats(ends["extra"])
        for column, flag in self._withheld:
            rows["flags"] |= flag
            rows[column][np.isfinite(rows[column])] = WITHHELD_VALUE
        delay_us = (ends["group"].astype(np.int64) | ends["dtype"].astype(np.int64) << 16) - 1
        rows["run_delay_ns"] = np.where(delay_us < 0, -1, delay_us * 1000)
        np.maximum.at(self._ended, ring, rows["step"])
        if not self._sums:  # no calls are recorded
            return CollectedSteps(
                steps=rows,
                steps_ring=ring,
                groups=_NOTHING.groups,
                groups_ring=_NO_RING,
                phases=_NO_PHASES,
                phases_ring=_NO_RING,
            )
        groups, groups_ring = self._add_collective_sums(rows, ring)
        return CollectedSteps(
            steps=rows,
            steps_ring=ring,
            groups=groups,
            groups_ring=groups_ring,
            phases=_NO_PHASES,
            phases_ring=_NO_RING,
        )

    def _add_collective_sums(
        self, rows: NDArray[np.void], ring: NDArray[np.uint16]
    ) -> tuple[NDArray[np.void], NDArray[np.uint16]]:
        """Fill in what the calls of each step took together; STEP_GROUPS rows of the same, and the slot of each.

        rows: STEPS, one for each ended step; ring: the slot of each.
        """
        groups: list[tuple[int, ...]] = []
        groups_ring: list[int] = []
        counts: list[int] = []
        lengths_ns: list[int] = []
        partly_seen = ((rows["flags"] & _PARTLY_SEEN) != 0).tolist()
        for slot, rank, step, partly in zip(
            ring.tolist(), rows["rank"].tolist(), rows["step"].tolist(), partly_seen, strict=True
        ):
            count = length_ns = 0
            sums_of = self._sums.get(slot)
            for number, sums in (sums_of.pop(step, None) or {}).items() if sums_of else ():
                count += sums.count
                length_ns += sums.collective_ns
                if partly:
                    continue  # where the group stands after this step is not known
                groups.append(
                    (
                        rank,
                        number,
                        0,
                        step,
                        sums.count,
                        sums.collective_ns,
                        sums.last_seq,
                        sums.last_op,
                        sums.last_bytes,
                    )
                )
                groups_ring.append(slot)
            counts.append(count)
            lengths_ns.append(length_ns)
        rows["collectives"] = counts
        rows["collective_ns"] = lengths_ns
        return np.array(groups, STEP_GROUPS), np.array(groups_ring, np.uint16)

    def _grow(self, slots: int) -> None:
        if slots > len(self._last_ns):
            grown = max(slots, 2 * len(self._last_ns))
            more = grown - len(self._last_ns)
            self._last_ns = np.concatenate((self._last_ns, np.zeros(more, np.int64)))
            self._ended = np.concatenate((self._ended, np.full(more, -1, np.int64)))
            self._partial = np.concatenate((self._partial, np.zeros((grown - len(self._partial), _PHASES), np.int64)))


def _as_floats(words: NDArray[np.uint64]) -> NDArray[np.float64]:
    return np.ascontiguousarray(words).view("<f8")


_NOTHING = CollectedSteps(
    steps=np.zeros(0, STEPS),
    steps_ring=np.zeros(0, np.uint16),
    groups=np.zeros(0, STEP_GROUPS),
    groups_ring=np.zeros(0, np.uint16),
    phases=_NO_PHASES,
    phases_ring=_NO_RING,
)
