"""Puts the endings of one attempt into order: what began it, what followed from it, what was mere clearing up.

The victim's error is often the first record seen (11 of 19 kills), so errors that only say that a peer went away, and
aborts, wait for a better cause for a moment; a signal without an exception, or an error of the rank's own, does not.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from .....telemetry.vocabulary import CausalRole, ExitState, Phase

SIGINT, SIGABRT, SIGKILL, SIGTERM = 2, 6, 9, 15
HOLD_NS = 500_000_000
#: Siblings of an initiating cause, seen by the same agent, arrive within this time.
SETTLE_NS = 100_000_000
#: Ranks that end within this time of each other were ended together.
TOGETHER_NS = 300_000_000
#: A signal outranks an error of another rank that was recorded at most this long before it.
SIGNAL_BEATS_ERROR_NS = 500_000_000
#: How long a lone SIGTERM, or nothing but victims' errors, waits for its meaning.
PATIENCE_NS = 1_500_000_000
#: A script that ends its rank because a thread raised does so within this time.
THREAD_ENDS_RANK_NS = 5_000_000_000
STOP_REQUESTS = frozenset({"KeyboardInterrupt", "SignalException", "SystemExit"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """An exception or an exit of one rank. signal and exit_code are -1 where the agent could not learn them.

    time_ns: by its node's clock; arrived_ns: stamp of its record. exception: for an exit, one was recorded before.
    """

    rank: int
    sort: str  # "exception" | "exit"
    time_ns: int
    arrived_ns: int
    step: int = -1
    phase: str = ""
    type: str = ""
    message: str = ""
    communication: bool = False
    signal: int = 0
    exit_code: int = -1
    exit_state: int = int(ExitState.RUNNING)
    exception: bool = False
    pid: int = 0
    sender_pid: int = 0
    by_launcher: bool = False  # the launcher sent the signal: it clears up, or was told to stop itself
    in_main: bool = True  # False: of a thread, and the process went on without it
    file: str = ""
    line: int = 0
    function: str = ""

    @property
    def by_itself(self) -> bool:
        """Whether the process sent the signal to itself, as ``abort()`` does."""
        return 0 < self.sender_pid == self.pid

    @property
    def normal(self) -> bool:
        """Whether it is an exit by itself, without an exception or another error."""
        return self.normal_but_for_errors and not self.exception

    @property
    def normal_but_for_errors(self) -> bool:
        """Whether it is an exit by itself with code 0, or with none that was seen; an exception may
        have come before.
        """
        return (
            self.sort == "exit"
            and self.signal <= 0
            and self.exit_state == ExitState.NORMAL
            and self.exit_code in (0, -1)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class CrashVerdict:
    """What ended an attempt. cause: the ending that began it; None: nobody's (planned, or all at once).

    sort: "died" | "raised" | "left" | "planned" | "together" | "unseen" (a rank failed before anybody could see it;
    ``unseen`` says which were not seen).
    """

    sort: str
    cause: Ending | None
    roles: tuple[tuple[Ending, CausalRole], ...]
    #: Other ranks that raised the same error of their own, or were killed with it: one cause, fanned out.
    same_error: tuple[int, ...] = ()
    unseen: tuple[int, ...] = ()
    confidence: float = 0.95


@dataclass(frozen=True, slots=True, kw_only=True)
class Hold:
    """It is too early to tell: ask again at ``until_ns``, a bus stamp."""

    until_ns: int


def judge_endings(
    endings: Sequence[Ending],
    *,
    now: int,
    ranks: Collection[int],
    unseen: Collection[int] = (),
    leaving: Sequence[Ending] = (),
    signalled_ns: int = 0,
    finished: bool = False,
    patient: bool = True,
) -> CrashVerdict | Hold | None:
    """What began the end of one attempt; Hold: too early, ask again; None: nothing that needs a word (normal ends).

    now: Unix ns. ranks: those that started; unseen: the world's others; leaving: ranks that came to the end of their
    script, as normal ends, though their process may still be there. signalled_ns: when someone asked the job to stop, 0
    never. finished: no more records will come, so nothing is held.
    """
    troubles = [ending for ending in endings if role_hint(ending) != "none"]
    if not troubles:
        return None
    order = sorted(troubles, key=_by_time)
    if signalled_ns and order[0].time_ns >= signalled_ns - TOGETHER_NS:
        return _verdict("planned", None, endings)
    began = min(ending.arrived_ns for ending in troubles)
    strong = [ending for ending in order if role_hint(ending) in ("signal", "error", "code")]
    if strong:
        settle = Hold(until_ns=began + SETTLE_NS)
        if not finished and now < settle.until_ns:
            return settle
        return _judge_strong(strong, endings, ranks)
    held_until = began + HOLD_NS
    if not finished and now < held_until:
        return Hold(until_ns=held_until)
    ready = finished or not patient
    verdict = _judge_held(order, endings, began, leaving, now=now, ranks=ranks, finished=ready)
    if isinstance(verdict, CrashVerdict) and verdict.sort == "planned" and unseen and len(unseen) <= len(ranks):
        # Who was told to stop itself goes through the command, and is signalled; a launcher that ends its ranks by
        # itself, before all of them have come, has lost one.
        return replace(verdict, sort="unseen", unseen=tuple(sorted(unseen)), confidence=0.6)
    return verdict


def weigh_thread_error(endings: Sequence[Ending], exited: Ending) -> list[Ending]:
    """``endings`` and ``exited``, a rank's end, as a new list: an error of a thread may have become the rank's cause.

    A process goes on without a thread that raised, unless the script ends it for that; then the thread's error is the
    cause. One that was long ago, or before a signal from outside, is not.
    """
    mine = [place for place, ending in enumerate(endings) if ending.rank == exited.rank and ending.sort == "exception"]
    weighed = list(endings)
    if mine and not any(endings[place].in_main for place in mine):
        last = endings[mine[-1]]
        soon = 0 <= exited.time_ns - last.time_ns <= THREAD_ENDS_RANK_NS
        if soon and exited.signal in (-1, 0, SIGABRT) and not exited.normal_but_for_errors:
            weighed[mine[-1]] = replace(last, in_main=True)
        else:
            exited = replace(exited, exception=False)
    return [*weighed, exited]


def role_hint(ending: Ending) -> str:
    """What sort of trouble an ending is by itself: "signal", "error", "code", "abort", "victim", "stop" or "none".

    "victim": an error that says that a peer went away; "code": an exit code; "stop": it was asked to end.
    """
    if ending.sort == "exception":
        if not ending.in_main:
            return "none"
        if ending.type.rpartition(".")[2] in STOP_REQUESTS:
            return "stop"
        return "victim" if ending.communication else "error"
    if ending.signal in (SIGTERM, SIGINT):
        return "stop"
    if ending.signal == SIGABRT:
        return "abort"
    if ending.signal > 0:
        return "signal"
    if ending.normal:
        return "none"
    if ending.exit_code in (128 + SIGTERM, 128 + SIGINT):
        return "stop"
    if ending.exception or ending.exit_state == ExitState.EXCEPTION:
        return "victim"  # the exception's own record says whether it was one
    if ending.phase == Phase.EXIT.name.lower() and ending.exit_code in (0, -1):
        return "none"  # past the end of the script: clearing up
    return "code" if ending.exit_code >= 0 else "signal"


def _judge_strong(strong: Sequence[Ending], endings: Sequence[Ending], ranks: Collection[int]) -> CrashVerdict:
    cause = strong[0]
    if role_hint(cause) != "signal":
        # A victim's error in words that nobody knows yet must not beat the death that caused it.
        near = [
            ending
            for ending in strong
            if role_hint(ending) == "signal" and 0 <= ending.time_ns - cause.time_ns <= SIGNAL_BEATS_ERROR_NS
        ]
        cause = near[0] if near and near[0].rank != cause.rank else cause
    dead = {ending.rank for ending in strong if role_hint(ending) == "signal"}
    times = [ending.time_ns for ending in strong if role_hint(ending) == "signal"]
    if role_hint(cause) == "signal" and len(ranks) > 1 and dead >= set(ranks) and max(times) - min(times) < TOGETHER_NS:
        return _verdict("together", None, endings)
    if cause.sort == "exception":
        same = tuple(
            sorted({e.rank for e in strong if e.sort == "exception" and e.type == cause.type and e.rank != cause.rank})
        )
        return _verdict("raised", cause, endings, same_error=same)
    killed = {
        ending.rank
        for ending in strong
        if role_hint(cause) == role_hint(ending) == "signal"
        and ending.signal == cause.signal > 0
        and abs(ending.time_ns - cause.time_ns) <= TOGETHER_NS  # a launcher that loses patience kills much later
    }
    return _verdict("died", cause, endings, same_error=tuple(sorted(killed - {cause.rank})))


def _judge_held(
    order: Sequence[Ending],
    endings: Sequence[Ending],
    began: int,
    leaving: Sequence[Ending],
    *,
    now: int,
    ranks: Collection[int],
    finished: bool,
) -> CrashVerdict | Hold | None:
    """Nothing but aborts, victims' errors, stop requests and normal ends."""
    stops = [ending for ending in order if role_hint(ending) == "stop"]
    first = order[0]
    aborts = [ending for ending in order if role_hint(ending) == "abort"]
    ends = [*(ending for ending in endings if ending.normal), *leaving]
    left = [ending for ending in ends if ending.time_ns <= first.time_ns + TOGETHER_NS]
    if first.rank in {ending.rank for ending in left}:
        left = []  # everybody was on the way out
    # A launcher that clears up after a rank's abort tells the others to stop; one that was told to stop does so first.
    # Victims may have raised before either was seen.
    cleared_up = bool(aborts and stops) and aborts[0].time_ns <= stops[0].time_ns
    cleared_up = cleared_up and all(stop.by_launcher for stop in stops)
    if stops and not cleared_up and stops[0].time_ns <= first.time_ns + TOGETHER_NS:
        alone = _told_alone(stops, ranks)
        if alone is not None:
            return _verdict("died", alone, endings, confidence=0.9)
        others = {
            ending.rank for ending in stops if _interrupted(ending) or ending.time_ns - stops[0].time_ns < TOGETHER_NS
        }
        if len(others) > 1 or len(ranks) == 1:
            return _verdict("planned", None, endings)
        if not finished and now < began + PATIENCE_NS:
            return Hold(until_ns=began + PATIENCE_NS)
        if stops[0].by_launcher:
            return _verdict("planned", None, endings, confidence=0.8)
        later = [ending for ending in order if ending.rank != stops[0].rank]
        return _verdict("died" if later else "planned", stops[0] if later else None, endings, confidence=0.85)
    if left:
        return _verdict("left", min(left, key=_by_time), endings, confidence=0.85)
    if aborts:
        return _verdict("died", aborts[0], endings, confidence=0.8)
    if not finished and now < began + PATIENCE_NS:
        return Hold(until_ns=began + PATIENCE_NS)
    silent = set(ranks) - {ending.rank for ending in order}
    return _verdict("victims", first if not silent else None, endings, confidence=0.4)


