"""Progress rows into the job's state, and out of them the list of open operations: who waits, for whom, since when.

Only ages that the agent measured are used, never the arrival of records: a slow pipeline makes no rank late.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from ...telemetry.vocabulary import EventFlag, Op, ProcessState
from .device import KnownStarts, has_device_groups, may_not_have_begun, not_begun, note_gaps
from .open_rows import Arrived
from .rows import pick, put
from .soft_accounting import note_saves
from .state import FRESH_NS, MOST_RANKS, JobState
from .thresholds import FLOOR_NS, rare_rows
from .waiting import Wait

_STOPPED, _DEAD = int(ProcessState.STOPPED), int(ProcessState.DEAD)
#: Two looks at a stopped process must be so far apart, as the agent's own: a moment's stop is no news.
CONFIRM_NS = 50_000_000
#: Heartbeats that go on for so long after a rank's last one were not ended by its death.
OUTLIVED_NS = 2_000_000_000


def take_progress(job: JobState, arrived: Arrived, node: str, stamp_ns: int) -> None:
    """arrived: PROGRESS. Only the newest row of a rank is kept."""
    rows = _newest_of_each_rank(arrived.rows)
    if not rows.size:
        return
    ranks = rows["rank"].astype(np.intp)
    job.grow_progress(int(ranks.max()))
    rows["read_ns"] += arrived.offset_ns
    job.set_nodes(ranks, node)
    before, known = pick(job.progress, ranks), job.progress_stamps[ranks] > 0
    _note_processes(job, rows, before, known)
    _compare_looks(job, rows, before, known, stamp_ns)
    note_saves(job, rows, before, known)
    put(job.progress, ranks, rows)
    job.progress_stamps[ranks] = stamp_ns
    job.progress_stamp_ns = stamp_ns
    job.note_blind(ranks, rows["level"], rows["hook_state"])
    job.progress_changed = True


def _note_processes(job: JobState, rows: np.ndarray, before: np.ndarray, known: np.ndarray) -> None:
    """Of ranks of which no event has told the process."""
    for place in (~known | (before["pid"] != rows["pid"])).nonzero()[0].tolist():
        facts, pid = job.facts(int(rows["rank"][place])), int(rows["pid"][place])
        if pid and not facts.pid:
            facts.pid = pid
            job.facts_changed = True


def _compare_looks(job: JobState, rows: np.ndarray, before: np.ndarray, known: np.ndarray, stamp_ns: int) -> None:
    """What takes the row before to tell. before, known: of the same ranks; known False: there was none."""
    was_stopped = (before["process_state"] == _STOPPED) & known
    if was_stopped.any():
        _compare_stops(job, rows, before, was_stopped, stamp_ns)
    rare, was_rare = rare_rows(rows), rare_rows(before) & known
    if rare.any() or was_rare.any():
        left = np.where(was_rare, rows["read_ns"] - rows["phase_age_ns"], job.rare_until_ns[rows["rank"]])
        job.rare_until_ns[rows["rank"]] = np.where(rare, rows["read_ns"], left)


def _compare_stops(job: JobState, rows: np.ndarray, before: np.ndarray, was: np.ndarray, stamp_ns: int) -> None:
    """Stops that no event told of: it was lost, or its agent died after the first look. was: stopped in ``before``.

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
            job.facts_changed = job.may_be_stopped = True
        if ended[place] and not facts.exited_ns and facts.stopped_stamp_ns:
            facts.stopped_stamp_ns = 0  # it lasted: nothing to wait for, and its exit comes next
            job.facts_changed = True


def _newest_of_each_rank(rows: np.ndarray) -> np.ndarray:
    """A copy of the last row of each rank."""
    ranks = rows["rank"].tolist()
    last = {rank: place for place, rank in enumerate(ranks) if rank < MOST_RANKS}
    return rows.copy() if len(last) == len(ranks) else rows.take(list(last.values()))


def take_group_progress(job: JobState, arrived: Arrived, stamp_ns: int) -> None:
    """arrived: GROUP_PROGRESS. Only the newest row of a rank and group is kept."""
    found = job.places_of(arrived)
    rows, groups, places = arrived.rows, found.groups, found.places
    if not found.all_members:
        rows = pick(rows, found.member)
    note_gaps(job, places, rows, groups)
    put(job.group_rows, places, rows)
    job.group_rows["group"][places] = groups
    job.group_stamps[places] = stamp_ns
    job.note_ages(places, rows)
    job.note_ends(groups, rows)
    job.progress_changed = True


