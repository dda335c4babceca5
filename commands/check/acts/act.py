"""One act: what would be changed, whether it is so already, and what became of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import Enum


class ActState(str, Enum):
    """What became of an act."""

    #: Without --act: it would be done.
    WOULD = "would"
    DONE = "done"
    #: It was so already.
    ALREADY = "already"
    FAILED = "failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeAct:
    """what: a word of docs/check.md ("limit", "mount", "end_process"). on: what it is done to. text: for people.

    is_so: whether nothing is left to do. do: does it; raises OSError, ValueError with the reason.
    """

    what: str
    on: str
    text: str
    is_so: Callable[[], bool]
    do: Callable[[], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class ActResult:
    """why: of one that failed."""

    what: str
    on: str
    text: str
    done: ActState
    why: str = ""


def carry_out(acts: Iterable[NodeAct], *, is_meant: bool) -> list[ActResult]:
    """Does what is not so yet, one after the other, if it is meant; tells what became of each."""
    return [_carry_out(act, is_meant=is_meant) for act in acts]


def _carry_out(act: NodeAct, *, is_meant: bool) -> ActResult:
    why = ""
    try:
        if act.is_so():
            done = ActState.ALREADY
        elif is_meant:
            act.do()
            done = ActState.DONE
        else:
            done = ActState.WOULD
    except (OSError, ValueError) as error:
        done, why = ActState.FAILED, str(error)[:300]
    return ActResult(what=act.what, on=act.on, text=act.text, done=done, why=why)
