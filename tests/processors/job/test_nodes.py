"""One job on two nodes: clocks apart, nodes gone, agents gone, who comes back, and what a follower says alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.processors.job.synthetic_job import (
    FOREVER,
    SECOND,
    WALL_NS,
    Action,
    Call,
    SyntheticJob,
    drive,
)
from whichrank.processors.job.detectors.hang.wait_graph import Wait, find_blockage
from whichrank.processors.job.hang.pending_collectives import find_waits
from whichrank.processors.job.nodes import lost_nodes
from whichrank.processors.job.state.job_state import JobState
from whichrank.telemetry.records import Block, Event, Finding, Record
from whichrank.telemetry.vocabulary import EventName, ExitState, Phase

#: The second node's clock is this far off, of both kinds: an hour of uptime apart is usual.
SKEW_NS = 30 * SECOND
VICTIM = {"type": "RuntimeError", "message": "Connection closed by peer", "communication": True}
Happening = tuple[float, EventName, int, dict[str, Any]]


def node_of(rank: int) -> str:
    return "node-0" if rank < 2 else "node-1"


def two_nodes(*events: Happening, skew_ns: int = SKEW_NS, nodes: int = 2, **more: Any) -> SyntheticJob:
    connected = {"role": "follower", "offset_ns": WALL_NS - skew_ns}
    return SyntheticJob(
        node_of=node_of,
        clock_skew_ns=lambda node: skew_ns if node == "node-1" else 0,
        events=[
            (0.0, EventName.JOB_STARTED, 0, {"nodes": nodes}),
            (0.01, EventName.PEER_CONNECTED, 2, connected),
            (0.02, EventName.JOB_STARTED, 2, {"nodes": nodes}),
            *events,
        ],
        **more,
    )


def said(job: SyntheticJob | list[Record], idle_s: float = 5.0) -> list[Finding]:
    """The last word of each finding."""
    records = job if isinstance(job, list) else job.records()
    return list(drive(records, idle_s=idle_s).final().values())


def one(job: SyntheticJob | list[Record]) -> Finding:
    found = said(job)
    assert [(finding.body["kind"], finding.body["suspects"]) for finding in found][1:] == []
    return found[0]


def ranks_of(finding: Finding) -> list[int]:
    return [suspect["rank"] for suspect in finding.body["suspects"]]


# --- clocks apart -----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("skew_ns", [0, SKEW_NS, -SKEW_NS])
def test_a_hang_on_either_node(skew_ns: int) -> None:
    for guilty in (1, 3):
        delays = [lambda r, s, p, g=guilty: FOREVER if (r, s, p) == (g, 20, Phase.FORWARD) else 0]
        finding = one(two_nodes(skew_ns=skew_ns, steps=40, delays=delays))
        assert (finding.body["kind"], ranks_of(finding)) == ("rank_not_entered", [guilty])
        assert abs(finding.body["times"]["onset"] - finding.body["times"]["detected"]) < 6.0


@pytest.mark.parametrize("skew_ns", [0, SKEW_NS, -SKEW_NS])
@pytest.mark.parametrize("guilty", [0, 2])
def test_the_first_to_die_is_found_over_clocks_apart(guilty: int, skew_ns: int) -> None:
    """Everybody else raises a victim's error; one on the other node raises an error of its own a little later."""
    other = 2 if guilty == 0 else 0
    crash: list[Happening] = [
        (4.39, EventName.RANK_EXCEPTION, guilty ^ 1, VICTIM),
        (4.4, EventName.RANK_EXIT, guilty, {"signal": 11, "exit_state": int(ExitState.RUNNING)}),
        (4.7, EventName.RANK_EXCEPTION, other, {"type": "ValueError", "message": "what the crash left behind"}),
        (4.8, EventName.RANK_EXCEPTION, other + 1, VICTIM),
    ]
    finding = one(two_nodes(*crash, skew_ns=skew_ns, steps=40, ends={guilty: 4.4}))
    assert (finding.body["kind"], ranks_of(finding)) == ("rank_died", [guilty])
    assert abs(finding.body["times"]["onset"] - (WALL_NS / 1e9 + 104.4)) < 0.1


