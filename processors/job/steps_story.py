"""What a finding says of slow ranks, of a pace that changed, and of numbers gone bad. Pure."""

from __future__ import annotations

from typing import Any

from ...telemetry.vocabulary import Bucket, Kind, Phase, Scope, Severity
from .culprit import Culprit, whose_slowness
from .drift import Drift
from .late_device import LateDevice
from .late_host import LateHost
from .node_story import node_suspect
from .numeric import BadNumber
from .pace import PaceChange
from .passes import HeavyStage
from .saves import SlowWriter
from .stalls import Stalls
from .state import JobState
from .story import Body, body, evidence, ruled_out, share, source_of, suspect
from .straggler import Straggler
from .words import duration_words, phase_word, ranks_words

#: Share of a surplus from which on it is said to be there.
MOST_OF_IT = 0.7


def straggler_body(job: JobState, found: Straggler, now: int) -> Body:
    culprit = whose_slowness(job, (found.rank, *found.company), always=not found.based)
    others = [int(rank) for rank in job.times.ranks if rank not in culprit.ranks]
    phase = phase_word(found.phase) if found.phase >= 0 else None
    place = f"mostly in phase {phase}" if phase else "by the time its device spends outside collectives"
    works, wait = ("works", "waits") if len(others) == 1 else ("work", "wait")
    usual = f" (usual: {found.usual:+.0%})" if found.usual > 0.01 else ""
    since = f"since step {found.onset_step}" if found.based else "as long as its steps are known"
    shows = (
        f"rank {found.rank} works {duration_words(found.self_ns)} per step where {ranks_words(others)} {works} "
        f"{duration_words(found.others_self_ns)}: {duration_words(found.excess_ns)} more, {found.excess:.0%} of a step"
        f"{usual}, {place}, in {found.slow_steps} of the last {found.window} steps, {since}"
    )
    proof = [
        evidence("steps.self_time", source_of(job, found.rank), now, shows, round(found.excess, 4)),
    ]
    if found.starved_ns > found.excess_ns / 4:
        lacks = (
            f"in each step rank {found.rank}'s main thread was ready to run and had no CPU for "
            f"{duration_words(found.starved_ns)} more than the others: something else on "
            f"{job.node_of(found.rank) or 'its node'} takes the cores"
        )
        proof.append(evidence("kernel.run_delay", source_of(job, found.rank), now, lacks, found.starved_ns / 1e9))
    if common := _in_common(culprit):
        proof.append(evidence("steps.company", ranks_words(culprit.ranks), now, common))
    waits = (
        f"{ranks_words(others)} {wait} {duration_words(found.waited_ns)} of each step in collectives, "
        f"{duration_words(found.waited_before_ns)} before; step time is {duration_words(found.step_ns)}"
    )
    because = f"only waits there for {ranks_words(culprit.ranks)}, {duration_words(found.waited_ns)} of each step"
    return body(
        job,
        Kind.RANK_SLOW,
        bucket=Bucket.SPEED_REGRESSION,
        scope=culprit.scope,
        severity=Severity.TICKET,
        suspects=_suspects_of(job, culprit, phase),
        onset_ns=found.onset_ns,
        now=now,
        proof=[*proof, evidence("steps.waiting", ranks_words(others), now, waits)],
        cleared=[ruled_out(others, "long in collectives", because)],
        confidence=min(0.97, 0.6 + found.z / 30.0),
        step=found.onset_step,
    )


def _in_common(culprit: Culprit) -> str:
    if culprit.scope is Scope.NODE:
        return f"{ranks_words(culprit.ranks)} are slower in the same steps: all ranks of {culprit.node}, and no others"
    if culprit.group:
        return (
            f"{ranks_words(culprit.ranks)} are slower in the same steps: all members of group {culprit.group} and no "
            "others; the part of the work that they do is longer"
        )
    if culprit.like:
        return (
            f"{ranks_words(culprit.ranks)} are slower in the same steps: those that have the same place in group "
            f"{culprit.like} and in each one like it, and no others; the part of the work that they do is longer"
        )
    if culprit.scope is Scope.APPLICATION:
        return (
            f"{ranks_words(culprit.ranks)} was the longest stage from the first step on: most likely the work is cut "
            "so; a machine that is slow from the start would look the same"
        )
    if len(culprit.ranks) > 1:
        return f"{ranks_words(culprit.ranks)} are slower in the same steps; they share neither node nor group"
    return ""


def _slow_rank_body(job: JobState, **rest: Any) -> Body:
    """What all findings about a single slow rank have in common. rest: what ``story.body`` asks for besides."""
    return body(
        job,
        Kind.RANK_SLOW,
        bucket=Bucket.SPEED_REGRESSION,
        scope=Scope.RANK,
        severity=Severity.TICKET,
        **rest,
    )


