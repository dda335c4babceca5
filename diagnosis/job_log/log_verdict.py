"""Chooses what a job died of: the earliest initiating statement of the last episode, and what to do about it.

The order of weighing (facts: a cascade never displaces an earlier initiating event; who reports a time-out waits):
role and rank of the class first, then time, then the order of the log. Where only consequences are in the log, that is
said, with little confidence, instead of a cause.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from .carriers import LOUD_LEVELS, WARNINGS
from .episodes import CHANGING, Episodes
from .gpu_memory import is_held_by_others
from .launcher_tables import ROOT_RULE
from .log_advice import advise
from .log_suspects import STANDS_STILL, suspects_of
from .model import Episode, FailureClass, Form, LineRole, LogVerdict, Rank, Restart, StatementGroup, Suspects
from .taxonomy import failure_classes
from .tracebacks import CUT_OFF
from .whereabouts import located
from .witnesses import of_exit_code, signal_of

#: Lower is nearer to the cause.
TIERS = {
    Rank.ROOT: 0,
    Rank.FAILURE: 1,
    Rank.GENERIC: 1,
    Rank.SYMPTOM: 4,
    Rank.CASCADE: 8,
    Rank.TEARDOWN: 9,
}
TIER_UNEXPLAINED = 3
TIER_WARNING = 2
#: An abort is what a process does about something else.
TIER_ABORTED = 5
#: A launcher that tells rank and exit code, and one that only tells that something ended.
TIER_LAUNCHER = 6
TIER_LAUNCHER_VAGUE = 7
TIER_CASCADE = 8
TIER_TEARDOWN = 9
#: Classes that say little: where the next lines of the same writer have another of the same footing, that decides.
VAGUE = frozenset({"exception", "cuda_error", "nccl_failure", "error_message", "cuda_library", "container_setup"})
NEAR_LINES = 12
#: Of NCCL's own classes: text that only points to where more is said.
SAID_ELSEWHERE = re.compile(r"\(run with NCCL_DEBUG=|This usually reflects")
ABORTS = frozenset({"aborted", "python_aborted"})
#: Signals that end a process by themselves; SIGABRT and SIGTERM are mostly the answer to something else.
OWN_SIGNALS = frozenset({4, 7, 8, 9, 11})
#: Where a class of failure stands behind a rank's own words; how sure its statement makes.
CONFIDENCE = {0: 0.95, 1: 0.9, 2: 0.6, 3: 0.5, 4: 0.6, 5: 0.5, 6: 0.4, 7: 0.3, 8: 0.3, 9: 0.2}
#: An earlier episode that training outlived explains a later one only if no more than this many steps lie between.
OUTLIVED_STEPS = 50
#: Stamps closer than this do not order two lines.
SAME_MOMENT_S = 0.5
NATIVE = re.compile(r"\.(?:c|cc|cpp|cu|cuh|h|hpp):\d+$")
#: Error lines so close before an exception tell of the same thing.
PRECURSOR_LINES = 60
NUMERIC_WARNING = (
    "a user buffer's kernel goes on after its time-out with data that may be old: do not trust numbers or "
    "checkpoints of this step and later ones"
)


def judge(found: Episodes) -> LogVerdict:
    """The verdict on a whole log. Its ``failure`` is None where the log tells of none, where training was done, or went
    on after a warning. Any other failure that training outlived is told, with less confidence."""
    episodes = found.episodes
    if not any(episode.groups for episode in episodes):
        return _nothing("nothing in the log tells of a failure")
    episode, ranked = _deciding(episodes)
    tier, primary = ranked[0]
    if found.is_finished and episode.after is not None:
        return _nothing("training went on to its end after what the log tells of")
    if episode.is_after_end and tier >= TIER_CASCADE:
        return _nothing("training was done, and what follows only takes things down")
    if episode.after is not None and primary.first.line.level in WARNINGS:
        return _nothing("training went on after what was only warned of")
    failure = of_exit_code(primary.first).failure
    difference = found.standstills.difference() if failure.name in STANDS_STILL else None
    if difference is not None and difference.differs == "elsewhere" and not primary.missing:
        failure = failure_classes()["collective_mismatch"]
    elif failure.name == "cuda_out_of_memory" and is_held_by_others(
        primary.first.text, primary.first.frames, has_trained=found.last_progress is not None
    ):
        failure = failure_classes()["gpu_memory_held"]
    primary.first = located(primary, episode)
    suspects = suspects_of(primary, episode, difference)
    is_cause = tier < TIER_LAUNCHER
    explained = [group for group in episode.of(LineRole.CONFIRMATION) if group is not primary]
    confidence = CONFIDENCE[tier] - (0.1 if failure.rank is Rank.GENERIC and tier == 1 else 0.0)
    if tier == 1 and _rivals(ranked, primary):
        confidence -= 0.2
    if episode.after is not None:
        confidence *= 0.7
    advice = advise(
        failure,
        text=primary.first.text,
        is_cause=is_cause,
        is_after_end=episode.is_after_end,
        attempts=_alike(episodes, primary),
        suspects=suspects,
        differs=difference.differs if difference is not None else "",
        is_in_the_course=any(group.first.rule == "loss_value" for group in episode.groups),
    )
    return LogVerdict(
        failure=failure,
        primary=primary,
        is_cause=is_cause,
        confidence=round(confidence, 2),
        why=_why(tier, primary, failure, suspects),
        advice=advice.text,
        action=advice.action,
        restart=advice.restart,
        suspects=suspects,
        warnings=_warnings(episode, primary, failure),
        episode=episode,
        confirmations=explained,
        precursors=precursors(episode),
        consequences=sorted(
            (group for group in episode.groups if group is not primary and group not in explained), key=_place
        ),
    )


def _nothing(why: str) -> LogVerdict:
    return LogVerdict(failure=None, why=why, advice="no action follows from this log")


def _warnings(episode: Episode, primary: StatementGroup, failure: FailureClass) -> list[str]:
    warnings = [NUMERIC_WARNING] if any(g.first.failure.name == "user_buffer_timeout" for g in episode.groups) else []
    if episode.after is not None:
        warnings.append("training went on afterwards; that does not prove that what failed has recovered")
    if len(primary.ranks) > 1 and failure.rank not in (Rank.SYMPTOM, Rank.CASCADE):
        warnings.append(f"the same was said by {len(primary.ranks)} ranks: one cause, not one per rank")
    return warnings


def _alike(episodes: Sequence[Episode], primary: StatementGroup) -> int:
    """In how many attempts of the job the same was said."""
    first = primary.first
    key = (first.failure.name, first.exception, CHANGING.sub("#", first.text[:120]))
    attempts: set[int] = set()
    for episode in episodes:
        for group in episode.groups:
            other = group.first
            if (other.failure.name, other.exception, CHANGING.sub("#", other.text[:120])) == key:
                attempts |= group.attempts
    return len(attempts)


def failures(episodes: Sequence[Episode]) -> list[Episode]:
    """Episodes in which something failed; what was only taken down is none."""
    return [
        episode for episode in episodes if any(group.first.role is not LineRole.TEARDOWN for group in episode.groups)
    ]


def terminal(episode: Episode) -> StatementGroup | None:
    """The first statement that ended something: an exception, a killed process, a watchdog; None without one.

    An error line of a logger counts only where nothing else does.
    """
    ending = [
        group
        for group in episode.of(LineRole.INITIATING, LineRole.CASCADE)
        if group.first.form is not Form.LAUNCHER and not _is_logged(group) and not group.first.wraps
    ]
    if not ending:
        ending = [group for group in episode.of(LineRole.INITIATING, LineRole.CONFIRMATION) if not group.first.wraps]
    return min(ending, key=_place) if ending else None


def precursors(episode: Episode) -> list[StatementGroup]:
    """Error lines at most ``PRECURSOR_LINES`` before the first statement that ended something, in the same file.

    They often say what the exception does not.
    """
    end = terminal(episode)
    if end is None:
        return []
    first = end.first
    return [
        group
        for group in episode.of(LineRole.INITIATING)
        if _is_logged(group)
        and group.first.line.source == first.line.source
        and 0 < first.first_line - group.first.line.number <= PRECURSOR_LINES
    ]


def _is_logged(group: StatementGroup) -> bool:
    """An error line of the program's own logger; what native code writes (file.cpp:12) is no comment but the event."""
    first = group.first
    return first.form is Form.MESSAGE and first.line.level in LOUD_LEVELS and not NATIVE.search(first.line.logger)


