"""Progress rows into the job's state: where each rank and each member of a group stands, and when it last moved."""

from __future__ import annotations

import numpy as np

from ....telemetry.vocabulary import ProcessState
from ..accounting.guarded_accounting import note_saves
from ..columns.rows import pick, put
from ..state.job_state import JobState
from ..state.micro_batch import Arrivals, ranks_by_flush
from ..state.rank_state import MOST_RANKS
from .device_groups import note_gaps
from .wait_thresholds import rare_rows

_STOPPED, _DEAD = int(ProcessState.STOPPED), int(ProcessState.DEAD)
#: Two looks at a stopped process must be so far apart, as the agent's own: a moment's stop is no news.
CONFIRM_NS = 50_000_000
#: Heartbeats that go on for so long after a rank's last one were not ended by its death.
OUTLIVED_NS = 2_000_000_000


def take_progress(job: JobState, came: Arrivals) -> None:
    """Keeps the newest row of each rank, and notes its node, exits and stops, saves, and whether it can be seen.

    came: of PROGRESS, each flush of another node.
    """
    places = _newest_of_each_rank(came.rows["rank"])
    if not places.size:
        return
    rows, of_flush = pick(came.rows, places), came.of_flush[places]
    ranks = rows["rank"].astype(np.intp)
    stamps_ns = np.array([flush.stamp_ns for flush in came.flushes], np.int64)
    job.progress.grow(int(ranks.max()))
    rows["read_ns"] += np.array([flush.offset_ns for flush in came.flushes], np.int64)[of_flush]
    for flush, told in ranks_by_flush(came):
        job.set_nodes(told, flush.node)
    before, known = pick(job.progress.rows, ranks), job.progress.stamps[ranks] > 0
    _note_processes(job, rows, before, known)
    _compare_looks(job, rows, before, known, of_flush, stamps_ns)
    note_saves(job, rows, before, known)
    put(job.progress.rows, ranks, rows)
    job.progress.stamps[ranks] = stamps_ns[of_flush]
    job.progress.newest_stamp_ns = max(job.progress.newest_stamp_ns, int(stamps_ns[-1]))
    job.note_blind(ranks, rows["level"], rows["hook_state"])
    job.unsaved.progress = True


def _note_processes(job: JobState, rows: np.ndarray, before: np.ndarray, known: np.ndarray) -> None:
    """Of ranks of which no event has told the process."""
    for place in (~known | (before["pid"] != rows["pid"])).nonzero()[0].tolist():
        facts, pid = job.facts(int(rows["rank"][place])), int(rows["pid"][place])
        if pid and not facts.pid:
            facts.pid = pid
            job.unsaved.facts = True


def _compare_looks(
    job: JobState,
    rows: np.ndarray,
    before: np.ndarray,
    known: np.ndarray,
    of_flush: np.ndarray,
    stamps_ns: np.ndarray,
) -> None:
    """What takes the row before to tell. before, known: of the same ranks; known False: there was none. of_flush: by
    row; stamps_ns: by flush."""
    was_stopped = (before["process_state"] == _STOPPED) & known
    for flush in np.unique(of_flush[was_stopped]).tolist() if np.logical_or.reduce(was_stopped) else ():
        mine = np.flatnonzero(of_flush == flush)
        _compare_stops(job, pick(rows, mine), pick(before, mine), was_stopped[mine], int(stamps_ns[flush]))
    rare, was_rare = rare_rows(rows), rare_rows(before) & known
    if np.logical_or.reduce(rare | was_rare):
        left = np.where(was_rare, rows["read_ns"] - rows["phase_age_ns"], job.progress.rare_until_ns[rows["rank"]])
        job.progress.rare_until_ns[rows["rank"]] = np.where(rare, rows["read_ns"], left)


