"""A replay gives the same bytes as the live run, however the live run was polled, stopped and started."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.processors.runner_examples import (
    SECOND,
    Clock,
    encode_events,
    make_operators,
    open_bus,
    output_line,
    rank_event,
)
from whichrank.processors import runner as runner_module
from whichrank.processors.runner import EmbeddedRunner
from whichrank.processors.runner_outputs import OncePerRevision
from whichrank.telemetry.records import Incident, Record
from whichrank.telemetry.vocabulary import EventName
from whichrank.transport.bus import TOPIC_BLOCKS, TOPIC_INCIDENTS, TOPIC_LOGS
from whichrank.transport.embedded import EmbeddedBus

#: What may happen in a run: input, time, a look at the bus, a restart of whichrank, damage.
ACTIONS = st.one_of(
    st.tuples(
        st.just("hear"),
        st.lists(st.tuples(st.integers(0, 3), st.booleans(), st.sampled_from("jk")), min_size=1, max_size=4),
    ),
    st.tuples(st.just("wait"), st.sampled_from([0.001, 0.05, 0.25, 0.7, 1.0, 1.3, 3.0, 5.5, 7.0, 100.0])),
    st.tuples(st.just("idle"), st.integers(1, 12)),
    st.tuples(st.just("drain"), st.none()),
    st.tuples(st.just("restart"), st.none()),
    st.tuples(st.just("junk"), st.binary(min_size=1, max_size=5)),
)


def live_run(directory: Path, actions: list[tuple[str, Any]]) -> list[bytes]:
    lines: list[bytes] = []
    seen: list[tuple[str, int]] = []

    def consume(record: Record) -> None:
        lines.append(output_line(record))
        if isinstance(record.payload, Incident):
            seen.append((record.payload.document["id"], record.payload.document["revision"]))

    clock = Clock()

    def start() -> tuple[EmbeddedBus, EmbeddedRunner]:
        bus = open_bus(directory / "capture", clock)
        runner = EmbeddedRunner(
            bus,
            directory / "state.sqlite",
            make_operators(),
            OncePerRevision(consume, seen),
            live=True,
            report=lambda line: None,
        )
        return bus, runner

    bus, runner = start()
    for action, detail in actions:
        if action == "hear":
            name = {True: EventName.RANK_EXIT, False: EventName.RANK_CONTINUED}
            bus.append(TOPIC_BLOCKS, "j", encode_events(*(rank_event(r, name[gone], j) for r, gone, j in detail)))
        elif action == "wait":
            clock.advance(detail)
        elif action == "idle":
            for _ in range(detail):
                clock.advance(0.9)
                runner.drain()
        elif action == "drain":
            runner.drain()
        elif action == "junk":
            bus.append(TOPIC_BLOCKS, "j", detail)
            bus.append(TOPIC_LOGS, "j", detail)
        else:
            runner.close()
            bus.close()
            bus, runner = start()
    runner.drain()
    runner.close()
    bus.close()
    return lines


def replay(directory: Path) -> list[bytes]:
    bus = EmbeddedBus(directory / "capture", read_only=True)
    lines: list[bytes] = []
    runner = EmbeddedRunner(
        bus,
        None,
        make_operators(),
        OncePerRevision(lambda record: lines.append(output_line(record))),
        live=False,
        report=lambda line: None,
    )
    runner.drain()
    runner.close()
    bus.close()
    return lines


@settings(max_examples=50, deadline=None)
@given(actions=st.lists(ACTIONS, max_size=25), limit=st.sampled_from([1, 2, 7, 512]))
def test_replays_equal_the_live_run(
    tmp_path_factory: pytest.TempPathFactory, actions: list[tuple[str, Any]], limit: int
) -> None:
    directory = tmp_path_factory.mktemp("run")
    live = live_run(directory, actions)
    first = replay(directory)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(runner_module, "READ_LIMIT", limit)
        second = replay(directory)
    assert first == live
    assert second == live


@settings(max_examples=25, deadline=None)
@given(actions=st.lists(ACTIONS, max_size=15))
def test_lost_state_is_rebuilt_from_the_bus_and_says_nothing_twice(
    tmp_path_factory: pytest.TempPathFactory, actions: list[tuple[str, Any]]
) -> None:
    directory = tmp_path_factory.mktemp("run")
    live = live_run(directory, actions)
    bus = EmbeddedBus(directory / "capture", read_only=True)
    before = [m.value for m in bus.read(0, 100_000) if m.topic == TOPIC_INCIDENTS]
    bus.close()
    for path in directory.glob("state.sqlite*"):
        path.unlink()
    bus = open_bus(directory / "capture", Clock())
    lines: list[bytes] = []
    runner = EmbeddedRunner(
        bus,
        directory / "state.sqlite",
        make_operators(),
        OncePerRevision(lambda record: lines.append(output_line(record))),
        live=True,
        report=lambda line: None,
    )
    runner.drain()
    runner.close()
    assert lines[: len(live)] == live
    assert [m.value for m in bus.read(0, 100_000) if m.topic == TOPIC_INCIDENTS][: len(before)] == before
    repeated = [m.value for m in bus.read(0, 100_000) if m.topic == TOPIC_INCIDENTS]
    assert len(repeated) == len(set(repeated)), "an incident revision was appended twice"
    bus.close()


def test_a_kill_of_the_parent_and_a_replay_with_what_the_rings_still_held(tmp_path: Path) -> None:
    """The live run saw rank 2 leave only through its ring, read after everything else was dead."""
    clock = Clock()
    bus = open_bus(tmp_path / "capture", clock)
    bus.append(TOPIC_BLOCKS, "j", encode_events(rank_event(2), rank_event(3)))
    bus.close()
    lines: list[list[bytes]] = []
    for _ in range(2):
        bus = EmbeddedBus(tmp_path / "capture", read_only=True)
        records: list[Record] = []
        runner = EmbeddedRunner(bus, None, make_operators(), records.append, live=False)
        runner.drain()
        bus.append(TOPIC_BLOCKS, "j", encode_events(rank_event(2, EventName.RANK_EXIT)))
        runner.drain()
        runner.let_time_pass(2 * SECOND)
        runner.close()
        bus.close()
        lines.append([output_line(record) for record in records])
    assert lines[0] == lines[1]
    assert len(lines[0]) == 3
