"""The documents' commands that change the tree they are typed in, executed in a clone of it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs_commands.collect import ROOT, all_commands
from tests.docs_commands.coverage import InClone, cover_of

COMMANDS = sorted({each.text for each in all_commands() if isinstance(cover_of(each.text), InClone)})


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """As it is committed."""
    subprocess.run(["git", "clone", "--quiet", "--no-hardlinks", str(ROOT), str(tmp_path / "clone")], check=True)
    return tmp_path / "clone"


def typed(text: str, where: Path) -> None:
    path = os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))
    subprocess.run(text.split(), cwd=where, check=True, timeout=60, env={**os.environ, "PATH": path})


def test_none_is_forgotten() -> None:
    assert COMMANDS == ["make clean", "pre-commit install"]


def test_what_was_built_is_removed_and_nothing_else(clone: Path) -> None:
    built = [clone / ".venv" / "bin" / "python", clone / "build" / "x", clone / "instrumentation" / "_steps.abi3.so"]
    for path in built:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("built", encoding="utf-8")
    typed("make clean", clone)
    assert [path for path in built if path.exists()] == []
    changed = subprocess.run(["git", "status", "--short"], cwd=clone, check=True, capture_output=True, text=True)
    assert changed.stdout == ""


def test_commits_are_looked_at_from_then_on(clone: Path) -> None:
    typed("pre-commit install", clone)
    hook = clone / ".git" / "hooks" / "pre-commit"
    assert os.access(hook, os.X_OK)
    assert "pre-commit" in hook.read_text(encoding="utf-8")
