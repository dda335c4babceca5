"""Slurm's own commands, from templates of the settings. Arguments go to the program as they are, never through a shell.

A word in braces is put into its argument and makes no other one; nodes and jobs are checked before, since Slurm reads
``node[1-99]`` and ``ALL`` as many nodes, and the id of an array as all its tasks. Node and job are looked at first:
what Slurm or a person has done since the incident is left as it is.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ....agents.base.bounded_command import run_bounded
from ....diagnosis.scheduler_facts import parse_pairs, parse_slurm_time
from ....telemetry.response_outcomes import Outcome
from ...support.node_names import is_node_name
from ..planning.acts import Act, HookOperation, HookResult, Why

TIMEOUT_S = 30.0
#: A job, or one task of an array.
_JOB_ID = re.compile(r"[0-9]{1,12}(_[0-9]{1,10})?\Z")
_MAX_SHOWN_CHARS = 200
#: States in which Slurm itself is about to start the job: nothing is left to do.
_WAITS = frozenset({"PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_FED", "REQUEUE_HOLD", "SPECIAL_EXIT"})
#: States in which a job runs, or has ended by a failure. In all others it was ended on purpose, or is done.
_MAY_START_AGAIN = frozenset(
    {"RUNNING", "COMPLETING", "SUSPENDED", "STOPPED", "FAILED", "NODE_FAIL", "BOOT_FAIL", "OUT_OF_MEMORY"}
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Commands:
    """Templates. ``show`` and ``show_job`` may be empty: then a node or job is not looked at before it is changed.

    exclude: leaves nodes out of one job, between ``hold`` (a requeue) and ``release``; empty: nodes are drained.
    """

    drain: Sequence[str]
    undrain: Sequence[str]
    requeue: Sequence[str]
    show: Sequence[str]
    show_job: Sequence[str] = ()
    hold: Sequence[str] = ()
    exclude: Sequence[str] = ()
    release: Sequence[str] = ()


class Slurm:
    name = "slurm"
    can = frozenset({HookOperation.DRAIN_NODE, HookOperation.RESTART_JOB, HookOperation.UNDRAIN_NODE})

    def __init__(self, commands: Commands, *, timeout_s: float = TIMEOUT_S) -> None:
        self._commands = commands
        self._timeout_s = timeout_s
        if commands.exclude:
            self.can = frozenset({HookOperation.RESTART_JOB})

    def describe(self, act: Act) -> str:
        """The command lines that would be run."""
        return "; ".join(" ".join(_fill(template, act)) for template in self._templates(act))

    def do(self, act: Act) -> HookResult:
        """Runs the commands for the act, and says what came of it. REFUSED for a name that is unsafe.

        A node that is drained already stays as it is, and so does a job that has started again or was ended; what
        others have drained since is not resumed.
        """
        is_job = act.operation is HookOperation.RESTART_JOB
        if not (_JOB_ID.match(act.target) if is_job else is_node_name(act.target)):
            return HookResult(outcome=Outcome.REFUSED, why=Why.NAME_UNSAFE, detail=repr(act.target)[:80])
        excluded: tuple[str, ...] = ()
        if is_job:
            known = self._look_at_job(act)
            if isinstance(known, HookResult):
                return known
            excluded = known
        elif self._commands.show and (found := self._look_at_node(act)) is not None:
            return found
        return self._carry_out(act, excluded)

    def _carry_out(self, act: Act, excluded: Sequence[str]) -> HookResult:
        """The commands in their order, up to the first that fails. excluded: by the job, as Slurm writes it."""
        said: list[str] = []
        for number, template in enumerate(self._templates(act)):
            code, text = self._run(_fill(template, act, excluded))
            if code != 0:
                held = f"; job {act.target} is held: scontrol release {act.target}" if number else ""
                return HookResult(outcome=Outcome.FAILED, detail=text + held)
            said.append(text)
        return HookResult(outcome=Outcome.DONE, detail=" | ".join(filter(None, said)))

    def _look_at_node(self, act: Act) -> HookResult | None:
        """None: the node is as we expect it, and is to be changed."""
        code, text = self._run(_fill(self._commands.show, act))
        if code != 0:
            return HookResult(outcome=Outcome.FAILED, detail=text)
        pairs = parse_pairs(text.replace(" | ", " "))
        state, reason = pairs.get("State", ""), pairs.get("Reason", "")
        shown = f"{state}: {reason}"[:_MAX_SHOWN_CHARS]
        if act.operation is HookOperation.DRAIN_NODE:
            return HookResult(outcome=Outcome.ALREADY, detail=shown) if "DRAIN" in state.upper() else None
        # To resume a node calls off the reboot that somebody has asked for.
        if f"whichrank {act.incident}" not in reason or "REBOOT" in state.upper():
            return HookResult(outcome=Outcome.REFUSED, why=Why.CHANGED_BY_OTHERS, detail=shown)
        return None

    def _look_at_job(self, act: Act) -> HookResult | tuple[str, ...]:
        """What it excludes already, where the job is as we expect it; else what there is to say."""
        if not self._commands.show_job:
            return ()
        code, text = self._run(_fill(self._commands.show_job, act))
        if code != 0:
            return HookResult(outcome=Outcome.FAILED, detail=text)
        jobs = [parse_pairs(part) for part in _jobs_in(text)]
        if any(job.get("ArrayJobId") == act.target for job in jobs):
            return HookResult(outcome=Outcome.REFUSED, why=Why.WHOLE_ARRAY, detail=act.target)
        for job in jobs:
            if (found := _found_as(job, act)) is not None:
                return found
        return tuple(job["ExcNodeList"] for job in jobs if job.get("ExcNodeList", "(null)") != "(null)")

    def _templates(self, act: Act) -> list[Sequence[str]]:
        commands = self._commands
        if act.operation is HookOperation.RESTART_JOB:
            if act.leave_out and commands.exclude:
                return [commands.hold, commands.exclude, commands.release]
            return [commands.requeue]
        return [commands.drain if act.operation is HookOperation.DRAIN_NODE else commands.undrain]

    def _run(self, words: Sequence[str]) -> tuple[int, str]:
        """The exit status (-1: none) and what it said, or what went wrong, in one line."""
        try:
            status, out, errors = run_bounded(words, self._timeout_s)
        except subprocess.TimeoutExpired:
            return -1, f"{words[0]} has not ended within {self._timeout_s:.0f} s"
        except (OSError, ValueError) as error:
            return -1, f"{words[0]}: {getattr(error, 'strerror', None) or error}"
        said = (out if status == 0 else errors or out).decode("utf-8", "replace")
        said = " | ".join(line.strip() for line in said.splitlines() if line.strip())
        if status != 0:
            return status, f"{words[0]} ended with {status}: {said}"[:_MAX_SHOWN_CHARS]
        return 0, said


def _jobs_in(said: str) -> Iterator[str]:
    """What is said of each job, with or without ``-o``."""
    parts = re.split(r"(?:^|\s)(?=JobId=)", said.replace(" | ", " "))
    return (part for part in parts if part.startswith("JobId="))


def _found_as(job: dict[str, str], act: Act) -> HookResult | None:
    """None: it is still the start that the incident is about, and may be started again."""
    state = job.get("JobState", "")
    shown = f"{state}: {job.get('Reason', '')}, {job.get('Restarts', '?')} restarts"[:_MAX_SHOWN_CHARS]
    if state in _WAITS:
        return HookResult(outcome=Outcome.ALREADY, detail=shown)
    started_s, detected_s = parse_slurm_time(job.get("StartTime", "")), act.document.times.detected_s
    if started_s is not None and detected_s is not None and started_s > detected_s:
        return HookResult(outcome=Outcome.ALREADY, detail=f"{shown}, has started since")
    if state not in _MAY_START_AGAIN:
        return HookResult(outcome=Outcome.REFUSED, why=Why.JOB_ENDED, detail=shown)
    return None


def _fill(template: Sequence[str], act: Act, excluded: Sequence[str] = ()) -> list[str]:
    is_job = act.operation is HookOperation.RESTART_JOB
    words = {"node": "" if is_job else act.target, "job": act.target if is_job else act.job, "reason": act.reason}
    words["nodes"] = ",".join((*excluded, *act.leave_out))
    return [part.format(**words) for part in template]
