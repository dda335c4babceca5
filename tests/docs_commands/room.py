"""A folder in which the documents' commands find what they name: a real run, logs, dumps, counters, settings.

The run is that of the README's own job (``train.py`` of "Your own script"), begun by the command that it shows.
"""

from __future__ import annotations

import contextlib
import glob
import io
import json
import os
import re
import runpy
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from typer.testing import CliRunner

from tests.commands.notify.parts import SECRET, Api, receiver_table
from tests.diagnosis.counters.test_port_series import DROP
from tests.diagnosis.flight_recorder.played_job import OPEN, PlayedJob
from tests.diagnosis.phase_times.test_step_series import rows
from tests.docs_commands.collect import ROOT
from tests.newcomer import demo_and_own_job, script
from whichrank.commands.main import app

LIMIT_S = 180.0
_XID = (
    "2026-01-31T12:00:00.000000+00:00 node-02 kernel: [ 123.456789] "
    "NVRM: Xid (PCI:0000:3b:00): 79, pid=4711, GPU has fallen off the bus.\n"
)
_TRACEBACK = """[rank2]: Traceback (most recent call last):
[rank2]:   File "/job/train.py", line 11, in <module>
[rank2]:     raise ValueError("a bad sample")
[rank2]: ValueError: a bad sample
"""
_EVENTS = [{"job_start_time": 0.0}, *({"step_count": n, "step_start_time": 5.0 + 2.0 * n} for n in range(10))]


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    status: int
    output: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """incident: the id of the run's only one. own_job: what the README's command for one's own script said."""

    folder: Path
    environ: Mapping[str, str]
    incident: str
    own_job: Said

    def execute(self, text: str) -> Said:
        """As it stands there; ``whichrank`` and ``python`` are those of these tests.

        A command of whichrank that starts nothing is executed in this process, which saves a second each; the rest by a
        shell, other runs in a folder of their own. make has its folder, and only says what it would do.
        """
        placed = self.placed(text)
        if placed.startswith("make -n "):
            return run_shell(placed, ROOT, self.environ)
        if placed.startswith("whichrank ") and not placed.startswith("whichrank run "):
            return self._call(shlex.split(placed)[1:])
        if module := re.fullmatch(r"python -m (\S+) --help", placed):
            return _help_of(module[1])
        return run_shell(
            placed, self.folder / "beside" if placed.startswith("whichrank ") else self.folder, self.environ
        )

    def _call(self, words: Sequence[str]) -> Said:
        names = [name for word in words for name in (sorted(glob.glob(word, root_dir=self.folder)) or [word])]
        with _within(self.folder):
            told = CliRunner().invoke(app, names, env={**dict.fromkeys(os.environ), **self.environ})
        if told.exception is not None and not isinstance(told.exception, SystemExit):
            raise told.exception
        return Said(status=told.exit_code, output=told.output)

    def placed(self, text: str) -> str:
        """With the incident's id in the place of ID, and a name in that of NAME."""
        placed = re.sub(r"\bID\b", self.incident, text).replace("node=NAME", "node=n17")
        return placed.replace("$PWD", str(self.folder))


def _help_of(module: str) -> Said:
    """Of a program of this repository; most of what it imports is here already."""
    said, before = io.StringIO(), sys.argv
    sys.argv = [module, "--help"]
    try:
        with contextlib.redirect_stdout(said):
            runpy.run_module(module, run_name="__main__", alter_sys=True)
    except SystemExit as end:
        return Said(status=int(end.code or 0), output=said.getvalue())
    finally:
        sys.argv = before
    return Said(status=1, output="it did not end with its help")


@contextlib.contextmanager
def _within(folder: Path) -> Iterator[None]:
    before = Path.cwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)


def run_shell(text: str, folder: Path, environ: Mapping[str, str]) -> Said:
    done = subprocess.run(
        ["bash", "-e", "-c", text],
        cwd=folder,
        env=environ,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    return Said(status=done.returncode, output=done.stdout)


def environment(folder: Path) -> Mapping[str, str]:
    """Of these tests, but for whichrank's own variables, and with a home of its own."""
    path = os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))
    own = {name: value for name, value in os.environ.items() if not name.startswith("WHICHRANK_")}
    state = {
        f"WHICHRANK_{name}_STATE": str(folder / "state" / name.lower()) for name in ("RESPOND", "NOTIFY", "ANNOTATE")
    }
    return {**own, **state, "PATH": path, "HOME": str(folder), "NOTIFY_SECRET": SECRET, "PYTHONWARNINGS": "ignore"}


def make_room(folder: Path, api: Api) -> Room:
    environ = {**environment(folder), "WHICHRANK_CONFIG": str(folder / "whichrank.toml")}
    (folder / "whichrank.toml").touch()
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    (folder / ".venv").symlink_to(sys.prefix)
    for name in (
        "Makefile",
        "tests",
        "deploy",
        "requirements",
        ".env.example",
        ".pre-commit-config.yaml",
        "benchmarks",
    ):
        (folder / name).symlink_to(ROOT / name)
    (folder / "train.py").write_text(script(readme), encoding="utf-8")
    own_job = run_shell(demo_and_own_job(readme)[1], folder, environ)
    (run,) = (folder / "whichrank-out").iterdir()
    run.rename(run.with_name("RUN"))
    incidents = (folder / "whichrank-out" / "RUN" / "incidents.jsonl").read_text(encoding="utf-8").splitlines()
    write_files(folder)
    (folder / "whichrank.toml").write_text(receiver_table(api, "webhook", "oncall"), encoding="utf-8")
    return Room(folder=folder, environ=environ, incident=str(json.loads(incidents[-1])["id"]), own_job=own_job)


def write_files(folder: Path) -> None:
    for name in ("logs", "dumps", "probe", "beside"):
        (folder / name).mkdir()
    (folder / "kern.log").write_text(_XID)
    (folder / "logs" / "rank2.log").write_text(_TRACEBACK)
    (folder / "phases.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows()))
    (folder / "ports.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in DROP))
    (folder / "events.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in _EVENTS))
    (folder / "node.toml").write_text("")
    job = PlayedJob(4)
    job.call("0")
    job.call("0", by=[0, 1, 2], state=OPEN, line=88)
    for name, content in job.files().items():
        (folder / "dumps" / name).write_bytes(content)


def missing_tools(text: str) -> list[str]:
    """Programs that a command needs beside those of the environment."""
    first = shlex.split(text)[0]
    needs = {
        "deploy/kafka/certificates.sh": ["openssl"],
        "deploy/first-start.sh": ["openssl", "perl"],
        "deploy/victorialogs/readers.sh": ["openssl"],
        "make": ["make"],
    }
    return [name for name in needs.get(first, []) if shutil.which(name) is None]
