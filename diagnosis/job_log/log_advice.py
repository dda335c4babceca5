"""What to do: from the class, and from what the whole log tells beside it.

Attempts that ended alike speak against another; where training was done there is nothing to start again.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from ...telemetry.vocabulary import Action, Bucket
from .model import FailureClass, Rank, Restart, Suspects

#: Classes that make a finished training's result worthless, or that the next job meets as well.
OUTLIVES_THE_END = frozenset(
    {"disk_full", "quota_exceeded", "permission_denied", "filesystem_read_only", "checkpoint_write", "filesystem_error"}
)


#: What no second start changes, whatever the class says of its like.
SURE = re.compile(
    r"version mismatch|\b(?:driver|version)\b.{0,40}\b(?:too old|insufficient)|\bincompatible version|"
    r"unsupported (?:version|display driver)|"
    r"not compiled with|was compiled (?:with|for|against)|\brequires (?:at least )?(?:CUDA|driver|version|"
    r"glibc|python)\b|"
    # An index that the data or the model's sizes do not allow: the same batch brings it again.
    r"Assertion `[^`']{0,200}(?:n_classes|num_?(?:classes|embeddings)|[Ii]ndex|\bidx)[^`']{0,80}[`'] failed",
    re.IGNORECASE,
)


#: An eviction for what the job itself used: more than it may, or more than the node had beside others.
OVER_ITS_LIMIT = re.compile(r"exceeds? (?:the |its )?(?:total )?(?:\w+ )?(?:limit|quota)", re.IGNORECASE)
OWN_USE = re.compile(r"[Cc]ontainers? \S+ was using|larger consumption of|exceeds its request", re.IGNORECASE)


#: Numbers of one rank by itself: its device may be why, and another one get them right. Those of the whole job, as its
#: loss is, come out the same as often as not.
OF_ONE_RANK = re.compile(r"\brank\W{0,3}\d", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class LogAdvice:
    action: Action
    restart: Restart
    text: str


def advise(
    failure: FailureClass,
    *,
    text: str,
    is_cause: bool,
    is_after_end: bool,
    attempts: int,
    suspects: Suspects,
    differs: str,
    is_in_the_course: bool = False,
) -> LogAdvice:
    """What to do about a failure, whether a restart helps, and the advice in words.

    text: of the statement that decides. attempts: in how many starts of the job the same was said. differs: how the
    suspects differ from the others. is_in_the_course: the numbers of the training's own steps show it, and what was
    saved meanwhile may hold it.
    """
    if is_after_end and failure.name not in OUTLIVES_THE_END:
        return LogAdvice(
            action=Action.WAIT,
            restart=Restart.NO,
            text="training was done before: nothing to restart; check that the last checkpoint is whole",
        )
    action, restart, told = failure.action, failure.restart, failure.advice
    is_evicted = failure.name == "evicted"
    if SURE.search(text) or (is_evicted and OVER_ITS_LIMIT.search(text)):
        restart = Restart.NO
    elif (is_evicted and OWN_USE.search(text)) or (
        failure.name == "non_finite" and (is_in_the_course or not OF_ONE_RANK.search(text))
    ):
        restart = Restart.UNKNOWN
    elif suspects.peers and len(suspects.peers) == 1 and restart is Restart.YES and failure.rank is not Rank.ROOT:
        # One and the same peer: whether it answers the next time is not told here.
        restart = Restart.UNKNOWN
    if differs in ("behind", "silent") and suspects.ranks and failure.rank is Rank.SYMPTOM:
        action = Action.ASK_A_HUMAN if differs == "behind" else action
        told = f"{_who(suspects)}: stacks of it tell where it stands; {told}"
    elif suspects.peers or suspects.missing:
        told = f"look at {_who(suspects)}; {told}"
    if not is_cause:
        told = f"the cause is not in this log; {told}"
        if restart is Restart.YES and failure.bucket is not Bucket.PLANNED:
            restart = Restart.UNKNOWN
    if attempts > 1:
        restart = Restart.NO
        told = f"{attempts} attempts ended alike, so a restart unchanged will, too; {told}"
    return LogAdvice(action=action, restart=restart, text=told)


def _who(suspects: Suspects) -> str:
    if suspects.ranks:
        return ("rank " if len(suspects.ranks) == 1 else "ranks ") + ", ".join(map(str, suspects.ranks))
    return ", ".join((*suspects.peers, *suspects.nodes))