def oldest_open_ns(job: JobState) -> int:
    """Age of the oldest operation that any rank has open."""
    return int(job.open_ages_ns.max()) if job.open_ages_ns.size else 0


def find_waits(job: JobState, *, before_ends: bool = False) -> list[Wait]:
    """Every open operation with the members that have not entered it, or cannot be seen.

    before_ends: as things stood before ranks ended, by the last rows of each.
    """
    newest = int(job.group_stamps.max()) if job.group_stamps.size else 0
    fresh_since = newest - FRESH_NS
    blind, lost = job.blind(), job.hidden_ranks()
    starts = KnownStarts.of(job) if has_device_groups(job) else None
    waits: list[Wait] = []
    has_left = _by_rank(job, () if before_ends else (rank for rank in job.ranks if job.has_left(rank)))
    is_lost, groups_of_blind = _by_rank(job, lost), {group for group, _ in blind}
    for index, members in enumerate(job.members):
        rows, stamps = job.rows_of_group(index)
        if not (rows["open"] != 0).any():
            continue
        known = np.minimum(members, has_left.size - 1)
        gone, hidden = has_left[known], is_lost[known]
        if index in groups_of_blind:
            hidden = hidden | np.array([(index, int(rank)) in blind for rank in members], bool)
        seen = stamps > 0
        fresh = seen & (stamps >= fresh_since)
        # A rank that left stays where its last row saw it; one that is merely unseen may have moved on.
        visible = fresh | gone
        if not seen.all():
            visible |= ~seen & _has_fresh_progress(job, members)
        group = _Standing(job, index, seen, visible & ~hidden, starts if job.on_device[index] else None)
        for place in np.flatnonzero(fresh & ~gone & ~hidden & group.may_wait()):
            wait = group.read_wait(int(place))
            if wait is not None:
                waits.append(wait)
    waits.extend(_p2p_waits(job, fresh_since))
    waits.extend(_device_p2p_waits(job, waits))
    return waits


def _by_rank(job: JobState, ranks: Iterable[int]) -> np.ndarray:
    """True for these; the last place, False, is for ranks of which nothing is known."""
    marked = np.zeros(max(job.ranks, default=-1) + 2, bool)
    marked[[rank for rank in ranks if rank < marked.size - 1]] = True
    return marked


@dataclass(frozen=True, slots=True, kw_only=True)
class _Lacking:
    """Who has not entered an operation. idle: by place, whose host has called it and whose device has not yet come.

    elsewhere: by place, whose host has called it, of whose device nobody tells whether it has come to it, and which
    is held up by something else. left: a member has got out of it, so that it ends for all.
    """

    missing: tuple[int, ...]
    unknown: tuple[int, ...]
    launched: tuple[int, ...]
    idle: np.ndarray
    elsewhere: np.ndarray
    left: bool