@pytest.mark.parametrize("skew_ns", [0, SKEW_NS, -SKEW_NS])
def test_a_straggler_on_either_node(skew_ns: int) -> None:
    for guilty in (1, 2):
        slow: Callable[[int, int], float] = lambda r, s, g=guilty: 1.4 if r == g and s >= 30 else 1.0  # type: ignore[misc]  # noqa: E731
        found = said(two_nodes(skew_ns=skew_ns, steps=80, slow=slow))
        assert [(finding.body["kind"], ranks_of(finding)) for finding in found] == [("rank_slow", [guilty])]


@pytest.mark.parametrize("skew_ns", [0, SKEW_NS])
def test_a_skipped_call_on_the_second_node(skew_ns: int) -> None:
    def skip(rank: int, step: int, actions: list[Action]) -> list[Action]:
        if (rank, step) != (3, 20):
            return actions
        return [action for action in actions if not (isinstance(action, Call) and action.bytes == 8000)]

    finding = one(two_nodes(skew_ns=skew_ns, steps=30, edit=skip))
    assert (finding.body["kind"], ranks_of(finding)) == ("desync", [3])


def test_a_clean_job_over_clocks_apart_says_nothing() -> None:
    found = said(two_nodes(steps=80))
    assert found == []


def test_a_stop_that_one_node_was_asked_for_is_planned() -> None:
    """By a clock 30 s behind, the request would lie long before the deaths; by one ahead, long after them."""
    for skew_ns in (SKEW_NS, -SKEW_NS):
        ends: list[Happening] = [(4.0, EventName.JOB_SIGNALLED, 2, {"signal": 15, "origin": "scheduler"})]
        ends += [(4.1 + rank / 50, EventName.RANK_EXIT, rank, {"signal": 15}) for rank in range(4)]
        finding = one(two_nodes(*ends, skew_ns=skew_ns, steps=40, ends=dict.fromkeys(range(4), 4.1)))
        assert finding.body["kind"] == "planned_stop"


# --- a node gone, an agent gone ---------------------------------------------------------------------------------------
def lost(at_s: float, why: str, silent_s: float = 0.0) -> Happening:
    return (at_s, EventName.PEER_LOST, 2, {"role": "follower", "why": why, "silent_ns": int(silent_s * 1e9)})


def test_a_silent_node_whose_ranks_are_waited_for_is_gone() -> None:
    job = two_nodes(lost(6.6, "silent", 2.6), steps=60, ends={2: 4.0, 3: 4.0}, after_s=10)
    finding = one(job)
    body = finding.body
    assert (body["bucket"], body["kind"], body["scope"], body["severity"]) == (
        "immediate_crash",
        "node_lost",
        "node",
        "page",
    )
    (suspect,) = body["suspects"]
    assert (suspect["scope"], suspect["id"], suspect["ranks"]) == ("node", "node-1", "2-3")
    start_s = WALL_NS / 1e9 + 100
    assert abs(body["times"]["onset"] - (start_s + 4.0)) < 0.1
    assert body["times"]["detected"] - (start_s + 4.0) <= 5.0
    assert body["victims"]["ranks"] == "0-1"
    assert body["coverage"] == {"ranks_seen": 2, "ranks_expected": 4}
    assert "silent" in body["evidence"][0]["shows"]


