"""Over Kafka nobody watches connections: silent nodes are told from the records alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from tests.processors.job.synthetic_job import (
    FOREVER,
    SECOND,
    WALL_NS,
    Action,
    Enter,
    SyntheticJob,
    Work,
    ddp_step,
    drive,
)
from whichrank.processors.job.nodes.silent_nodes import STOPPED_NS
from whichrank.telemetry.records import Block, Event, Finding, Record
from whichrank.telemetry.vocabulary import EventName, ExitState, Phase

Comes = Callable[[str, float], bool]


def node_of(rank: int) -> str:
    return "node-0" if rank < 2 else "node-1"


def records(job: SyntheticJob, comes: Comes) -> list[Record]:
    """What has come of a job, with seconds since its begin."""
    start_ns = WALL_NS + int(job.start_s * SECOND)
    return [
        record
        for record in job.records()
        if isinstance(record.payload, Block | Event)
        and comes(record.payload.identity.node, (record.stamp_ns - start_ns) / SECOND)
    ]


def said(job: SyntheticJob, comes: Comes, *, listens: bool = True, fresh: bool = False) -> list[Finding]:
    driven = drive(records(job, comes), idle_s=1.0, listens=listens, fresh_each_time=fresh)
    return list(driven.final().values())


def _node_of(record: Record) -> str:
    assert isinstance(record.payload, Block | Event)
    return record.payload.identity.node


def _is_goodbye(record: Record) -> bool:
    return isinstance(record.payload, Event) and record.payload.name is EventName.AGENT_STOPPED


def until(seconds: float) -> Comes:
    return lambda node, at_s: node == "node-0" or at_s <= seconds


def gone(**more: float) -> SyntheticJob:
    """The second node is gone after four seconds, and the first one's ranks wait."""
    return SyntheticJob(node_of=node_of, steps=60, ends={2: 4.0, 3: 4.0}, after_s=10)


def test_a_node_that_is_not_heard_and_waited_for_is_gone() -> None:
    (finding,) = said(gone(), until(4.0))
    body = finding.body
    assert (body["kind"], body["severity"], body["suspects"][0]["node"]) == ("node_lost", "page", "node-1")
    assert body["suspects"][0]["ranks"] == "2-3"
    died_s = WALL_NS / 1e9 + 100 + 4.0
    assert abs(body["times"]["onset"] - died_s) < 1.1, "the last that was heard"
    assert body["times"]["detected"] - died_s <= 5.0


def test_nothing_is_concluded_where_somebody_else_watches() -> None:
    assert [finding.body["kind"] for finding in said(gone(), until(4.0), listens=False)] != ["node_lost"]


def test_a_killed_agent_is_a_ticket_and_is_over_when_it_is_back() -> None:
    job = SyntheticJob(node_of=node_of, steps=100, step_s=0.2)
    (finding,) = said(job, until(4.0))
    assert (finding.body["kind"], finding.body["severity"], finding.cleared) == ("agent_silent", "ticket", False)
    (finding,) = said(job, lambda node, at_s: node == "node-0" or not 4.0 < at_s < 16.0)
    assert (finding.body["kind"], finding.cleared) == ("agent_silent", True)
    assert "there again" in finding.body["evidence"][-1]["shows"]


@pytest.mark.parametrize(("pause_s", "kinds"), [(2.0, ["agent_silent"]), (FOREVER, ["agent_silent", "node_lost"])])
def test_a_pause_long_after_an_agent_was_killed_is_no_lost_node(pause_s: float, kinds: list[str]) -> None:
    """The job has gone on without a word of that node, so it lives; who stands still for ever after that may not."""
    delays = [lambda r, s, p: pause_s if (r, s, p) == (3, 80, Phase.FORWARD) else 0]
    job = SyntheticJob(node_of=node_of, steps=120, step_s=0.2, delays=delays, after_s=20)
    assert sorted(finding.body["kind"] for finding in said(job, until(4.0))) == kinds


def test_a_node_that_was_only_cut_off_is_no_longer_lost_when_it_is_heard() -> None:
    job = SyntheticJob(
        node_of=node_of,
        steps=100,
        step_s=0.2,
        delays=[lambda r, s, p: 8.0 if (r, s, p) == (3, 20, Phase.FORWARD) else 0],
    )
    found = said(job, lambda node, at_s: node == "node-0" or not 4.0 < at_s < 9.0)
    (lost,) = [finding for finding in found if finding.body["kind"] == "node_lost"]
    assert lost.cleared


