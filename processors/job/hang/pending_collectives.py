"""The list of open operations, out of the newest progress rows: who waits, for whom, since when. Pure.

Only ages that the agent measured are used, never the arrival of records: a slow pipeline makes no rank late.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from ....telemetry.vocabulary import EventFlag, Kind, Op
from ..columns.rows import pick
from ..detectors.hang.wait_graph import Wait
from ..intake.device_groups import KnownStarts, has_device_groups, may_not_have_begun, not_begun
from ..intake.progress import read_ns
from ..intake.wait_thresholds import FLOOR_NS
from ..state.job_state import FRESH_NS, JobState
from ..state.open_findings import silent_node


def find_waits(job: JobState, *, before_ends: bool = False) -> list[Wait]:
    """A wait for each rank's oldest open operation in each group: who has not entered it, and who cannot be seen.

    before_ends: as things stood before ranks ended, by the last rows of each.
    """
    newest = int(job.groups.stamps.max()) if job.groups.stamps.size else 0
    fresh_since = newest - FRESH_NS
    blind, lost = job.groups.blind(job.blind_ranks), job.hidden_ranks()
    starts = KnownStarts.of(job) if has_device_groups(job) else None
    waits: list[Wait] = []
    has_left = _by_rank(job, () if before_ends else (rank for rank in job.ranks if job.has_left(rank)))
    is_lost, groups_of_blind = _by_rank(job, lost), {group for group, _ in blind}
    for index, members in enumerate(job.groups.members):
        rows, stamps = job.groups.rows_of(index)
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
        group = _Standing(job, index, seen, visible & ~hidden, starts if job.groups.on_device[index] else None)
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
        self._members = job.groups.members[index]
        self._rows, _ = job.groups.rows_of(index)
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
            since_ns=read_ns(self._job, rank) - age_ns,
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


def _device_p2p_waits(job: JobState, waits: Sequence[Wait]) -> list[Wait]:
    """Of devices that have not come to what others wait in: the sends and receives in which they may stand, as nobody
    tells their ends, where the other end is seen to be held up by what moves the data, or went silent with its node, or
    in its turn may stand in one with such a device. A kernel that does not end looks the same; but two things at once
    are less likely than one.
    """
    unseen = _silent_ranks(job)
    # Whose device stands in an exchange with a rank that is gone may have a host that waits for its device.
    lacking = (wait.missing if unseen else wait.launched for wait in waits)
    # Thousands wait for the same thousands, told by one tuple (``find_waits``): gone through once.
    late = set[int]().union(*{id(ranks): ranks for ranks in lacking}.values())
    held = {wait.rank for wait in waits if wait.within and wait.age_ns >= FLOOR_NS}
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
