"""What people say of incidents, in a run's folder; that it counts is told in tests/processors/cluster/shared."""

from __future__ import annotations

import json
from pathlib import Path

from typer.testing import CliRunner

from tests.commands.incidents.documents import ID, document
from tests.processors.runner_examples import Clock
from whichrank.commands.embedded.embedded_operators import make_operators
from whichrank.commands.main import app
from whichrank.commands.run_folder.labels import LABELS_FILE, finding_of, read_labels
from whichrank.commands.run_folder.people_codec import read_people_label
from whichrank.processors.runner import EmbeddedRunner
from whichrank.telemetry.incident import canonical_line
from whichrank.telemetry.otlp import decode_logs, encode_payloads
from whichrank.telemetry.records import Finding, Incident, Record
from whichrank.telemetry.topics import KEY_OF_PEOPLE, TOPIC_FINDINGS
from whichrank.transport.embedded import EmbeddedBus

LABEL = {"incident": ID, "cause": "node=n1", "wrong": False, "by": "p", "time": 1_700_000_100.0}


def run_folder(path: Path) -> Path:
    path.joinpath("incidents.jsonl").write_bytes(canonical_line(document()))
    return path


def test_a_label_is_kept_and_shown(tmp_path: Path) -> None:
    folder = run_folder(tmp_path)
    told = CliRunner().invoke(app, ["incidents", "label", ID[:6], "--cause", "node=n1", "--from", str(folder)])
    assert told.exit_code == 0, told.output
    shown = CliRunner().invoke(app, ["incidents", "show", ID, "--from", str(folder), "--json"])
    label = json.loads(shown.stdout)["incident"]["label"]
    assert (label["cause"], label["wrong"]) == ("node=n1", False)
    CliRunner().invoke(app, ["incidents", "label", ID, "--wrong", "--from", str(folder)])
    shown = CliRunner().invoke(app, ["incidents", "show", ID, "--from", str(folder), "--json"])
    assert json.loads(shown.stdout)["incident"]["label"]["wrong"] is True, "the newest word holds"


def test_a_label_that_says_nothing_or_of_nothing_is_refused_in_one_line(tmp_path: Path) -> None:
    folder = run_folder(tmp_path)
    for arguments in ([ID], ["ffff", "--wrong"]):
        told = CliRunner().invoke(app, ["incidents", "label", *arguments, "--from", str(folder)])
        assert told.exit_code == 2
    assert not (folder / LABELS_FILE).exists()


def test_what_is_no_label_is_left_out_and_half_a_line_waits(tmp_path: Path) -> None:
    line = json.dumps(LABEL).encode()
    (tmp_path / LABELS_FILE).write_bytes(b"oops\n[1]\n" + line + b"\n" + line[:20])
    labels, read = read_labels(tmp_path)
    assert [label.incident for label in labels] == [ID]
    with (tmp_path / LABELS_FILE).open("ab") as file:
        file.write(line[20:] + b"\n")
    assert len(read_labels(tmp_path, read)[0]) == 1


def test_people_s_findings_are_input_of_a_runner_and_its_own_are_not(tmp_path: Path) -> None:
    """A finding that says the same under another key is what an operator has concluded before: it is not taken."""
    value = encode_payloads([finding_of(read_people_label(json.dumps(LABEL).encode()), "local")])
    (decoded,) = decode_logs(TOPIC_FINDINGS, value)
    assert isinstance(decoded, Finding)
    assert decoded.body["label"]["cause"] == "node=n1"
    for key, is_taken in ((KEY_OF_PEOPLE, True), ("local", False)):
        bus = EmbeddedBus(tmp_path / key, monotonic_ns=Clock())
        out: list[Record] = []
        runner = EmbeddedRunner(bus, None, make_operators(), out.append, live=False)
        runner.seed([Record(topic="", key="", stamp_ns=0, payload=Incident(document=document(cluster="local")))])
        bus.append(TOPIC_FINDINGS, key, value)
        runner.drain()
        assert (dict(runner.rows("cluster", "told")).get(ID) is not None) is is_taken
        runner.close()
        bus.close()
