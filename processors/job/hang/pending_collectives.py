"""The list of open operations, out of the newest progress rows: who waits, for whom, since when. Pure.

Only ages that the agent measured are used, never the arrival of records: a slow pipeline makes no rank late.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ....telemetry.vocabulary import EventFlag, Kind, Op
from ..columns.rows import pick
from ..detectors.hang.wait_graph import Wait
from ..intake.device_groups import KnownStarts, has_device_groups, may_not_have_begun, not_begun
from ..intake.progress import read_ns
from ..intake.wait_thresholds import FLOOR_NS, LivedTimes
from ..state.job_state import FRESH_NS, JobState
from ..state.open_findings import silent_node


def find_waits(job: JobState, *, before_ends: bool = False, lived: LivedTimes | None = None) -> list[Wait]:
    """A wait for each rank's oldest open operation in each group: who has not entered it, and who cannot be seen.

    before_ends: as things stood before ranks ended, by the last rows of each. lived: makes the ages those for which the
    ranks were alive.
    """
    newest = int(job.groups.stamps.max()) if job.groups.stamps.size else 0
    fresh_since = newest - FRESH_NS
    waits: list[Wait] = []
    held: set[int] = set()  # for long enough, whatever was lived, by what moves the data
    if (job.groups.rows["open"] != 0).any():
        for wait, age_ns in _Members(job, fresh_since, before_ends=before_ends).waits(lived):
            waits.append(wait)
            if wait.within and age_ns >= FLOOR_NS:
                held.add(wait.rank)
    p2p = _p2p_waits(job, fresh_since)
    on_devices = _device_p2p_waits(job, [*waits, *p2p], held)
    return waits + _as_lived([*p2p, *on_devices], lived)


def _as_lived(waits: list[Wait], lived: LivedTimes | None) -> list[Wait]:
    if lived is None or not waits:
        return waits
    ages_ns = np.array([wait.age_ns for wait in waits], np.int64)
    lived_ns = lived.ages_ns(np.array([wait.rank for wait in waits], np.intp), ages_ns).tolist()
    return [
        wait if wait.age_ns == age_ns else replace(wait, age_ns=age_ns)
        for wait, age_ns in zip(waits, lived_ns, strict=True)
    ]


def _by_rank(job: JobState, ranks: Iterable[int]) -> np.ndarray:
    """True for these; the last place, False, is for ranks of which nothing is known."""
    marked = np.zeros(max(job.ranks, default=-1) + 2, bool)
    marked[[rank for rank in ranks if rank < marked.size - 1]] = True
    return marked


@dataclass(frozen=True, slots=True, kw_only=True)
class _Lacking:
    """Who has not entered an operation.

    is_elsewhere: by place, whose host has called it, and whose device has not come to it, or is held up by something
    else and nobody tells whether it has come. left: a member has got out of it, so that it ends for all.
    """

    missing: tuple[int, ...]
    unknown: tuple[int, ...]
    launched: tuple[int, ...]
    is_elsewhere: Sequence[bool]
    left: bool


class _Members:
    """Where the members of all groups stand, one behind the other as their rows are: who waits is found at once.

    Thousands wait in the same operation for the same few: these are found once.
    """

    def __init__(self, job: JobState, fresh_since_ns: int, *, before_ends: bool) -> None:
        """fresh_since_ns, before_ends: as in ``find_waits``."""
        groups, self._job = job.groups, job
        self._rows, self._members, self._group_of = groups.rows, groups.all_members(), groups.group_of_members()
        left = () if before_ends else [rank for rank, facts in job.ranks.items() if facts.exited_ns]
        gone = _by_rank(job, left)
        lost, known = _by_rank(job, job.hidden_ranks()), np.minimum(self._members, gone.size - 1)
        is_gone, hidden = gone[known], lost[known] | (self._rows["blind"] != 0)
        if job.blind_ranks:
            hidden |= np.isin(self._members, list(job.blind_ranks))
        self._seen = groups.stamps > 0
        fresh = self._seen & (groups.stamps >= fresh_since_ns)
        # A rank that left stays where its last row saw it; one that is merely unseen may have moved on.
        visible = fresh | is_gone
        if not self._seen.all():
            visible |= ~self._seen & _has_fresh_progress(job, self._members)
        self._visible, self._may = visible & ~hidden, fresh & ~is_gone & ~hidden
        self._starts = KnownStarts.of(job) if has_device_groups(job) else None
        self._tells_starts = np.zeros(len(groups.members), bool)  # by group
        self._tells_starts[self._group_of[self._rows["started"] >= 0]] = True
        self._lacking: dict[tuple[int, int, bool], _Lacking] = {}

    def waits(self, lived: LivedTimes | None) -> Iterator[tuple[Wait, int]]:
        """The waits, and their ages in ns as the rows have them."""
        places = self.may_wait()
        rows, ranks, groups = pick(self._rows, places), self._members[places], self._group_of[places]
        blurred, seqs = _oldest_open(rows)
        ages_ns = np.where(blurred, rows["moved_age_ns"], rows["open_age_ns"])
        since_ns = _read_times_ns(self._job, ranks) - ages_ns
        of_waits = ages_ns if lived is None else lived.ages_ns(ranks, ages_ns)
        inside = places - np.array(self._job.groups.first, np.intp)[groups]
        columns = (ranks, groups, inside, seqs, blurred, rows["op"], ages_ns, of_waits, since_ns)
        for rank, group, place, seq, blur, op, age_ns, lived_ns, since in zip(
            *(column.tolist() for column in columns), strict=True
        ):
            lacking = self._lacking.get((group, seq, blur))
            if lacking is None:
                lacking = self._lacking[group, seq, blur] = self._find_lacking(group, seq, blur)
            if lacking.is_elsewhere[place] or (blur and not lacking.missing):
                continue  # only its host has called; its device is busy with something else
            is_in = not (blur or lacking.missing or lacking.unknown)
            wait = Wait(
                rank=rank,
                group=group,
                seq=seq,
                op=op,
                p2p=False,
                age_ns=lived_ns,
                since_ns=since,
                missing=lacking.missing,
                unknown=lacking.unknown,
                launched=lacking.launched,
                within=is_in and not lacking.left,
                behind=is_in and lacking.left,
            )
            yield wait, age_ns

    def may_wait(self) -> np.ndarray:
        """Places of who can be seen in a collective that is open, and not only called by a host whose device is busy
        with something else, as nearly all are that hosts have called ahead."""
        blurred, seqs = _oldest_open(self._rows)
        # What is open where there is no such number is P2P.
        open_ = self._may & (self._rows["open"] != 0) & (seqs >= 1) & (seqs <= self._rows["enqueued"])
        if self._starts is not None:
            idle, elsewhere = self._not_in(slice(None), seqs)
            on_device = self._job.groups.are_on_device()[self._group_of]
            open_ &= blurred | ~(on_device & (idle | elsewhere))
        return np.flatnonzero(open_)

    def _places_of(self, group: int) -> slice:
        first = self._job.groups.first[group]
        return slice(first, first + self._job.groups.members[group].size)

    def _not_in(self, mine: slice, seq: int | np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """By member at these places: whose device has not come to it; and of whose nobody tells, and which something
        else holds up.
        """
        assert self._starts is not None
        rows, seen, some_told = self._rows[mine], self._seen[mine], self._tells_starts[self._group_of[mine]]
        known = np.minimum(self._members[mine], self._starts.timed.size - 1)
        timed, occupied = self._starts.timed[known], self._starts.occupied[known]
        idle = not_begun(rows, seq, timed, some_told) & seen
        return idle, may_not_have_begun(rows, seq, timed, some_told) & occupied & seen

    def _find_lacking(self, group: int, seq: int, blurred: bool) -> _Lacking:
        """Who waits in it is none of them: it has called, and its device, where it has one, has come to it."""
        mine = self._places_of(group)
        rows, members, seen, visible = self._rows[mine], self._members[mine], self._seen[mine], self._visible[mine]
        lacks = ~seen | (rows["enqueued"] < seq)
        idle = elsewhere = np.zeros(rows.size, bool)
        if self._starts is not None and self._job.groups.on_device[group] and not blurred:
            idle, elsewhere = self._not_in(mine, seq)
        lacks |= idle
        return _Lacking(
            missing=tuple(members[lacks & visible].tolist()),
            unknown=tuple(members[lacks & ~visible].tolist()),
            launched=tuple(members[lacks & visible & idle].tolist()),
            is_elsewhere=(idle | elsewhere).tolist(),
            left=bool((seen & (rows["completed"] >= seq)).any()),
        )


def _oldest_open(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """By row: whether no completion is seen, and the number of the oldest collective that may be open.

    Where none is seen the newest call may be: it is if somebody has not come and nothing moves.
    """
    blurred = (rows["completed"] < 0) | (rows["open"] < 0)
    return blurred, np.where(blurred, rows["enqueued"], rows["completed"] + 1)


def _read_times_ns(job: JobState, ranks: np.ndarray) -> np.ndarray:
    """When agents looked at these ranks, as ``read_ns`` says of one."""
    read, known = np.zeros(ranks.size, np.int64), ranks < job.progress.rows.size
    told = ranks[known]
    read[known] = np.where(job.progress.stamps[told] > 0, job.progress.rows["read_ns"][told], 0)
    return read


def _has_fresh_progress(job: JobState, members: np.ndarray) -> np.ndarray:
    stamps = np.zeros(members.size, np.int64)
    known = members < job.progress.stamps.size
    stamps[known] = job.progress.stamps[members[known]]
    fresh: np.ndarray = stamps >= max(1, job.progress.newest_stamp_ns - FRESH_NS)
    return fresh


def _p2p_waits(job: JobState, fresh_since: int) -> list[Wait]:
    """Open sends and receives whose other end has no matching call open: edges to the peer.

    Not on devices, where nobody tells the end of a send or a receive.
    """
    rows = job.open_steps.calls.all()
    rows = pick(rows, (rows["flags"] & int(EventFlag.P2P)) != 0)
    if rows.size and has_device_groups(job):
        rows = pick(
            rows, ~np.array([*job.groups.on_device, True], bool)[np.minimum(rows["group"], len(job.groups.on_device))]
        )
    if not rows.size:
        return []
    lost = job.hidden_ranks()
    newest: dict[tuple[int, int, int], np.void] = {}
    for row in rows:
        newest[(int(row["group"]), int(row["rank"]), int(row["seq"]))] = row
    opened = {place: row for place, row in newest.items() if row["done_ns"] == 0 and place[0] < len(job.groups.members)}
    ends = {(group, rank, _peer(job, group, row), int(row["op"])) for (group, rank, _), row in opened.items()}
    waits = []
    for (group, rank, seq), row in sorted(opened.items(), key=lambda item: item[0]):
        peer = _peer(job, group, row)
        facts = job.ranks.get(rank)
        progress = job.progress.row_of(rank)
        if peer < 0 or facts is None or facts.exited_ns or progress is None or rank in lost:
            continue
        if job.progress.stamps[rank] < fresh_since:
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


def _device_p2p_waits(job: JobState, waits: Sequence[Wait], held: set[int]) -> list[Wait]:
    """Of devices that have not come to what others wait in: the sends and receives in which they may stand, as nobody
    tells their ends, where the other end is seen to be held up by what moves the data, or went silent with its node, or
    in its turn may stand in one with such a device. A kernel that does not end looks the same; but two things at once
    are less likely than one. held: ranks that are held up so, for long enough; others are added.
    """
    unseen = _silent_ranks(job)
    # Whose device stands in an exchange with a rank that is gone may have a host that waits for its device.
    lacking = (wait.missing if unseen else wait.launched for wait in waits)
    # Thousands wait for the same thousands, told by one tuple (``find_waits``): gone through once.
    late = set[int]().union(*{id(ranks): ranks for ranks in lacking}.values())
    if not late or not (held or unseen):
        return []
    rows = job.groups.rows
    is_late = np.zeros(max(int(rows["rank"].max(initial=0)), *late) + 1, bool)
    is_late[list(late)] = True
    open_ = (rows["p2p_enqueued"] > 0) & (rows["p2p_completed"] < 0) & is_late[rows["rank"]]
    rows_to: dict[int, list[np.void]] = {}  # by the rank at the other end
    receives = _open_receives(job, is_late)
    for row in pick(rows, open_ & (job.groups.stamps > 0) & job.groups.are_on_device()[rows["group"]]):
        rank, group = int(row["rank"]), int(row["group"])
        for peer in {_peer(job, group, row), *receives.get((rank, group), ())}:
            rows_to.setdefault(peer, []).append(row)
    found: list[Wait] = []
    behind = sorted(held | unseen)
    for peer in behind:  # which grows: a pipeline's stages are held up one behind the other
        for row in rows_to.get(peer, ()):
            rank = int(row["rank"])
            if rank in held:  # its device stands there, and in nothing else: nobody waits in a circle
                continue
            found.append(
                Wait(
                    rank=rank,
                    group=int(row["group"]),
                    seq=int(row["p2p_enqueued"]),
                    op=int(row["op"]),
                    p2p=True,
                    age_ns=int(row["moved_age_ns"]),
                    since_ns=read_ns(job, rank) - int(row["moved_age_ns"]),
                    missing=() if peer in unseen else (peer,),
                    unknown=(peer,) if peer in unseen else (),
                )
            )
            held.add(rank)
            behind.append(rank)
    return found


def _silent_ranks(job: JobState) -> set[int]:
    """Ranks that went silent with their node. Where only its whichrank is gone, the job has gone on with them."""
    silent = {name for name, node in job.nodes.known.items() if node.is_lost}
    silent -= {silent_node(finding) for finding in job.findings.of_kind(Kind.AGENT_SILENT)}
    if not silent:
        return set()
    return {rank for rank, facts in job.ranks.items() if facts.node in silent and not facts.exited_ns}


def _open_receives(job: JobState, chosen: np.ndarray) -> dict[tuple[int, int], set[int]]:
    """By rank and group on devices: from whom it receives in the steps that are not closed. The host may have launched
    all of them, so that the last one alone says little. chosen: by rank."""
    rows = job.open_steps.calls.all()
    told = np.append(job.groups.are_on_device(), False)[np.minimum(rows["group"], len(job.groups.on_device))]
    told &= ((rows["flags"] & int(EventFlag.P2P)) != 0) & (rows["op"] == int(Op.RECV)) & (rows["done_ns"] == 0)
    told &= chosen[np.minimum(rows["rank"], chosen.size - 1)]
    found: dict[tuple[int, int], set[int]] = {}
    for row in pick(rows, told):
        found.setdefault((int(row["rank"]), int(row["group"])), set()).add(_peer(job, int(row["group"]), row))
    return found


def _peer(job: JobState, group: int, row: np.void) -> int:
    """Global rank of the peer of a call, or of a member's last one; -1 unknown."""
    place, members = int(row["peer"]), job.groups.members[group]
    return int(members[place]) if 0 <= place < members.size else -1