def test_a_node_that_went_with_its_connection_explains_its_peers_errors() -> None:
    """All processes of the node killed: the kernel closes their sockets, and peers raise at once."""
    events = [
        lost(4.05, "closed"),
        (4.1, EventName.RANK_EXCEPTION, 0, VICTIM),
        (4.2, EventName.RANK_EXCEPTION, 1, VICTIM),
        (4.5, EventName.RANK_EXIT, 0, {"exit_code": 1, "exception": True}),
        (4.5, EventName.RANK_EXIT, 1, {"exit_code": 1, "exception": True}),
    ]
    finding = one(two_nodes(*events, steps=60, ends={rank: 4.0 for rank in range(4)}))
    assert finding.body["kind"] == "node_lost"
    assert finding.body["suspects"][0]["ranks"] == "2-3"
    assert {row["who"] for row in finding.body["ruled_out"]} == {"rank 0", "rank 1"}


def test_errors_before_the_silence_is_known_are_explained_by_it_later() -> None:
    events = [(4.1, EventName.RANK_EXCEPTION, 0, VICTIM), (4.2, EventName.RANK_EXCEPTION, 1, VICTIM)]
    finding = one(two_nodes(*events, lost(6.6, "silent", 2.6), steps=60, ends={2: 4.0, 3: 4.0}))
    assert finding.body["kind"] == "node_lost"


def test_a_killed_agent_blames_nobody_and_is_over_when_it_is_back() -> None:
    back = (9.0, EventName.PEER_CONNECTED, 2, {"role": "follower", "offset_ns": WALL_NS - SKEW_NS})
    finding = one(two_nodes(lost(4.0, "closed"), back, steps=80, step_s=0.2))
    body = finding.body
    assert (body["bucket"], body["kind"], body["severity"], body["suspects"]) == (
        "telemetry",
        "agent_silent",
        "ticket",
        [],
    )
    assert finding.cleared
    assert "there again" in body["evidence"][-1]["shows"]


def test_a_killed_agent_is_no_longer_news_when_the_job_ends() -> None:
    end = (12.5, EventName.JOB_FINISHED, 0, {"exit_code": 0})
    finding = one(_without_the_second_node_after(4.0, two_nodes(lost(4.0, "closed"), end, steps=60)))
    assert (finding.body["kind"], finding.cleared) == ("agent_silent", True)


