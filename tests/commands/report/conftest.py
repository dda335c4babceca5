"""A browser, and reports of two runs: a real one of 4 ranks, a large one as agents would have told it."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from playwright.sync_api import Browser
from typer.testing import CliRunner

from tests.commands.report import browser as chromium
from tests.commands.report.large_run import make_large_run
from whichrank.commands.main import app

LARGE, LARGE_GUILTY = 16_384, 9_001


@dataclass(frozen=True)
class Report:
    """guilty: the rank that did it."""

    page: Path
    ranks: int
    guilty: int


def write_report(folder: Path, out: Path) -> Path:
    told = CliRunner().invoke(app, ["report", str(folder), "-o", str(out)])
    assert told.exit_code == 0, told.output
    return out


def real_run(folder: Path, scenario: str, seed: int) -> int:
    """``whichrank demo`` into the folder; the rank at which it aimed."""
    command = [sys.executable, "-m", "whichrank.commands.main", "demo", "--scenario", scenario, "--seed", str(seed)]
    done = subprocess.run(
        [*command, "--json", "--out", str(folder)], capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode in (0, 1), done.stderr[-2000:]
    return int(json.loads(done.stdout)["truth"]["rank"])


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    if chromium.chromium() is None:
        pytest.skip("no Chromium: install it (Debian and Ubuntu: the package chromium)")
    with chromium.browser() as started:
        yield started


@pytest.fixture(scope="session")
def small(tmp_path_factory: pytest.TempPathFactory) -> Report:
    folder = tmp_path_factory.mktemp("small")
    guilty = real_run(folder / "run", "busy_loop", 5)
    return Report(write_report(folder / "run", folder / "report.html"), 4, guilty)


@pytest.fixture(scope="session")
def large(tmp_path_factory: pytest.TempPathFactory) -> Report:
    folder = tmp_path_factory.mktemp("large")
    make_large_run(folder, ranks=LARGE, guilty=LARGE_GUILTY)
    return Report(write_report(folder, folder / "report.html"), LARGE, LARGE_GUILTY)


@pytest.fixture(scope="session")
def large_hang(tmp_path_factory: pytest.TempPathFactory) -> Report:
    folder = tmp_path_factory.mktemp("large_hang")
    make_large_run(folder, ranks=LARGE, guilty=LARGE_GUILTY, stays=True)
    return Report(write_report(folder, folder / "report.html"), LARGE, LARGE_GUILTY)