def _deciding(episodes: Sequence[Episode]) -> tuple[Episode, list[tuple[int, StatementGroup]]]:
    """The last episode; an earlier one if the last shows consequences only and hardly a step lies between."""
    told = [episode for episode in episodes if episode.groups]
    last = told[-1]
    ranked = _rank(last)
    for earlier in reversed(told[:-1]):
        if ranked[0][0] < TIERS[Rank.SYMPTOM]:
            break
        if not _is_close(earlier, last):
            break
        before = _rank(earlier)
        if before[0][0] < ranked[0][0]:
            return earlier, before
    return last, ranked


def _is_close(earlier: Episode, later: Episode) -> bool:
    start, end = earlier.after, later.before
    if start is None or end is None or start.step is None or end.step is None:
        return True
    return 0 <= end.step - start.step <= OUTLIVED_STEPS


def _rank(episode: Episode) -> list[tuple[int, StatementGroup]]:
    """Every group with its tier, the likeliest cause first."""
    tiers = [(_tier(group, episode), group) for group in episode.groups]
    best = min(tier for tier, _ in tiers)
    first = _specific(_earliest([group for tier, group in tiers if tier == best]), tiers)
    rest = sorted((pair for pair in tiers if pair[1] is not first), key=lambda pair: (pair[0], _place(pair[1])))
    return [(best, first), *rest]


