"""The harness of benchmarks/harmless.py strikes and compares for real; one short job stands for the whole list."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import whichrank
from tests.instrumentation.jobs import clean_environment

ROOT = Path(whichrank.__file__).parent


def run_harmless(*arguments: str) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.harmless", "--json", *arguments],
        cwd=ROOT,
        env=clean_environment(),
        stdout=subprocess.PIPE,
        text=True,
        timeout=600,
        check=False,
    )
    document: dict[str, Any] = json.loads(done.stdout)
    document["exit_code"] = done.returncode
    return document


def test_same_losses_whatever_is_done_and_an_abuse_that_never_strikes_is_short() -> None:
    # The folder would be removed at a step that so short a job never reaches; every hook raises from the first one on.
    chosen = ("--only", "every hook raises, Python writer", "--only", "ring folder removed in mid-run")
    document = run_harmless(*chosen, "--steps", "30")
    assert document["exit_code"] == 1
    assert "1 of 2 ok" in str(document["summary"]), document
    rows = {str(row["name"]): row for row in document["rows"]}
    assert not rows["ring folder removed in mid-run"]["ok"]
    assert "did not strike" in rows["ring folder removed in mid-run"]["measured"]


def test_the_agent_outlives_a_ring_that_its_user_cuts_short() -> None:
    document = run_harmless("--only", "cut to nothing", "--steps", "80")
    assert document["exit_code"] == 0, document
    assert "3 of 3" in json.dumps(document)