@pytest.mark.parametrize("later_s", [0.0, 2.0, 6.0])
def test_brokers_that_were_away_make_no_node_silent(later_s: float) -> None:
    """Rank 3 takes its time, so its node is waited for; both nodes come back, one after the other."""
    job = SyntheticJob(
        node_of=node_of,
        steps=100,
        step_s=0.2,
        delays=[lambda r, s, p: 12.0 if (r, s, p) == (3, 20, Phase.FORWARD) else 0],
    )
    back_s = {"node-0": 10.0, "node-1": 10.0 + later_s}
    found = said(job, lambda node, at_s: not 4.0 < at_s < back_s[node])
    assert [finding.body["kind"] for finding in found if finding.body["kind"] in ("node_lost", "agent_silent")] == []


def test_a_hang_on_a_node_that_is_heard_is_a_hang() -> None:
    delays = [lambda r, s, p: FOREVER if (r, s, p) == (3, 20, Phase.FORWARD) else 0]
    job = SyntheticJob(node_of=node_of, steps=40, delays=delays, after_s=10)
    (finding,) = said(job, lambda node, at_s: True)
    assert finding.body["kind"] == "rank_not_entered"


def test_ranks_of_a_restarting_agent_are_not_lost_while_another_one_is_waited_for() -> None:
    """Rank 1 can be seen, and is in no call; the others' node is not heard for the four seconds that follow."""
    delays = [lambda r, s, p: FOREVER if (r, s, p) == (1, 8, Phase.FORWARD) else 0]
    job = SyntheticJob(node_of=node_of, steps=60, step_s=0.5, delays=delays, after_s=16)
    driven = drive(records(job, lambda node, at_s: node == "node-0" or not 4.5 < at_s < 8.5), idle_s=1.0, listens=True)
    assert {finding.body["kind"] for finding in driven.findings()} == {"rank_not_entered"}
    (finding,) = driven.final().values()
    assert [suspect["rank"] for suspect in finding.body["suspects"]] == [1]


def test_who_judges_anew_knows_what_was_heard() -> None:
    """A working copy that is made of the rows for each record says what one says that has lived all the time."""
    one, anew = (said(gone(), until(4.0), fresh=fresh) for fresh in (False, True))
    assert [finding.body for finding in anew] == [finding.body for finding in one]
    assert [finding.body["kind"] for finding in anew] == ["node_lost"]


def test_a_job_of_which_nothing_comes_for_a_while_is_a_ticket_and_nobody_s_fault() -> None:
    """The second node comes back a second later: until then the silence is not over."""
    back_s = {"node-0": 16.0, "node-1": 17.0}
    (finding,) = said(SyntheticJob(node_of=node_of, steps=120, step_s=0.2), lambda n, at_s: not 4.0 < at_s < back_s[n])
    body = finding.body
    assert (body["kind"], body["severity"], body["bucket"]) == ("input_silent", "ticket", "telemetry")
    assert (body["suspects"], finding.cleared) == ([], True)
    begun_s = WALL_NS / 1e9 + 100
    assert abs(body["times"]["onset"] - begun_s - 4.0) < 1.0
    assert 0.0 <= finding.time_ns / 1e9 - begun_s - 17.0 < 1.0


def test_it_is_told_while_it_lasts_where_time_goes_on() -> None:
    driven = drive(
        records(SyntheticJob(node_of=node_of, steps=60, step_s=0.2), until_all(4.0)), idle_s=30.0, listens=True
    )
    (finding,) = driven.final().values()
    assert (finding.body["kind"], finding.cleared) == ("input_silent", False)
    assert 10.0 <= finding.body["times"]["detected"] - finding.body["times"]["onset"] < 10.5


def test_of_a_job_that_has_ended_nothing_is_missed() -> None:
    exits = [(5.0, EventName.RANK_EXIT, rank, {"exit_state": int(ExitState.NORMAL)}) for rank in range(4)]
    job = SyntheticJob(node_of=node_of, steps=20, step_s=0.2, ends=dict.fromkeys(range(4), 5.0), events=exits)
    driven = drive(records(job, until_all(1e9)), idle_s=60.0, listens=True)
    assert driven.final() == {}