class _Standing:
    """Where the members of a group stand. Thousands wait in the same operation for the same few: found once."""

    def __init__(
        self, job: JobState, index: int, seen: np.ndarray, visible: np.ndarray, starts: KnownStarts | None
    ) -> None:
        """starts: None where hosts do the operations."""
        self._starts = starts
        self._job, self._index, self._seen, self._visible = job, index, seen, visible
        self._members = job.members[index]
        self._rows, _ = job.rows_of_group(index)
        self._lacking: dict[tuple[int, bool], _Lacking] = {}

    def may_wait(self) -> np.ndarray:
        """By place: a collective is open, and not only called by a host whose device is busy with something else, as
        nearly all are that hosts have called ahead."""
        rows = self._rows
        blurred = (rows["completed"] < 0) | (rows["open"] < 0)
        seq = np.where(blurred, rows["enqueued"], rows["completed"] + 1)
        open_ = (rows["open"] != 0) & (seq >= 1) & (seq <= rows["enqueued"])
        if self._starts is None or not open_.any():
            return np.asarray(open_)
        idle, elsewhere = self._not_in(seq)
        return np.asarray(open_ & (blurred | ~(idle | elsewhere)))

    def _not_in(self, seq: int | np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """By place: whose device has not come to it, and who is held up by something else (``_Lacking``)."""
        assert self._starts is not None
        known = np.minimum(self._members, self._starts.timed.size - 1)
        timed, occupied = self._starts.timed[known], self._starts.occupied[known]
        idle = not_begun(self._rows, seq, timed) & self._seen
        return idle, may_not_have_begun(self._rows, seq, timed) & occupied & self._seen

    def read_wait(self, place: int) -> Wait | None:
        row = self._rows[place]
        enqueued, completed = int(row["enqueued"]), int(row["completed"])
        # Where no completion is seen, the newest call may be open: it is if somebody has not come and nothing moves.
        blurred = completed < 0 or int(row["open"]) < 0
        seq = enqueued if blurred else completed + 1
        if seq > enqueued or seq < 1:
            return None  # what is open is P2P
        lacking = self._lacking.get((seq, blurred))
        if lacking is None:
            lacking = self._lacking[seq, blurred] = self._find_lacking(seq, blurred)
        if lacking.idle[place] or lacking.elsewhere[place]:
            return None  # only its host has called; its device is busy with something else
        if blurred and not lacking.missing:
            return None
        age_ns = int(row["moved_age_ns"] if blurred else row["open_age_ns"])
        rank = int(self._members[place])
        is_in = not (blurred or lacking.missing or lacking.unknown)
        return Wait(
            rank=rank,
            group=self._index,
            seq=seq,
            op=int(row["op"]),
            p2p=False,
            age_ns=age_ns,
            since_ns=_read_ns(self._job, rank) - age_ns,
            missing=lacking.missing,
            unknown=lacking.unknown,
            launched=lacking.launched,
            within=is_in and not lacking.left,
            behind=is_in and lacking.left,
        )

    def _find_lacking(self, seq: int, blurred: bool) -> _Lacking:
        """Who waits in it is none of them: it has called, and its device, where it has one, has come to it."""
        rows, members = self._rows, self._members
        lacks = np.where(self._seen, rows["enqueued"] < seq, True)
        idle = elsewhere = np.zeros(rows.size, bool)
        if self._starts is not None and not blurred:
            idle, elsewhere = self._not_in(seq)
        lacks |= idle
        return _Lacking(
            missing=tuple(members[lacks & self._visible].tolist()),
            unknown=tuple(members[lacks & ~self._visible].tolist()),
            launched=tuple(members[lacks & self._visible & idle].tolist()),
            idle=idle,
            elsewhere=elsewhere,
            left=bool((self._seen & (rows["completed"] >= seq)).any()),
        )


def _read_ns(job: JobState, rank: int) -> int:
    row = job.progress_row(rank)
    return int(row["read_ns"]) if row is not None else 0


def last_moves_ns(job: JobState) -> np.ndarray:
    """(ranks,) When each rank was last seen to begin or end a call, a phase or a step; 0 unknown."""
    progress, rows, never = job.progress, job.group_rows, np.iinfo(np.int64).max
    ages = [np.where(progress[name] > 0, progress[name], never) for name in ("phase_age_ns", "step_age_ns")]
    youngest = np.minimum(*ages)
    called = (rows["enqueued"] > 0) | (rows["p2p_enqueued"] > 0)
    told = called & (job.group_stamps > 0) & (rows["moved_age_ns"] > 0) & (rows["rank"] < progress.size)
    np.minimum.at(youngest, rows["rank"][told], rows["moved_age_ns"][told])
    known = (job.progress_stamps > 0) & (youngest < never)
    return np.asarray(np.where(known, progress["read_ns"] - youngest, 0))


def last_move_ns(job: JobState, rank: int) -> int:
    """The same of one rank."""
    return 0 if job.progress_row(rank) is None else int(last_moves_ns(job)[rank])


def last_device_move_ns(job: JobState, rank: int) -> int:
    """When this rank's device was last seen to end an operation while it had others to do; 0 unknown."""
    ages: list[int] = []
    for index, members in enumerate(job.members):
        if job.on_device[index]:
            rows, stamps = job.rows_of_group(index)
            mine = rows[(members == rank) & (stamps > 0) & (rows["open"] > 0)]
            ages += mine["open_age_ns"].tolist()
    return _read_ns(job, rank) - min(ages) if ages else 0


def _has_fresh_progress(job: JobState, members: np.ndarray) -> np.ndarray:
    stamps = np.zeros(members.size, np.int64)
    known = members < job.progress_stamps.size
    stamps[known] = job.progress_stamps[members[known]]
    fresh: np.ndarray = stamps >= max(1, job.progress_stamp_ns - FRESH_NS)
    return fresh


def _p2p_waits(job: JobState, fresh_since: int) -> list[Wait]:
    """Open sends and receives whose other end has no matching call open: edges to the peer.

    Not on devices, where nobody tells the end of a send or a receive.
    """
    rows = job.pending.all()
    rows = pick(rows, (rows["flags"] & int(EventFlag.P2P)) != 0)
    if rows.size and has_device_groups(job):
        rows = pick(rows, ~np.array([*job.on_device, True], bool)[np.minimum(rows["group"], len(job.on_device))])
    if not rows.size:
        return []
    lost = job.hidden_ranks()
    newest: dict[tuple[int, int, int], np.void] = {}
    for row in rows:
        newest[(int(row["group"]), int(row["rank"]), int(row["seq"]))] = row
    opened = {place: row for place, row in newest.items() if row["done_ns"] == 0 and place[0] < len(job.members)}
    ends = {(group, rank, _peer(job, group, row), int(row["op"])) for (group, rank, _), row in opened.items()}
    waits = []
    for (group, rank, seq), row in sorted(opened.items(), key=lambda item: item[0]):
        peer = _peer(job, group, row)
        facts = job.ranks.get(rank)
        progress = job.progress_row(rank)
        if peer < 0 or facts is None or facts.exited_ns or progress is None or rank in lost:
            continue
        if job.progress_stamps[rank] < fresh_since:
            continue
        other = int(Op.SEND) if int(row["op"]) == int(Op.RECV) else int(Op.RECV)
        met = (group, peer, rank, other) in ends
        unseen = peer not in job.ranks or peer in lost
        age_ns = max(0, int(progress["read_ns"]) - int(row["enqueued_ns"]))
        waits.append(
            Wait(
                rank=rank,
                group=group,
                seq=seq,
                op=int(row["op"]),
                p2p=True,
                age_ns=age_ns,
                since_ns=int(row["enqueued_ns"]),
                missing=() if met or unseen else (peer,),
                unknown=(peer,) if unseen else (),
                passed=int(row["op"]) == int(Op.SEND) and int(progress["phase_age_ns"]) < age_ns,
            )
        )
    return waits


def _device_p2p_waits(job: JobState, waits: Sequence[Wait]) -> list[Wait]:
    """Of devices that have not come to what was launched: the sends and receives in which they may stand, as nobody
    tells their ends, where the other end is seen to be held up by what moves the data. A kernel that does not end looks
    the same; but two things at once are less likely than one.
    """
    idle = {rank for wait in waits for rank in wait.launched}
    held = {wait.rank for wait in waits if wait.within and wait.age_ns >= FLOOR_NS}
    if not idle or not held:
        return []
    found = []
    for index in np.flatnonzero(job.on_device).tolist():
        rows, stamps = job.rows_of_group(index)
        mine = (stamps > 0) & (rows["p2p_enqueued"] > 0) & (rows["p2p_completed"] < 0)
        for row in rows[mine & np.isin(rows["rank"], list(idle))]:
            rank, peer = int(row["rank"]), _peer(job, index, row)
            if peer in held:
                found.append(
                    Wait(
                        rank=rank,
                        group=index,
                        seq=int(row["p2p_enqueued"]),
                        op=int(row["op"]),
                        p2p=True,
                        age_ns=int(row["moved_age_ns"]),
                        since_ns=_read_ns(job, rank) - int(row["moved_age_ns"]),
                        missing=(peer,),
                    )
                )
    return found


def _peer(job: JobState, group: int, row: np.void) -> int:
    """Global rank of the peer of a call, or of a member's last one; -1 unknown."""
    place, members = int(row["peer"]), job.members[group]
    return int(members[place]) if 0 <= place < members.size else -1