def _specific(first: StatementGroup, tiers: Sequence[tuple[int, StatementGroup]]) -> StatementGroup:
    """The same trouble in exacter words, if its writer has them right behind."""
    own = first.first
    is_said_elsewhere = SAID_ELSEWHERE.search(own.text) is not None
    if own.failure.name not in VAGUE and not is_said_elsewhere:
        return first
    tier = next(tier for tier, group in tiers if group is first)
    near = [
        group
        for other, group in tiers
        if other == tier
        and group.first.failure.name not in VAGUE
        and (own.failure.name in VAGUE or group.first.failure is own.failure)
        and SAID_ELSEWHERE.search(group.first.text) is None
        and group.first.line.source == own.line.source
        and 0 < group.first.line.number - own.line.number <= NEAR_LINES
        and group.first.line.rank in (own.line.rank, None)
    ]
    return min(near, key=_place) if near else first


def _tier(group: StatementGroup, episode: Episode) -> int:
    first = group.first
    if first.form is Form.LAUNCHER:
        number = signal_of(first.exit_code)
        if number == 15:
            return TIER_TEARDOWN
        if first.rule == ROOT_RULE and number in OWN_SIGNALS:
            return TIER_UNEXPLAINED
        return TIER_LAUNCHER_VAGUE if first.exit_code is None else TIER_LAUNCHER
    if first.wraps or first.role is LineRole.CASCADE:
        return TIER_CASCADE
    if first.rule in ABORTS:
        return TIER_ABORTED
    if first.role is LineRole.TEARDOWN:
        return TIER_TEARDOWN
    tier = TIERS[first.failure.rank]
    if first.failure.name == "error_message" and NATIVE.search(first.line.logger):
        return TIER_ABORTED
    if first.failure.name == "error_message" or first.exception == CUT_OFF:
        return TIER_UNEXPLAINED
    if tier == 1 and first.line.level in WARNINGS:
        return TIER_WARNING
    return tier


def _earliest(groups: Sequence[StatementGroup]) -> StatementGroup:
    """By their own times where they have them, else by the log's order; a class with a name before one without."""
    best = groups[0]
    for group in groups[1:]:
        later_s = group.first.line.seconds_after(best.first.line)
        if later_s is not None and abs(later_s) > SAME_MOMENT_S:
            is_earlier = later_s < 0
        else:
            is_earlier = _place(group) < _place(best)
        if is_earlier:
            best = group
    return best


def _place(group: StatementGroup) -> tuple[int, int]:
    return (group.first.line.source, group.first.line.number)


def _rivals(ranked: Sequence[tuple[int, StatementGroup]], primary: StatementGroup) -> bool:
    """Whether another failure of another class and other ranks stands on the same footing."""
    return any(
        tier <= 1 and group.first.failure is not primary.first.failure and not (group.ranks & primary.ranks)
        for tier, group in ranked[1:]
        if group.first.failure.rank is not Rank.GENERIC
    )


def _why(tier: int, primary: StatementGroup, failure: FailureClass, suspects: Suspects) -> str:
    says = f"{failure.says}; {suspects.why}" if suspects.why else failure.says
    who = f"{len(primary.ranks)} ranks say" if len(primary.ranks) > 1 else "it says"
    if tier == 0:
        return f"{says}; the kernel, a driver or the scheduler tells that, so it outweighs what ranks report"
    if tier <= TIER_WARNING:
        return f"{says}; it is the first failure of its own in this log"
    if tier in (TIER_UNEXPLAINED, TIER_ABORTED):
        return f"{says}; nothing else explains the end"
    if tier == TIERS[Rank.SYMPTOM]:
        return f"{says}; {who} so, and nothing in this log tells why"
    return f"{says}; that is a consequence, and its cause is not in this log"


def restart_word(verdict: LogVerdict) -> Restart:
    """The verdict's word on whether a restart of the same job helps."""
    return verdict.restart
