"""What the operator remembers of one job: a working copy in arrays, and the rows it is rebuilt from.

Rows (table "job"): ``facts`` slow-changing JSON, ``clock`` what changes with every batch, ``progress`` newest progress
rows, ``steps`` the window of closed steps, ``open/N`` rows of open steps as received, one per batch. No pickle.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from ...telemetry.records import Group
from ...telemetry.ring_layout import parse_ranks
from ...telemetry.tables import COLLECTIVES, GROUP_PROGRESS, NO_GROUP, PROGRESS, STEP_GROUPS, STEPS
from ...telemetry.vocabulary import HookState, Kind, Level, Phase
from ..operator import Table
from .crash_order import Ending
from .pace import LONGEST_HISTORY
from .packing import pack, unpack
from .rows import concatenate
from .straggler import LONGEST_BASELINE, WINDOWS, StepTimes
from .waits import GroupShape

#: Kinds after which the attempt does not go on: only one of them is ever open per attempt, the rest follows from it.
STOPPING_KINDS = frozenset(
    {"rank_died", "rank_raised", "rank_stopped", "rank_not_entered", "rank_never_joined", "desync", "deadlock"}
)
MOST_RANKS = 1 << 16
#: A rank without this much of recent progress rows is not seen, whatever its last row said.
FRESH_NS = 3_000_000_000
#: Phases are looked at within a window only.
_KEPT_PHASES = max(WINDOWS)
_KEPT_STEPS = LONGEST_BASELINE + max(WINDOWS)


@dataclass(slots=True)
class RankFacts:
    """What single events said of a rank. Times are Unix nanoseconds, 0 = never."""

    node: str = ""
    pid: int = 0
    local_rank: int = -1
    launcher_pid: int = 0
    started_ns: int = 0
    stopped_ns: int = 0
    stopped_stamp_ns: int = 0
    continued_ns: int = 0
    exited_ns: int = 0
    stack: dict[str, Any] = field(default_factory=dict)
    stale_ns: int = 0


@dataclass(slots=True)
class OpenFinding:
    """A finding that has been published and not cleared. body: as built when found; shown: as last emitted."""

    key: str
    kind: str
    attempt: str
    found_ns: int
    onset_ns: int
    step: int
    group: int
    seq: int
    suspects: list[int]
    body: dict[str, Any]
    shown: dict[str, Any] = field(default_factory=dict)
    shown_ns: int = 0
    detail: dict[str, Any] = field(default_factory=dict)


class JobState:
    """One job's working copy. Mutable; owned by the operator's thread."""

    def __init__(self, *, cluster: str = "", run: str = "", job: str = "") -> None:
        self.cluster, self.run, self.job = cluster, run, job
        self.begin_attempt("")
        self.past_attempts: list[str] = []
        self.findings: dict[str, OpenFinding] = {}
        self.due_ns = 0
        self.revision = 0
        self.signalled_ns = 0
        self.finished_ns = 0
        self.exit_code = 0

    def begin_attempt(self, attempt: str) -> None:
        """Forgets everything that belongs to a set of processes; findings stay."""
        self.attempt = attempt
        self.world_size = 0
        self.offsets: dict[str, int] = {}
        self.groups: list[Group] = []
        self.members: list[np.ndarray] = []
        self._group_index: dict[str, int] = {}
        self._lookups: dict[tuple[str, ...], np.ndarray] = {}
        self.ranks: dict[int, RankFacts] = {}
        self.endings: list[Ending] = []
        self.blind_ranks: set[int] = set()
        self.progress = np.zeros(0, PROGRESS)
        self.progress_stamps = np.zeros(0, np.int64)
        self.rare_until_ns = np.zeros(0, np.int64)
        # Newest progress row of every member of every group, in the order of ``members``; stamps: arrival, 0 = never.
        self.group_rows = np.zeros(0, GROUP_PROGRESS)
        self.group_stamps = np.zeros(0, np.int64)
        self.group_first: list[int] = []
        self.pending: list[np.ndarray] = []
        self.pending_rows = 0
        self.unsaved: dict[str, list[np.ndarray]] = {}
        self.rewrite_open = True
        self.chunks = getattr(self, "chunks", [])  # names of the rows that hold open steps
        self.closed_stamp_ns = 0
        self.open_calls = np.zeros((0, 4), np.int64)  # rank, group, sequence, stamp at which it was seen open
        self.flushed_ns = 0
        self.slow_step_ns = 0
        self.step_rows: list[np.ndarray] = []
        self.step_groups: list[np.ndarray] = []
        self.newest_step = np.zeros(0, np.int64)  # by rank, -1 none
        self.closed_step = -1
        self.recent = np.zeros(0, COLLECTIVES)
        self.last_seqs: dict[int, int] = {}
        self.usual_counts: dict[int, int] = {}
        self.even_steps: dict[int, int] = {}
        self.longest_ns = np.zeros(len(Phase), np.int64)
        self.number_due_ns = 0
        self.pace_checked_step = 0
        self.times = _empty_times(np.zeros(0, np.int64))
        self.pace = np.zeros((0, 3), np.int64)
        self.norms = np.zeros((0, 0))
        self.norm_steps = np.zeros((0, 2), np.int64)
        self._shape: GroupShape | None = None
        self.facts_changed = self.progress_changed = self.steps_changed = True

    # --- groups -----------------------------------------------------------------------------------------------------
    def group_lookup(self, groups: tuple[Group, ...]) -> np.ndarray:
        """Maps a block's own group indices to this job's, and len(groups) to NO_GROUP; new groups are added."""
        uids = tuple(group.uid for group in groups)
        found = self._lookups.get(uids)
        if found is None:
            found = np.array([*(self.add_group(group) for group in groups), NO_GROUP], np.uint16)
            if len(self._lookups) > 1024:
                self._lookups.clear()
            self._lookups[uids] = found
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
        self.group_first.append(self.group_rows.size)
        self.group_rows = concatenate([self.group_rows, np.zeros(len(members), GROUP_PROGRESS)], GROUP_PROGRESS)
        self.group_stamps = np.concatenate([self.group_stamps, np.zeros(len(members), np.int64)])
        self._group_index[group.uid] = index
        self._shape = None
        self.facts_changed = True
        return index

    def group_name(self, index: int) -> str:
        if not 0 <= index < len(self.groups):
            return "?"
        group = self.groups[index]
        if group.is_default:
            return "world"
        return group.name if group.desc in ("", "undefined") else group.desc

    def rows_of_group(self, index: int) -> tuple[np.ndarray, np.ndarray]:
        """Newest progress rows of a group's members and when they came, as views."""
        first = self.group_first[index]
        last = first + self.members[index].size
        return self.group_rows[first:last], self.group_stamps[first:last]

    def shape(self) -> GroupShape:
        """Sizes and clocks of all groups, for the wait arithmetic; rebuilt when a group or a rank's node is new."""
        if self._shape is None:
            highest = max((int(members.max()) for members in self.members if members.size), default=0)
            positions = np.full((max(1, len(self.members)), max(highest, *self.ranks, 0) + 1), -1, np.int64)
            one_clock = np.ones(max(1, len(self.members)), bool)
            for index, members in enumerate(self.members):
                positions[index, members] = np.arange(members.size)
                one_clock[index] = len({self.node_of(int(rank)) for rank in members}) <= 1
            sizes = np.array([members.size for members in self.members] or [0], np.int64)
            self._shape = GroupShape(sizes=sizes, one_clock=one_clock, positions=positions)
        return self._shape

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
            facts.node = node
            self._shape = None
            self.facts_changed = True

    def node_of(self, rank: int) -> str:
        facts = self.ranks.get(rank)
        return facts.node if facts else ""

    def progress_row(self, rank: int) -> np.void | None:
        if 0 <= rank < self.progress.size and self.progress_stamps[rank]:
            return self.progress[rank]  # type: ignore[no-any-return]
        return None

    def has_left(self, rank: int) -> bool:
        facts = self.ranks.get(rank)
        return facts is not None and bool(facts.exited_ns)

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
        hidden = {int(rank) for rank in ranks[off | disabled]}
        before = set(self.blind_ranks)
        self.blind_ranks -= {int(rank) for rank in ranks}
        self.blind_ranks |= hidden
        self.facts_changed |= self.blind_ranks != before

    def note_steps(self, ranks: np.ndarray, steps: np.ndarray, node: str) -> None:
        """Remembers the newest step row of each rank."""
        highest = int(ranks.max())
        if highest >= self.newest_step.size:
            grown = np.full(highest + 1, -1, np.int64)
            grown[: self.newest_step.size] = self.newest_step
            self.newest_step = grown
        new = self.newest_step[ranks] < 0
        if new.any():
            for rank in np.unique(ranks[new]).tolist():
                self.set_node(rank, node)
        np.maximum.at(self.newest_step, ranks, steps)

    # --- steps ------------------------------------------------------------------------------------------------------
    def add_steps(self, times: StepTimes, pace_ns: np.ndarray) -> None:
        """Appends closed plain steps to the window; another set of ranks begins a new window."""
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
            phase_self_ns=np.concatenate([old.phase_self_ns, times.phase_self_ns])[-_KEPT_PHASES:],
        )
        self.pace = np.concatenate([self.pace, np.stack([times.steps, times.begin_ns, pace_ns], axis=1)])
        self.pace = self.pace[-LONGEST_HISTORY:]
        self.steps_changed = True

    def note_pace(self) -> None:
        """Remembers the step time from which on steps are looked at at once; to be called when steps were closed."""
        recent = self.times.duration_ns[-64:]
        self.slow_step_ns = int(np.sort(recent)[int(0.8 * recent.size)]) if recent.size >= 40 else 0

    def median_step_ns(self) -> int:
        recent = self.times.duration_ns[-32:]
        return int(np.median(recent)) if recent.size else 0

    def drop_steps(self, first: int, last: int) -> None:
        """Takes the steps of a fault that is over out of the window, so that they never count as usual."""
        old = self.times
        keep = (old.steps < first) | (old.steps > last)
        self.times = StepTimes(
            ranks=old.ranks,
            steps=old.steps[keep],
            begin_ns=old.begin_ns[keep],
            duration_ns=old.duration_ns[keep],
            self_ns=old.self_ns[keep],
            phase_self_ns=old.phase_self_ns[keep[-old.phase_self_ns.shape[0] :]],
        )
        self.steps_changed = True

    def _forget_window(self, ranks: np.ndarray) -> None:
        self.times = _empty_times(ranks)
        self.pace = np.zeros((0, 3), np.int64)
        self.norms = np.zeros((0, ranks.size))
        self.norm_steps = np.zeros((0, 2), np.int64)

    # --- rows of open steps -----------------------------------------------------------------------------------------
    def add_pending(self, rows: np.ndarray) -> None:
        self.pending.append(rows)
        self.pending_rows += rows.size
        self.unsaved.setdefault("rows", []).append(rows)

    def add_step_rows(self, rows: np.ndarray) -> None:
        self.step_rows.append(rows)
        self.unsaved.setdefault("steps", []).append(rows)

    def add_step_groups(self, rows: np.ndarray) -> None:
        self.step_groups.append(rows)
        self.unsaved.setdefault("groups", []).append(rows)

    def all_pending(self) -> np.ndarray:
        """Every pending collective in one array (and from now on kept as one)."""
        if len(self.pending) != 1:
            self.pending = [concatenate(self.pending, COLLECTIVES)]
        return self.pending[0]

    def keep_pending(self, rows: np.ndarray) -> None:
        self.pending = [rows] if rows.size else []
        self.pending_rows = rows.size
        self.rewrite_open = True

    # --- findings ---------------------------------------------------------------------------------------------------
    def stopping_finding(self) -> OpenFinding | None:
        """The one finding of this attempt after which it cannot go on."""
        return next((f for f in self.findings.values() if f.attempt == self.attempt and f.kind in STOPPING_KINDS), None)

    def of_kind(self, kind: Kind) -> list[OpenFinding]:
        """Open findings of this kind in the current attempt."""
        return [f for f in self.findings.values() if f.kind == kind.value and f.attempt == self.attempt]

    def has_kind(self, kind: Kind) -> bool:
        return bool(self.of_kind(kind))

    def schedule(self, due_ns: int) -> None:
        """Asks for a look at this stamp, or earlier if one is already wanted earlier."""
        if due_ns and (not self.due_ns or due_ns < self.due_ns):
            self.due_ns = due_ns

    # --- rows -------------------------------------------------------------------------------------------------------
    def save(self, table: Table) -> None:
        """Writes the rows that changed since the last call."""
        if self.facts_changed:
            table.put("facts", pack(self._facts_values()))
        if self.progress_changed:
            progress = {"progress": self.progress, "stamps": self.progress_stamps, "rare": self.rare_until_ns}
            groups = {"group_rows": self.group_rows, "group_stamps": self.group_stamps}
            table.put("progress", pack({}, {**progress, **groups}))
        if self.steps_changed:
            table.put("steps", pack(self._steps_values(), self._steps_arrays()))
        self._save_open(table)
        self.facts_changed = self.progress_changed = self.steps_changed = False
        self.revision += 1
        arrays: dict[str, np.ndarray] = {"open_calls": self.open_calls, "newest_step": self.newest_step}
        table.put("clock", b"%d\n%s" % (self.revision, pack(self._clock_values(), arrays)))

    def _save_open(self, table: Table) -> None:
        """Appends a row with what came since the last call, or begins anew after a step has closed."""
        if self.rewrite_open:
            for name in self.chunks:
                table.delete(name)
            self.chunks = []
            self.unsaved = {"rows": self.pending, "steps": self.step_rows, "groups": self.step_groups}
            self.rewrite_open = False
        arrays = {name: concatenate(parts, _OPEN_ROWS[name]) for name, parts in self.unsaved.items() if parts}
        if arrays:
            self.chunks.append(f"open/{self.revision:012d}")
            table.put(self.chunks[-1], pack({}, arrays))
        self.unsaved = {}

    def is_current(self, table: Table) -> bool:
        """Whether this working copy is what the rows say (it is not after the runner rolled back)."""
        clock = table.get("clock")
        return clock is not None and clock.startswith(b"%d\n" % self.revision)

    @classmethod
    def load(cls, table: Table) -> JobState | None:
        """The state as last saved; None if there is none. Raises ValueError for rows that cannot be read."""
        facts, clock = table.get("facts"), table.get("clock")
        if facts is None or clock is None:
            return None
        values, _ = unpack(facts)
        job = cls(cluster=values["cluster"], run=values["run"], job=values["job"])
        job._read_facts(values)
        revision, _, packed = clock.partition(b"\n")
        job.revision = int(revision)
        job._read_clock(*unpack(packed))
        _, arrays = unpack(table.get("progress") or pack({}))
        job.progress = arrays.get("progress", job.progress)
        job.progress_stamps = arrays.get("stamps", job.progress_stamps)
        job.rare_until_ns = arrays.get("rare", np.zeros(job.progress_stamps.size, np.int64))
        if "group_rows" in arrays:  # groups are only ever added, at the end
            known = arrays["group_rows"].size
            job.group_rows[:known], job.group_stamps[:known] = arrays["group_rows"], arrays["group_stamps"]
        job._read_steps(*unpack(table.get("steps") or pack({})))
        for name, row in table.rows():
            if name.startswith("open/"):
                _, arrays = unpack(row)
                job.chunks.append(name)
                if "rows" in arrays:
                    job.add_pending(arrays["rows"])
                job.step_rows += [arrays["steps"]] if "steps" in arrays else []
                job.step_groups += [arrays["groups"]] if "groups" in arrays else []
        job.unsaved, job.rewrite_open = {}, False
        job.facts_changed = job.progress_changed = job.steps_changed = False
        return job

    def _clock_values(self) -> dict[str, Any]:
        return {
            "due_ns": self.due_ns,
            "number_due_ns": self.number_due_ns,
            "closed_stamp_ns": self.closed_stamp_ns,
            "flushed_ns": self.flushed_ns,
        }

    def _read_clock(self, values: dict[str, Any], arrays: dict[str, np.ndarray]) -> None:
        self.due_ns, self.number_due_ns = values["due_ns"], values["number_due_ns"]
        self.closed_stamp_ns, self.flushed_ns = values["closed_stamp_ns"], values["flushed_ns"]
        self.open_calls, self.newest_step = arrays["open_calls"], arrays["newest_step"]

    def _facts_values(self) -> dict[str, Any]:
        return {
            **{name: getattr(self, name) for name in _PLAIN_FACTS},
            "groups": [asdict(group) for group in self.groups],
            "ranks": {str(rank): asdict(facts) for rank, facts in self.ranks.items()},
            "endings": [asdict(ending) for ending in self.endings],
            "blind_ranks": sorted(self.blind_ranks),
            "findings": [asdict(finding) for finding in self.findings.values()],
        }

    def _read_facts(self, values: dict[str, Any]) -> None:
        for name in _PLAIN_FACTS:
            setattr(self, name, values[name])
        for group in values["groups"]:
            self.add_group(Group(**group))
        self.ranks = {int(rank): RankFacts(**facts) for rank, facts in values["ranks"].items()}
        self.endings = [Ending(**ending) for ending in values["endings"]]
        self.blind_ranks = set(values["blind_ranks"])
        self.findings = {item["key"]: OpenFinding(**item) for item in values["findings"]}

    def _steps_values(self) -> dict[str, Any]:
        return {
            "slow_step_ns": self.slow_step_ns,
            "closed_step": self.closed_step,
            "last_seqs": list(self.last_seqs.items()),
            "usual_counts": list(self.usual_counts.items()),
            "even_steps": list(self.even_steps.items()),
            "longest_ns": self.longest_ns.tolist(),
            "pace_checked_step": self.pace_checked_step,
        }

    def _steps_arrays(self) -> dict[str, np.ndarray]:
        arrays = {name: getattr(self.times, name) for name in StepTimes.__slots__}
        return {
            **arrays,
            "recent": self.recent,
            "pace": self.pace,
            "norms": self.norms,
            "norm_steps": self.norm_steps,
        }

    def _read_steps(self, values: dict[str, Any], arrays: dict[str, np.ndarray]) -> None:
        if not values:
            return
        self.slow_step_ns = values["slow_step_ns"]
        self.closed_step = values["closed_step"]
        self.last_seqs = {group: seq for group, seq in values["last_seqs"]}
        self.usual_counts = {group: count for group, count in values["usual_counts"]}
        self.even_steps = {group: count for group, count in values["even_steps"]}
        self.longest_ns = np.array(values["longest_ns"], np.int64)
        self.pace_checked_step = values["pace_checked_step"]
        self.times = StepTimes(**{name: arrays[name] for name in StepTimes.__slots__})
        self.recent, self.pace = arrays["recent"], arrays["pace"]
        self.norms, self.norm_steps = arrays["norms"], arrays["norm_steps"]


def _empty_times(ranks: np.ndarray) -> StepTimes:
    return StepTimes(
        ranks=ranks,
        steps=np.zeros(0, np.int64),
        begin_ns=np.zeros(0, np.int64),
        duration_ns=np.zeros(0, np.int64),
        self_ns=np.zeros((0, ranks.size), np.int64),
        phase_self_ns=np.zeros((0, ranks.size, len(Phase)), np.int64),
    )


_OPEN_ROWS = {"rows": COLLECTIVES, "steps": STEPS, "groups": STEP_GROUPS}
_PLAIN_FACTS = (
    "cluster",
    "run",
    "job",
    "attempt",
    "world_size",
    "offsets",
    "past_attempts",
    "signalled_ns",
    "finished_ns",
    "exit_code",
)
