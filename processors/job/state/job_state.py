"""What the operator remembers of one job: a working copy, in parts that each answer one question. ``state_rows`` writes
and reads it as rows."""

from __future__ import annotations

import numpy as np

from ....telemetry.records import Identity
from ....telemetry.vocabulary import HookState, Level
from .accounting_state import Ledger
from .attempts import Attempts
from .checkpoint_state import CheckpointState
from .end_state import EndState
from .job_groups import JobGroups
from .micro_batch import Gathering
from .node_state import NodeState
from .open_findings import OpenFindings
from .open_steps import OpenSteps
from .placement_state import PlacementState
from .progress_state import ProgressState
from .rank_state import MOST_RANKS, RankFacts
from .step_history import StepHistory
from .unsaved import Unsaved

#: A rank without this much of recent progress rows is not seen, whatever its last row said.
FRESH_NS = 3_000_000_000


class JobState:
    """One job's working copy. Mutable; owned by the operator's thread.

    ranks: what single events said of each. blind_ranks: of whom nothing is recorded now. may_be_stopped: False: no rank
    has ``stopped_ns`` (not saved). inferred: no optimizer makes the steps, they are turns of calls that repeat.
    judged_by: the node whose whichrank judges this job, "": this one does; judge_left: that has ended in order, and has
    said what there was to say of this attempt. due_ns: when something has to be looked at, 0 never.
    """

    def __init__(self, *, cluster: str = "", run: str = "", job: str = "") -> None:
        self.cluster, self.run, self.job, self.name = cluster, run, job, ""
        self.attempts = Attempts()
        self.unsaved = Unsaved()
        self.ledger = Ledger()
        self.findings = OpenFindings()
        self.nodes = NodeState(self.unsaved)
        self.ends = EndState()
        self.checkpoints = CheckpointState(self.unsaved)
        self.placement = PlacementState()
        self.gathering = Gathering()
        self.judged_by, self.judge_left = "", False
        self.due_ns = 0
        #: Of a large job, the closed steps that have a row of state, and what is in it (``step_rows``). Not saved.
        self.kept_steps: dict[int, tuple[object, ...]] = {}
        #: Rows and events that did not count (``intake.bounds``), and how many were when that was told. Not saved.
        self.dropped_rows = self.told_dropped = 0
        self.open_steps = OpenSteps()
        self.begin_attempt("")

    def name_attempt(self, attempt: str) -> None:
        """Sets the name of the attempt that runs, or ran last."""
        self.attempt = self.findings.attempt = attempt

    def begin_attempt(self, attempt: str) -> None:
        """Forgets everything that belongs to a set of processes (ranks, groups, progress, steps) and names the new
        attempt.

        Findings stay.
        """
        self.name_attempt(attempt)
        if self.judge_left:
            self.judged_by, self.judge_left = "", False
        self.world_size = 0
        self.ranks: dict[int, RankFacts] = {}
        self.blind_ranks: set[int] = set()
        self.may_be_stopped = True
        self.inferred = False
        self._homes: dict[str, bytes] = {}  # by node, the ranks that were last found to be on it, all at once
        self.checkpoints.leave_attempt()
        self.placement.moved = None
        self.ends.begin_attempt()
        self.nodes.begin_attempt()
        self.groups = JobGroups(self.unsaved, lambda: len(self.ranks))
        self.progress = ProgressState()
        self._begin_steps()
        self.unsaved.change_all()

    def _begin_steps(self) -> None:
        """Nothing is known of any step."""
        self.open_steps = OpenSteps(self.open_steps.chunks)
        self.steps = StepHistory(self.unsaved)
        self.groups.forget_device_gaps()
        self._expected: np.ndarray | None = None
        self.unsaved.steps = True

    def take_sort_of_steps(self, *, inferred: bool) -> bool:
        """Whether step rows of this sort count: an optimizer's take the place of inferred ones, never the other way
        round.

        A loop before training may have made inferred ones; the first row of an optimizer drops all steps known till
        then.
        """
        if inferred != self.inferred:
            if inferred and self.steps.are_seen():
                return False
            if self.steps.are_seen():
                self._begin_steps()
                self.ledger.last_step = -1
            self.inferred, self.unsaved.facts = inferred, True
        return True

    # --- ranks ------------------------------------------------------------------------------------------------------
    def facts(self, rank: int) -> RankFacts:
        """What is known of the rank, to be read or changed; an unknown rank is added."""
        facts = self.ranks.get(rank)
        if facts is None:
            facts = self.ranks[rank] = RankFacts()
            self.groups.forget_shape()
            self.unsaved.facts = True
        return facts

    def set_node(self, rank: int, node: str) -> None:
        """Notes on which node the rank runs; nothing for "". A live rank that moves is noted as moved."""
        facts = self.facts(rank)
        if node and facts.node != node:
            if facts.node and not facts.exited_ns:
                self.placement.note_move(rank, facts.node, node)
            facts.node = node
            self._homes.clear()
            self.placement.changed = True
            self.groups.forget_shape()
            self.unsaved.facts = True

    def set_nodes(self, ranks: np.ndarray, node: str) -> None:
        """Notes on which node all ranks (n,) of a message run; cheap where they are the ones told last."""
        told = ranks.tobytes()
        if self._homes.get(node) != told:
            for rank in ranks.tolist():
                if rank < MOST_RANKS:
                    self.set_node(rank, node)
            self._homes[node] = told

    def node_of(self, rank: int) -> str:
        """The name of the node that the rank runs on; "" where it is not known."""
        facts = self.ranks.get(rank)
        return facts.node if facts else ""

    def hidden_ranks(self) -> set[int]:
        """Ranks that were seen and have not left, but from whose node nothing comes any more."""
        unheard = self.nodes.unheard()
        if not unheard:
            return set()
        return {rank for rank, facts in self.ranks.items() if facts.node in unheard and not facts.exited_ns}

    def expected_ranks(self) -> np.ndarray:
        """By rank, as far as any is known: whether it is alive and seen, so that it will end its steps."""
        if self._expected is None or self.unsaved.facts:
            expected = np.zeros(max(self.steps.newest_step.size - 1, *self.ranks, 0) + 1, bool)
            unseen = self.blind_ranks | self.hidden_ranks()
            expected[[rank for rank, facts in self.ranks.items() if not facts.exited_ns and rank not in unseen]] = True
            self._expected = expected
        return self._expected

    def settle_facts(self) -> None:
        """To be called when facts were saved: from here on ``unsaved.facts`` tells what came since."""
        self.unsaved.facts = False
        self._expected = None

    def has_left(self, rank: int) -> bool:
        """Whether the rank's process is gone; False for an unknown rank."""
        facts = self.ranks.get(rank)
        return facts is not None and bool(facts.exited_ns)

    def last_exit_ns(self) -> int:
        """When the last rank of the attempt was seen to end, in Unix ns; 0 where none was."""
        return max((facts.exited_ns for facts in self.ranks.values()), default=0)

    def is_of_current_attempt(self, identity: Identity) -> bool:
        """Whether a record is known to be of the current attempt, without a look at whose it is."""
        if identity.cluster and not self.cluster:
            return False
        return not identity.attempt or (identity.attempt in self.attempts.members and identity.rank < 0)

    def alive(self) -> list[int]:
        """Ranks that started or were seen, and have not left, ascending."""
        return [rank for rank, facts in sorted(self.ranks.items()) if not facts.exited_ns]

    def note_blind(self, ranks: np.ndarray, levels: np.ndarray, hook_states: np.ndarray) -> None:
        """Updates which ranks cannot be seen now: recording is off, or their hooks are disabled.

        Hooks count calls at every level, so numbers agree again once the level is back. A rank whose hooks are not in
        yet (no hook state, level still off) has not begun: nothing is hidden. ranks, levels, hook_states: (n,) of
        PROGRESS rows.
        """
        off = (levels == int(Level.OFF)) & (hook_states != 0)
        disabled = (hook_states & int(HookState.DISABLED)) != 0
        if not self.blind_ranks and not (off | disabled).any():
            return
        hidden = {int(rank) for rank in ranks[off | disabled]}
        before = set(self.blind_ranks)
        self.blind_ranks -= {int(rank) for rank in ranks}
        self.blind_ranks |= hidden
        self.unsaved.facts |= self.blind_ranks != before

    # --- time -------------------------------------------------------------------------------------------------------
    def schedule(self, due_ns: int) -> None:
        """Asks for a look at this stamp (the bus's ns); an earlier one that is wanted already stays. Nothing for 0."""
        if due_ns and (not self.due_ns or due_ns < self.due_ns):
            self.due_ns = due_ns

    def next_due_ns(self) -> int:
        """When something has to be done next: a look, or taking what is gathered; a bus stamp in Unix ns, 0 never."""
        take_ns = self.gathering.due_ns
        return min(self.due_ns, take_ns) if self.due_ns and take_ns else self.due_ns or take_ns
