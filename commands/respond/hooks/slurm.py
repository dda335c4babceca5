"""Slurm's own commands, from templates of the settings. Arguments go to the program as they are, never through a shell.

A word in braces is put into its argument and makes no other one; nodes and jobs are checked before, since Slurm reads
``node[1-99]`` and ``ALL`` as many nodes.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass

from ....agents.base.bounded_command import run_bounded
from ....telemetry.response_outcomes import Outcome
from ...support.node_names import is_node_name
from ..planning.acts import Act, HookOperation, HookResult, Why

TIMEOUT_S = 30.0
#: A job, or one task of an array.
_JOB_ID = re.compile(r"[0-9]{1,12}(_[0-9]{1,10})?\Z")
_STATE = re.compile(r"\bState=(\S+)")
_REASON = re.compile(r"\bReason=(.*)")
_MAX_SHOWN_CHARS = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Commands:
    """Templates; ``show`` may be empty: then a node is not looked at before it is changed."""

    drain: Sequence[str]
    undrain: Sequence[str]
    requeue: Sequence[str]
    show: Sequence[str]


class Slurm:
    name = "slurm"
    can = frozenset({HookOperation.DRAIN_NODE, HookOperation.RESTART_JOB, HookOperation.UNDRAIN_NODE})

    def __init__(self, commands: Commands, *, timeout_s: float = TIMEOUT_S) -> None:
        self._commands = commands
        self._timeout_s = timeout_s

    def describe(self, act: Act) -> str:
        """The command line that would be run."""
        return " ".join(self._words(act))

    def do(self, act: Act) -> HookResult:
        """Runs the command for the act, and says what came of it. REFUSED for a name that is unsafe.

        A node that is drained already stays as it is; what others have drained since is not resumed.
        """
        is_job = act.operation is HookOperation.RESTART_JOB
        if not (_JOB_ID.match(act.target) if is_job else is_node_name(act.target)):
            return HookResult(outcome=Outcome.REFUSED, why=Why.NAME_UNSAFE, detail=repr(act.target)[:80])
        if not is_job and self._commands.show and (found := self._look(act)) is not None:
            return found
        code, text = self._run(self._words(act))
        return HookResult(outcome=Outcome.DONE if code == 0 else Outcome.FAILED, detail=text)

    def _look(self, act: Act) -> HookResult | None:
        """None: the node is as we expect it, and is to be changed."""
        code, text = self._run(_fill(self._commands.show, act))
        if code != 0:
            return HookResult(outcome=Outcome.FAILED, detail=text)
        state, reason = (found[1] if (found := pattern.search(text)) else "" for pattern in (_STATE, _REASON))
        if act.operation is HookOperation.DRAIN_NODE:
            is_out = "DRAIN" in state.upper()
            return (
                HookResult(outcome=Outcome.ALREADY, detail=f"{state}: {reason}"[:_MAX_SHOWN_CHARS]) if is_out else None
            )
        if f"whichrank {act.incident}" not in reason:
            return HookResult(outcome=Outcome.REFUSED, why=Why.CHANGED_BY_OTHERS, detail=f"{state}: {reason}"[:200])
        return None

    def _words(self, act: Act) -> list[str]:
        template = {
            HookOperation.DRAIN_NODE: self._commands.drain,
            HookOperation.UNDRAIN_NODE: self._commands.undrain,
            HookOperation.RESTART_JOB: self._commands.requeue,
        }[act.operation]
        return _fill(template, act)

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


def _fill(template: Sequence[str], act: Act) -> list[str]:
    is_job = act.operation is HookOperation.RESTART_JOB
    words = {"node": "" if is_job else act.target, "job": act.target if is_job else act.job, "reason": act.reason}
    return [part.format(**words) for part in template]
