"""How ranks stand, beside the agent's own reading of the same rows; and that blocks of a node are one agent's."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from whichrank.agents.ranks.rank_groups import RankGroups
from whichrank.simulator.clock import NEVER
from whichrank.simulator.program import Recipe
from whichrank.simulator.rank_stand import _count, _told
from whichrank.simulator.scenarios.scenarios import SCENARIOS
from whichrank.telemetry.records import Block
from whichrank.telemetry.topics import TOPIC_BLOCKS
from whichrank.telemetry.vocabulary import EventName
from whichrank.telemetry.whole_steps import whole_steps_every


@pytest.mark.parametrize("backend", ["nccl", "gloo"])
def test_since_when_a_call_is_open_is_what_an_agent_would_say(backend: str) -> None:
    world = SCENARIOS["never_enters"].build(16, 2, at_s=20.0, recipe=Recipe(backend=backend))
    random = np.random.default_rng(1)
    compared = 0
    for end_s, _ in world.run(26.0):
        attempt = world.jobs[0].attempt
        if end_s < 12.0 or attempt is None:
            continue
        (recordings,) = attempt.steps.recordings()
        at = np.rint((end_s - random.uniform(0.0, 0.5, 16)) * 1e9).astype(np.int64)
        rows = _count(recordings, at)
        on_device = backend == "nccl"
        device_done = np.max([row.last_done for row in rows.values()], axis=0)
        for rank in range(16):
            seen = SimpleNamespace(on_device=set(rows) if on_device else set(), rows={})
            for number, row in rows.items():
                oldest = int(row.oldest[rank])
                seen.rows[number] = SimpleNamespace(
                    open=int(row.enqueued[0][rank] - row.completed[0][rank]),
                    oldest_open_ns=oldest if oldest < NEVER else 0,
                    completed=int(row.completed[0][rank]),
                    started=int(row.started[rank]),
                    started_ns=int(row.started_at[rank]),
                    complete_ns=int(row.last_done[rank]),
                )
            for number, row in rows.items():
                ours = int(_told(row, device_done if on_device else None).open_since[rank])
                assert ours == RankGroups.open_since_ns(seen, number)  # type: ignore[arg-type]
                compared += ours > 0
    assert compared > 100, "calls were open"


def test_a_nodes_blocks_hold_its_own_ranks_and_the_steps_that_an_agent_ships() -> None:
    """Whole ones, and of all others only what was open at a flush, and its end."""
    ranks = 256
    world = SCENARIOS["healthy"].build(ranks, 1)
    every, seen = whole_steps_every(ranks), set()
    opened: set[tuple[int, ...]] = set()
    for _, sent in world.run(24.0):
        for message in sent:
            for block in message.payloads:
                if not isinstance(block, Block):
                    continue
                node = int(block.identity.node.rpartition("-")[2])
                assert set(np.unique(block.rows["rank"]) // 8) == {node}
                if block.name is EventName.BLOCK_COLLECTIVES:
                    ended = block.rows["done_ns"] > 0
                    whole = ended & (block.rows["step"] % every == 0)
                    opened |= calls_of(block.rows[~ended])
                    assert calls_of(block.rows[ended & ~whole]) <= opened
                    seen |= set(block.rows["step"][whole].tolist())
                    assert (block.rows["done_ns"][ended] >= block.rows["enqueued_ns"][ended]).all()
    assert seen == {0, 4}


def calls_of(rows: np.ndarray) -> set[tuple[int, ...]]:
    return set(zip(*(rows[name].tolist() for name in ("rank", "seq", "enqueued_ns")), strict=True))


def test_an_agent_that_was_away_finds_in_the_rings_what_was_written_meanwhile() -> None:
    world = SCENARIOS["agent_restarts"].build(16, 1, at_s=20.0)
    told: dict[int, set[int]] = {rank: set() for rank in range(16)}
    ends: list[tuple[float, str]] = []
    spoke: dict[str, list[float]] = {}
    for _, sent in world.run(40.0):
        for message in sent:
            if message.topic == TOPIC_BLOCKS and any(payload.identity.job for payload in message.payloads):
                spoke.setdefault(message.node, []).append(message.at_s)
            for block in message.payloads:
                if block.name is EventName.AGENT_STOPPED:
                    assert block is message.payloads[-1], "behind all that it has seen"
                    ends.append((message.at_s, message.node))
                if isinstance(block, Block) and block.name is EventName.BLOCK_STEPS:
                    for rank, step in zip(block.rows["rank"].tolist(), block.rows["step"].tolist(), strict=True):
                        told[rank].add(step)
    assert all(steps == set(range(max(steps) + 1)) and len(steps) > 10 for steps in told.values())
    ((at_s, node),) = ends
    (told_to_end_s,) = [fault.at_s for fault in world.ledger.faults if fault.fault == "agent_restarts"]
    assert 0.0 < at_s - told_to_end_s < 0.1
    after_s = min(each for each in spoke[node] if each > at_s)
    assert 3.9 < after_s - at_s < 5.0
