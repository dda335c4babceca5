"""Which attempt a record belongs to, whatever the order in which the nodes' records come."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from whichrank.processors.job.state.attempts import Attempts, Place
from whichrank.processors.job.state.state_rows import read_attempts, write_attempts


@dataclass(frozen=True)
class Launch:
    """One start of one node's ranks; its records are the start of each rank, where they met, a row or two."""

    node: int
    number: int  # of the attempt
    ranks: tuple[int, ...]
    store: str = ""

    @property
    def id(self) -> str:
        return f"{self.node}.{self.number}"

    @property
    def token(self) -> str:
        return self.store or f"T{self.number}"


def start(attempts: Attempts, launch: Launch) -> Place:
    started_ns = 1_000_000_000 * (1000 + 60 * launch.number + 5 * launch.node)
    places = [attempts.place(launch.id, (rank,), started_ns=started_ns) for rank in launch.ranks]
    return places[0]


def tell(attempts: Attempts, launch: Launch) -> Place:
    return attempts.tell_token(launch.id, launch.token)


A1, A2 = Launch(0, 1, (0, 1)), Launch(0, 2, (0, 1))
B1, B2 = Launch(1, 1, (2, 3)), Launch(1, 2, (2, 3))


def test_ranks_that_have_not_joined_attach_to_the_attempt_that_runs() -> None:
    attempts = Attempts()
    assert start(attempts, A1) is Place.BEGINS
    assert tell(attempts, A1) is Place.CURRENT
    assert start(attempts, B1) is Place.CURRENT
    assert tell(attempts, B1) is Place.CURRENT
    assert attempts.count == 1
    assert [attempts.launch_of(rank) for rank in (0, 3, 9)] == [A1.id, B1.id, ""]


@pytest.mark.parametrize("store", ["", "the same over restarts"])
def test_a_rank_that_starts_again_begins_an_attempt_and_the_other_node_follows(store: str) -> None:
    a1, b1, a2, b2 = (replace(launch, store=store) for launch in (A1, B1, A2, B2))
    attempts = Attempts()
    start(attempts, a1)
    start(attempts, b1)
    tell(attempts, b1)
    assert start(attempts, b2) is Place.BEGINS
    assert attempts.place(a1.id) is Place.PAST
    assert start(attempts, a2) is Place.CURRENT
    assert tell(attempts, a2) is Place.CURRENT
    assert tell(attempts, b2) is Place.CURRENT
    assert attempts.place(a2.id, (1,)) is Place.CURRENT
    assert tell(attempts, b1) is Place.PAST
    assert (attempts.count, attempts.founder) == (2, b2.id)


def test_ranks_that_met_elsewhere_are_of_another_attempt_even_if_never_seen_before() -> None:
    """Node 1 was out of sight in the first attempt, and restarts first."""
    attempts = Attempts()
    start(attempts, A1)
    tell(attempts, A1)
    assert start(attempts, B2) is Place.CURRENT
    assert tell(attempts, B2) is Place.BEGINS
    assert attempts.place(A1.id) is Place.PAST
    assert start(attempts, A2) is Place.CURRENT
    assert attempts.count == 2


def test_a_node_whose_old_records_come_late_is_put_back_where_it_belongs() -> None:
    """Node 1's first attempt is heard of only when node 0 is in its second."""
    attempts = Attempts()
    start(attempts, A1)
    start(attempts, A2)
    tell(attempts, A2)
    assert start(attempts, B1) is Place.CURRENT  # nothing speaks against it yet
    assert tell(attempts, B1) is Place.PAST
    assert start(attempts, B2) is Place.CURRENT
    assert tell(attempts, B2) is Place.CURRENT
    assert (attempts.count, attempts.founder) == (2, A2.id)


def test_the_first_launch_corrects_what_late_ones_have_told() -> None:
    attempts = Attempts()
    start(attempts, A1)
    start(attempts, A2)
    start(attempts, B1)
    assert tell(attempts, B1) is Place.CURRENT
    assert tell(attempts, A2) is Place.CURRENT
    assert attempts.place(B1.id) is Place.PAST
    assert start(attempts, B2) is Place.CURRENT


