"""The representative part, as ``make test`` runs it: one real job of each way that a verdict comes about."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from .catalogue import REPRESENTATIVE

ROOT = Path(__file__).resolve().parents[2]
#: Another draw for each day would make failures hard to repeat; other seeds are for ``make scenarios``.
SEED = 4


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
    assert done.returncode == 0, done.stdout + done.stderr
