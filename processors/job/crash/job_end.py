"""When a job is over, and what is said then.

``whichrank run`` tells when its command has ended. Over Kafka nobody does: agents see ranks end, and then their
launchers. A launcher that lives may start its ranks again, so it is waited for, but not for ever.
"""

from __future__ import annotations

from collections.abc import Collection

from ....telemetry.kind_sets import SPEED_KINDS
from ....telemetry.vocabulary import Kind
from ...operator import Context
from ..accounting.guarded_accounting import finish
from ..detectors.crash.crash_order import SIGKILL, Ending, role_hint
from ..findings.register import clear_finding, revise
from ..saves.emergency_outcome import judge_emergency
from ..state.job_state import JobState
from ..steps.closed_steps import close_ready_steps, judge_late_numbers
from ..topology.placement import begin_placement_again, end_placement
from .crashes import judge_crash

#: What cannot last longer than the job, however it ended.
_ENDED_WITH_THE_JOB = SPEED_KINDS | {Kind.AGENT_SILENT, Kind.INPUT_SILENT}
#: What the nodes have to say of one end comes in within this time.
LAST_WORDS_NS = 2_000_000_000
#: Between the last rank's end and the next one's start, under a launcher that lives or cannot be seen.
RESTART_NS = 60_000_000_000


def say_last_words(
    job: JobState, ended_ns: int, stamp_ns: int, ctx: Context, *, asked: bool, has_left: bool = True
) -> None:
    """The job is over: decides what is held, closes its account, and clears what cannot last longer than the job.

    ended_ns, stamp_ns: Unix. asked: the job has ended as somebody wanted it to; then all findings are cleared.
    has_left: it has given its GPUs back; a launcher that was not seen to end may hold them, and start its ranks again.
    """
    job.ends.finished_ns = ended_ns
    end_placement(job, ended_ns, stamp_ns, ctx)
    close_ready_steps(job, stamp_ns, ctx)
    judge_crash(job, stamp_ns, ctx, finished=True)
    judge_late_numbers(job, stamp_ns, ctx, finished=True)
    judge_emergency(job, stamp_ns, ctx, is_over=True)
    finish(job, ended_ns, stamp_ns, ctx, well=asked, has_left=has_left)
    for finding in job.findings.all():
        finding.shown_ns = 0  # the last word must not wait for the revision gap
        revise(job, ctx, stamp_ns, finding)
        stays = finding.kind == Kind.EMERGENCY_SAVE_MISSED  # of a job that is asked to end, above all
        if (asked and not stays) or finding.kind in _ENDED_WITH_THE_JOB:
            clear_finding(job, ctx, stamp_ns, finding, "the job ended")


def judge_over(job: JobState, now: int, ctx: Context) -> None:
    """Says the last words once all ranks have ended and the wait for a restart is over; until then sets a timer.

    For jobs whose command does not tell of its end: call it ``LAST_WORDS_NS`` after a rank's or a launcher's end.
    """
    if job.ends.finished_ns or job.judged_by:
        return
    lost = {name for name, node in job.nodes.known.items() if node.state != "here"}
    if not have_all_ended(job, lost):
        return
    exits = [ending for ending in job.ends.endings if ending.sort == "exit"]
    if not exits:
        return
    has_left = not _may_start_again(job, lost)
    hold_ns = LAST_WORDS_NS if has_left else RESTART_NS
    due_ns = max(ending.arrived_ns for ending in exits) + hold_ns
    if now < due_ns:
        job.schedule(due_ns)
        return
    job.ends.exit_code = 0 if all(role_hint(ending) == "none" for ending in job.ends.endings) else 1
    ended_ns, asked = max(ending.time_ns for ending in exits), _was_asked_to_end(job, exits)
    say_last_words(job, ended_ns, now, ctx, asked=asked, has_left=has_left)


def have_all_ended(job: JobState, lost: Collection[str] = ()) -> bool:
    """Whether no rank runs any more; ranks on nodes in ``lost`` and ranks that were never seen do not count."""
    return all(facts.exited_ns or not facts.node or facts.node in lost for facts in job.ranks.values())


def begin_again(job: JobState) -> None:
    """A rank has started: takes back that the job was over. Harmless where it was not."""
    job.ends.finished_ns = job.ends.exit_code = 0
    begin_placement_again(job)


def _may_start_again(job: JobState, lost: set[str]) -> bool:
    for launch, ranks in job.attempts.members.items():
        nodes = {job.node_of(rank) for rank in ranks}
        if launch not in job.attempts.over and not (nodes and nodes <= lost):
            return True
    return False


def _was_asked_to_end(job: JobState, exits: list[Ending]) -> bool:
    """It ended well, or somebody took it down: as planned, or while it stood still for a reason that nobody died of."""
    if job.ends.exit_code == 0 or job.findings.has_kind(Kind.PLANNED_STOP):
        return True
    finding = job.findings.stopping()
    if finding is None or finding.detail.is_crash:
        return False
    first = min(job.ends.endings, key=lambda ending: (ending.time_ns, ending.rank))
    return first.sort == "exit" and (role_hint(first) == "stop" or first.signal == SIGKILL)