def test_a_record_without_ranks_from_nowhere_attaches() -> None:
    attempts = Attempts()
    attempts.place("one", (0,))
    assert attempts.place("new") is Place.CURRENT
    assert attempts.place("other", (0,)) is Place.BEGINS


# --- launches that live again: torch's launcher starts all its ranks anew, and does not count it ----------------------
SECOND = 1_000_000_000


def live(attempts: Attempts, launch: Launch, at_s: int) -> Place:
    at_ns = at_s * SECOND
    places = [attempts.place(launch.id, (rank,), started_ns=at_ns, started_local_ns=at_ns) for rank in launch.ranks]
    return places[0]


def end(attempts: Attempts, launch: Launch, at_s: int) -> None:
    for _ in launch.ranks:
        attempts.place(launch.id)
        attempts.note_end(launch.id, at_s * SECOND)


C2 = Launch(2, 2, (2, 3), "the same")
SURVIVOR, GONE = replace(A1, store="the same"), replace(B1, store="the same")


def two_nodes() -> Attempts:
    attempts = Attempts()
    for launch in (SURVIVOR, GONE):
        live(attempts, launch, 100)
        tell(attempts, launch)
    return attempts


@pytest.mark.parametrize("survivor_first", [True, False])
def test_a_node_is_replaced_and_the_other_launcher_starts_its_ranks_again(survivor_first: bool) -> None:
    attempts = two_nodes()
    end(attempts, SURVIVOR, 110)
    order = [SURVIVOR, C2] if survivor_first else [C2, SURVIVOR]
    assert [live(attempts, launch, 115) for launch in order] == [Place.BEGINS, Place.CURRENT]
    assert [tell(attempts, launch) for launch in order] == [Place.CURRENT, Place.CURRENT]
    assert attempts.place(SURVIVOR.id) is attempts.place(C2.id) is Place.CURRENT
    assert attempts.place(GONE.id) is Place.PAST
    assert attempts.count == 2
    assert [attempts.launch_of(rank) for rank in range(4)] == [SURVIVOR.id] * 2 + [C2.id] * 2


def test_attempts_that_one_launch_begins_have_names_of_their_own() -> None:
    attempts = two_nodes()
    names = [attempts.name]
    for at_s in (110, 120, 130):
        end(attempts, SURVIVOR, at_s)
        end(attempts, GONE, at_s)
        assert live(attempts, SURVIVOR, at_s + 5) is Place.BEGINS
        assert live(attempts, GONE, at_s + 5) is Place.CURRENT
        assert tell(attempts, SURVIVOR) is tell(attempts, GONE) is Place.CURRENT
        names.append(attempts.name)
    assert len(set(names)) == attempts.count == 4
    assert set(attempts.members) == {SURVIVOR.id, GONE.id}


@pytest.mark.parametrize("survivor_first", [True, False])
def test_a_node_that_is_lost_before_anybody_met_is_replaced(survivor_first: bool) -> None:
    attempts = Attempts()
    live(attempts, SURVIVOR, 100)
    live(attempts, GONE, 100)
    end(attempts, SURVIVOR, 110)
    for launch in [SURVIVOR, C2] if survivor_first else [C2, SURVIVOR]:
        live(attempts, launch, 115)
    assert tell(attempts, C2) is tell(attempts, SURVIVOR) is Place.CURRENT
    assert set(attempts.members) == {SURVIVOR.id, C2.id}
    assert attempts.place(GONE.id) is Place.PAST


def test_a_check_that_a_wrapper_runs_before_its_trainer_is_no_attempt() -> None:
    attempts = Attempts()
    attempts.place(A1.id, (0,), started_ns=SECOND, started_local_ns=SECOND)
    attempts.place(A1.id, (1,), started_ns=SECOND, started_local_ns=SECOND)
    attempts.note_end(A1.id, 2 * SECOND)
    assert attempts.place(A1.id, (0,), started_ns=3 * SECOND, started_local_ns=3 * SECOND) is Place.CURRENT
    attempts.note_end(A1.id, 4 * SECOND)
    assert attempts.place(A1.id, (1,), started_ns=5 * SECOND, started_local_ns=5 * SECOND) is Place.CURRENT
    assert attempts.count == 1


