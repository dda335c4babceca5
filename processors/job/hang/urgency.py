"""How urgent a wait for a rank is: noticed (info), a ticket, a page, or nothing yet.

Waiting is noticed early and paged late. Sound jobs wait a lot: rank 0 uploads, samples, evaluates. So a page needs that
the one who is waited for provably does nothing (``still_ns`` of its progress row), and that the wait is longer than any
that this place has taken; where nothing is known of the place, a minute, since a blocked upload looks the same. A rank
that moves is a ticket after a while, and a page only once half of the group's time-out is gone. Pure.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from ....telemetry.vocabulary import Phase, Severity
from ..intake.wait_thresholds import DEFAULT_TIMEOUT_S, FLOOR_NS, SHARE_OF_TIMEOUT, STEPS_OF_PATIENCE, TIMES_LONGEST
from ..state.job_state import JobState

PAGE_FLOOR_NS = 7_000_000_000
PAGE_STEPS = 3
PAGE_TIMES_LONGEST = 1.5
#: What a server takes has a long tail: an upload of half a minute takes four now and then, and blocks all the while.
IO_TIMES_LONGEST = 10
#: Where nothing is known of how long it takes here: starts, first saves and evaluations take their time.
UNKNOWN_PLACE_PAGE_NS = 60_000_000_000
UNKNOWN_PLACE_NOTICE_NS = 25_000_000_000
TICKET_NS = 60_000_000_000
TICKET_STEPS = 10
#: Of the group's time-out: so long a rank that moves may keep the others waiting without a page.
MOVING_SHARE_OF_TIMEOUT = 0.5
#: Nothing of a process has moved over so long, ten looks of its agent: what does a little now and then (a log line five
#: times a second) is found doing nothing in a few looks in a row. One that hangs has stood for as long at its page.
STILL_NS = 5_000_000_000
#: The same of one whose job was ended: nothing more will show whether it would have gone on.
STILL_BEFORE_END_NS = 2_000_000_000
_PHASES_OF_IO = frozenset({Phase.DATA, Phase.CHECKPOINT, Phase.RESTORE})
_ORDER = (Severity.INFO, Severity.TICKET, Severity.PAGE)


class Motion(str, Enum):
    """What the one who is waited for does, as its node's agent sees it."""

    STILL = "still"
    IN_IO = "in_io"  # still, in a read, a write or a wait for a server: a blocked upload looks the same
    MOVES = "moves"  # or nobody can tell


@dataclass(frozen=True, slots=True, kw_only=True)
class Ladder:
    """From which wait on what is said, in ns. page_ns: of a suspect that does nothing; io_page_ns: of one that stands
    in I/O, at least; moving_page_ns: of one that moves."""

    notice_ns: int
    ticket_ns: int
    page_ns: int
    io_page_ns: int
    moving_page_ns: int

    def severity(self, waited_ns: int, motion: Motion) -> Severity | None:
        """How urgent a wait of ``waited_ns`` is; None: nothing is to be said yet. motion: what the suspect does
        meanwhile.
        """
        if waited_ns < self.notice_ns:
            return None
        if waited_ns >= self._page_ns(motion):
            return Severity.PAGE
        return Severity.TICKET if waited_ns >= self.ticket_ns else Severity.INFO

    def limit_ns(self, severity: Severity, motion: Motion) -> int:
        """From which wait on, in ns, it is said with this severity."""
        if severity is Severity.PAGE:
            return max(self.notice_ns, self._page_ns(motion))
        return max(self.notice_ns, self.ticket_ns) if severity is Severity.TICKET else self.notice_ns

    def _page_ns(self, motion: Motion) -> int:
        if motion is Motion.MOVES:
            return self.moving_page_ns
        return self.page_ns if motion is Motion.STILL else max(self.page_ns, self.io_page_ns)


def ladder(job: JobState, longest_ns: int | None, timeout_s: float) -> Ladder:
    """The lengths of a wait in ns from which it is noticed, a ticket, or a page.

    longest_ns: what this place has taken at most; None: it was never completed before. timeout_s: the group's, 0
    unknown.
    """
    step_ns = job.steps.median_length_ns()
    timeout_ns = int((timeout_s or DEFAULT_TIMEOUT_S) * 1e9)
    if longest_ns is None:
        notice_ns = max(UNKNOWN_PLACE_NOTICE_NS, STEPS_OF_PATIENCE * step_ns)
        page_ns = UNKNOWN_PLACE_PAGE_NS
    else:
        notice_ns = int(max(FLOOR_NS, STEPS_OF_PATIENCE * step_ns, TIMES_LONGEST * longest_ns))
        page_ns = int(max(PAGE_FLOOR_NS, PAGE_STEPS * step_ns, PAGE_TIMES_LONGEST * longest_ns))
    # Something is said before the time-out ends the job.
    latest_ns = int(SHARE_OF_TIMEOUT * timeout_ns)
    moving_page_ns = int(MOVING_SHARE_OF_TIMEOUT * timeout_ns)
    return Ladder(
        notice_ns=min(notice_ns, latest_ns) if longest_ns is None else notice_ns,
        ticket_ns=max(TICKET_NS, TICKET_STEPS * step_ns),
        page_ns=min(page_ns, latest_ns) if longest_ns is None else page_ns,
        io_page_ns=min(max(UNKNOWN_PLACE_PAGE_NS, IO_TIMES_LONGEST * (longest_ns or 0)), moving_page_ns),
        moving_page_ns=moving_page_ns,
    )


def motion_of(job: JobState, rank: int, *, still_ns: int = STILL_NS) -> Motion:
    """Whether the rank moves, stands still, or stands in I/O, by its newest row; MOVES where nobody can tell.

    still_ns: for how long nothing of it must have moved.
    """
    row = job.progress.row_of(rank)
    if row is None or (int(row["still_ns"]) and int(row["still_ns"]) < still_ns):
        return Motion.MOVES  # of agents that do not look nobody waits for half of a time-out: as before they did
    # Where a phase is made of reads and writes, what it has taken before is its measure.
    return Motion.IN_IO if row["in_io"] and int(row["phase"]) not in _PHASES_OF_IO else Motion.STILL


def gravest(severities: list[Severity]) -> Severity:
    """The severity that calls for most haste. severities: not empty."""
    return max(severities, key=_ORDER.index)


def is_graver(one: Severity, other: Severity) -> bool:
    """Whether the first calls for more haste than the second."""
    return _ORDER.index(one) > _ORDER.index(other)