def _compare_stops(job: JobState, rows: np.ndarray, before: np.ndarray, was: np.ndarray, stamp_ns: int) -> None:
    """Stops that no event told of: it was lost, or its agent died after the first look. was: stopped in ``before``.
    rows: of one node.

    The heartbeat must have stood still between the looks, else the process ran in between. A process that is gone
    by now was stopped to its end if the others went on without it: a launcher ends them when one of them dies.
    """
    beats = rows["read_ns"] - rows["heartbeat_age_ns"]
    silent = was & (beats == before["read_ns"] - before["heartbeat_age_ns"])
    no_heart = was & (before["heartbeat_age_ns"] == 0)
    apart = rows["read_ns"] - before["read_ns"] >= CONFIRM_NS
    still = (rows["process_state"] == _STOPPED) & (silent | no_heart) & apart
    ended = (rows["process_state"] == _DEAD) & silent & (int(beats.max()) - beats >= OUTLIVED_NS)
    for place in (still | ended).nonzero()[0].tolist():
        facts = job.facts(int(rows["rank"][place]))
        if not facts.stopped_ns:
            facts.stopped_ns, facts.stopped_stamp_ns = int(before["read_ns"][place]), stamp_ns
            job.unsaved.facts = job.may_be_stopped = True
        if ended[place] and not facts.exited_ns and facts.stopped_stamp_ns:
            facts.stopped_stamp_ns = 0  # it lasted: nothing to wait for, and its exit comes next
            job.unsaved.facts = True


def _newest_of_each_rank(ranks: np.ndarray) -> np.ndarray:
    """Where the last row of each rank stands."""
    last = {rank: place for place, rank in enumerate(ranks.tolist()) if rank < MOST_RANKS}
    return np.fromiter(last.values(), np.intp, len(last))


def take_group_progress(job: JobState, came: Arrivals) -> None:
    """Keeps each row as the newest of its rank in its group, how long operations were open, and whether ends are told.

    came: of GROUP_PROGRESS, each flush of another node. Rows of ranks that are no members are dropped.
    """
    rows, of_flush = came.rows, came.of_flush
    groups, places = job.groups.places_of(rows["group"], rows["rank"])
    if places.size and np.minimum.reduce(places) < 0:
        member = places >= 0
        rows, of_flush, groups, places = pick(rows, member), of_flush[member], groups[member], places[member]
    note_gaps(job, places, rows, groups)
    put(job.groups.rows, places, rows)
    stamps_ns = np.array([flush.stamp_ns for flush in came.flushes], np.int64)
    job.groups.stamps[places] = stamps_ns[of_flush]
    job.groups.note_ages(places, rows)
    job.groups.note_ends(groups, rows)
    job.unsaved.progress = True


def oldest_open_ns(job: JobState) -> int:
    """Age of the oldest operation that any rank has open; 0: none."""
    return int(job.groups.open_ages_ns.max()) if job.groups.open_ages_ns.size else 0


def read_ns(job: JobState, rank: int) -> int:
    """When the agent looked at this rank for its newest row, in Unix ns by the bus's clock; 0 unknown."""
    row = job.progress.row_of(rank)
    return int(row["read_ns"]) if row is not None else 0


def last_moves_ns(job: JobState) -> np.ndarray:
    """(ranks,) in Unix ns: when each rank was last seen to begin or end a call, a phase or a step; 0 unknown."""
    progress, rows, never = job.progress.rows, job.groups.rows, np.iinfo(np.int64).max
    ages = [np.where(progress[name] > 0, progress[name], never) for name in ("phase_age_ns", "step_age_ns")]
    youngest = np.minimum(*ages)
    called = (rows["enqueued"] > 0) | (rows["p2p_enqueued"] > 0)
    told = called & (job.groups.stamps > 0) & (rows["moved_age_ns"] > 0) & (rows["rank"] < progress.size)
    np.minimum.at(youngest, rows["rank"][told], rows["moved_age_ns"][told])
    known = (job.progress.stamps > 0) & (youngest < never)
    return np.asarray(np.where(known, progress["read_ns"] - youngest, 0))


def last_move_ns(job: JobState, rank: int) -> int:
    """When this rank was last seen to begin or end a call, a phase or a step, in Unix ns; 0 unknown."""
    return 0 if job.progress.row_of(rank) is None else int(last_moves_ns(job)[rank])


def last_device_move_ns(job: JobState, rank: int) -> int:
    """When this rank's device was last seen to end an operation while it had others to do, in Unix ns; 0 unknown."""
    ages: list[int] = []
    for index, members in enumerate(job.groups.members):
        if job.groups.on_device[index]:
            rows, stamps = job.groups.rows_of(index)
            mine = rows[(members == rank) & (stamps > 0) & (rows["open"] > 0)]
            ages += mine["open_age_ns"].tolist()
    return read_ns(job, rank) - min(ages) if ages else 0
