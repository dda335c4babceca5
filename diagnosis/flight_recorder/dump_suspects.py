"""Suspects and those who only look like ones, each with its reason in words. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ...telemetry.ring_layout import format_ranks
from ...telemetry.vocabulary import Action
from .divergence import DumpDivergence
from .dump_wait_graph import DumpWait, WaitGraph, victims_of
from .group_state import GroupFinding, GroupState

#: Where nothing but the shape of the evidence is known: the judgement of people who read many such dumps.
SURE, LIKELY, EVEN = 0.95, 0.75, 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class DumpSuspect:
    rank: int
    probability: float
    finding: GroupFinding
    because: str


@dataclass(frozen=True, slots=True)
class RuledOut:
    """Ranks that look guilty, why, and why they are not."""

    ranks: tuple[int, ...]
    looks_guilty: str
    because: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DumpAdvice:
    action: Action
    text: str


def how_it_differs(divergence: DumpDivergence, mismatch: str, *, is_tie: bool) -> str:
    """The mismatch in words, with what the majority called. is_tie: there is no majority."""
    majority = divergence.majority[-1]
    shifted = "; it left a call out or made one more" if divergence.is_shifted else ""
    others = "the members differ" if is_tie else f"the others called {majority.op} {_shape(majority.input_sizes)}"
    return f"{mismatch} in call {divergence.sequence}: {others}{shifted}"


def not_entered(rank: int, graph: WaitGraph, unfinished: GroupState | None) -> DumpSuspect:
    """A suspect that others wait for in a call that it did not enter, with the reason in words.

    unfinished: a group in which its device does not end a call that ended for the others, None for none.
    """
    waits = graph.for_[rank]
    waiting = len({waiter for one in waits for waiter in one.entries})
    is_open = any(entry.is_open for one in waits for entry in one.entries.values())
    because = f"did not enter {_call(first_wait(graph, rank))}; {waiting} ranks wait for it, and it waits for nobody"
    if not is_open:
        because += " (their calls are over: they failed, or the job ran on and the ranks dumped one after the other)"
    if unfinished is not None:
        because += f"; {not_finished(rank, unfinished).because}"
    return DumpSuspect(
        rank=rank, probability=SURE if is_open else EVEN, finding=GroupFinding.NOT_ENTERED, because=because
    )


def fell_behind(rank: int, graph: WaitGraph) -> DumpSuspect:
    """A suspect whose peers went on to a call that it never entered."""
    wait = first_wait(graph, rank)
    return DumpSuspect(
        rank=rank,
        probability=LIKELY,
        finding=GroupFinding.NOT_ENTERED,
        because=f"did not enter {_call(wait)}, though peers that wait in the same calls went on to it",
    )


def not_finished(rank: int, state: GroupState) -> DumpSuspect:
    """A suspect whose call is still open while it ended for the others. state: of the group with that call."""
    entry = state.open_calls[rank][0]
    return DumpSuspect(
        rank=rank,
        probability=LIKELY,
        finding=GroupFinding.NOT_FINISHED,
        because=f"{entry.op} {entry.sequence} of {state.group.label} ended for the others and not for it",
    )


def not_started(rank: int, state: GroupState) -> DumpSuspect:
    """A suspect whose device has not begun a call that the others' devices have. state: of the group with that call."""
    entry = state.open_calls[rank][0]
    return DumpSuspect(
        rank=rank,
        probability=LIKELY,
        finding=GroupFinding.NOT_STARTED,
        because=f"its device has not begun {entry.op} {entry.sequence} of {state.group.label}, and the others' have",
    )


def ruled_out(graph: WaitGraph, named: set[int], states: Sequence[GroupState]) -> tuple[RuledOut, ...]:
    """Ranks that only look guilty: behind a named one, in a row behind it, or with calls queued on the device.

    named: the suspects' ranks.
    """
    held_up = victims_of(graph, named) if named else set(graph.of)
    behind = tuple(sorted(rank for rank in graph.for_ if rank in held_up and rank not in named))
    waiting = tuple(sorted(held_up - set(behind) - named))
    queued = tuple(sorted({rank for state in states for rank in state.open_calls} - held_up - named))
    rows = []
    if behind:
        rows.append(
            RuledOut(
                behind,
                "others wait for them in a call that they have not entered",
                "they are held up themselves: each waits in a call of another group for somebody else",
            )
        )
    if waiting:
        rows.append(RuledOut(waiting, "their calls time out", "they entered the call, and others have not"))
    if queued:
        rows.append(
            RuledOut(
                queued,
                "their calls time out",
                "everybody entered their calls: the calls are queued behind what holds up another member",
            )
        )
    return tuple(rows)


def first_wait(graph: WaitGraph, rank: int) -> DumpWait:
    """The call that others wait for this rank in and that it should have entered next.

    Ranks of one job make their calls in one order, so records number them alike, whatever the nodes' clocks say; stages
    of a pipeline do not, so sends and receives come last.
    """
    return min(
        graph.for_[rank],
        key=lambda wait: (wait.state is None, min(entry.record_id for entry in wait.entries.values())),
    )


def named_ranks(suspects: Sequence[DumpSuspect]) -> str:
    """The suspects' ranks in words, as a sentence needs them: "rank 3" or "ranks 3-5"."""
    ranks = [suspect.rank for suspect in suspects]
    return f"rank{'s' if len(ranks) > 1 else ''} {format_ranks(ranks)}"


def _call(wait: DumpWait) -> str:
    entry = wait.call
    return f"{entry.op} {entry.p2p_sequence if entry.is_p2p else entry.sequence} of {wait.label}"


def _shape(sizes: tuple[tuple[int, ...], ...]) -> str:
    return " ".join("x".join(map(str, shape)) or "scalar" for shape in sizes[:4]) or "without tensors"
