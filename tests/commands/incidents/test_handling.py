"""``whichrank incidents ack``, ``close`` and ``watch``, in a run's folder."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from typer.testing import CliRunner

from tests.commands.incidents.documents import ID, document
from tests.processors.runner_examples import Clock
from whichrank.commands.embedded.embedded_operators import make_operators
from whichrank.commands.main import app
from whichrank.commands.run_folder.labels import finding_of, read_labels
from whichrank.processors.runner import EmbeddedRunner
from whichrank.telemetry.incident import canonical_line
from whichrank.telemetry.otlp import encode_payloads
from whichrank.telemetry.records import Incident, Record
from whichrank.telemetry.topics import KEY_OF_PEOPLE, TOPIC_FINDINGS
from whichrank.transport.embedded import EmbeddedBus


def run_folder(path: Path, **run: Any) -> Path:
    path.joinpath("incidents.jsonl").write_bytes(canonical_line(document()))
    path.joinpath("run.json").write_text(json.dumps({"schema": 1, "ended": None, **run}))
    return path


def said(folder: Path, *arguments: str) -> dict[str, Any]:
    told = CliRunner().invoke(app, ["incidents", *arguments, "--from", str(folder)])
    assert told.exit_code == 0, told.output
    shown = CliRunner().invoke(app, ["incidents", "show", ID, "--from", str(folder), "--json"])
    label: dict[str, Any] = json.loads(shown.stdout)["incident"]["label"]
    return label


def test_who_is_at_it_stands_in_the_incident_and_keeps_what_was_said_before(tmp_path: Path) -> None:
    folder = run_folder(tmp_path)
    said(folder, "label", ID, "--cause", "node=n1")
    label = said(folder, "ack", ID[:6])
    assert label["acknowledged"]["by"]
    assert label["cause"] == "node=n1", "an acknowledgement takes no word back"
    label = said(folder, "label", ID, "--cause", "application")
    assert label["cause"] == "application"
    assert label["acknowledged"]["by"], "nor does a cause"
    listed = CliRunner().invoke(app, ["incidents", "list", "--from", str(folder), "--json"])
    assert json.loads(listed.stdout)["incidents"][0]["label"]["acknowledged"]


def test_a_closed_incident_says_why_and_its_state_stays_what_was_seen(tmp_path: Path) -> None:
    folder = run_folder(tmp_path)
    label = said(folder, "close", ID, "--because", "node taken out")
    assert label["closed"]["because"] == "node taken out"
    shown = CliRunner().invoke(app, ["incidents", "show", ID, "--from", str(folder), "--json"])
    assert json.loads(shown.stdout)["incident"]["state"] == "open"
    panel = CliRunner().invoke(app, ["incidents", "show", ID, "--from", str(folder)])
    assert "closed by" in panel.stdout
    assert "node taken out" in panel.stdout
    label = said(folder, "ack", ID)
    assert "closed" not in label, "who takes it up again opens it for people"


def test_operators_take_it_as_a_word_that_blames_nobody(tmp_path: Path) -> None:
    run_folder(tmp_path)
    said(tmp_path, "ack", ID)
    (label,), _ = read_labels(tmp_path)
    bus = EmbeddedBus(tmp_path / "capture", monotonic_ns=Clock())
    out: list[Record] = []
    runner = EmbeddedRunner(bus, None, make_operators(), out.append, live=False)
    runner.seed([Record(topic="", key="", stamp_ns=0, payload=Incident(document=document(cluster="local")))])
    bus.append(TOPIC_FINDINGS, KEY_OF_PEOPLE, encode_payloads([finding_of(label, "local")]))
    runner.drain()
    assert dict(runner.rows("cluster", "told")).get(ID) is not None
    runner.close()
    bus.close()


def test_watch_tells_each_change_once_and_ends_with_the_run(tmp_path: Path) -> None:
    folder = run_folder(tmp_path)
    command = [sys.executable, "-m", "whichrank.commands.main", "incidents", "watch", "--from", str(folder)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as watching:
        assert watching.stdout is not None
        assert "opened rank_not_entered" in watching.stdout.readline()
        with (folder / "incidents.jsonl").open("ab") as file:
            resolved = document(revision=2, change="resolved", state="resolved")
            line = canonical_line(resolved)
            file.write(line[:40])
            file.flush()
            time.sleep(0.7)  # half a line is no change yet
            file.write(line[40:])
        assert "resolved rank_not_entered" in watching.stdout.readline()
        (folder / "run.json").write_text(json.dumps({"schema": 1, "ended": 1.0}))
        left, problems = watching.communicate(timeout=30)
    assert left == ""
    assert "the run has ended" in problems
    assert watching.returncode == 0
