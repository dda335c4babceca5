"""What the parts of the classifier hand to each other: lines, witnesses, episodes, and the verdict. Plain data."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum

from ...telemetry.vocabulary import Action, Bucket, Scope
from .targets import NOBODY, Target

DIGIT = re.compile(r"\d")
DAY_S = 86_400.0
#: A bar of fewer steps is of loading or saving something.
FEWEST_STEPS = 10
#: Stamps without a year wrap around at its end.
YEAR_S = 366 * DAY_S


class LineRole(str, Enum):
    """What a line is in the course of a failure."""

    INITIATING = "initiating"
    #: Said afterwards or elsewhere by somebody who knows the reason: it names the cause of an earlier end.
    CONFIRMATION = "confirmation"
    #: The rank says that something else of the job went first.
    CASCADE = "cascade"
    TEARDOWN = "teardown"
    #: Explains or decorates; no failure.
    CONTEXT = "context"


class Rank(str, Enum):
    """How near to a root a class of failure is; the order in which candidates are weighed."""

    ROOT = "root"
    FAILURE = "failure"
    GENERIC = "generic"
    SYMPTOM = "symptom"
    CASCADE = "cascade"
    TEARDOWN = "teardown"


class Restart(str, Enum):
    """Whether starting the same job again, unchanged, can help."""

    YES = "yes"
    NO = "no"
    UNKNOWN = "unknown"


class Form(str, Enum):
    """In which shape a failure stands in the log."""

    EXCEPTION = "exception"
    #: A line of an error level, or of a native library.
    MESSAGE = "message"
    LAUNCHER = "launcher"


@dataclass(frozen=True, slots=True, kw_only=True)
class FailureClass:
    """One entry of ``classes.toml``."""

    name: str
    bucket: Bucket
    scope: Scope
    action: Action
    restart: Restart
    rank: Rank
    says: str
    advice: str


@dataclass(frozen=True, slots=True)
class LineStamp:
    """A line's own time. ``second`` since the year's begin, or since midnight where ``has_day`` is false.

    Only stamps of one job are compared; a year is not kept, so that glog lines (no year) compare with ISO ones.
    """

    second: float
    has_day: bool
    text: str

    def is_like(self, other: LineStamp) -> bool:
        """Whether both stamps are written in one form: what writes alike reads one clock."""
        return DIGIT.sub("0", self.text) == DIGIT.sub("0", other.text)

    def minus(self, other: LineStamp) -> float:
        """Seconds from ``other`` to this, the short way round midnight or New Year."""
        if not (self.has_day and other.has_day):
            return self.minus_of_day(other)
        return (self.second - other.second + YEAR_S / 2) % YEAR_S - YEAR_S / 2

    def minus_of_day(self, other: LineStamp) -> float:
        """Seconds from ``other`` to this by the times of day alone, the short way round midnight."""
        return (self.second % DAY_S - other.second % DAY_S + DAY_S / 2) % DAY_S - DAY_S / 2


@dataclass(frozen=True, slots=True, kw_only=True)
class LogLine:
    """One line without what its carriers put in front. ``source``: index of the file; ``number`` counts from 1.

    stamp: of the outermost carrier, one clock for all lines; own_stamp: of the program, the nearest to what happened.
    rank: global; local_rank where the log tells only that. level: as printed, upper case, "" if none.
    indent: columns before the text, which tracebacks need; is_boxed: it stood in a frame that rich draws.
    group: of a process group's own lines, its name; a rank inside of it is no rank of the job. lead: what stood before
    "Traceback" and no carrier is known for. writer: a prefix learnt from the log that tells
    writers apart.
    """

    source: int
    number: int
    text: str
    rank: int | None = None
    local_rank: int | None = None
    node: str | None = None
    stamp: LineStamp | None = None
    own_stamp: LineStamp | None = None
    level: str = ""
    logger: str = ""
    indent: int = 0
    device: str | None = None
    group: str = ""
    lead: str = ""
    writer: str = ""
    is_boxed: bool = False

    def seconds_after(self, other: LogLine) -> float | None:
        """Seconds from ``other`` to this line; None where that cannot be told.

        By the programs' own times if both write them in one form, else by their carriers'.
        """
        if self.own_stamp is not None and other.own_stamp is not None and self.own_stamp.is_like(other.own_stamp):
            return self.own_stamp.minus(other.own_stamp)
        if self.stamp is not None and other.stamp is not None and self.stamp.has_day == other.stamp.has_day:
            return self.stamp.minus(other.stamp)
        return None

    @property
    def stream(self) -> tuple[int, int | None, int | None, str | None]:
        """What lines of one writer have in common: file, rank, local rank, node or learnt writer."""
        return (self.source, self.rank, self.local_rank, self.node or self.writer or None)


@dataclass(frozen=True, slots=True)
class TracebackFrame:
    file: str
    line: int
    function: str
    #: Its source line, where the log has it.
    code: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Collective:
    """What a watchdog line tells of the operation that did not end."""

    operation: str
    sequence: int | None
    timeout_ms: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Witness:
    """One statement about a failure: a line, or a whole traceback.

    line: where its message stands; first_line: where its traceback begins. rule: name of the rule that matched, ""
    where only the exception's type told. frames: outermost first; where: the innermost frame of the user's own code.
    wraps: it reports another witness's failure (launcher, DataLoader, "direct cause"). quoted: a traceback written as
    a list of strings into one line, which its rank has mostly printed as such too.
    """

    line: LogLine
    failure: FailureClass
    role: LineRole
    form: Form
    text: str
    rule: str = ""
    first_line: int = 0
    exception: str = ""
    frames: tuple[TracebackFrame, ...] = ()
    wraps: bool = False
    quoted: bool = False
    collective: Collective | None = None
    exit_code: int | None = None
    device: str | None = None
    target: Target = NOBODY

    @property
    def points_elsewhere(self) -> bool:
        """Whether the failure is another's: who reports a silent peer or a lost node is not the one to look at."""
        if self.failure.name == "node_failure" and self.target.node is None:
            return True
        return self.target.is_other and (
            self.failure.rank in (Rank.SYMPTOM, Rank.CASCADE) or self.failure.scope in (Scope.LINK, Scope.NODE)
        )

    @property
    def where(self) -> TracebackFrame | None:
        """The innermost frame of the user's own code; None where there is none."""
        return user_frame(self.frames)


