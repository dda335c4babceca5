"""What was lost in a run: a line for each kind that happened, none for what did not."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import pytest

from whichrank.agents.base.health import AgentHealth
from whichrank.commands.run_folder.losses import AGENT_LOSSES, Losses, describe_losses


def test_a_run_that_lost_nothing_says_nothing() -> None:
    assert describe_losses(Losses(agent={"events_lost": 0})) == []
    assert Losses(agent={"events_lost": 0}).as_json() == {}


@pytest.mark.parametrize(
    ("lost", "words"),
    [
        ({"trimmed_messages": 7, "capture_begins_s": 61.4}, "its 7 oldest messages were dropped to stay within"),
        ({"unsaved_messages": 7}, "7 messages are missing in it, the disk refused them; what they said was judged"),
        ({"unjudged_messages": 7}, "7 messages were lost before they were judged"),
        ({"unreadable_records": 7}, "7 records could not be read and were not judged"),
        ({"failed_commits": 7}, "state: 7 writes failed"),
        ({"unwritten_revisions": 7}, "incidents.jsonl: 7 revisions are missing"),
        ({"agent": {"events_lost": 7, "events_torn": 0}}, "7 events overwritten before they were read"),
        ({"peers": {"never_sent": 7, "strangers": 3}}, "lost between the nodes: 7 messages that the judge never had"),
        ({"agent": {"a_reason_of_a_later_release": 7}}, "7 a reason of a later release"),
    ],
)
def test_each_kind_of_loss_is_one_line_and_one_entry(lost: dict[str, Any], words: str) -> None:
    losses = Losses(**lost)
    (line,) = describe_losses(losses)
    assert words in line
    agent = {reason: count for reason, count in lost.get("agent", {}).items() if count}
    assert losses.as_json() == ({"agent": agent} if agent else lost)


def test_every_field_has_a_line() -> None:
    by_reason = {"agent": {"open_rows": 1}, "peers": {"never_received": 1}}
    everything = Losses(**{f.name: by_reason.get(f.name, 1) for f in fields(Losses)})  # type: ignore[arg-type]
    assert len(describe_losses(everything)) == len(fields(Losses)) - 1  # where the capture begins is in its line


def test_requests_that_nobody_could_answer_are_no_loss() -> None:
    losses = Losses(agent={"requests_for_nobody": 2})
    assert describe_losses(losses) == []
    assert losses.as_json() == {"agent": {"requests_for_nobody": 2}}


def test_the_counters_named_are_counters_of_the_agent() -> None:
    assert set(AGENT_LOSSES) <= set(AgentHealth.__slots__)
