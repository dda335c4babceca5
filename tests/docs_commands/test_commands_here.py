"""The documents' commands, executed for real, where a machine without a broker can: see ``coverage``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from tests.commands.notify.parts import WebhookApi
from tests.docs_commands.collect import Command, all_commands
from tests.docs_commands.coverage import Here, NotHere, cover_of, executed_text
from tests.docs_commands.room import Room, make_room, missing_tools


def executed() -> Mapping[str, tuple[Here, list[Command]]]:
    """What is typed, once each, in the order of the documents, and for which commands of theirs."""
    found: dict[str, tuple[Here, list[Command]]] = {}
    for command in all_commands():
        cover = cover_of(command.text)
        if isinstance(cover, Here):
            found.setdefault(executed_text(command, cover), (cover, []))[1].append(command)
    return found


def partly_executed() -> list[str]:
    """What of those that are not executed is."""
    covers = [cover_of(command.text) for command in all_commands()]
    return list(dict.fromkeys(cover.runs for cover in covers if isinstance(cover, NotHere) and cover.runs))


EXECUTED = executed()
#: Of kafka-python, when it is loaded.
pytestmark = pytest.mark.filterwarnings("ignore:(read|open)_text is deprecated:DeprecationWarning")


@pytest.fixture(scope="module")
def room(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Room]:
    api = WebhookApi()
    yield make_room(tmp_path_factory.mktemp("docs"), api)
    api.close()


def test_the_readmes_own_job_is_blamed_on_the_rank_that_raised(room: Room) -> None:
    assert room.own_job.status == 1
    assert "who         rank 2" in room.own_job.output
    assert "train.py:11" in room.own_job.output


@pytest.mark.parametrize("text", EXECUTED)
def test_a_command_does_what_the_documents_say(text: str, room: Room) -> None:
    cover, commands = EXECUTED[text]
    if lacking := missing_tools(text):
        pytest.skip(f"{', '.join(lacking)} cannot be installed here")
    said = room.own_job if text.startswith(".venv/bin/whichrank run") else room.execute(text)
    assert said.status in cover.status, (commands[0].place, said.output[-2000:])
    assert cover.says in said.output, (commands[0].place, said.output[-2000:])


@pytest.mark.parametrize("text", partly_executed())
def test_of_what_takes_too_long_its_plan_or_help_is_there(text: str, room: Room) -> None:
    if lacking := missing_tools(text):
        pytest.skip(f"{', '.join(lacking)} cannot be installed here")
    said = room.execute(text)
    assert said.status == 0, said.output[-2000:]


def test_a_command_that_fails_is_seen(room: Room, tmp_path: Path) -> None:
    assert room.execute("whichrank incidents show 0000").status != 0
    assert room.execute("false; true").status != 0