def test_what_an_agent_tells_again_of_a_launch_that_is_over_does_not_revive_it() -> None:
    attempts = two_nodes()
    end(attempts, GONE, 110)
    assert start(attempts, Launch(1, 2, (2, 3))) is Place.BEGINS
    assert live(attempts, GONE, 100) is Place.PAST
    assert attempts.place(GONE.id, (2,)) is Place.PAST


def test_state_of_the_release_before_is_read() -> None:
    attempts = two_nodes()
    start(attempts, Launch(1, 2, (2, 3)))
    before = {name: write_attempts(attempts)[name] for name in ("count", "founder", "members", "started_ns", "tokens")}
    again = read_attempts({**before, "past": attempts.past})
    assert write_attempts(again) == write_attempts(attempts)


def test_two_launches_of_one_attempt_on_one_node_are_one_attempt() -> None:
    attempts = Attempts()
    start(attempts, A1)
    start(attempts, Launch(2, 1, (4, 5)))
    assert attempts.count == 1


def test_what_is_saved_is_what_is_loaded() -> None:
    attempts = Attempts()
    for launch in (A1, B1, A2):
        start(attempts, launch)
        tell(attempts, launch)
    again = read_attempts(json.loads(json.dumps(write_attempts(attempts))))
    assert write_attempts(again) == write_attempts(attempts)
    assert again.place(A1.id) is Place.PAST
    assert again.place(A2.id) is Place.CURRENT


NODES, ATTEMPTS = 3, 4
Said = tuple[str, Launch]


def stream(node: int, tells: Sequence[bool], store: str = "") -> list[Said]:
    """What a node's agent says over all attempts, in its order. tells: of each attempt, whether its ranks met."""
    said: list[Said] = []
    for number, told in enumerate(tells, start=1):
        launch = Launch(node, number, (2 * node, 2 * node + 1), store)
        said += [("start", launch), *([("token", launch)] if told else []), ("row", launch)]
    return said


@st.composite
def interleavings(draw: st.DrawFn) -> list[Said]:
    """Any order of the nodes' streams, each in its own order, one perhaps all attempts behind another.

    Where a launch has met is told before another node's next word: it takes seconds, such a lag takes longer.
    """
    streams = [stream(node, [True] * ATTEMPTS) for node in range(NODES)]
    mixed = []
    while any(streams):
        chosen = draw(st.sampled_from([s for s in streams if s]))
        mixed.append(chosen.pop(0))
        if mixed[-1][0] == "start":
            mixed.append(chosen.pop(0))
    return mixed


def follow(records: Sequence[Said]) -> tuple[Attempts, list[int]]:
    """The attempts, and with which number of attempt each began."""
    attempts, begun = Attempts(), []
    for what, launch in records:
        if what == "start":
            place = start(attempts, launch)
        else:
            place = tell(attempts, launch) if what == "token" else attempts.place(launch.id)
        if place is Place.BEGINS:
            begun.append(launch.number)
    return attempts, begun


@settings(max_examples=100, deadline=None)
@given(interleavings())
def test_any_interleaving_ends_in_the_last_attempt_with_all_of_its_nodes(records: list[Said]) -> None:
    attempts, begun = follow(records)
    assert set(attempts.members) == {f"{node}.{ATTEMPTS}" for node in range(NODES)}
    assert begun[-1] == ATTEMPTS
    assert len(begun) == len(set(begun))  # none begins twice


@st.composite
def restarts_in_turn(draw: st.DrawFn) -> list[Said]:
    """As restarts are: a node starts an attempt only after every node has started the one before.

    The store may be a new one in each attempt or the same in all, and a launch may end before its ranks have met.
    """
    store = draw(st.sampled_from(["", "the same over restarts"]))
    streams = [stream(node, [draw(st.booleans()) for _ in range(ATTEMPTS)], store) for node in range(NODES)]
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
def test_restarts_give_as_many_attempts_as_there_were(records: list[Said]) -> None:
    attempts, begun = follow(records)
    assert begun == list(range(1, ATTEMPTS + 1))
    assert set(attempts.members) == {f"{node}.{ATTEMPTS}" for node in range(NODES)}
