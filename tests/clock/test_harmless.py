"""The harness of benchmarks/harmless.py strikes and compares for real; one short job stands for the whole list."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import whichrank
from benchmarks.harmless import Abuse, add_line, ended_as
from benchmarks.harmless_ring import nothing
from benchmarks.harmless_run import Run
from benchmarks.report import Report
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


def test_same_losses_whatever_is_done() -> None:
    document = run_harmless("--only", "every hook raises, Python writer", "--steps", "30")
    assert document["exit_code"] == 0, document
    assert "1 of 1 ok" in str(document["summary"]), document


def test_an_abuse_that_never_struck_and_a_job_that_differs_are_short() -> None:
    abuse = Abuse(name="some abuse", prepare=nothing)
    out = io.StringIO()
    report = Report("title", out=out)
    add_line(report, abuse, 0, 5, 5)
    add_line(report, abuse, 1, 4, 5)
    assert report.finish() == 1
    assert "did not strike" in out.getvalue()
    assert "0 of 2 ok, 2 SHORT" in out.getvalue()


@pytest.mark.parametrize(
    ("exit_code", "losses", "log", "same"),
    [
        (7, ("0x1p0",), "step 3\nsome warning\n", True),
        (1, ("0x1p0",), "", False),
        (7, ("0x1p1",), "", False),
        (7, (), "", False),
        (7, ("0x1p0",), "Exception raised from recvBytes (most recent call first):\n", False),
        (7, ("0x1p0",), "terminate called without an active exception\n", False),
    ],
)
def test_a_job_that_ended_as_ever(
    tmp_path: Path, exit_code: int, losses: tuple[str, ...], log: str, same: bool
) -> None:
    (tmp_path / "log").write_text(log)
    reference, run = (Run(directory=tmp_path, model="leaving", steps=1) for _ in range(2))
    reference.exit_code, reference.losses = 7, ("0x1p0",)
    run.exit_code, run.losses = exit_code, losses
    assert ended_as(run, reference) == same


def test_the_agent_outlives_a_ring_that_its_user_cuts_short() -> None:
    document = run_harmless("--only", "cut to nothing", "--steps", "80")
    assert document["exit_code"] == 0, document
    assert "3 of 3" in json.dumps(document)