@dataclass(slots=True, kw_only=True)
class StatementGroup:
    """The same statement by one or many ranks: fan-out is one cause. ``first`` is the earliest in the log.

    lines: (source, number) of the first few.
    """

    first: Witness
    count: int = 1
    ranks: set[int] = field(default_factory=set)
    nodes: set[str] = field(default_factory=set)
    #: Named by who says it: hosts at the other end, and ranks there or that did not come; in which attempts of the job.
    peers: dict[str, int] = field(default_factory=dict)
    missing: dict[int, int] = field(default_factory=dict)
    attempts: set[int] = field(default_factory=set)
    lines: list[tuple[int, int]] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """A line that says training went on. ``step`` is None where the line has no number."""

    source: int
    number: int
    step: int | None
    total: int | None = None
    checkpoint: bool = False
    is_bar: bool = False

    @property
    def is_last(self) -> bool:
        """Whether the step is the last of those that were asked for; a bar is as often of an epoch."""
        return (
            not self.is_bar
            and self.step is not None
            and self.total is not None
            and self.step >= self.total >= FEWEST_STEPS
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Suspects:
    """Whom to look at, as the log names them: not who reported it.

    missing: ranks that did not come to where others wait. peers: hosts at the other end of what failed. why: half a
    sentence, "" where the statement speaks of its own rank.
    """

    ranks: tuple[int, ...] = ()
    nodes: tuple[str, ...] = ()
    devices: tuple[str, ...] = ()
    missing: tuple[int, ...] = ()
    peers: tuple[str, ...] = ()
    why: str = ""


class EpisodeStatus(str, Enum):
    #: Nothing of the job is seen to go on afterwards.
    TERMINAL = "terminal"
    #: Training went on. That does not prove that what failed has recovered.
    PROGRESSED_AFTER = "progressed_after"


@dataclass(slots=True, kw_only=True)
class Episode:
    """Witnesses with no training progress between them, in the log's order."""

    groups: list[StatementGroup] = field(default_factory=list)
    before: Progress | None = None
    after: Progress | None = None
    #: Statements beyond the bound, which only count.
    overflow: int = 0
    #: Training was done before anything of this was said.
    is_after_end: bool = False

    @property
    def status(self) -> EpisodeStatus:
        """TERMINAL if nothing of the job was seen to go on afterwards."""
        return EpisodeStatus.TERMINAL if self.after is None else EpisodeStatus.PROGRESSED_AFTER

    def of(self, *roles: LineRole) -> list[StatementGroup]:
        """Statements whose first witness has one of these roles."""
        return [group for group in self.groups if group.first.role in roles]


NOBODY_SUSPECTED = Suspects()


@dataclass(frozen=True, slots=True, kw_only=True)
class LogVerdict:
    """What the log shows. ``failure`` None: no failure is told (which is not: none happened).

    is_cause: the primary line is an initiating event; false where only consequences are in this log.
    precursors: groups that stand just before the primary or say the same in other words.
    """

    failure: FailureClass | None
    primary: StatementGroup | None = None
    is_cause: bool = False
    confidence: float = 0.0
    why: str = ""
    advice: str = ""
    action: Action | None = None
    restart: Restart = Restart.UNKNOWN
    suspects: Suspects = NOBODY_SUSPECTED
    warnings: Sequence[str] = ()
    episode: Episode | None = None
    confirmations: Sequence[StatementGroup] = ()
    precursors: Sequence[StatementGroup] = ()
    consequences: Sequence[StatementGroup] = ()


#: Frames of these paths are not the user's code.
LIBRARY_PATHS = ("/site-packages/", "/dist-packages/", "/lib/python", "<frozen", "<string>", "importlib/", "/torch/")


def user_frame(frames: Sequence[TracebackFrame]) -> TracebackFrame | None:
    """The innermost frame outside of libraries, else the innermost of all; None without frames.

    frames: outermost first.
    """
    for frame in reversed(frames):
        if not any(part in frame.file for part in LIBRARY_PATHS):
            return frame
    return frames[-1] if frames else None