def _interrupted(stop: Ending) -> bool:
    """Whether it was SIGINT. A launcher clears up with SIGTERM, so ranks that are interrupted were so from above.

    When each of them raises depends on what its interpreter does just then: on a crowded machine a second lies between.
    """
    return stop.type.rpartition(".")[2] == "KeyboardInterrupt" or SIGINT in (stop.signal, stop.exit_code - 128)


def _told_alone(stops: Sequence[Ending], ranks: Collection[int]) -> Ending | None:
    """The one rank that somebody told to end, where the launcher told all others afterwards, if it told any.

    A scheduler that ends a job signals every rank, or the launcher, which signals every rank.
    """
    outside = [stop for stop in stops if stop.sender_pid > 0 and not stop.by_launcher]
    rest = [stop for stop in stops if stop.rank not in {ending.rank for ending in outside}]
    if len({ending.rank for ending in outside}) != 1 or len(ranks) == 1 or not all(stop.by_launcher for stop in rest):
        return None
    first_ns = min(stop.time_ns for stop in stops)
    return outside[0] if outside[0].time_ns == first_ns else None


def _verdict(
    sort: str,
    cause: Ending | None,
    endings: Sequence[Ending],
    *,
    same_error: tuple[int, ...] = (),
    confidence: float = 0.95,
) -> CrashVerdict:
    roles = tuple((ending, _role(ending, cause)) for ending in sorted(endings, key=_by_time))
    return CrashVerdict(sort=sort, cause=cause, roles=roles, same_error=same_error, confidence=confidence)


def _role(ending: Ending, cause: Ending | None) -> CausalRole:
    if cause is not None and ending.rank == cause.rank:
        return CausalRole.INITIATING
    return CausalRole.TEARDOWN if role_hint(ending) in ("stop", "none") else CausalRole.CASCADE


def _by_time(ending: Ending) -> tuple[int, int, str]:
    return (ending.time_ns, ending.rank, ending.sort)