def drift_body(job: JobState, found: Drift, now: int) -> Body:
    others = [int(rank) for rank in job.times.ranks if rank != found.rank]
    shows = (
        f"rank {found.rank} became slower by and by: its own work takes {duration_words(found.now_ns)} a step, "
        f"{duration_words(found.best_ns)} at its best around step {found.since_step}; against the others that is "
        f"{found.rise:.0%} of a step"
    )
    return _slow_rank_body(
        job,
        suspects=[suspect(job, found.rank, 0.9)],
        onset_ns=found.onset_ns,
        now=now,
        proof=[evidence("steps.drift", source_of(job, found.rank), now, shows, round(found.rise, 4))],
        cleared=[ruled_out(others, "longer in collectives", f"there it is only waiting for rank {found.rank}")],
        confidence=0.8,
        step=found.onset_step,
    )


def late_device_body(job: JobState, found: LateDevice, now: int) -> Body:
    culprit = whose_slowness(job, (found.rank, *found.company), always=False)
    others = [int(rank) for rank in job.times.ranks if rank not in culprit.ranks]
    was, each = ("was", "") if len(others) == 1 else ("were", " in the mean")
    shows = (
        f"rank {found.rank}'s device is late: {ranks_words(others)} {was} found waiting in a collective in "
        f"{found.others_waited} of {found.looks} looks{each}, rank {found.rank} in {found.waited}, since step "
        f"{found.onset_step}; before it was {found.others_waited_before:.0%} of all looks"
    )
    longer = (
        f"a step takes {duration_words(found.now_ns)}, {duration_words(found.before_ns)} before: {found.rise:.0%} of "
        "it is new, as much as the others wait"
    )
    proof = [
        evidence("steps.device_looks", source_of(job, found.rank), now, shows, round(found.z, 2)),
        evidence("steps.duration", "all ranks", now, longer, round(found.rise, 4)),
    ]
    if common := _in_common(culprit):
        proof.append(evidence("steps.company", ranks_words(culprit.ranks), now, common))
    whose = f"{ranks_words(culprit.ranks)}'s device" + ("s" if len(culprit.ranks) > 1 else "")
    return body(
        job,
        Kind.RANK_SLOW,
        bucket=Bucket.SPEED_REGRESSION,
        scope=culprit.scope,
        severity=Severity.TICKET,
        suspects=_suspects_of(job, culprit),
        onset_ns=found.onset_ns,
        now=now,
        proof=proof,
        cleared=[ruled_out(others, "long in collectives", f"only waits there for {whose}")],
        confidence=min(0.95, 0.6 + found.z / 30.0),
        step=found.onset_step,
    )


def late_host_body(job: JobState, found: LateHost, now: int) -> Body:
    culprit = whose_slowness(job, (found.rank, *found.company), always=False)
    others = [int(rank) for rank in job.times.ranks if rank not in culprit.ranks]
    others_take = f"{ranks_words(others)} {'takes' if len(others) == 1 else 'take'} {duration_words(found.others_ns)}"
    shows = (
        f"since step {found.onset_step} rank {found.rank}'s host takes {duration_words(found.launches_ns)} of each "
        f"step to launch its passes forward and back, {duration_words(found.launched_ns)} before; {others_take}: "
        "its device waits for it"
    )
    longer = f"a step takes {duration_words(found.now_ns)}, {duration_words(found.before_ns)} before"
    rise = found.now_ns / max(1, found.before_ns) - 1.0
    proof = [
        evidence("steps.launching", source_of(job, found.rank), now, shows, round(found.z, 2)),
        evidence("steps.duration", "all ranks", now, longer, round(rise, 4)),
    ]
    if common := _in_common(culprit):
        proof.append(evidence("steps.company", ranks_words(culprit.ranks), now, common))
    return body(
        job,
        Kind.RANK_SLOW,
        bucket=Bucket.SPEED_REGRESSION,
        scope=culprit.scope,
        severity=Severity.TICKET,
        suspects=_suspects_of(job, culprit),
        onset_ns=found.onset_ns,
        now=now,
        proof=proof,
        cleared=[ruled_out(others, "long in collectives", f"only waits there for {ranks_words(culprit.ranks)}")],
        confidence=min(0.95, 0.6 + found.z / 30.0),
        step=found.onset_step,
    )