def test_ranks_without_an_agent_are_looked_for_four_times_a_second_and_not_at_each_message(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It may be for days: each look goes through all that is open, in a large job for a tenth of a second."""
    looked_s: list[float] = []

    def counted(job: JobState) -> list[Wait]:
        looked_s.append((job.progress.newest_stamp_ns - WALL_NS) / SECOND - 100.0)
        return find_waits(job)

    monkeypatch.setattr(lost_nodes, "find_waits", counted)
    finding = one(_without_the_second_node_after(4.0, two_nodes(lost(6.6, "silent", 2.6), steps=140)))
    assert finding.body["kind"] == "agent_silent"
    told_s = finding.body["times"]["detected"] - WALL_NS / SECOND - 100.0
    since = [at_s for at_s in looked_s if at_s > told_s]
    assert len(since) > 8
    assert len(since) <= 4.0 * (max(since) - told_s) + 2


def test_ranks_without_an_agent_do_not_stop_the_search_for_others() -> None:
    """The second node's agent is dead; of what can be seen, rank 1 hangs."""
    delays = [lambda r, s, p: FOREVER if (r, s, p) == (1, 40, Phase.FORWARD) else 0]
    job = two_nodes(lost(4.0, "closed"), steps=60, delays=delays)
    found = said(_without_the_second_node_after(4.0, job))
    told = {finding.body["kind"]: ranks_of(finding) for finding in found}
    assert told == {"agent_silent": [], "rank_not_entered": [1]}


def test_a_hang_among_ranks_that_nobody_sees_names_nobody() -> None:
    delays = [lambda r, s, p: FOREVER if (r, s, p) == (3, 40, Phase.FORWARD) else 0]
    job = two_nodes(lost(4.0, "closed"), steps=60, delays=delays, after_s=30)
    found = said(_without_the_second_node_after(4.0, job))
    told = {finding.body["kind"]: ranks_of(finding) for finding in found}
    assert told == {"agent_silent": [], "rank_not_entered": []}
    assert found[1].body["coverage"] == {"ranks_seen": 2, "ranks_expected": 4}


def test_a_pause_of_an_agent_is_no_lost_node() -> None:
    back = (8.0, EventName.PEER_CONNECTED, 2, {"role": "follower", "offset_ns": WALL_NS - SKEW_NS})
    found = said(two_nodes(lost(6.6, "silent", 2.6), back, steps=80))
    assert found == []


def test_a_node_that_was_gone_is_there_when_it_is_connected_again() -> None:
    back = (14.0, EventName.PEER_CONNECTED, 2, {"role": "follower", "offset_ns": WALL_NS - SKEW_NS})
    finding = one(two_nodes(lost(6.6, "silent", 2.6), back, steps=60, ends={2: 4.0, 3: 4.0}, after_s=10))
    assert (finding.body["kind"], finding.cleared) == ("node_lost", True)
    assert "there again" in finding.body["evidence"][-1]["shows"]


def test_who_has_left_in_order_is_not_missed() -> None:
    events = [
        *[(12.5, EventName.RANK_EXIT, rank, {"exit_code": 0, "exit_state": int(ExitState.NORMAL)}) for rank in (2, 3)],
        (12.6, EventName.JOB_FINISHED, 2, {"exit_code": 0}),
        lost(12.7, "left"),
        (13.0, EventName.JOB_FINISHED, 0, {"exit_code": 0}),
    ]
    found = said(two_nodes(*events, steps=60))
    assert found == []


# --- the job as a whole -----------------------------------------------------------------------------------------------
def test_the_job_is_over_when_the_last_node_is() -> None:
    """One node's command fails after the other's ended well; what is held is decided only then."""
    events = [
        (4.0, EventName.JOB_FINISHED, 0, {"exit_code": 0}),
        (6.0, EventName.RANK_EXIT, 3, {"exit_code": 3, "exit_state": int(ExitState.RUNNING)}),
        (6.1, EventName.JOB_FINISHED, 2, {"exit_code": 1}),
    ]
    finding = one(two_nodes(*events, steps=60, ends={3: 6.0}))
    assert (finding.body["kind"], ranks_of(finding), finding.cleared) == ("rank_died", [3], False)
    assert finding.body["job"]["now"] == "stopped"


# --- a follower's own view --------------------------------------------------------------------------------------------
def follower(*events: Happening, **more: Any) -> SyntheticJob:
    """Only ranks 2 and 3 are seen, of four."""
    return SyntheticJob(
        node_of=node_of,
        absent=(0, 1),
        events=[(0.0, EventName.JOB_STARTED, 2, {"nodes": 2}), *events],
        **more,
    )


def _sees_half(job: SyntheticJob) -> SyntheticJob:
    """Runs all four ranks, and shows the records of two."""
    job.absent = ()
    job.run()
    job.absent = (0, 1)
    return job


JUDGE: dict[str, Any] = {"role": "judge"}


def test_out_of_reach_a_follower_blames_nobody_it_cannot_see() -> None:
    delays = [lambda r, s, p: FOREVER if (r, s, p) == (0, 40, Phase.FORWARD) else 0]
    finding = one(_sees_half(follower(steps=60, delays=delays, after_s=30)))
    assert (finding.body["kind"], finding.body["suspects"]) == ("rank_not_entered", [])


def test_out_of_reach_a_follower_judges_its_own() -> None:
    delays = [lambda r, s, p: FOREVER if (r, s, p) == (3, 40, Phase.FORWARD) else 0]
    finding = one(_sees_half(follower(steps=60, delays=delays, after_s=30)))
    assert (finding.body["kind"], ranks_of(finding)) == ("rank_not_entered", [3])


def test_while_another_judges_nothing_is_said() -> None:
    delays = [lambda r, s, p: FOREVER if (r, s, p) == (3, 40, Phase.FORWARD) else 0]
    connected = (0.5, EventName.PEER_CONNECTED, 0, JUDGE)
    found = said(_sees_half(follower(connected, steps=60, delays=delays, after_s=30)))
    assert found == []


def test_when_the_judge_is_killed_its_followers_judge_again() -> None:
    delays = [lambda r, s, p: FOREVER if (r, s, p) == (3, 40, Phase.FORWARD) else 0]
    events = [(0.5, EventName.PEER_CONNECTED, 0, JUDGE), (5.0, EventName.PEER_LOST, 0, {**JUDGE, "why": "closed"})]
    finding = one(_sees_half(follower(*events, steps=60, delays=delays, after_s=30)))
    assert (finding.body["kind"], ranks_of(finding)) == ("rank_not_entered", [3])


def test_when_the_judge_is_back_it_takes_over() -> None:
    delays = [lambda r, s, p: FOREVER if (r, s, p) == (3, 40, Phase.FORWARD) else 0]
    events: list[Happening] = [(0.5, EventName.PEER_CONNECTED, 0, JUDGE)]
    events.append((5.0, EventName.PEER_LOST, 0, {**JUDGE, "why": "silent"}))
    events.append((25.0, EventName.PEER_CONNECTED, 0, JUDGE))
    finding = one(_sees_half(follower(*events, steps=60, delays=delays, after_s=30)))
    assert finding.cleared
    assert "judges from now on" in finding.body["evidence"][-1]["shows"]


def test_a_judge_that_left_in_order_has_said_what_there_was_to_say() -> None:
    events = [
        (0.5, EventName.PEER_CONNECTED, 0, JUDGE),
        (5.0, EventName.PEER_LOST, 0, {**JUDGE, "why": "left"}),
        (6.0, EventName.RANK_EXIT, 3, {"signal": 9, "exit_state": int(ExitState.RUNNING)}),
    ]
    found = said(_sees_half(follower(*events, steps=60)))
    assert found == []


def _without_the_second_node_after(at_s: float, job: SyntheticJob) -> list[Record]:
    """Its ranks train on, but nothing comes of them any more."""
    limit = WALL_NS + int((job.start_s + at_s) * SECOND)
    news = (EventName.PEER_LOST, EventName.PEER_CONNECTED)
    return [
        record
        for record in job.records()
        if record.stamp_ns <= limit
        or (isinstance(record.payload, Block | Event) and record.payload.identity.node != "node-1")
        or (isinstance(record.payload, Event) and record.payload.name in news)
    ]


@pytest.mark.parametrize("batches", [[1], [7, 2, 30], [500]])
@pytest.mark.parametrize("fresh", [False, True])
def test_the_answer_does_not_depend_on_batches_or_restarts(batches: list[int], fresh: bool) -> None:
    records = two_nodes(lost(6.6, "silent", 2.6), steps=40, ends={2: 4.0, 3: 4.0}).records()
    once, again = drive(records), drive(records, batches=batches, fresh_each_time=fresh)
    assert [finding.body for finding in again.findings()] == [finding.body for finding in once.findings()] != []


def test_who_is_held_up_by_ranks_that_nobody_sees_is_no_root() -> None:
    """Rank 2 waits for rank 3, which stands in an earlier call for ranks of the other node."""
    common: dict[str, Any] = {"group": 0, "op": 1, "p2p": False, "since_ns": 0}
    held = Wait(rank=3, seq=24, age_ns=5 * SECOND, missing=(), unknown=(0, 1), **common)
    behind = Wait(rank=2, seq=25, age_ns=5 * SECOND, missing=(3,), unknown=(0, 1), **common)
    found = find_blockage([held, behind], 3 * SECOND)
    assert found is not None
    assert (found.sort, found.suspects) == ("unknown", (0, 1))
