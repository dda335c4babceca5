"""What another witness of a hang says beside the rings: whether it agrees, contradicts, or has nothing to say. Pure.

torch's flight recorder and NCCL's RAS see the same calls by other means than the rings: where they name the same rank
the verdict is surer, where they name another one that is said and the verdict is less sure. Whom they name is taken
over only where the rings name nobody, could not see the one that they named, or doubt it themselves. A rank of which a
witness knows nothing is never guilty for that.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from enum import Enum

from .....telemetry.vocabulary import Kind, Scope


class Opinion(str, Enum):
    """What a witness's word is to a verdict."""

    AGREES = "agrees"
    CONTRADICTS = "contradicts"
    #: The rings name nobody, and it does.
    NAMES = "names"
    #: The rings were blind for the one that they named, or doubted it themselves, and it does not.
    CORRECTS = "corrects"
    UNCLEAR = "unclear"


@dataclass(frozen=True, slots=True)
class NamedRank:
    """A rank that a witness names. because: what it saw, the end of a sentence."""

    rank: int
    probability: float
    because: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Testimony:
    """What a witness says of a hang. signal: of its evidence. source: who it is, and how much of the job it has seen.

    named: nobody is an answer as well, where ``kind`` is known; None: nothing can be said. unseen: ranks of which it
    knows nothing. written_ns: Unix, the newest thing that it rests on.
    """

    signal: str
    source: str
    summary: str
    kind: Kind | None
    scope: Scope | None = None
    named: tuple[NamedRank, ...] = ()
    confidence: float = 0.0
    unseen: tuple[int, ...] = ()
    is_clear: bool = True
    group: str | None = None
    sequence: int | None = None
    operation: str | None = None
    written_ns: int = 0


#: A verdict of less is for want of a better one: the first of many who only say that a peer went away.
DOUBTED = 0.5


def weigh(
    testimony: Testimony, kind: Kind, suspects: Collection[int], blind: Collection[int], confidence: float
) -> Opinion:
    """What the testimony is to a verdict by rings. kind, suspects, confidence: of that.

    blind: ranks whose rings told nothing that the verdict rests on.
    Suspects of whom the witness knows nothing can be neither confirmed nor cleared by it.
    """
    told = {one.rank for one in testimony.named}
    if testimony.kind is None or not testimony.is_clear:
        return Opinion.UNCLEAR
    if not suspects:
        if told:
            return Opinion.NAMES
        return Opinion.AGREES if testimony.kind is kind else Opinion.UNCLEAR
    if told & set(suspects):
        return Opinion.AGREES
    if set(suspects) & set(testimony.unseen):
        return Opinion.UNCLEAR
    if told and (set(suspects) <= set(blind) or confidence < DOUBTED):
        return Opinion.CORRECTS
    if told or not testimony.unseen:
        return Opinion.CONTRADICTS
    return Opinion.UNCLEAR


def confidence_with(opinion: Opinion, confidence: float) -> float:
    """The strength of a verdict beside that opinion: an independent witness halves the doubt, or the confidence."""
    if opinion is Opinion.AGREES:
        return 1.0 - (1.0 - confidence) / 2.0
    return confidence / 2.0 if opinion is Opinion.CONTRADICTS else confidence
