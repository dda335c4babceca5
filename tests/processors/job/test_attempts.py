"""Which attempt a record belongs to, whatever the order in which the nodes' records come."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

from hypothesis import given, settings
from hypothesis import strategies as st

from whichrank.processors.job.attempts import Attempts, Place


@dataclass(frozen=True)
class Launch:
    """One start of one node's ranks; its records are (start of each rank), token, a row or two."""

    node: int
    number: int  # of the attempt
    ranks: tuple[int, ...]
    tells: bool = True

    @property
    def id(self) -> str:
        return f"~{self.node}.{self.number}"

    @property
    def token(self) -> str:
        return f"T{self.number}"


def start(attempts: Attempts, launch: Launch) -> Place:
    places = [attempts.place(launch.id, (rank,)) for rank in launch.ranks]
    return places[0]


def tell(attempts: Attempts, launch: Launch) -> Place:
    return attempts.alias(launch.id, launch.token)


A1, A2 = Launch(0, 1, (0, 1)), Launch(0, 2, (0, 1))
B1, B2 = Launch(1, 1, (2, 3)), Launch(1, 2, (2, 3))


def test_ranks_that_have_not_joined_attach_to_the_attempt_that_runs() -> None:
    attempts = Attempts()
    assert start(attempts, A1) is Place.BEGINS
    assert tell(attempts, A1) is Place.CURRENT
    assert start(attempts, B1) is Place.CURRENT
    assert tell(attempts, B1) is Place.CURRENT
    assert (attempts.count, attempts.token) == (1, "T1")


def test_a_rank_that_starts_again_begins_an_attempt_and_the_other_node_follows() -> None:
    attempts = Attempts()
    start(attempts, A1)
    start(attempts, B1)
    tell(attempts, B1)
    assert start(attempts, B2) is Place.BEGINS
    assert attempts.place(A1.id) is Place.PAST
    assert attempts.place("T1") is Place.PAST
    assert start(attempts, A2) is Place.CURRENT
    assert tell(attempts, A2) is Place.CURRENT
    assert attempts.place("T2", (1,)) is Place.CURRENT
    assert attempts.count == 2


def test_another_token_is_another_attempt_even_of_ranks_never_seen_before() -> None:
    attempts = Attempts()
    attempts.place("T1", (0,))
    assert attempts.place("T2", (5,)) is Place.BEGINS
    assert attempts.place("T1", (0,)) is Place.PAST


def test_an_attempt_that_ended_before_it_had_a_token_is_over_all_the_same() -> None:
    attempts = Attempts()
    start(attempts, A1)
    assert start(attempts, A2) is Place.BEGINS
    assert attempts.place(A1.id, (0,)) is Place.PAST
    assert tell(attempts, A2) is Place.CURRENT
    assert attempts.token == "T2"


def test_a_node_whose_old_records_come_late_is_put_back_where_it_belongs() -> None:
    """Node 1's first attempt is heard of only when node 0 is in its second."""
    attempts = Attempts()
    start(attempts, A1)
    tell(attempts, A1)
    start(attempts, A2)
    assert start(attempts, B1) is Place.CURRENT  # nothing speaks against it yet
    assert tell(attempts, B1) is Place.PAST
    assert start(attempts, B2) is Place.CURRENT
    assert tell(attempts, A2) is Place.CURRENT
    assert tell(attempts, B2) is Place.CURRENT
    assert (attempts.count, attempts.token) == (2, "T2")


def test_a_record_without_ranks_from_nowhere_attaches() -> None:
    attempts = Attempts()
    attempts.place("T1", (0,))
    assert attempts.place("~new") is Place.CURRENT
    assert attempts.place("~other", (0,)) is Place.BEGINS


def test_two_launches_of_one_attempt_on_one_node_are_one_attempt() -> None:
    attempts = Attempts()
    start(attempts, A1)
    start(attempts, Launch(0, 1, (4, 5)))
    assert attempts.count == 1


def test_what_is_saved_is_what_is_loaded() -> None:
    attempts = Attempts()
    for launch in (A1, B1, A2):
        start(attempts, launch)
        tell(attempts, launch)
    again = Attempts.from_json(json.loads(json.dumps(attempts.as_json())))
    assert again.as_json() == attempts.as_json()
    assert again.place("T1") is Place.PAST
    assert again.place("T2") is Place.CURRENT


NODES, ATTEMPTS = 3, 4


def stream(node: int, tells: Sequence[bool]) -> list[tuple[str, Launch]]:
    """What a node's agent says over all attempts, in its order. tells: of each attempt, whether the token got known."""
    said = []
    for number, told in enumerate(tells, start=1):
        launch = Launch(node, number, (2 * node, 2 * node + 1))
        said += [("start", launch), *([("token", launch)] if told else []), ("row", launch)]
    return said


@st.composite
def interleavings(draw: st.DrawFn) -> list[tuple[str, Launch]]:
    """Any order of the nodes' streams, each in its own order, one perhaps all attempts behind another."""
    streams = [stream(node, [True] * ATTEMPTS) for node in range(NODES)]
    mixed = []
    while any(streams):
        chosen = draw(st.sampled_from([s for s in streams if s]))
        mixed.append(chosen.pop(0))
    return mixed


def follow(records: Sequence[tuple[str, Launch]]) -> Attempts:
    attempts = Attempts()
    for what, launch in records:
        if what == "start":
            start(attempts, launch)
        elif what == "token":
            tell(attempts, launch)
        else:
            attempts.place(launch.id)
    return attempts


@settings(max_examples=100, deadline=None)
@given(interleavings())
def test_any_interleaving_ends_in_the_last_attempt_with_all_of_its_nodes(records: list[tuple[str, Launch]]) -> None:
    attempts = follow(records)
    last = {f"~{node}.{ATTEMPTS}" for node in range(NODES)}
    assert attempts.token == f"T{ATTEMPTS}"
    assert last <= set(attempts.members)
    assert not {member for member in attempts.members if member.startswith("~")} - last
    for number in range(1, ATTEMPTS):
        assert attempts.place(f"T{number}") is not Place.CURRENT


@st.composite
def restarts_in_turn(draw: st.DrawFn) -> list[tuple[str, Launch]]:
    """As restarts are: a node starts an attempt only after every node has started the one before."""
    streams = [stream(node, [draw(st.booleans()) for _ in range(ATTEMPTS)]) for node in range(NODES)]
    begun = [0] * NODES
    mixed = []
    while any(streams):
        ready = [
            node
            for node, rest in enumerate(streams)
            if rest and (rest[0][0] != "start" or min(begun) >= rest[0][1].number - 1)
        ]
        node = draw(st.sampled_from(ready))
        what, launch = streams[node].pop(0)
        begun[node] += what == "start"
        mixed.append((what, launch))
    return mixed


@settings(max_examples=100, deadline=None)
@given(restarts_in_turn())
def test_restarts_give_as_many_attempts_as_there_were(records: list[tuple[str, Launch]]) -> None:
    attempts, seen = Attempts(), []
    for what, launch in records:
        place = start(attempts, launch) if what == "start" else Place.CURRENT
        if what == "token":
            tell(attempts, launch)
        elif what == "row":
            place = attempts.place(launch.id)
        if place is Place.BEGINS:
            seen.append(launch.number)
    assert seen == list(range(1, ATTEMPTS + 1))
    assert attempts.count == ATTEMPTS
