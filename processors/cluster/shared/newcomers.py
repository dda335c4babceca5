"""A job that exchanges slower since another one began: two are too many for a spine that is enough for either.

The newcomer knows no better pace of its own, so that only the older of the two is in trouble. Pure over Memory.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from ....telemetry.incident_document import EvidenceRow
from .history import Verdict
from .memory import Memory
from .placements import Attempt, Value
from .rules import the_rule
from .signs import FAULTS
from .troubles import Trouble

#: The older one has run so long without trouble; the other has begun so shortly before.
QUIET_S, JUST_BEGUN_S = 300.0, 150.0
_SURE = 0.7


def newcomers(memory: Memory, troubles: Sequence[Trouble], _: Collection[str], now: float) -> Iterator[Verdict]:
    """Verdicts on jobs that exchange slower since exactly one other job began over the same spine. now:
    Unix seconds.
    """
    rule = the_rule("newcomer")
    for trouble in troubles:
        if trouble.kind not in rule.explains or trouble.phase not in rule.phases or trouble.own or trouble.nodes:
            continue
        older = memory.placements.of(trouble.job, trouble.attempt)
        if older is None or trouble.onset - older.begin < QUIET_S:
            continue
        begun = begun_before(memory, trouble)
        spines = _spines(memory, older)
        shared = [(job, spine) for job in begun for spine in sorted(spines & _spines(memory, job))]
        if len(shared) != 1 or not spines:
            continue  # nobody, or it cannot be told who
        newcomer, (attribute, value) = shared[0]
        began = f"{trouble.onset - newcomer.begin:.0f} s before"
        signs = memory.signs.of(value, rule.signs, trouble.onset, rule.window_s)
        if any(sign.severity in FAULTS for sign in signs) or _was_in_trouble(memory, older, trouble):
            continue
        yield Verdict(
            rule=rule,
            value=value,
            probability=_SURE,
            members=[trouble.id],
            onset=trouble.onset,
            jobs=[(newcomer.job, newcomer.attempt, "victim")],
            words={"job": trouble.job, "other": newcomer.job, "attribute": attribute},
            evidence=[
                EvidenceRow(
                    signal="placement",
                    source=f"job {newcomer.job}",
                    time_s=newcomer.begin,
                    value=value,
                    shows=f"it began {began} job {older.job} was slow in its exchange, which had run for "
                    f"{(newcomer.begin - older.begin) / 60:.0f} min over the same spine without trouble",
                )
            ],
        )


def begun_before(memory: Memory, trouble: Trouble) -> list[Attempt]:
    """First attempts of other jobs that began at most JUST_BEGUN_S before the trouble did."""
    return [
        attempt
        for attempt in memory.placements.running_at(trouble.onset)
        if attempt.job != trouble.job
        and 0.0 <= trouble.onset - attempt.begin <= JUST_BEGUN_S
        and len(memory.placements.by_job.get(attempt.job, ())) == 1
    ]


def _spines(memory: Memory, attempt: Attempt) -> frozenset[Value]:
    """Those that it sends over: none where it stays under one leaf."""
    counts = memory.landscape.counts(attempt)
    if sum(value[0] == "leaf" for value in counts) < 2:
        return frozenset()
    return frozenset(value for value in counts if value[0] == "spine")


def _was_in_trouble(memory: Memory, older: Attempt, trouble: Trouble) -> bool:
    """Before the other came."""
    recent = memory.recent(trouble.onset - QUIET_S)
    return any(t.job == older.job and t.id != trouble.id and t.onset < trouble.onset for t in recent)
