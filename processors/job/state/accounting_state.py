"""What is remembered of a world's seconds: up to where they are accounted for, and what may still change.

Saved as a row of state; its size follows from the bounds below. ``accounting`` decides, nothing here does.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field

import numpy as np

from ....diagnosis.goodput.gaps import Moments
from ....diagnosis.goodput.interval import Interval, as_body, of_body
from ..columns.packing import pack, unpack

#: Steps whose lengths say what is usual.
KEPT_LENGTHS = 256
#: Faults of one attempt that are told apart.
MOST_FAULTS = 16
#: Evaluations whose lengths say what is usual.
KEPT_EVALUATIONS = 16
#: Intervals that are kept although a checkpoint holds their steps: a slow rank is told when it has lasted.
KEPT_INTERVALS = 16
_FIRST = Moments(is_first=True)


@dataclass(slots=True)
class Fault:
    """A finding that stops or slows the attempt, or a stop that was asked for. Unix ns, 0 never."""

    cause: str
    kind: str
    onset_ns: int
    detected_ns: int
    cleared_ns: int = 0


@dataclass(slots=True)
class FirstStep:
    """The first step of an attempt, until it is known how long steps take. parts: of ``split_steps``; work_ns: the
    longest forward, backward and optimizer together."""

    end_ns: int
    step: int
    steps: int
    parts: list[int]
    work_ns: int


@dataclass(slots=True)
class Saving:
    """The newest checkpoint (or evaluation) that progress has shown. step: the attempt's own, made before it; Unix ns,
    from the first rank's begin to the last one's end so far. ranks: who was seen in it, and not yet after it."""

    step: int
    begin_ns: int
    end_ns: int
    ranks: list[int]


@dataclass(slots=True)
class Stretch:
    """Steps that are not told yet. parts: of ``split_steps``, and unknown; sums to end_ns - begin_ns. evaluations: in
    so many of them there was one."""

    begin_ns: int
    end_ns: int
    parts: list[int]
    steps: int
    first_step: int
    last_step: int
    evaluations: int = 0


def no_lengths() -> np.ndarray:
    """An empty table of step lengths, (0, 2) in ns. Columns: when a step ended, and how long it took."""
    return np.zeros((0, 2), np.int64)


@dataclass(slots=True)
class Ledger:
    """A world's account of its seconds. Mutable. world: its number within the job.

    front_ns: everything before is accounted for; 0: nothing has begun. last_step: newest step taken, by the attempt's
    own count. lengths: (n, 2) end and ns of the newest plain steps. is_over: the job had ended at front_ns.
    """

    world: int = 0
    number: int = 0
    front_ns: int = 0
    attempts: int = 0
    started_ns: int = 0
    first_exit_ns: int = 0
    last_exit_ns: int = 0
    steps_before: int = 0
    last_step: int = -1
    is_over: bool = False
    past: Moments = _FIRST
    faults: list[Fault] = field(default_factory=list)
    first: FirstStep | None = None
    open: Stretch | None = None
    saving: Saving | None = None
    evaluating: Saving | None = None
    lengths: np.ndarray = field(default_factory=no_lengths)
    slow_cause: str = ""
    slow_reference_ns: int = 0
    slow_credit_ns: int = 0
    slow_evaluation_ns: int = 0
    evaluations: list[list[int]] = field(default_factory=list)
    errors: int = 0
    problem: str = ""
    kept: list[Interval] = field(default_factory=list)
    changed: bool = False
    _told: list[Interval] | None = None
    _told_json: str = ""

    # --- what single events say -------------------------------------------------------------------------------------
    def note_begin(self, time_ns: int) -> None:
        """The job's command, or a process of it, began at ``time_ns`` (Unix): the account begins there, unless it has
        begun.
        """
        if not self.front_ns:
            self.front_ns, self.changed = time_ns, True

    def note_started(self, time_ns: int) -> None:
        """A process of the current attempt began at ``time_ns`` (Unix); the earliest is kept."""
        self.note_begin(time_ns)
        if not self.started_ns or time_ns < self.started_ns:
            self.started_ns, self.changed = time_ns, True

    def note_exit(self, time_ns: int) -> None:
        """A process of the current attempt ended at ``time_ns`` (Unix); the first and the last exit are kept."""
        self.first_exit_ns = min(self.first_exit_ns or time_ns, time_ns)
        self.last_exit_ns = max(self.last_exit_ns, time_ns)
        self.changed = True

    def note_fault(self, cause: str, kind: str, onset_ns: int, detected_ns: int) -> None:
        """Keeps a finding that stops or slows the attempt, the newest MOST_FAULTS; of a known ``cause`` kind and onset
        change.

        cause: the finding's key. Times are Unix.
        """
        known = next((fault for fault in self.faults if fault.cause == cause), None)
        if known is not None:
            known.kind, known.onset_ns = kind, onset_ns
        else:
            self.faults = [*self.faults, Fault(cause, kind, onset_ns, detected_ns)][-MOST_FAULTS:]
        self.changed = True

    def forget_fault(self, cause: str) -> None:
        """Drops the fault with this key: it was none. Nothing if there is none."""
        self.faults = [fault for fault in self.faults if fault.cause != cause]
        self.changed = True

    def note_cleared(self, cause: str, time_ns: int) -> None:
        """Notes when (Unix) the finding with this key ended; what it cost until then stays."""
        for fault in self.faults:
            if fault.cause == cause and not fault.cleared_ns:
                fault.cleared_ns, self.changed = time_ns, True

    # --- when something ends ------------------------------------------------------------------------------------------
    def leave_attempt(self, steps_before: int) -> None:
        """Forgets what was known of the attempt that is over, and counts it. steps_before: those that the next one goes
        on from.
        """
        self.faults, self.saving, self.evaluating = [], None, None
        self.end_slow()
        self.attempts += 1
        self.steps_before, self.last_step, self.is_over = steps_before, -1, False
        self.started_ns = self.first_exit_ns = self.last_exit_ns = 0
        self.changed = True

    def break_off(self, problem: str) -> None:
        """The accounting has failed: counts the error, and drops all that a later step could stumble over again.

        What was emitted stays. problem: goes into the next interval.
        """
        self.errors, self.changed = self.errors + 1, True
        self.problem = f"error {self.errors} of the accounting: {problem}"
        self.first = self.open = self.saving = self.evaluating = None
        self.faults, self.lengths, self.evaluations = [], no_lengths(), []
        self.end_slow()

    def end_slow(self) -> None:
        """Forgets the slow rank: none is slow any more, as far as anybody knows."""
        self.slow_cause, self.changed = "", True
        self.slow_reference_ns = self.slow_credit_ns = self.slow_evaluation_ns = 0

    # --- as a row of state --------------------------------------------------------------------------------------------
    def pack(self) -> bytes:
        """The ledger as a row of state, for ``unpack``."""
        values = {name: getattr(self, name) for name in _PLAIN}
        values["faults"] = [_fields(fault) for fault in self.faults]
        values["past"] = _fields(self.past)
        values["first"] = _fields(self.first) if self.first else None
        values["open"] = _fields(self.open) if self.open else None
        values |= {name: getattr(self, name) for name in _LATER}
        for name in _SAVINGS:
            values[name] = _fields(saving) if (saving := getattr(self, name)) else None
        if self._told is not self.kept:  # which is never changed in place: once a minute, not at each closing
            bodies = [{**as_body(interval), "attempt": interval.attempt} for interval in self.kept]
            self._told, self._told_json = self.kept, json.dumps(bodies, separators=(",", ":"))
        values["kept"] = self._told_json
        return pack(values, {"lengths": self.lengths})

    @classmethod
    def unpack(cls, row: bytes, *, run: str, job: str) -> Ledger:
        """A ledger from the row that ``pack`` made. run, job: whose intervals these are.

        Raises ValueError for a row that is no row, KeyError or TypeError where fields are missing or unknown.
        """
        values, arrays = unpack(row)
        ledger = cls(**{name: values[name] for name in _PLAIN})
        ledger.lengths = arrays["lengths"]
        ledger.faults = [Fault(**fault) for fault in values["faults"]]
        ledger.past = Moments(**values["past"])
        ledger.first = FirstStep(**values["first"]) if values["first"] else None
        ledger.open = Stretch(**values["open"]) if values["open"] else None
        for name in _LATER:
            setattr(ledger, name, values.get(name, getattr(ledger, name)))
        for name in _SAVINGS:
            if saving := values.get(name):  # not there in state of earlier releases
                setattr(ledger, name, Saving(**saving))
        kept = json.loads(values["kept"])
        ledger.kept = [of_body(body, run=run, job=job, attempt=body["attempt"]) for body in kept]
        return ledger


def _fields(record: Fault | Moments | FirstStep | Saving | Stretch) -> dict[str, int | float | str | bool | None]:
    """``asdict`` copies deeply: ten times as slow."""
    return {name: getattr(record, name) for name in record.__slots__}


_PLAIN = (
    "world",
    "number",
    "front_ns",
    "attempts",
    "started_ns",
    "first_exit_ns",
    "last_exit_ns",
    "steps_before",
    "last_step",
    "is_over",
    "slow_cause",
    "slow_reference_ns",
)
#: Not there in state of earlier releases.
_LATER = ("slow_credit_ns", "slow_evaluation_ns", "evaluations", "errors", "problem")
_SAVINGS = ("saving", "evaluating")
