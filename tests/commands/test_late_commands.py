"""Commands that are imported when they are asked for: all are there, and none delays another."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import typer
from typer.core import TyperGroup
from typer.main import get_command
from typer.testing import CliRunner

from whichrank.commands.diagnose import COMMANDS
from whichrank.commands.main import LATE, app
from whichrank.commands.support.late_commands import late_group


def imported_by(statement: str) -> set[str]:
    shown = f"{statement}; import sys; print(*sys.modules)"
    return set(subprocess.run([sys.executable, "-c", shown], capture_output=True, text=True, check=True).stdout.split())


def test_each_is_found_under_its_name_and_listed_once() -> None:
    program = get_command(app)
    assert isinstance(program, TyperGroup)
    assert set(LATE) < set(program.commands)
    assert len(program.commands) == len(list(program.commands)) == len(set(program.commands))
    for name, command in program.commands.items():
        assert command.name == name
        assert command.get_short_help_str()
    group = program.commands["diagnose"]
    assert isinstance(group, TyperGroup)
    assert list(group.commands) == list(COMMANDS)


@pytest.mark.parametrize("name", LATE)
def test_it_is_as_a_command_of_the_programs_own(name: str) -> None:
    shown = CliRunner().invoke(app, [name, "--help"])
    assert shown.exit_code == 0
    assert f"Usage: whichrank {name} " in shown.output
    assert "--install-completion" not in shown.output


def test_an_unknown_one_is_told_with_its_neighbour() -> None:
    shown = CliRunner().invoke(app, ["incident", "list"])
    assert shown.exit_code == 2
    assert "No such command 'incident'. Did you mean 'incidents'?" in shown.output


def test_an_error_in_its_module_is_not_taken_for_its_absence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "torn").mkdir()
    (tmp_path / "torn" / "__init__.py").touch()
    (tmp_path / "torn" / "command.py").write_text("{}['what it needs']")
    monkeypatch.syspath_prepend(tmp_path)
    program = get_command(typer.Typer(cls=late_group({"torn": ".command"}, "torn"), callback=lambda: None))
    assert isinstance(program, TyperGroup)
    assert program.commands.get("whole") is None
    with pytest.raises(KeyError, match="what it needs"):
        program.commands.get("torn")


def test_what_starts_a_job_waits_for_no_other_command() -> None:
    modules = imported_by("import whichrank.commands.main")
    assert "whichrank.commands.settings.settings" in modules
    late = {f"whichrank.commands{path}" for path in LATE.values()}
    assert not modules & {*late, "numpy", "rich", "whichrank.commands.run.command", "whichrank.processors"}


def test_a_group_waits_for_none_of_its_own() -> None:
    modules = imported_by("import whichrank.commands.diagnose")
    assert not modules & {"numpy", *(f"whichrank.commands.diagnose{path}" for path in COMMANDS.values())}
