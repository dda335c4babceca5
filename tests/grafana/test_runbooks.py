"""A runbook for each kind of incident and for each alert; what they tell people to type is what there is."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from typer.main import get_command

from whichrank.commands.main import app
from whichrank.grafana.rules import RULES
from whichrank.telemetry.vocabulary import Kind

RUNBOOKS = Path(__file__).parents[2] / "docs" / "runbooks"
FILES = sorted(RUNBOOKS.glob("*.md"))


def test_each_kind_and_each_alert_has_one_and_the_index_leads_to_all() -> None:
    needed = {kind.value for kind in Kind} | {rule.runbook for rule in RULES}
    assert {path.stem for path in FILES} == needed
    index = (RUNBOOKS / "incidents.md").read_text()
    assert set(re.findall(r"\]\(([\w-]+)\.md\)", index)) == needed - {"incidents"}


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_links_and_commands_are_there(path: Path) -> None:
    text = path.read_text()
    for name in re.findall(r"\]\(([\w./-]+)\)", text):
        assert (path.parent / name).is_file(), name
    commands = get_command(app).commands  # type: ignore[attr-defined]
    for words in re.findall(r"`whichrank ([a-z][^`]*)`", text):
        first, *rest = words.split()
        assert first in commands, words
        if hasattr(commands[first], "commands") and rest and re.fullmatch(r"[a-z]+", rest[0]):
            assert rest[0] in commands[first].commands, words
