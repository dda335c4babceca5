"""How long a wait has to last before it is worth a word: what this phase of this job has taken before, and a little.

A phase that was never completed may take long for good reasons (start-up, compilation, the first save): there only the
group's own time-out is a measure. People mute a tool that pages on a start-up.
"""

from __future__ import annotations

import numpy as np

from ....diagnosis.restarts.learned_timeouts import SAFETY_FACTOR
from ....telemetry.vocabulary import Phase, ProcessState
from ..detectors.hang.call_gaps import signatures
from ..detectors.hang.wait_graph import Wait
from ..state.job_state import JobState
from ..state.learned_times import SEEN_NS

FLOOR_NS = 3_000_000_000
STEPS_OF_PATIENCE = 2
TIMES_LONGEST = 1.3
SHARE_OF_TIMEOUT = 0.8
DEFAULT_TIMEOUT_S = 1800.0
#: Phases that need not occur in every step, so that the first one has no precedent.
RARE_PHASES = frozenset({Phase.INIT, Phase.COMPILE, Phase.CHECKPOINT, Phase.RESTORE, Phase.EVAL})
_IS_RARE = np.zeros(256, bool)
_IS_RARE[[int(phase) for phase in RARE_PHASES]] = True
#: A process whose heartbeat is late for so long has been looked at: whether it is stopped is known.
STATE_KNOWN_NS = 1_500_000_000
#: An attempt begins with other caches, on other nodes: what the one before took is taken so many times, which makes a
#: page of five times as much, and never less than what a start-up is left at least.
_LEARNED_TIMES = SAFETY_FACTOR / 1.5
_LEARNED_FLOOR_NS = 20_000_000_000


def rare_rows(rows: np.ndarray) -> np.ndarray:
    """By PROGRESS row, whether it shows its rank where there is no usual length: in a rare phase, or its first step.

    rows: (n,).
    """
    return np.asarray((rows["step"] < 1) | _IS_RARE[rows["phase"]])


def is_rare(row: np.void) -> bool:
    """Whether a PROGRESS row shows its rank where there is no usual length: a rare phase, or its first step."""
    return int(row["step"]) < 1 or int(row["phase"]) in RARE_PHASES


def longest_here_ns(job: JobState, rank: int, wait: Wait | None = None) -> int | None:
    """The longest time in ns that any rank of the job has spent in the phase in which ``rank`` is now.

    None: nothing to compare with: it is the rank's first step, or a rare phase that was not seen before. Where earlier
    attempts of the job have been there, what they took with room to spare is given in place of None.
    wait: what this rank holds up. In a job without steps, and only then, the longest gap before the same call of that
    group is given in place of None.
    """
    row = job.progress.row_of(rank)
    phase = int(row["phase"]) if row is not None else int(Phase.OTHER)
    longest = int(job.steps.longest_ns[phase]) if phase < job.steps.longest_ns.size else 0
    first_step = row is None or int(row["step"]) < 1
    unseen = phase in RARE_PHASES and longest < SEEN_NS
    if not (first_step or unseen) or job.has_left(rank):
        return longest
    if row is not None:
        learned = job.attempts.learned.longest_ns(phase, in_first_step=first_step)
        if learned is not None:
            return max(_LEARNED_FLOOR_NS, int(learned * _LEARNED_TIMES))
    return _between_calls_ns(job, rank, wait) if wait is not None and not job.steps.are_seen() else None


def _between_calls_ns(job: JobState, rank: int, wait: Wait) -> int | None:
    members = job.groups.members[wait.group]
    place = np.flatnonzero(members == rank)
    rows, _ = job.groups.rows_of(wait.group)
    waiting = rows[members == wait.rank]
    if wait.p2p or not place.size or not waiting.size:
        return job.progress.call_gaps.longest_of_group_ns(wait.group)
    before, after = rows[place[0]], waiting[0]
    if int(before["enqueued"]) + 1 != wait.seq or int(after["enqueued"]) != wait.seq:
        return job.progress.call_gaps.longest_of_group_ns(wait.group)
    made, wanted = (int(signatures(row["op"], row["bytes"])) for row in (before, after))
    return job.progress.call_gaps.longest_ns(wait.group, made, wanted)


def waiting_threshold_ns(job: JobState, rank: int, group: int) -> int:
    """How long, in ns, a wait in ``group`` that ``rank`` could end must last to be noticed, whatever that rank does."""
    longest = longest_here_ns(job, rank)
    if longest is None:
        timeout = job.groups.known[group].timeout_s or DEFAULT_TIMEOUT_S
        return int(SHARE_OF_TIMEOUT * timeout * 1e9)
    return int(max(FLOOR_NS, STEPS_OF_PATIENCE * job.steps.median_length_ns(), TIMES_LONGEST * longest))


class LivedTimes:
    """How much of their waits ranks have lived through: a process that is suspended does not wait.

    Until its state is known, its last heartbeat tells how long it lived. Made for one look at all ranks.
    """

    def __init__(self, job: JobState) -> None:
        rows, silent_ns = job.progress.rows, job.progress.rows["heartbeat_age_ns"]
        stopped = rows["process_state"] == int(ProcessState.STOPPED)
        self._silent_ns = np.where(stopped | (silent_ns < STATE_KNOWN_NS), silent_ns, 0)
        self._most_ns = np.full(rows.size, np.iinfo(np.int64).max)
        self._tells = np.zeros(rows.size + 1, bool)  # the last one: of ranks of which nothing is told
        known = np.fromiter(job.ranks, np.intp, len(job.ranks))
        self._tells[known[known < rows.size]] = True
        self._tells[:-1] &= job.progress.stamps > 0
        for rank, facts in job.ranks.items():
            if facts.exited_ns and rank < rows.size:
                self._tells[rank] = False
            elif facts.stopped_ns and rank < rows.size:
                self._most_ns[rank] = 0
            elif facts.continued_ns and rank < rows.size:
                self._most_ns[rank] = max(0, int(rows["read_ns"][rank]) - facts.continued_ns)

    def ages_ns(self, ranks: np.ndarray, ages_ns: np.ndarray) -> np.ndarray:
        """(n,) of waits of these ages: how long each of the ranks (n,) was alive in its wait."""
        tells = self._tells[np.minimum(ranks, self._tells.size - 1)]
        told = ranks[tells]
        lived_ns: np.ndarray = ages_ns.copy()
        less_ns = np.minimum(ages_ns[tells] - self._silent_ns[told], self._most_ns[told])
        lived_ns[tells] = np.where(less_ns == ages_ns[tells], less_ns, np.maximum(less_ns, 0))
        return lived_ns


def waited_ns(job: JobState, age_ns: int, rank: int, *, before_ends: bool = False) -> int:
    """How much of a wait of ``age_ns`` for ``rank`` counts: time it spent stopped, or in a rare phase just left, does
    not.

    before_ends: as things stood before it ended.
    """
    facts, row = job.ranks.get(rank), job.progress.row_of(rank)
    if facts is None or row is None or (facts.exited_ns and not before_ends):
        return age_ns
    since = facts.continued_ns
    if not is_rare(row):
        since = max(since, int(job.progress.rare_until_ns[rank]))
    elif int(row["step"]) >= 1:
        since = max(since, int(row["read_ns"]) - int(row["phase_age_ns"]))
    return min(age_ns, max(0, int(row["read_ns"]) - since)) if since else age_ns
