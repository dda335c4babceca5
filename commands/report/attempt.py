"""What is open in one attempt of a job: rows that are not measured yet, groups, and the newest word of each rank.

Tables by rank are arrays: a large job's blocks come by the ten thousand. No clock, no files.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from ...processors.job.detectors.slow.wait_attribution import GroupShape, Places
from ...telemetry.records import Block, Group
from ...telemetry.tables import COLLECTIVES, DEVICE_STEPS, NO_GROUP, STEPS
from ...telemetry.told_ranks import read_ranks
from ...telemetry.vocabulary import EventName, ExitState, is_device_backend

#: A rank of which nothing was heard for longer than this is not said to be anywhere; it tells once a second.
SILENT_S = 3.0
#: A rank that ended so long before others were last heard of had ended before them.
ENDED_BEFORE_S = 0.5

#: Newest word of a rank. launch, node: numbers of ours, -1 never heard; look_s: Unix time of its progress, 0 none;
#: is_stale: its last look told of an earlier moment than one before; waits_s: for how long its oldest call had been
#: open, told at told_ns; ended_s: Unix time of its end, 0 none known.
_RANK = np.dtype(
    [
        ("launch", "<i4"),
        ("node", "<i4"),
        ("newest_step", "<i8"),
        ("step", "<i8"),
        ("look_s", "<f8"),
        ("elapsed_s", "<f8"),
        ("is_over", "?"),
        ("is_stale", "?"),
        ("told_ns", "<i8"),
        ("waits_s", "<f8"),
        ("ended_s", "<f8"),
    ]
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """Where an attempt stood when it was last heard of. Seconds by rank; infinite for one that had ended before."""

    step: int
    begin_s: float
    ranks: np.ndarray
    own_s: np.ndarray
    waited_s: np.ndarray


@dataclass(slots=True)
class AttemptRows:
    number: int
    ranks: np.ndarray = field(default_factory=lambda: np.zeros(0, _RANK))
    groups: dict[str, int] = field(default_factory=dict)  # index by uid
    members: list[np.ndarray] = field(default_factory=list)
    on_device: list[bool] = field(default_factory=list)
    begin_s: dict[int, float] = field(default_factory=dict)  # by step
    steps: list[np.ndarray] = field(default_factory=list)
    calls: list[np.ndarray] = field(default_factory=list)
    sums: list[np.ndarray] = field(default_factory=list)
    #: The newest step that is measured.
    measured: int = -1
    _shape: GroupShape | None = None

    def has_others(self, ranks: np.ndarray, launch: int) -> bool:
        """Whether any of these ranks belongs to another launch already. ranks: (n,), indices of ranks."""
        ranks = ranks[ranks < self.ranks.size]
        known = self.ranks["launch"][ranks]
        return bool(((known >= 0) & (known != launch)).any())

    def belongs(self, ranks: np.ndarray, launch: int, node: int) -> None:
        """Notes that these ranks are of this launch, on this node. ranks: (n,), indices of ranks."""
        self._room_for(int(ranks.max()))
        if (self.ranks["node"][ranks] != node).any():
            self._shape = None
        self.ranks["launch"][ranks], self.ranks["node"][ranks] = launch, node

    def take(self, block: Block) -> None:
        """Takes in the rows of a block; its ranks must belong to the attempt.

        Steps that are measured already are left out.
        """
        rows = block.rows
        if block.name is EventName.BLOCK_STEPS:
            self._take_steps(rows[rows["step"] > self.measured], block.clock_offset_ns)
        elif block.name is EventName.BLOCK_COLLECTIVES:
            self.calls.append(self._with_our_groups(block))
        elif block.name is EventName.BLOCK_DEVICE_STEPS:
            self.sums.append(self._with_our_groups(block))
        elif block.name is EventName.BLOCK_PROGRESS:
            self._take_progress(block)
        elif block.name is EventName.BLOCK_GROUP_PROGRESS:
            self._take_group_progress(block)

    def end_rank(self, rank: int, at_s: float) -> None:
        """Notes that a rank's process was gone at ``at_s`` (Unix seconds); the first word counts."""
        if 0 <= rank < self.ranks.size and self.ranks["ended_s"][rank] == 0:
            self.ranks["ended_s"][rank] = at_s

    def newest_step(self) -> int:
        """The newest step that any rank has told of; -1 before any."""
        return int(self.ranks["newest_step"].max(initial=-1))

    def horizon(self, furthest_behind: int) -> int:
        """The newest step that every rank has finished, but for those that are further behind than this."""
        heard = self.ranks[self.ranks["launch"] >= 0]["newest_step"]
        furthest = self.newest_step() - furthest_behind
        within = heard[heard > furthest]
        return int(within.min()) if within.size else furthest

    def split_off(self, horizon: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Takes out (steps, calls, sums), all rows up to the step ``horizon``, which counts as measured then."""
        steps, self.steps = _split(self.steps, STEPS, horizon)
        calls, self.calls = _split(self.calls, COLLECTIVES, horizon)
        sums, self.sums = _split(self.sums, DEVICE_STEPS, horizon)
        self.measured = horizon
        return steps, calls, sums

    def rows(self) -> int:
        """How many rows of calls are not measured yet."""
        return sum(part.size for part in self.calls)

    def shape(self) -> GroupShape:
        """What the attempt's groups look like; made anew when a rank has moved to another node."""
        if self._shape is None:
            node = self.ranks["node"]
            one_clock = [_all_on_one(node, members) for members in self.members]
            sizes = [members.size for members in self.members]
            self._shape = GroupShape(
                sizes=np.array(sizes or [0], np.int64),
                one_clock=np.array(one_clock or [True], bool),
                places=Places.of(self.members),
            )
        return self._shape

    def device_groups(self) -> np.ndarray:
        """Whether a device does a group's operations, by group (groups + 1,); False for an unknown one at the end."""
        return np.array([*self.on_device, False], bool)

    def standing(self) -> Standing | None:
        """Where the attempt stood when it was last heard of.

        None where it ended as it should, or most of its ranks had, or it never told where it was.
        """
        told = self.ranks["look_s"] > 0
        here = np.flatnonzero(told & ~self.ranks["is_over"])
        if not here.size or 2 * here.size < int(told.sum()):
            return None
        rows = self.ranks[here]
        # Not all were looked at in the same moment; and who is hard to end is looked at when the others are gone.
        heard_s = float(np.median(rows["look_s"]))
        since_s = heard_s - rows["look_s"]
        waited_s = np.minimum(rows["waits_s"], rows["elapsed_s"])
        own_s = rows["elapsed_s"] - waited_s
        is_waiting = waited_s > 0
        waited_s = np.where(is_waiting, np.maximum(0.0, waited_s + since_s), 0.0)
        own_s = np.where(is_waiting, own_s, np.maximum(0.0, own_s + since_s))
        unknown = since_s > SILENT_S
        ended = (rows["ended_s"] > 0) & (rows["ended_s"] < heard_s - ENDED_BEFORE_S)
        for values in (own_s, waited_s):
            values[unknown] = np.nan
            values[ended] = np.inf
        return Standing(
            step=int(rows["step"].max()),
            begin_s=float((rows["look_s"] - rows["elapsed_s"]).min()),
            ranks=here,
            own_s=own_s,
            waited_s=waited_s,
        )

    def _room_for(self, rank: int) -> None:
        if rank >= self.ranks.size:
            more = np.zeros(max(rank + 1, 2 * self.ranks.size) - self.ranks.size, _RANK)
            more["launch"] = more["node"] = more["newest_step"] = -1
            self.ranks = np.concatenate([self.ranks, more])

    def _take_steps(self, rows: np.ndarray, offset_ns: int) -> None:
        self.steps.append(rows)
        np.maximum.at(self.ranks["newest_step"], rows["rank"], rows["step"])
        steps, place = np.unique(rows["step"], return_inverse=True)
        first_ns = np.full(steps.size, np.iinfo(np.int64).max)
        np.minimum.at(first_ns, place, rows["begin_ns"])
        for step, begin_ns in zip(steps.tolist(), first_ns.tolist(), strict=True):
            begin_s = (begin_ns + offset_ns) / 1e9
            self.begin_s[step] = min(begin_s, self.begin_s.get(step, begin_s))

    def _take_progress(self, block: Block) -> None:
        """What is read of a ring after its rank's end may be older than what was seen of the process before."""
        rows = block.rows
        self.ranks["is_over"][rows["rank"]] = rows["exit_state"] == int(ExitState.NORMAL)
        look_s = (rows["read_ns"] + block.clock_offset_ns) / 1e9
        newer = look_s >= self.ranks["look_s"][rows["rank"]]
        self.ranks["is_stale"][rows["rank"]] = ~newer
        rows, look_s = rows[newer], look_s[newer]
        ranks = rows["rank"]
        self.ranks["step"][ranks] = rows["step"]
        self.ranks["look_s"][ranks] = look_s
        self.ranks["elapsed_s"][ranks] = np.maximum(rows["step_age_ns"], 0) / 1e9

    def _take_group_progress(self, block: Block) -> None:
        """A device waits only in what it has begun; where starts are not told, in what is open."""
        index = self._index_of(block.groups)
        rows = block.rows[~self.ranks["is_stale"][block.rows["rank"]]]
        device = self.device_groups()[np.minimum(index[np.minimum(rows["group"], index.size - 1)], len(self.on_device))]
        begun = ~device | (rows["started"] < 0) | (rows["started"] > rows["completed"])
        waits_s = np.where((rows["open"] > 0) & begun, np.maximum(rows["open_age_ns"], 0), 0) / 1e9
        ranks = rows["rank"]
        older = ranks[self.ranks["told_ns"][ranks] != block.time_ns]  # a look may come in several blocks
        self.ranks["waits_s"][older], self.ranks["told_ns"][older] = 0.0, block.time_ns
        np.maximum.at(self.ranks["waits_s"], ranks, waits_s)

    def _with_our_groups(self, block: Block) -> np.ndarray:
        """The rows that are not measured yet, with the attempt's own numbers of groups."""
        rows: np.ndarray = block.rows[block.rows["step"] > self.measured]  # a copy
        index = self._index_of(block.groups)
        rows["group"] = index[np.minimum(rows["group"], index.size - 1)]
        return rows

    def _index_of(self, groups: Sequence[Group]) -> np.ndarray:
        """By place in a block: our number of the group; at the end, of none."""
        found = []
        for group in groups:
            index = self.groups.get(group.uid)
            if index is None:
                index = self.groups[group.uid] = len(self.members)
                self.members.append(_members(group))
                self.on_device.append(is_device_backend(group.backend))
                self._shape = None
            found.append(index)
        return np.array([*found, NO_GROUP], np.int64)


def _members(group: Group) -> np.ndarray:
    try:
        return np.array(read_ranks(group.ranks), np.int64)
    except ValueError:
        return np.zeros(0, np.int64)


def _all_on_one(node: np.ndarray, members: np.ndarray) -> bool:
    """Whether one node has all of them; who was never heard of is on none."""
    if not members.size or int(members.max()) >= node.size:
        return False
    first = int(node[members[0]])
    return first >= 0 and bool((node[members] == first).all())


def _split(parts: list[np.ndarray], dtype: np.dtype, horizon: int) -> tuple[np.ndarray, list[np.ndarray]]:
    """The rows up to the horizon, and those after it."""
    rows = np.concatenate(parts) if parts else np.zeros(0, dtype)
    ready = rows["step"] <= horizon
    if ready.all():
        return rows, []
    return rows[ready], [rows[~ready]]
