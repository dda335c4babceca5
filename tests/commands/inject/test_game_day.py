"""``whichrank inject`` as a program: a fault in a job that runs, what is put back, written down and refused."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from typer.testing import CliRunner

from tests.commands.supervise.parts import audit
from tests.ports import free_ports
from whichrank.commands.main import app
from whichrank.telemetry.injection_words import ALLOW_VARIABLE

ROOT = Path(__file__).resolve().parents[3]
PROGRAM = [sys.executable, "-m", "whichrank.commands.main"]
#: Two ranks without torch: real processes and rings.
RINGS = ROOT / "tests" / "commands" / "supervise" / "ring_training.py"
TORCH = ROOT / "benchmarks" / "game_day_training.py"


def environment(**more: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("WHICHRANK_", "OTEL_"))}
    return {**kept, "WHICHRANK_COLLECT": "none", "OMP_NUM_THREADS": "1", **more}


@pytest.fixture(autouse=True)
def nothing_left(tmp_path: Path) -> Iterator[None]:
    yield
    for process in psutil.process_iter(["cmdline"]):
        if str(tmp_path) in (process.info["cmdline"] or ()):
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()


def start_job(folder: Path, steps: int, **more: str) -> subprocess.Popen[bytes]:
    command = [*PROGRAM, "run", "--out", str(folder / "run"), "--", sys.executable, str(RINGS), str(folder)]
    return subprocess.Popen(
        [*command, str(steps), "none"],
        env=environment(**more),
        stderr=(folder / "console").open("wb"),
        start_new_session=True,
    )


def inject(*words: str, **more: str) -> tuple[int, dict[str, Any], str]:
    """Exit status, the JSON object, and what was said."""
    done = subprocess.run(
        [*PROGRAM, "inject", *words], env=environment(**more), capture_output=True, text=True, timeout=120, check=False
    )
    line = next((line for line in done.stdout.splitlines() if line.startswith("{")), "{}")
    return done.returncode, json.loads(line), done.stderr


def until(is_so: Callable[[], bool], timeout_s: float = 60.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def job_id(folder: Path) -> str:
    until(lambda: (folder / "run" / "run.json").exists())
    return Path(json.loads((folder / "run" / "run.json").read_text())["ring_directory"]).name


def test_a_rank_of_a_real_job_is_stopped_named_and_goes_on(tmp_path: Path) -> None:
    job = start_job(tmp_path, 4000, **{ALLOW_VARIABLE: "1"})
    status, told, said = inject(
        "stop", "--job", job_id(tmp_path), "--rank", "1", "--step", "5", "--for", "20", "--json"
    )
    assert (status, told["answer"], told["rank"], told["undone"]) == (0, "right", 1, True), said
    assert told["verdict"]["suspects"][0]["rank"] == 1
    assert 0 < told["seen_after_s"] < 15
    assert [(line["hook"], line["operation"], line["outcome"]) for line in audit(tmp_path / "run")] == [
        ("inject", "stop", "begun"),
        ("inject", "stop", "done"),
    ]
    steps = tmp_path / "attempt-0"
    before = len(list(steps.glob("1.*")))
    until(lambda: len(list(steps.glob("1.*"))) > before + 10)
    job.terminate()
    job.wait(60)


def test_a_job_that_is_started_for_it_is_judged_and_accounted_for(tmp_path: Path) -> None:
    words = ["kill", "--rank", "1", "--step", "5", "--json", "--out", str(tmp_path / "run")]
    status, told, said = inject(*words, "--", sys.executable, str(RINGS), str(tmp_path), "4000", "none")
    assert (status, told["answer"], told["undone"]) == (0, "right", None), said
    account = CliRunner().invoke(app, ["goodput", str(tmp_path / "run"), "--json"])
    found = json.loads(account.stdout)
    assert [fault["kind"] for fault in found["injected"]] == ["kill"]
    assert [each["injected"] for each in found["runs"][0]["interruptions"]] == ["kill"]


def test_a_rank_of_torch_raises_when_it_is_asked_to(tmp_path: Path) -> None:
    alone = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1"}
    words = ["raise", "--step", "5", "--json", "--out", str(tmp_path / "run"), "--"]
    command = [sys.executable, str(TORCH), "4000", "-", "20"]
    status, told, said = inject(*words, *command, MASTER_PORT=str(free_ports(1)[0]), **alone)
    assert (status, told["answer"], told["rank"]) == (0, "right", 0), said
    assert told["step"] >= 5


def test_a_folder_with_another_run_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text("{}")
    status, told, said = inject("kill", "--out", str(tmp_path), "--", "touch", str(tmp_path / "started"))
    assert (status, told) == (2, {})
    assert "holds another run already" in said
    assert not (tmp_path / "started").exists()


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("stop",), "name one of them"),
        (("stop", "--job", "../x"), "no job has such a name"),
        (("stop", "--job", "gone"), "no such job of yours runs here"),
        (("full-disk", "--job", "x"), "full-disk needs --path"),
        (("slow", "--percent", "0", "--job", "x"), "--percent 0"),
    ],
)
def test_what_cannot_be_done_is_one_line(words: tuple[str, ...], why: str) -> None:
    before = signal.getsignal(signal.SIGTERM)
    try:
        done = CliRunner().invoke(app, ["inject", *words])
    finally:
        signal.signal(signal.SIGTERM, before)
    assert done.exit_code == 2
    assert why in done.output
