"""Steps of loops that no optimizer drives: found where the calls of the world's group repeat.

An evaluation, a generation, an update by hand calls the same collectives again and again. All members of a group make
the same calls in the same order, so each finds the same period at the same call, and numbers the turns alike, on
whichever node it is. A turn becomes a step: from one first call of the period to the next. It is marked as inferred,
and the steps of an optimizer, should some come, take its place.

Polling thread. Only rings without steps of their own are looked at.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from ...telemetry.vocabulary import EventFlag, EventKind, StepFlag
from .drain import Drained
from .watched_rank import WatchedRank

_STEP, _ENQUEUE, _BAD_LOSS = int(EventKind.STEP), int(EventKind.ENQUEUE), int(EventKind.BAD_LOSS)
_P2P = int(EventFlag.P2P)
#: A period is looked for after so many calls of the group, and each time they have doubled, in the newer half of them.
FIRST_LOOK = 64
#: Looked at the most, and the longest period as a share of what is looked at: it must be seen three times.
_MOST_CALLS, _LONGEST_SHARE = 2048, 3
#: A ring without steps for so long since its first call has none; set-up repeats calls, too.
_PATIENCE_NS = 20_000_000_000
#: Turns that are shorter are no steps: several together are one.
_SHORTEST_NS = 50_000_000
_INFERRED = int(StepFlag.INFERRED)


@dataclass(slots=True)
class _Period:
    """first: sequence number of the first call of the first turn; step: the number of that turn; turns: in one step."""

    first: int
    step: int
    calls: NDArray[np.int64]  # signatures of one turn, coarse or exact
    exact: bool
    turns: int


@dataclass(slots=True)
class _Loop:
    """One ring's. seqs before ``next_look`` are only remembered."""

    first_ns: int = 0
    newest: int = 0
    calls: list[tuple[int, int, int]] = field(default_factory=list)  # exact and coarse signature, when; the newest
    next_look: int = FIRST_LOOK
    period: _Period | None = None
    steps: int = 0  # made in periods that are over
    step: int = -1
    begun_ns: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class BadLoss:
    """A loss that is not finite. calls: of the world's group, which the rank had issued before it was known."""

    rank: WatchedRank
    time_ns: int
    is_nan: bool
    calls: int


