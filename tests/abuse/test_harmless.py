"""The harness of benchmarks/harmless.py strikes and compares for real; one short job stands for the whole list."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import whichrank
from tests.instrumentation.jobs import clean_environment

ROOT = Path(whichrank.__file__).parent


def run_harmless(*arguments: str) -> dict[str, object]:
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.harmless", "--json", *arguments],
        cwd=ROOT,
        env=clean_environment(),
        stdout=subprocess.PIPE,
        text=True,
        timeout=600,
        check=False,
    )
    document: dict[str, object] = json.loads(done.stdout)
    document["exit_code"] = done.returncode
    return document


def test_a_job_whose_every_hook_raises_trains_to_the_same_losses() -> None:
    document = run_harmless("--only", "every hook raises, Python writer", "--steps", "30")
    assert document["exit_code"] == 0, document
    assert document["summary"] == "1 of 1 ok"


def test_an_abuse_that_never_strikes_is_short() -> None:
    # The strike comes at a step that so short a job never reaches.
    document = run_harmless("--only", "ring folder removed in mid-run", "--steps", "5")
    assert document["exit_code"] == 1
    assert "did not strike" in json.dumps(document)


def test_the_agent_outlives_a_ring_that_its_user_cuts_short() -> None:
    document = run_harmless("--only", "cut to nothing", "--steps", "80")
    assert document["exit_code"] == 0, document
    assert "3 of 3" in json.dumps(document)