def until_all(seconds: float) -> Comes:
    return lambda node, at_s: at_s <= seconds


@pytest.mark.parametrize("second_s", [4.0, 4.3, 4.9])
def test_nodes_that_are_gone_together_are_told_together(second_s: float) -> None:
    """Nobody is told of the first alone, although it falls silent first."""
    ends = {2: 4.0, 3: second_s}
    job = SyntheticJob(node_of=lambda r: f"node-{max(0, r - 1)}", steps=60, ends=ends, after_s=10)
    last_s = {"node-0": 1e9, "node-1": 4.0, "node-2": second_s}
    driven = drive(records(job, lambda node, at_s: at_s <= last_s[node]), idle_s=1.0, listens=True)
    told = [[s["node"] for s in finding.body["suspects"]] for finding in driven.findings()]
    assert set(map(tuple, told)) == {("node-1", "node-2")}


def test_a_node_whose_agent_restarts_while_all_save_is_not_gone() -> None:
    """Ranks of one node write longer than the others wait for anything else; saves have always been so."""

    def program(job: SyntheticJob, rank: int, step: int) -> list[Action]:
        saves: list[Action] = [Enter(Phase.CHECKPOINT), Work(4.0 if rank > 1 else 0.1)] if step % 10 == 9 else []
        return [*ddp_step(job, rank, step), *saves]

    job = SyntheticJob(node_of=node_of, steps=40, program=program, step_s=0.5).run()
    begins = [at_ns / SECOND - job.start_s for at_ns, phase, _ in job.people[2].phases if phase == Phase.CHECKPOINT]
    silent_s = (begins[2] + 1.1, begins[2] + 3.95)
    found = said(job, lambda node, at_s: node == "node-0" or not silent_s[0] < at_s < silent_s[1])
    assert [finding.body["kind"] for finding in found if finding.body["kind"] != "agent_silent"] == []


def test_an_agent_that_is_told_to_end_is_not_missed_until_it_should_be_back() -> None:
    """Rank 3 is waited for meanwhile. What the agent said before comes twice, the second time behind its goodbye."""
    job = SyntheticJob(
        node_of=node_of,
        steps=100,
        step_s=0.2,
        delays=[lambda r, s, p: 8.0 if (r, s, p) == (3, 20, Phase.FORWARD) else 0],
        events=[(3.9, EventName.AGENT_STOPPED, 2, {})],
    )
    came = records(job, lambda node, at_s: node == "node-0" or not 4.0 < at_s < 9.0)
    of_node = [(place, each) for place, each in enumerate(came) if _node_of(each) == "node-1"]
    (last,) = [place for place, each in of_node if _is_goodbye(each)]
    again = [replace(each, stamp_ns=came[last].stamp_ns) for place, each in of_node if place < last][-3:]
    driven = drive([*came[: last + 1], *again, *came[last + 1 :]], idle_s=1.0, listens=True)
    told = {finding.body["kind"] for finding in driven.findings()}
    assert told.isdisjoint({"node_lost", "agent_silent"}), told


def test_an_agent_that_was_told_to_end_and_does_not_come_back_is_silent_then() -> None:
    stopped: list[tuple[float, EventName, int, dict[str, Any]]] = [(3.9, EventName.AGENT_STOPPED, 2, {})]
    (finding,) = said(SyntheticJob(node_of=node_of, steps=250, step_s=0.2, events=stopped), until(4.0))
    assert finding.body["kind"] == "agent_silent"
    since_s = finding.body["times"]["detected"] - (WALL_NS / 1e9 + 100 + 3.9)
    assert STOPPED_NS / 1e9 < since_s < STOPPED_NS / 1e9 + 10


def test_a_node_that_went_down_in_order_is_lost_all_the_same() -> None:
    """Its agent was told to end, and then its ranks were."""
    job = SyntheticJob(
        node_of=node_of,
        steps=60,
        ends={2: 4.2, 3: 4.2},
        after_s=45,
        events=[(3.9, EventName.AGENT_STOPPED, 2, {})],
    )
    (finding,) = [finding for finding in said(job, until(4.0)) if not finding.cleared]
    assert (finding.body["kind"], finding.body["suspects"][0]["node"]) == ("node_lost", "node-1")