def heavy_stage_body(job: JobState, found: HeavyStage, change: PaceChange, now: int) -> Body:
    others = [int(rank) for rank in job.times.ranks if rank not in found.ranks]
    shows = (
        f"since step {change.step} the first pass through pipeline stage {found.stage} ({ranks_words(found.ranks)}) "
        f"takes {duration_words(found.pass_ns)} instead of {duration_words(found.pass_before_ns)}, by the ends of its "
        f"calls and those of the stages beside it; that through any other stage is {found.others:.0%} longer at most"
    )
    longer = (
        f"a step takes {duration_words(change.after_ns)} instead of {duration_words(change.before_ns)} "
        f"({change.ratio - 1:+.0%}), on all ranks alike"
    )
    proof = [
        evidence("steps.passes", ranks_words(found.ranks), now, shows, round(found.z, 2)),
        evidence("steps.pace", f"job {job.job}", now, longer, round(change.ratio, 3)),
    ]
    nodes = {job.node_of(rank) for rank in found.ranks}
    if len(nodes) == 1:
        same = f"all of them are on {nodes.pop()}: if that has become slower, it looks the same"
        proof.append(evidence("steps.company", ranks_words(found.ranks), now, same))
    because = f"waits for stage {found.stage} in receives, whose ends nobody tells"
    return body(
        job,
        Kind.RANK_SLOW,
        bucket=Bucket.SPEED_REGRESSION,
        scope=Scope.APPLICATION,
        severity=Severity.TICKET,
        suspects=[suspect(job, rank, share(found.ranks)) for rank in found.ranks],
        onset_ns=change.onset_ns,
        now=now,
        proof=proof,
        cleared=[ruled_out(others, "as long outside of collectives", because)],
        confidence=min(0.95, 0.6 + found.z / 30.0),
        step=change.step,
    )


def _suspects_of(job: JobState, culprit: Culprit, phase: str | None = None) -> list[dict[str, Any]]:
    if culprit.scope is Scope.NODE:
        return [node_suspect(culprit.node, culprit.ranks)]
    if culprit.scope is not Scope.RANK and not culprit.like:
        return []
    return [suspect(job, rank, share(culprit.ranks), phase) for rank in culprit.ranks]


def slow_writer_body(job: JobState, found: SlowWriter, now: int) -> Body:
    others = [int(rank) for rank in job.saves.ranks if rank != found.rank]
    verb, wait = ("saves", "waits") if len(others) == 1 else ("save", "wait")
    beside = f", where {ranks_words(others)} {verb} in {duration_words(found.others_ns)}" if found.others_ns else ""
    shows = (
        f"rank {found.rank} spends {duration_words(found.now_ns)} in each checkpoint since step {found.onset_step}; it "
        f"was {duration_words(found.before_ns)} before{beside}"
    )
    lost = found.now_ns - max(found.before_ns, found.others_ns)
    waits = f"{ranks_words(others)} {wait} {duration_words(lost)} for it, once in {found.every_steps} steps"
    return _slow_rank_body(
        job,
        suspects=[suspect(job, found.rank, 0.95, phase_word(Phase.CHECKPOINT))],
        onset_ns=found.onset_ns,
        now=now,
        proof=[
            evidence("steps.checkpoint", source_of(job, found.rank), now, shows, found.now_ns / 1e9),
            evidence("steps.waiting", ranks_words(others), now, waits),
        ],
        cleared=[ruled_out(others, "stands still after each save", f"waits there for the save of rank {found.rank}")],
        confidence=0.9,
        step=found.onset_step,
    )


def slow_together_body(job: JobState, change: PaceChange, now: int, *, has_unseen_waits: bool = False) -> Body:
    """has_unseen_waits: the ranks are stages of a pipeline on devices, where nobody tells when a receive has ended."""
    shows = (
        f"since step {change.step} a step takes {duration_words(change.after_ns)} instead of "
        f"{duration_words(change.before_ns)} ({change.ratio - 1:+.0%}), on all ranks alike"
    )
    went = _where_it_went(change, has_unseen_waits=has_unseen_waits)
    told = body(
        job,
        Kind.SLOW_TOGETHER,
        bucket=Bucket.SPEED_REGRESSION,
        scope=Scope.JOB,
        severity=Severity.TICKET,
        suspects=[],
        onset_ns=change.onset_ns,
        now=now,
        proof=[
            evidence("steps.pace", f"job {job.job}", now, shows, round(change.ratio, 3)),
            evidence("steps.self_time", ranks_words(job.ranks), now, went, change.own_ns / 1e9),
        ],
        confidence=0.7,
        step=change.step,
    )
    return {**told, "grew": _what_grew(change)}


