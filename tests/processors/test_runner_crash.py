"""kill -9 at each step of commit and delivery: nothing visible is lost, repeated or changed."""

from __future__ import annotations

import os
import shutil
import signal
import traceback
from pathlib import Path

import pytest

from tests.processors import runner_crash
from tests.processors.runner_crash import STEPS
from tests.processors.runner_examples import Clock, encode_events, open_bus, rank_event
from whichrank.telemetry.vocabulary import EventName
from whichrank.transport.bus import TOPIC_BLOCKS, TOPIC_FINDINGS, TOPIC_INCIDENTS, TOPIC_REQUESTS
from whichrank.transport.embedded import EmbeddedBus

OUTPUT_TOPICS = (TOPIC_FINDINGS, TOPIC_INCIDENTS, TOPIC_REQUESTS)


@pytest.fixture(scope="module")
def capture(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Input with several incidents, two revisions of one among them, in messages far enough apart for timers."""
    directory = tmp_path_factory.mktemp("input")
    clock = Clock()
    bus = open_bus(directory / "capture", clock)
    for turn in range(12):
        events = [rank_event(rank) for rank in range(3) if rank != 1 or turn < 2]
        if turn in (3, 8):
            events.append(rank_event(2, EventName.RANK_EXIT))
        bus.append(TOPIC_BLOCKS, "j", encode_events(*events))
        clock.advance(0.9)
    bus.close()
    return directory


def run(directory: Path, step: str, passes: int) -> int:
    """One life in a process of its own (forked: starting an interpreter 30 times would take a minute)."""
    child = os.fork()
    if not child:
        status = 1
        try:
            runner_crash.main(directory, step, passes)
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def visible(directory: Path) -> tuple[list[bytes], list[tuple[str, bytes]]]:
    """What a person saw, and what lies on the bus."""
    bus = EmbeddedBus(directory / "capture", read_only=True)
    messages = [(m.topic, m.value) for m in bus.read(0, 100_000) if m.topic in OUTPUT_TOPICS]
    bus.close()
    return (directory / "outputs").read_bytes().splitlines(), messages


@pytest.fixture(scope="module")
def expected(capture: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[list[bytes], list[tuple[str, bytes]]]:
    directory = tmp_path_factory.mktemp("whole") / "run"
    shutil.copytree(capture, directory)
    assert run(directory, "before commit", 0) == 0
    lines, messages = visible(directory)
    assert len(lines) == 3
    assert len(messages) == len(set(messages)) == 3 + 3 + 2
    return lines, messages


@pytest.mark.parametrize("step", STEPS)
def test_dying_again_and_again_at_one_step_changes_nothing(
    step: str, capture: Path, expected: tuple[list[bytes], list[tuple[str, bytes]]], tmp_path: Path
) -> None:
    directory = tmp_path / "run"
    shutil.copytree(capture, directory)
    # Die at the first pass, then at the second of the next life, and so on, until a life gets to its end.
    deaths = 0
    for passes in (1, 2, 4, 0):
        status = run(directory, step, passes)
        assert status in (0, -signal.SIGKILL)
        deaths += status != 0
        if status == 0:
            break
    assert status == 0
    assert deaths > 0, "the step was never reached"
    assert visible(directory) == expected
