"""What the operator remembers of one job: a working copy in arrays. ``state_rows`` writes and reads it as rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ....telemetry.records import Group
from ....telemetry.ring_layout import parse_ranks
from ....telemetry.tables import COLLECTIVES, DEVICE_STEPS, GROUP_PROGRESS, NO_GROUP, PROGRESS, STEP_GROUPS, STEPS
from ....telemetry.vocabulary import HookState, Kind, Level, Phase, Severity, is_device_backend
from ..columns.median import median
from ..columns.rows import Growing
from ..detectors.crash.crash_order import Ending
from ..detectors.hang.call_gaps import CallGaps
from ..detectors.slow.checkpoint_straggler import no_saves
from ..detectors.slow.drift import no_blocks, with_block
from ..detectors.slow.smallest_group_waits import inner_groups
from ..detectors.slow.step_time_changepoint import kept_history
from ..detectors.slow.straggler import LONGEST_BASELINE, RECENT_STEPS, SMALLEST_EXCESS, WINDOWS, StepTimes
from ..detectors.slow.wait_attribution import GroupShape, Places
from .accounting_state import Ledger
from .attempts import Attempts
from .device_window import DeviceWindow
from .micro_batch import Gathering
from .open_calls import OpenCalls
from .open_rows import Arrived, OpenChunk, OpenRows
from .rank_state import Hearing, HeldUp, NodeFacts, OpenFinding, RankFacts

#: Kinds after which the attempt does not go on: only one of them is ever open per attempt, the rest follows from it.
STOPPING_KINDS = frozenset(
    {
        "rank_died",
        "rank_raised",
        "rank_stopped",
        "rank_not_entered",
        "rank_never_joined",
        "desync",
        "deadlock",
        "node_lost",
        "collective_stalled",
    }
)
#: Of them those that begin as a wait.
WAITING_KINDS = frozenset({"rank_not_entered", "deadlock", "collective_stalled"})
MOST_RANKS = 1 << 16
#: A rank without this much of recent progress rows is not seen, whatever its last row said.
FRESH_NS = 3_000_000_000
#: Phases are looked at within a window only.
_KEPT_PHASES = RECENT_STEPS
_KEPT_STEPS = LONGEST_BASELINE + max(WINDOWS)
#: Steps after which it is known how long they take; until then each is closed at once.
_FEWEST_STEPS = 40
#: The same where closing is dear and no more than one step in ten takes longer than the median by so much.
_FEWEST_EVEN_STEPS, _EVEN, _MANY_ROWS = 16, 1.1, 1024


#: Different lists of groups that are remembered as they came: some of each node of the largest jobs.
MOST_LOOKUPS = 65_536
_NEVER_NS = np.iinfo(np.int64).max


@dataclass(frozen=True, slots=True, eq=False)
class GroupPlaces:
    """Of rows of ranks in groups. member: which rows are of members; groups, places: of these, the job's group and
    where the row of that member is kept; lookup: of whose rows this was found."""

    lookup: np.ndarray | None
    member: np.ndarray
    all_members: bool
    groups: np.ndarray
    places: np.ndarray


class JobState:
    """One job's working copy. Mutable; owned by the operator's thread."""

    def __init__(self, *, cluster: str = "", run: str = "", job: str = "") -> None:
        self.cluster, self.run, self.job = cluster, run, job
        self.begin_attempt("")
        self.attempts = Attempts()
        self.ledger = Ledger()
        # Ranks count their steps from 0 in every attempt; a restarted one goes on from the newest checkpoint.
        self.steps_before = 0
        self.saved_steps = 0
        self.checkpoints: dict[str, int] = {}  # steps of the training in each, by its place
        self.findings: dict[str, OpenFinding] = {}
        self.due_ns = 0
        self.gathering = Gathering()
        self.gathering_saved = False  # its row holds something
        self.revision = 0
        self.signalled_ns = 0
        self.finished_ns = 0
        self.exit_code = 0
        self.name = ""
        self.nodes: dict[str, NodeFacts] = {}
        self.nodes_expected = 0
        self.heard: dict[str, Hearing] = {}  # by node; only where silence is told from the records alone
        self.listened_ns = self.nodes_looked_ns = 0  # when silence and lost nodes were last looked at; not saved
        self.judged_by = ""  # the node whose whichrank judges this job, empty: this one does
        # Where the current attempt's ranks run, as last told (``placement``), and when it is told again, 0 never.
        self.placement: dict[str, Any] = {}
        self.placement_due_ns = 0
        self.placement_changed = False  # within one record. Not saved
        self.owner = ""
        self.gpus_held = 0  # by the scheduler's word; 0 unknown
        self.judge_left = False  # it has ended in order, and has said what there was to say of this attempt

    def begin_attempt(self, attempt: str) -> None:
        """Forgets everything that belongs to a set of processes; findings stay."""
        self.attempt = attempt
        self.restored_steps = -1  # what it has read of ``checkpoints`` before its first step, -1 none
        if getattr(self, "judge_left", False):
            self.judged_by, self.judge_left = "", False
        self.world_size = 0
        self.offsets: dict[str, int] = {}
        self.groups: list[Group] = []
        self.members: list[np.ndarray] = []
        self.on_device: list[bool] = []  # by group: whether a device does its operations
        self._group_index: dict[str, int] = {}
        self._lookups: dict[int, tuple[tuple[Group, ...], np.ndarray]] = {}
        self._group_places: dict[tuple[int, bytes, bytes], GroupPlaces] = {}
        self._homes: dict[str, bytes] = {}  # by node, the ranks that were last found to be on it, all at once
        self._device_gaps_ns: np.ndarray | None = None
        self.ranks: dict[int, RankFacts] = {}
        self.heard_ns = self.listen_due_ns = 0  # when any node last told of progress, when that is asked. Not saved
        self.moved: dict[str, Any] | None = None  # a rank that another node tells of, too. Not saved: it is told again
        self.endings: list[Ending] = []
        self.endings_judged_ns = 0  # when they were last put into order
        self.raised: set[int] = set()  # ranks of whose ends one or more are exceptions. Not saved: ``endings`` say it
        self.blind_ranks: set[int] = set()
        self.may_be_stopped = True  # False: no rank has ``stopped_ns``. Not saved
        self.progress = np.zeros(0, PROGRESS)
        self.progress_stamps = np.zeros(0, np.int64)
        self.progress_stamp_ns = 0  # the newest of them
        self.rare_until_ns = np.zeros(0, np.int64)  # when a rank was last in a phase without a usual length, 0 never
        # Newest progress row of every member of every group, in the order of ``members``; stamps: arrival, 0 = never.
        self._of_groups = (Growing(GROUP_PROGRESS), Growing(np.int64), Growing(np.int64))
        self.group_rows = self._of_groups[0].filled
        self.group_stamps = self._of_groups[1].filled
        self.open_ages_ns = self._of_groups[2].filled  # of these rows (``note_ages``): asked of every message
        self.group_first: list[int] = []
        self._tells_ends = Growing(bool)
        self.tells_ends = self._tells_ends.filled  # by group: whether any member's end of a call was ever told
        self._expected: np.ndarray | None = None
        self._device_groups = np.zeros(0, bool)
        self._shape: GroupShape | None = None
        self._inner_groups: tuple[tuple[int, int, int], np.ndarray] | None = None
        self._places = Places.of(())
        self.chunks = getattr(self, "chunks", [])  # names of the rows that hold open steps
        self.flushed_ns: dict[str, int] = {}  # by node, on its own clock
        self.call_gaps = CallGaps()
        self.joining_looked_ns = 0
        self.inferred = False  # no optimizer makes the steps: they are turns of calls that repeat
        self._begin_steps()
        self.facts_changed = self.progress_changed = self.steps_changed = True

    def _begin_steps(self) -> None:
        """Nothing is known of any step."""
        # Rows of steps that are not closed yet.
        self.pending = OpenRows(COLLECTIVES, ("enqueued_ns", "started_ns", "done_ns"))
        self.step_rows = OpenRows(STEPS, ("begin_ns", "end_ns"))
        self.step_groups = OpenRows(STEP_GROUPS, ())
        self.device_steps = OpenRows(DEVICE_STEPS, ("first_end_ns", "last_end_ns"))
        self.held_up: HeldUp | None = None  # of devices, the open call that the closing of steps waits for
        self.rewrite_open = self.open_changed = True
        self.open_chunk: OpenChunk | None = None  # the newest of them
        self.closed_stamp_ns = 0
        self.open_calls = OpenCalls()
        self.slow_step_ns = 0
        self.newest_step = np.zeros(0, np.int64)  # by rank, -1 none
        self.closed_step = -1
        self.recent = np.zeros(0, COLLECTIVES)
        self.last_seqs: dict[int, int] = {}
        self.usual_counts: dict[int, int] = {}
        self.even_steps: dict[int, int] = {}
        self.device_gaps: dict[int, int] = {}  # by device group: longest time without an end, in ns
        self.longest_ns = np.zeros(len(Phase), np.int64)
        self.number_due_ns = 0
        self.counts_due_ns = 0
        self.pace_checked_step = 0
        self.sighted = False  # a step was seen whole: at level events on all ranks
        self.times = empty_times(np.zeros(0, np.int64))
        self.pace = no_pace()
        self.norms = np.zeros((0, 0))
        self.norm_steps = np.zeros((0, 2), np.int64)
        self.losses = np.zeros((0, 0))
        self.saves = no_saves(np.zeros(0, np.int64))
        self.drift = no_blocks(0)
        self.window = DeviceWindow.empty(0)
        self.held_by = 0  # the rank for which the closing of steps has waited at the last look. Not saved
        self._next_length = (-1, -1, -1), 0
        self._expected = None
        self.steps_changed = True

    def inner_groups(self, ranks: np.ndarray) -> np.ndarray:
        """By rank, the smallest group on devices that it is in (``smallest_group_waits``) to do something together."""
        joins = self._joins()
        key = len(self.groups), ranks.size, int(joins.sum())
        if self._inner_groups is None or self._inner_groups[0] != key:
            self._inner_groups = key, inner_groups(self.members, joins, ranks)
        return self._inner_groups[1]

    def _joins(self) -> np.ndarray:
        """By group: whether it is on devices, and not one whose ranks only send to one another."""
        called, sent = np.zeros((2, len(self.members)), bool)
        called[self.group_rows["group"][self.group_rows["enqueued"] > 0]] = True
        sent[self.group_rows["group"][self.group_rows["p2p_enqueued"] > 0]] = True
        return np.asarray(self.on_device, bool) & (called | ~sent)

    def note_saving(self, rows: np.ndarray) -> None:
        """STEPS rows in which a checkpoint was written: a later attempt will begin with the newest such step."""
        saving_ns = rows["phase_ns"][:, int(Phase.CHECKPOINT)]
        if int(np.maximum.reduce(saving_ns)) > 0:  # asked of every message
            self.saved_steps = self.steps_before + int(rows["step"][saving_ns > 0].max())
            self.steps_changed = True

    def has_passed(self, finding: OpenFinding) -> bool:
        """Whether all ranks have finished a step beyond the one that a finding of an earlier attempt is about."""
        return self.closed_step >= 0 and self.steps_before + self.closed_step > finding.steps_before + finding.step

    # --- groups -----------------------------------------------------------------------------------------------------
    def group_lookup(self, groups: tuple[Group, ...]) -> np.ndarray:
        """Maps a block's own group indices to this job's, and len(groups) to NO_GROUP; new groups are added."""
        # Decoding gives equal lists of groups as one object: comparing them would cost more than all else here.
        found = self._lookups.get(id(groups))
        if found is not None and found[0] is groups:
            return found[1]
        lookup = np.array([*(self.add_group(group) for group in groups), NO_GROUP], np.uint16)
        if len(self._lookups) >= MOST_LOOKUPS:
            self._lookups.clear()
            self._group_places.clear()
        self._lookups[id(groups)] = (groups, lookup)
        return lookup

    def places_of(self, arrived: Arrived) -> GroupPlaces:
        """arrived: GROUP_PROGRESS. A node sends rows of the same ranks and groups each second: found once."""
        rows = arrived.rows
        key = id(arrived.groups), rows["rank"].tobytes(), rows["group"].tobytes()
        known = self._group_places.get(key)
        if known is not None and known.lookup is arrived.groups:
            return known
        groups = arrived.group_of(rows)
        places = self.places().find(groups, rows["rank"])
        member = places >= 0
        groups, places = groups[member].astype(np.intp), places[member]
        places = places + np.array(self.group_first, np.int64)[groups]
        found = GroupPlaces(arrived.groups, member, bool(member.all()), groups, places)
        if len(self._group_places) >= MOST_LOOKUPS:
            self._group_places.clear()
        self._group_places[key] = found
        return found

    def add_group(self, group: Group) -> int:
        index = self._group_index.get(group.uid)
        if index is not None:
            return index
        try:
            members = parse_ranks(group.ranks)
        except ValueError:
            members = []
        if not members or max(members) >= MOST_RANKS:
            members = []
        index = len(self.groups)
        self.groups.append(group)
        self.members.append(np.array(members, np.int64))
        self.on_device.append(is_device_backend(group.backend))
        self.group_first.append(self.group_rows.size)
        self.group_rows, self.group_stamps, self.open_ages_ns = (each.grow(len(members)) for each in self._of_groups)
        self.tells_ends = self._tells_ends.grow(1)
        self._group_index[group.uid] = index
        self._shape = None
        self.facts_changed = True
        return index

    def group_index(self, uid: str) -> int | None:
        """This job's index of the group with that uid."""
        return self._group_index.get(uid)

    def device_groups(self) -> np.ndarray:
        """``on_device`` as an array."""
        if self._device_groups.size != len(self.on_device):
            self._device_groups = np.array(self.on_device, bool)
        return self._device_groups

    def device_gaps_ns(self) -> np.ndarray:
        """``device_gaps`` by group; of groups that no device serves, and for such ranks, no gap is too long."""
        if self._device_gaps_ns is None or self._device_gaps_ns.size != len(self.groups):
            gaps_ns = np.where(self.device_groups(), 0, _NEVER_NS)
            gaps_ns[list(self.device_gaps)] = list(self.device_gaps.values())
            self._device_gaps_ns = gaps_ns
        return self._device_gaps_ns

    def note_device_gap(self, group: int, gap_ns: int) -> None:
        self.device_gaps[group] = gap_ns
        if self._device_gaps_ns is not None and group < self._device_gaps_ns.size:
            self._device_gaps_ns[group] = gap_ns
        self.steps_changed = True

    def group_name(self, index: int) -> str:
        if not 0 <= index < len(self.groups):
            return "?"
        return self.groups[index].label

    def note_ages(self, place: np.ndarray | slice, rows: np.ndarray) -> None:
        """These rows are the newest of their members: how long each has had an operation open."""
        still = rows["open"]
        self.open_ages_ns[place] = np.where(still < 0, rows["moved_age_ns"], rows["open_age_ns"] * (still > 0))

    def note_ends(self, groups: np.ndarray, rows: np.ndarray) -> None:
        """GROUP_PROGRESS rows of these groups have come."""
        self.tells_ends[groups[rows["completed"] > 0]] = True

    def rows_of_group(self, index: int) -> tuple[np.ndarray, np.ndarray]:
        """Newest progress rows of a group's members and when they came, as views."""
        first = self.group_first[index]
        last = first + self.members[index].size
        return self.group_rows[first:last], self.group_stamps[first:last]

    def places(self) -> Places:
        """Where ranks stand within groups."""
        if self._places.groups < len(self.members):
            self._places = self._places.with_more(self.members[self._places.groups :])
        return self._places

    def shape(self) -> GroupShape:
        """Sizes and clocks of all groups, for the wait arithmetic; rebuilt when a group or a rank's node is new."""
        if self._shape is None:
            sizes = np.array([members.size for members in self.members] or [0], np.int64)
            self._shape = GroupShape(sizes=sizes, one_clock=self._one_clock(sizes), places=self.places())
        return self._shape

    def _one_clock(self, sizes: np.ndarray) -> np.ndarray:
        """By group: whether all its members are on one node; those that were never heard are on none."""
        same = np.ones(sizes.size, bool)
        filled = sizes.nonzero()[0]
        if not filled.size:
            return same
        members = np.concatenate(self.members)
        numbers: dict[str, int] = {"": 0}
        node = np.zeros(max(int(members.max()), *self.ranks, 0) + 1, np.int64)
        for rank, facts in self.ranks.items():
            node[rank] = numbers.setdefault(facts.node, len(numbers))
        of_members = node[members]
        first = np.cumsum(sizes[filled]) - sizes[filled]
        same[filled] = np.minimum.reduceat(of_members, first) == np.maximum.reduceat(of_members, first)
        return same

    def note_calls(self, rows: np.ndarray) -> None:
        """COLLECTIVES rows of a job that shows no steps: what its ranks do between two calls is all that is known."""
        rows = rows[rows["group"] < len(self.groups)]
        found = self.places().find(rows["group"], rows["rank"])
        member = found >= 0
        if member.any():
            rows, groups = rows[member], rows["group"][member].astype(np.intp)
            self.call_gaps.note(rows, found[member] + np.array(self.group_first)[groups], self.device_groups()[groups])

    # --- ranks ------------------------------------------------------------------------------------------------------
    def facts(self, rank: int) -> RankFacts:
        facts = self.ranks.get(rank)
        if facts is None:
            facts = self.ranks[rank] = RankFacts()
            self._shape = None
            self.facts_changed = True
        return facts

    def set_node(self, rank: int, node: str) -> None:
        facts = self.facts(rank)
        if node and facts.node != node:
            if facts.node and not facts.exited_ns and self.moved is None:
                self.moved = {"rank": rank, "from": facts.node, "to": node}
            facts.node = node
            self._homes.clear()
            self.placement_changed = True
            self._shape = None
            self.facts_changed = True

    def set_nodes(self, ranks: np.ndarray, node: str) -> None:
        """The same for all ranks of a message, which are nearly always those of the one before."""
        told = ranks.tobytes()
        if self._homes.get(node) != told:
            for rank in ranks.tolist():
                if rank < MOST_RANKS:
                    self.set_node(rank, node)
            self._homes[node] = told

    def node_of(self, rank: int) -> str:
        facts = self.ranks.get(rank)
        return facts.node if facts else ""

    def node_facts(self, node: str) -> NodeFacts:
        facts = self.nodes.get(node)
        if facts is None:
            facts = self.nodes[node] = NodeFacts()
        self.facts_changed = True
        return facts

    def offset_of(self, node: str) -> int | None:
        """From this node's monotonic clock to the one clock of all times here; None unknown."""
        offset = self.offsets.get(node)
        if offset is None and node in self.nodes:
            offset = self.nodes[node].offset_ns or None
        return offset

    def hidden_ranks(self) -> set[int]:
        """Ranks that were seen and cannot be any more: nothing comes from their node."""
        lost = {name for name, node in self.nodes.items() if node.state != "here"}
        if not lost:
            return set()
        return {rank for rank, facts in self.ranks.items() if facts.node in lost and not facts.exited_ns}

    def expected_ranks(self) -> np.ndarray:
        """By rank, as far as any is known: whether it is there and seen, so that it will end its steps."""
        if self._expected is None or self.facts_changed:
            expected = np.zeros(max(self.newest_step.size - 1, *self.ranks, 0) + 1, bool)
            unseen = self.blind_ranks | self.hidden_ranks()
            expected[[rank for rank, facts in self.ranks.items() if not facts.exited_ns and rank not in unseen]] = True
            self._expected = expected
        return self._expected

    def settle_facts(self) -> None:
        """What changed is saved: from here on ``facts_changed`` tells what came since."""
        self.facts_changed = False
        self._expected = None

    def is_partial(self) -> bool:
        """Whether nodes are expected from which nothing comes: absent ranks may be there, and well."""
        return self.nodes_expected > sum(1 for node in self.nodes.values() if node.state == "here")

    def progress_row(self, rank: int) -> np.void | None:
        if 0 <= rank < self.progress.size and self.progress_stamps[rank]:
            return self.progress[rank]  # type: ignore[no-any-return]
        return None

    def has_left(self, rank: int) -> bool:
        facts = self.ranks.get(rank)
        return facts is not None and bool(facts.exited_ns)

    def steps_seen(self) -> bool:
        """Whether any rank has finished a step."""
        return bool(self.newest_step.size)

    def alive(self) -> list[int]:
        """Ranks that started or were seen, and have not left."""
        return [rank for rank, facts in sorted(self.ranks.items()) if not facts.exited_ns]

    def blind(self) -> set[tuple[int, int]]:
        """(group, rank) pairs that must neither vote nor be missed."""
        pairs = {(group, rank) for rank in self.blind_ranks for group in range(len(self.groups))}
        if self.group_rows["blind"].any():
            for index, members in enumerate(self.members):
                rows, _ = self.rows_of_group(index)
                pairs |= {(index, int(rank)) for rank in members[rows["blind"] != 0]}
        return pairs

    def grow_progress(self, rank: int) -> None:
        if rank >= self.progress.size:
            size = min(MOST_RANKS, max(rank + 1, 2 * self.progress.size))
            self.progress = np.concatenate([self.progress, np.zeros(size - self.progress.size, PROGRESS)])
            more = np.zeros(size - self.progress_stamps.size, np.int64)
            self.progress_stamps = np.concatenate([self.progress_stamps, more])
            self.rare_until_ns = np.concatenate([self.rare_until_ns, more])

    def note_blind(self, ranks: np.ndarray, levels: np.ndarray, hook_states: np.ndarray) -> None:
        """Who cannot be seen now. Hooks count calls at every level, so numbers agree again once the level is back.

        A rank whose hooks are not in yet (no hook state, level still off) has not begun: nothing is hidden.
        """
        off = (levels == int(Level.OFF)) & (hook_states != 0)
        disabled = (hook_states & int(HookState.DISABLED)) != 0
        if not self.blind_ranks and not (off | disabled).any():
            return
        hidden = {int(rank) for rank in ranks[off | disabled]}
        before = set(self.blind_ranks)
        self.blind_ranks -= {int(rank) for rank in ranks}
        self.blind_ranks |= hidden
        self.facts_changed |= self.blind_ranks != before

    def note_steps(self, ranks: np.ndarray, steps: np.ndarray) -> bool:
        """Remembers the newest step row of each rank. True: some have told of none before."""
        ranks = ranks.astype(np.intp)
        highest = int(np.maximum.reduce(ranks))
        if highest >= self.newest_step.size:
            grown = np.full(highest + 1, -1, np.int64)
            grown[: self.newest_step.size] = self.newest_step
            self.newest_step = grown
        are_new = int(np.minimum.reduce(self.newest_step.take(ranks))) < 0
        np.maximum.at(self.newest_step, ranks, steps)
        return are_new

    def take_sort_of_steps(self, *, inferred: bool) -> bool:
        """Whether step rows of this sort count: steps of an optimizer take the place of inferred ones, which a loop
        before training may have made, and are never followed by them."""
        if inferred != self.inferred:
            if inferred and self.steps_seen():
                return False
            if self.steps_seen():
                self._begin_steps()
                self.ledger.last_step = -1
            self.inferred, self.facts_changed = inferred, True
        return True

    # --- steps ------------------------------------------------------------------------------------------------------
    def add_steps(self, times: StepTimes, pace_ns: np.ndarray, data_ns: np.ndarray, exchange_ns: np.ndarray) -> None:
        """Appends closed plain steps to the window; another set of ranks begins a new window.

        data_ns: what fetching data took on the median rank, by its host, which no device makes longer. exchange_ns:
        what the collectives of a step took on the rank that waited least in them; -1 not known.
        """
        if not np.array_equal(times.ranks, self.times.ranks):
            self._forget_window(times.ranks)
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
        self.steps_changed = True

    def note_pace(self, closed_rows: int) -> None:
        """Remembers the step time from which on steps are looked at at once; to be called when steps were closed.

        closed_rows: how many rows were joined for it. Where they are many, even steps are known after fewer of them.
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

    def next_length_ns(self) -> int:
        """The mean length of the step after the last closed one, by those rows that are in; 0 where none is."""
        rows = self.step_rows
        known = self.closed_step, rows.replaced, rows.size
        if self._next_length[0] != known:  # asked of every message while devices are behind their hosts
            of_next = rows.all()["step"] == self.closed_step + 1
            self._next_length = known, mean_length_ns(rows.all()[of_next]) if of_next.any() else 0
        return self._next_length[1]

    def median_step_ns(self) -> int:
        recent = self.times.duration_ns[-32:]
        return int(median(recent)) if recent.size else 0

    def drop_steps(self, first: int, last: int) -> None:
        """Takes the steps of a fault that is over out of the window, so that they never count as usual."""
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
        self.steps_changed = True

    def begin_sight(self, ranks: np.ndarray) -> None:
        """From here on steps are seen whole: what was measured without that is no measure for them."""
        self.sighted = True
        if self.times.steps.size:
            self._forget_window(ranks)

    def _forget_window(self, ranks: np.ndarray) -> None:
        self.times = empty_times(ranks)
        self.pace = no_pace()
        self.norms = np.zeros((0, ranks.size))
        self.norm_steps = np.zeros((0, 2), np.int64)
        self.losses = np.zeros((0, ranks.size))
        self.drift = no_blocks(ranks.size)
        self.window = DeviceWindow.empty(ranks.size)

    # --- findings ---------------------------------------------------------------------------------------------------
    def stopping_finding(self) -> OpenFinding | None:
        """The one finding of this attempt after which it cannot go on."""
        return next((f for f in self.findings.values() if f.attempt == self.attempt and f.kind in STOPPING_KINDS), None)

    def noticed_wait(self) -> OpenFinding | None:
        """The same, where it is a wait that was noticed and is no page (yet): whatever shows more takes its place."""
        finding = self.stopping_finding()
        if finding is None or finding.kind not in WAITING_KINDS or finding.body["severity"] == Severity.PAGE.value:
            return None
        return finding

    def of_kind(self, kind: Kind) -> list[OpenFinding]:
        """Open findings of this kind in the current attempt."""
        return [f for f in self.findings.values() if f.kind == kind.value and f.attempt == self.attempt]

    def has_kind(self, kind: Kind) -> bool:
        return bool(self.of_kind(kind))

    def schedule(self, due_ns: int) -> None:
        """Asks for a look at this stamp, or earlier if one is already wanted earlier."""
        if due_ns and (not self.due_ns or due_ns < self.due_ns):
            self.due_ns = due_ns

    def next_due_ns(self) -> int:
        """When something has to be done: a look, or what is gathered has to be taken; 0 never."""
        take_ns = self.gathering.due_ns
        return min(self.due_ns, take_ns) if self.due_ns and take_ns else self.due_ns or take_ns


def mean_length_ns(rows: np.ndarray) -> int:
    """Of STEPS rows, of which there are some."""
    return int(np.add.reduce(rows["end_ns"] - rows["begin_ns"])) // rows.size


def no_pace() -> np.ndarray:
    """(n, 7): step, begin, pace, all ranks' own work, of it data, exchange, length."""
    return np.zeros((0, 7), np.int64)


def empty_times(ranks: np.ndarray) -> StepTimes:
    return StepTimes(
        ranks=ranks,
        steps=np.zeros(0, np.int64),
        begin_ns=np.zeros(0, np.int64),
        duration_ns=np.zeros(0, np.int64),
        self_ns=np.zeros((0, ranks.size), np.int64),
        starved_ns=np.zeros((0, ranks.size), np.int64),
        phase_self_ns=np.zeros((0, ranks.size, len(Phase)), np.int64),
    )