class InferredSteps:
    def __init__(self) -> None:
        self._bad_losses: list[BadLoss] = []
        self._loops: dict[int, _Loop] = {}
        self._with_steps: set[int] = set()
        #: By launch and first call of a period: how many turns make a step, as the first ring of this node found it.
        self._turns: dict[tuple[str, int], int] = {}

    def forget(self, slot: int) -> None:
        """Forgets the loop of a slot whose ring is gone; another ring may take its place."""
        self._loops.pop(slot, None)
        self._with_steps.discard(slot)

    def take_bad_losses(self) -> list[BadLoss]:
        """Takes away the losses that were not finite, found since the last call, of rings without steps."""
        taken, self._bad_losses = self._bad_losses, []
        return taken

    def add_steps(self, ranks: Sequence[WatchedRank], drained: Drained) -> Drained:
        """The same events with a STEP event added wherever a turn of a rank's loop ends; calls carry their step.

        Only for rings without steps of their own; ``drained`` itself where nothing is added.
        """
        events, ring = drained.events, drained.ring
        if not len(events) or len(self._with_steps) >= len(ranks):
            return drained
        by_slot = {rank.slot: rank for rank in ranks}
        starts = np.flatnonzero(np.append(True, ring[1:] != ring[:-1]))
        parts: list[NDArray[np.void]] = []
        changed = False
        for first, last in zip(starts.tolist(), [*starts[1:].tolist(), len(events)], strict=True):
            part, rank = events[first:last], by_slot.get(int(ring[first]))
            told = self._follow(rank, part) if rank is not None else None
            changed |= told is not None
            parts.append(part if told is None else told)
        if not changed:
            return drained
        slots = ring[starts]
        return replace(drained, events=np.concatenate(parts), ring=np.repeat(slots, [len(part) for part in parts]))

    def _follow(self, rank: WatchedRank, events: NDArray[np.void]) -> NDArray[np.void] | None:
        """None: nothing is to be changed."""
        slot = rank.slot
        if slot in self._with_steps:
            return None
        if (events["kind"] == _STEP).any():
            self._with_steps.add(slot)
            self._loops.pop(slot, None)
            rank.inferred_step = -1
            return None
        row = next((row for row, number in rank.groups.numbers.items() if number == rank.groups.default), -1)
        if row < 0:
            return None
        loop = self._loops.setdefault(slot, _Loop())
        is_call = (events["kind"] == _ENQUEUE) & (events["group"] == row) & ((events["flags"] & _P2P) == 0)
        ends: list[tuple[int, NDArray[np.void]]] = []
        steps = np.full(len(events), loop.step, np.int64)
        is_bad = events["kind"] == _BAD_LOSS
        for place in np.flatnonzero(is_call | is_bad).tolist():
            if is_bad[place]:
                self._bad_losses.append(_bad_loss(rank, events[place], loop.newest))
                continue
            before = loop.step
            end = self._take_call(loop, events[place], rank.identity.attempt)
            if end is not None:
                ends.append((place, end))
            if loop.step != before:
                steps[place:] = loop.step
        if loop.step < 0 or loop.newest == 0 or int(events["time_ns"][-1]) - loop.first_ns < _PATIENCE_NS:
            return None
        rank.inferred_step, rank.inferred_since_ns = loop.step, loop.begun_ns
        told = events.copy()
        told["step"] = np.where(steps >= 0, steps, told["step"])
        for place, end in reversed(ends):
            told = np.concatenate((told[:place], end, told[place:]))
        return np.asarray(told)

    def _take_call(self, loop: _Loop, event: np.void, attempt: str) -> NDArray[np.void] | None:
        """The event of a step that ends with this call, which is the first of the next one."""
        seq, now_ns = int(event["seq"]), int(event["time_ns"])
        loop.first_ns = loop.first_ns or now_ns
        coarse = int(event["op"]) | int(event["dtype"]) << 8
        exact = coarse | int(event["value"]) << 24 & (1 << 62) - 1
        if seq != loop.newest + 1 and loop.newest:  # events were lost: from here on nobody knows the same as the others
            loop.calls, loop.period, loop.step, loop.next_look = [], None, -1, 1 << 62
        loop.newest = seq
        if loop.period is not None:
            return self._take_turn(loop, loop.period, seq, exact if loop.period.exact else coarse, event)
        loop.calls.append((exact, coarse, now_ns))
        del loop.calls[:-_MOST_CALLS]
        if seq == loop.next_look:
            loop.next_look = 2 * seq if seq < _MOST_CALLS else seq + _MOST_CALLS
            loop.period = self._find_period(loop, seq, attempt)
        return None

    def _find_period(self, loop: _Loop, seq: int, attempt: str) -> _Period | None:
        newer = loop.calls[len(loop.calls) // 2 :]
        found = find_period([call[:2] for call in newer])
        if found is None:
            return None
        length, is_exact = found
        column = 0 if is_exact else 1
        one = np.array([call[column] for call in newer[-length:]], np.int64)
        turn_ns = length * (newer[-1][2] - newer[0][2]) // (len(newer) - 1)
        turns = self._turns.setdefault((attempt, seq), _turns_of_a_step(turn_ns))
        return _Period(first=seq + 1, step=loop.steps, calls=one, exact=is_exact, turns=turns)

    def _take_turn(
        self, loop: _Loop, period: _Period, seq: int, signature: int, event: np.void
    ) -> NDArray[np.void] | None:
        turn, place = divmod(seq - period.first, len(period.calls))
        if period.calls[place] != signature:
            # The loop is over. Its last turn is none; the next period is looked for from here on.
            loop.steps = max(loop.steps, loop.step + 1)
            loop.calls, loop.period, loop.step = [], None, -1
            loop.next_look = -(-(seq + FIRST_LOOK) // FIRST_LOOK) * FIRST_LOOK
            return None
        if place:
            return None
        step, within = divmod(turn, period.turns)
        if within:
            return None
        begun_ns, loop.begun_ns, before = loop.begun_ns, int(event["time_ns"]), loop.step
        loop.step = period.step + step
        return _step_event(event, before, begun_ns) if before >= 0 and step else None


def _bad_loss(rank: WatchedRank, event: np.void, calls: int) -> BadLoss:
    loss = event["value"].view(np.float64)
    return BadLoss(rank=rank, time_ns=int(event["time_ns"]), is_nan=bool(np.isnan(loss)), calls=calls)


def _turns_of_a_step(turn_ns: int) -> int:
    """A power of four, so that nodes that measure a little more or less come to the same."""
    turns = 1
    while turns * max(turn_ns, 1000) < _SHORTEST_NS:
        turns *= 4
    return turns


def find_period(calls: Sequence[tuple[int, int]]) -> tuple[int, bool] | None:
    """The shortest length after which calls repeat, by operation and size where these do, else by operation alone.

    calls: (exact, coarse) signatures. Returns (length, whether sizes repeat as well).
    """
    for column in (0, 1):
        values = np.array([call[column] for call in calls], np.int64)
        for length in range(1, len(values) // _LONGEST_SHARE + 1):
            if (values[length:] == values[:-length]).all():
                return length, column == 0
    return None


def _step_event(call: np.void, step: int, begun_ns: int) -> NDArray[np.void]:
    """As a rank would have written it; the numbers of a step are nobody's here."""
    event = np.array([call], call.dtype)
    for name in ("group", "dtype", "value", "extra", "op"):
        event[name] = 0
    event["kind"], event["flags"], event["seq"], event["step"] = _STEP, _INFERRED, step, begun_ns
    return event