def wandering_body(job: JobState, change: PaceChange, now: int) -> Body:
    shows = (
        f"since step {change.step} a step takes {duration_words(change.after_ns)} instead of "
        f"{duration_words(change.before_ns)} ({change.ratio - 1:+.0%}); all wait for another rank in each step, none "
        "of them is late more often than others: the work is uneven"
    )
    told = body(
        job,
        Kind.SLOW_TOGETHER,
        bucket=Bucket.SPEED_REGRESSION,
        scope=Scope.APPLICATION,
        severity=Severity.TICKET,
        suspects=[],
        onset_ns=change.onset_ns,
        now=now,
        proof=[evidence("steps.pace", f"job {job.job}", now, shows, round(change.ratio, 3))],
        confidence=0.7,
        step=change.step,
    )
    return {**told, "grew": "own"}


def stalls_body(job: JobState, stalls: Stalls, now: int) -> Body:
    """stalls: when each burst began and ended, in Unix seconds."""
    shows = (
        f"since step {stalls.step} all ranks have waited for their data {len(stalls.bursts)} times, for some steps "
        f"each: {stalls.loss:.0%} of the time; the steps between take {duration_words(stalls.usual_ns)}, as before"
    )
    told = body(
        job,
        Kind.SLOW_TOGETHER,
        bucket=Bucket.SPEED_REGRESSION,
        scope=Scope.JOB,
        severity=Severity.TICKET,
        suspects=[],
        onset_ns=stalls.onset_ns,
        now=now,
        proof=[evidence("steps.stalls", f"job {job.job}", now, shows, round(stalls.loss, 3))],
        confidence=0.7,
        step=stalls.step,
    )
    bursts = [[begin / 1e9, end / 1e9] for begin, end in stalls.bursts]
    return {**told, "grew": "data", "stalls": bursts}


def _what_grew(change: PaceChange) -> str:
    """The most of it, in one word: what jobs that are slow at one time have in common."""
    rise = max(1, change.after_ns - change.before_ns)
    parts = {"data": change.data_ns, "exchange": change.exchange_ns, "own": change.own_ns}
    return next((word for word, part_ns in parts.items() if part_ns > MOST_OF_IT * rise), "")


def _where_it_went(change: PaceChange, *, has_unseen_waits: bool) -> str:
    rise = max(1, change.after_ns - change.before_ns)
    of_it = f"of the {duration_words(rise)} more a step"
    if change.data_ns > MOST_OF_IT * rise:
        return f"{of_it}, every rank waits {duration_words(change.data_ns)} for its data: what serves them is slower"
    if not change.has_parts:
        return (
            f"{of_it}, what is work and what is exchange is not known: nobody tells when devices begin a collective "
            "(TORCH_NCCL_ENABLE_TIMING=1 in the job would)"
        )
    if change.exchange_ns > MOST_OF_IT * rise:
        return f"{of_it}, {duration_words(change.exchange_ns)} are collectives in which nobody waits: a slower network"
    if change.own_ns > MOST_OF_IT * rise and has_unseen_waits:
        return (
            f"{of_it}, {duration_words(change.own_ns)} are outside of collectives: every rank's own work, or that of "
            "one pipeline stage, for which the others wait in receives, whose ends nobody tells"
        )
    if change.own_ns > MOST_OF_IT * rise:
        return f"{of_it}, {duration_words(change.own_ns)} are every rank's own work: more to do, or slower hosts"
    return f"{of_it}, {duration_words(change.own_ns)} are the ranks' own work, the rest is not known"


def number_body(job: JobState, bad: BadNumber, now: int) -> tuple[Kind, Body]:
    fine = [rank for rank in bad.all_ranks if rank not in bad.ranks]
    kind = Kind.NUMERIC_ALL if bad.everywhere and len(job.ranks) > 1 else Kind.NUMERIC_FIRST_RANK
    named = bad.ranks if kind is Kind.NUMERIC_FIRST_RANK else ()
    shows = f"the {bad.what} of {ranks_words(bad.ranks)} is {bad.value} in step {bad.step}"
    shows += f"; that of {ranks_words(fine)} is still good" if fine else ", on all ranks in the same step"
    return kind, body(
        job,
        kind,
        bucket=Bucket.NUMERIC,
        scope=Scope.RANK if named else Scope.JOB,
        severity=Severity.PAGE,
        suspects=[suspect(job, rank, share(named)) for rank in named],
        onset_ns=bad.onset_ns,
        now=now,
        proof=[
            evidence(
                f"steps.{bad.what.replace(' ', '_')}",
                source_of(job, bad.ranks[0]) if named else ranks_words(bad.ranks),
                bad.onset_ns,
                shows,
                bad.value,
            )
        ],
        cleared=[ruled_out(fine, "becomes bad in the next step", f"its {bad.what} was good in step {bad.step}")]
        if fine
        else [],
        confidence=0.95 if len(named) == 1 else 0.7,
        step=bad.step,
    )
