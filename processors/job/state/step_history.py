"""The closed steps of an attempt: the window that detectors of slow ranks and bad numbers look at."""

from __future__ import annotations

import numpy as np

from ....telemetry.tables import COLLECTIVES
from ....telemetry.vocabulary import Phase
from ..columns.median import median
from ..detectors.slow.checkpoint_straggler import no_saves
from ..detectors.slow.drift import no_blocks, with_block
from ..detectors.slow.step_time_changepoint import kept_history
from ..detectors.slow.step_times import StepTimes
from ..detectors.slow.straggler import LONGEST_BASELINE, RECENT_STEPS, SMALLEST_EXCESS, WINDOWS
from .device_window import DeviceWindow
from .unsaved import Unsaved

#: Phases are looked at within a window only.
_KEPT_PHASES = RECENT_STEPS
_KEPT_STEPS = LONGEST_BASELINE + max(WINDOWS)
#: Steps after which it is known how long they take; until then each is closed at once.
_FEWEST_STEPS = 40
#: The same where closing is dear and no more than one step in ten takes longer than the median by so much.
_FEWEST_EVEN_STEPS, _EVEN, _MANY_ROWS = 16, 1.1, 1024


class StepHistory:
    """closed_step: the newest that is, -1 none; newest_step: by rank, the newest that it has told of, -1 none.

    times, pace, norms, norm_steps, losses, saves, drift, window: what detectors look at, in the order of steps. recent,
    last_seqs, usual_counts, even_steps: what calls a step has, by which a desync is known. longest_ns: by phase, the
    longest own time, first_ns: in the first step. slow_step_ns: from which length on a step is looked at at once, 0 not
    known. sighted: a step was seen whole: at level events on all ranks. number_due_ns, counts_due_ns: when numbers and
    counts are judged.
    """

    def __init__(self, unsaved: Unsaved) -> None:
        self._unsaved = unsaved
        self.closed_step = -1
        self.newest_step = np.zeros(0, np.int64)
        self.slow_step_ns = 0
        self.pace_checked_step = 0
        self.number_due_ns = self.counts_due_ns = 0
        self.sighted = False
        self.recent = np.zeros(0, COLLECTIVES)
        self.last_seqs: dict[int, int] = {}
        self.usual_counts: dict[int, int] = {}
        self.even_steps: dict[int, int] = {}
        self.longest_ns = np.zeros(len(Phase), np.int64)
        self.first_ns = np.zeros(len(Phase), np.int64)
        self.saves = no_saves(np.zeros(0, np.int64))
        self.begin_window(np.zeros(0, np.int64))

    def begin_window(self, ranks: np.ndarray) -> None:
        """Forgets all closed steps; those to come are of these ranks (n,), ascending."""
        #: Stands for this window.
        self.window_begun = object()
        self.times: StepTimes = empty_times(ranks)
        self.pace: np.ndarray = no_pace()
        self.norms = np.zeros((0, ranks.size))
        self.norm_steps = np.zeros((0, 2), np.int64)
        self.losses = np.zeros((0, ranks.size))
        self.drift: np.ndarray = no_blocks(ranks.size)
        self.window = DeviceWindow.empty(ranks.size)

    def are_seen(self) -> bool:
        """Whether any rank has finished a step."""
        return bool(self.newest_step.size)

    def note_newest(self, ranks: np.ndarray, steps: np.ndarray) -> bool:
        """Keeps the newest step that each rank has told of. True: some rank has told of none before.

        ranks, steps: (n,) of STEPS rows, n > 0.
        """
        ranks = ranks.astype(np.intp)
        highest = int(np.maximum.reduce(ranks))
        if highest >= self.newest_step.size:
            grown = np.full(highest + 1, -1, np.int64)
            grown[: self.newest_step.size] = self.newest_step
            self.newest_step = grown
        are_new = int(np.minimum.reduce(self.newest_step.take(ranks))) < 0
        np.maximum.at(self.newest_step, ranks, steps)
        return are_new

    def add(self, times: StepTimes, pace_ns: np.ndarray, data_ns: np.ndarray, exchange_ns: np.ndarray) -> None:
        """Appends closed plain steps to the window; another set of ranks begins a new window.

        pace_ns, data_ns, exchange_ns: (n,). data_ns: what fetching data took on the median rank, by its host, which no
        device makes longer. exchange_ns: what the collectives of a step took on the rank that waited least in them; -1
        not known.
        """
        if not np.array_equal(times.ranks, self.times.ranks):
            self.begin_window(times.ranks)
        old = self.times
        keep = -_KEPT_STEPS
        self.times = StepTimes(
            ranks=times.ranks,
            steps=np.concatenate([old.steps, times.steps])[keep:],
            begin_ns=np.concatenate([old.begin_ns, times.begin_ns])[keep:],
            duration_ns=np.concatenate([old.duration_ns, times.duration_ns])[keep:],
            self_ns=np.concatenate([old.self_ns, times.self_ns])[keep:],
            starved_ns=np.concatenate([old.starved_ns, times.starved_ns])[keep:],
            phase_self_ns=np.concatenate([old.phase_self_ns, times.phase_self_ns])[-_KEPT_PHASES:],
        )
        own_ns = median(times.self_ns - times.starved_ns, axis=1).astype(np.int64)
        parts = [own_ns, data_ns, exchange_ns, times.duration_ns]
        pace = np.stack([times.steps, times.begin_ns, pace_ns, *parts], axis=1)
        self.pace = np.concatenate([self.pace, pace])
        self.pace = self.pace[-kept_history(self.pace[:, 6]) :]
        self.drift = with_block(self.drift, self.times)
        self._unsaved.steps = True

    def note_pace(self, closed_rows: int) -> None:
        """Sets from which length on a step is looked at at once, ``slow_step_ns``; 0 with too few steps.

        To be called when steps were closed. closed_rows: how many rows were joined for it. Where they are many, even
        steps are known after fewer of them.
        """
        recent = np.sort(self.times.duration_ns[-64:])
        self.slow_step_ns = 0
        if recent.size < _FEWEST_EVEN_STEPS:
            return
        usual = int(recent[recent.size // 2])
        even = recent[int(0.9 * recent.size)] <= _EVEN * usual
        if recent.size < _FEWEST_STEPS and not (even and closed_rows >= _MANY_ROWS):
            return
        # Where steps are paced, a tenth of a millisecond is beyond most of them and means nothing.
        self.slow_step_ns = max(int(recent[int(0.8 * recent.size)]), usual + int(SMALLEST_EXCESS / 2 * usual))

    def median_length_ns(self) -> int:
        """The median length of the last plain steps, in ns; 0: there are none."""
        recent = self.times.duration_ns[-32:]
        return int(median(recent)) if recent.size else 0

    def drop(self, first: int, last: int) -> None:
        """Takes steps ``first`` to ``last``, of a fault that is over, out of the window, so that they never count as
        usual.
        """
        self.drift = self.drift[self.drift[:, 0] < first]
        self.window.drop_steps(first, last)
        old = self.times
        keep = (old.steps < first) | (old.steps > last)
        self.times = StepTimes(
            ranks=old.ranks,
            steps=old.steps[keep],
            begin_ns=old.begin_ns[keep],
            duration_ns=old.duration_ns[keep],
            self_ns=old.self_ns[keep],
            starved_ns=old.starved_ns[keep],
            phase_self_ns=old.phase_self_ns[keep[-old.phase_self_ns.shape[0] :]],
        )
        self._unsaved.steps = True

    def begin_sight(self, ranks: np.ndarray) -> None:
        """From here on steps are seen whole: begins a new window of ``ranks`` (n,), as what was measured before is no
        measure.
        """
        self.sighted = True
        if self.times.steps.size:
            self.begin_window(ranks)


def no_pace() -> np.ndarray:
    """An empty table of paces, (0, 7). Columns, ns but the first: step, begin, pace, own work, of it data, exchange,
    length.
    """
    return np.zeros((0, 7), np.int64)


def empty_times(ranks: np.ndarray) -> StepTimes:
    """Times of no step. ranks: (n,), of the columns."""
    return StepTimes(
        ranks=ranks,
        steps=np.zeros(0, np.int64),
        begin_ns=np.zeros(0, np.int64),
        duration_ns=np.zeros(0, np.int64),
        self_ns=np.zeros((0, ranks.size), np.int64),
        starved_ns=np.zeros((0, ranks.size), np.int64),
        phase_self_ns=np.zeros((0, ranks.size, len(Phase)), np.int64),
    )
