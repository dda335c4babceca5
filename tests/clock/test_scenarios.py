"""The representative part, as ``make test`` runs it: one real job of each way that a verdict comes about."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.scenarios.catalogue import REPRESENTATIVE

ROOT = Path(__file__).resolve().parents[2]
#: Another draw for each day would make failures hard to repeat; other seeds are for ``make scenarios``.
SEED = 4
CONSOLE_LINES = 80


@pytest.mark.parametrize("name", REPRESENTATIVE)
def test_scenario(name: str, tmp_path: Path) -> None:
    command = [sys.executable, str(ROOT / "tests" / "scenarios" / "run.py"), "--quick", "--only", name]
    done = subprocess.run(
        [*command, "--seed", str(SEED), "--results", str(tmp_path)],
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr + _consoles(tmp_path)


def _consoles(results: Path) -> str:
    """How each job itself ended: where tests run, its folder may be gone before anybody reads of the failure."""
    parts = []
    for console in sorted(results.rglob("console.txt")):
        last = console.read_text(errors="replace").splitlines()[-CONSOLE_LINES:]
        parts.append("\n".join([f"-- the last of {console.relative_to(results)}", *last]))
    return "\n".join(parts)


@pytest.mark.parametrize("wrong", [["--only", "no such one"], ["--part", "4/3"], ["--part", "0/3"], ["--part", "x"]])
def test_a_choice_of_nothing_is_no_success(wrong: list[str], tmp_path: Path) -> None:
    command = [sys.executable, str(ROOT / "tests" / "scenarios" / "run.py"), *wrong, "--results", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert "nothing to run" in done.stdout or f"--part {wrong[1]}" in done.stderr
