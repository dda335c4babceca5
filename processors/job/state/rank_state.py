"""What is remembered of one rank, one node, one finding: plain records, saved field by field."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from ...finding_document import FindingBody
from .finding_memory import FindingDetail

MOST_RANKS = 1 << 16


class CallSite(NamedTuple):
    """The line of the user's code that issued an operation. group: the job's index."""

    group: int
    point_to_point: bool
    seq: int
    file: str
    line: int
    function: str


class BadInput(NamedTuple):
    """The first operation of a step that a rank fed a NaN into. group: the job's index; peer: -1 none.

    before: (group, number) of the newest collective of each group that it had issued by then.
    """

    step: int
    group: int
    point_to_point: bool
    seq: int
    peer: int
    before: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RankStack:
    """Where a rank stands in the user's code, and who says it: py-spy, signal. time_ns: Unix."""

    file: str
    line: int
    function: str
    method: str
    phase: str
    time_ns: int


@dataclass(slots=True)
class RankFacts:
    """What single events said of a rank. Times are Unix nanoseconds, 0 = never."""

    node: str = ""
    pid: int = 0
    local_rank: int = -1
    launcher_pid: int = 0
    started_ns: int = 0
    joining_ns: int = 0  # when it first called init_process_group
    joined: bool = False  # and that has returned
    join_timeout_s: float = 0.0
    stopped_ns: int = 0
    stopped_stamp_ns: int = 0
    continued_ns: int = 0
    exited_ns: int = 0
    stack: RankStack | None = None
    calls: list[CallSite] = field(default_factory=list)
    stale_ns: int = 0
    #: Of a loop without steps: its first loss that is not finite, when, after how many calls of the world's group.
    bad_loss: str = ""
    bad_loss_ns: int = 0
    bad_loss_calls: int = 0
    checks_inputs: bool = False  # whether it looks for NaN in the inputs of its operations, and those that it had
    bad_inputs: list[BadInput] = field(default_factory=list)
    gpu: str = ""  # UUID of the device that its process uses


@dataclass(slots=True)
class NodeFacts:
    """A node whose whichrank sends its records here. state: "here", "left" (its command ended), "stopped" (its agent
    was told to end), "closed" or "silent".

    lost_ns: bus stamp; silent_ns: how long it had been silent by then. stopped_ns: when it said that it ends, by its
    own clock. offset_ns: from its monotonic clock to the bus's wall clock, 0 unknown.
    """

    state: str = "here"
    lost_ns: int = 0
    silent_ns: int = 0
    stopped_ns: int = 0
    offset_ns: int = 0
    started: bool = False
    finished: bool = False

    @property
    def is_lost(self) -> bool:
        """Whether nothing comes from it, and nobody has said why: it is gone, or only its whichrank is."""
        return self.state in ("closed", "silent")


@dataclass(slots=True)
class Hearing:
    """Since when a node has been heard without a pause, and when last. Bus stamps."""

    since_ns: int
    last_ns: int


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
    body: FindingBody
    #: How many steps of the training lay before the attempt's first one, as far as checkpoints tell.
    steps_before: int = 0
    shown: FindingBody | None = None
    shown_ns: int = 0
    detail: FindingDetail = field(default_factory=FindingDetail)


@dataclass(slots=True, kw_only=True)
class HeldUp:
    """The lowest step in which devices have open calls, as of the first ``rows`` of ``open_steps.calls``.

    open_seqs: by rank and group as one number, the highest sequence number that is open.
    """

    step: int
    open_seqs: dict[int, int]
    rows: int
    replaced: int
    told: int
