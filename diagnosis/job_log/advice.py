"""What to do, from the class and from what the whole log tells beside it: attempts that ended alike, training that was done."""

from __future__ import annotations

from dataclasses import dataclass

from ...telemetry.vocabulary import Action
from .model import FailureClass, Rank, Restart, Suspects

#: Classes that make a finished training's result worthless, or that the next job meets as well.
OUTLIVES_THE_END = frozenset({"disk_full", "quota_exceeded", "permission_denied", "checkpoint_write", "filesystem_error"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    action: Action
    restart: Restart
    text: str


def advise(
    failure: FailureClass, *, is_cause: bool, is_after_end: bool, attempts: int, suspects: Suspects, differs: str
) -> Advice:
    """attempts: in how many starts of the job the same was said. differs: how the suspects differ from the others."""
    if is_after_end and failure.name not in OUTLIVES_THE_END:
        return Advice(
            action=Action.WAIT,
            restart=Restart.NO,
            text="training was done before: nothing to restart; check that the last checkpoint is whole",
        )
    action, restart, text = failure.action, failure.restart, failure.advice
    if differs in ("behind", "silent") and suspects.ranks and failure.rank is Rank.SYMPTOM:
        action = Action.ASK_A_HUMAN if differs == "behind" else action
        text = f"{_who(suspects)}: stacks of it tell where it stands; {text}"
    elif suspects.peers or suspects.missing:
        text = f"look at {_who(suspects)}; {text}"
    if not is_cause:
        text = f"the cause is not in this log; {text}"
    if attempts > 1:
        restart = Restart.NO
        text = f"{attempts} attempts ended alike, so a restart unchanged will, too; {text}"
    return Advice(action=action, restart=restart, text=text)


def _who(suspects: Suspects) -> str:
    if suspects.ranks:
        return ("rank " if len(suspects.ranks) == 1 else "ranks ") + ", ".join(map(str, suspects.ranks))
    return ", ".join((*suspects.peers, *suspects.nodes))
