"""What people announce, in a folder and as operators take it; tests/processors/cluster/shared has what follows."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from tests.processors.runner_examples import Clock
from whichrank.commands.embedded.embedded_operators import make_operators
from whichrank.commands.main import app
from whichrank.commands.run_folder.maintenance_plans import PLANS_FILE, finding_of_plan, read_plans
from whichrank.processors.cluster.shared.told import plan_of
from whichrank.processors.runner import EmbeddedRunner
from whichrank.telemetry.otlp import decode_logs, encode_payloads
from whichrank.telemetry.records import Finding, Record
from whichrank.telemetry.topics import KEY_OF_PEOPLE, TOPIC_FINDINGS
from whichrank.transport.embedded import EmbeddedBus


def plan(folder: Path, *words: str, code: int = 0) -> dict[str, Any]:
    told = CliRunner().invoke(app, ["plan", *words, "--from", str(folder), "--json"])
    assert told.exit_code == code, told.output
    return dict(json.loads(told.stdout)) if code == 0 else {}


def test_a_plan_is_announced_listed_and_called_off(tmp_path: Path) -> None:
    before = time.time()
    said = plan(tmp_path, "announce", "maintenance", "--where", "node=n1,n2", "--where", "leaf=l3", "--begin", "+10",
                "--end", "+30")["plan"]  # fmt: skip
    assert said["where"] == {"node": ["n1", "n2"], "leaf": ["l3"]}
    assert before - 0.001 <= said["told"] <= time.time() + 0.001  # it is told in milliseconds
    assert said["begin"] - said["told"] == pytest.approx(600.0, abs=1.0)
    assert said["end"] - said["begin"] == pytest.approx(1800.0, abs=0.01)
    later = plan(tmp_path, "announce", "profiler", "--job", "j1", "--begin", "2030-01-01T00:00:00+00:00")["plan"]
    assert later["begin"] == 1_893_456_000.0
    listed = plan(tmp_path, "list")["plans"]
    assert [(each["id"], each["now"]) for each in listed] == [(said["id"], "to come"), (later["id"], "to come")]
    plan(tmp_path, "cancel", said["id"][:5])
    assert [each["now"] for each in plan(tmp_path, "list")["plans"]] == ["called off", "to come"]
    plan(tmp_path, "cancel", said["id"], code=2)
    shown = CliRunner().invoke(app, ["plan", "list", "--from", str(tmp_path)]).stdout
    assert "job j1" in shown
    assert "called off" in shown


@pytest.mark.parametrize(
    "words",
    [
        ("announce", "party", "--where", "node=n1"),
        ("announce", "maintenance"),
        ("announce", "maintenance", "--where", "planet=earth"),
        ("announce", "maintenance", "--where", "node="),
        ("announce", "cancel", "--where", "node=n1"),
        ("announce", "drain", "--where", "node=n1", "--begin", "soon"),
        ("announce", "drain", "--where", "node=n1", "--begin", "2020-01-01", "--end", "2020-01-02"),
        ("announce", "drain", "--where", "node=n1", "--end", "-5"),
        ("cancel", "abc"),
    ],
)
def test_what_cannot_be_announced_is_refused_in_one_line(tmp_path: Path, words: tuple[str, ...]) -> None:
    told = CliRunner().invoke(app, ["plan", *words, "--from", str(tmp_path)])
    assert told.exit_code == 2, told.output
    assert len(told.stderr.splitlines()) == 1
    assert told.stderr.startswith("whichrank: ")
    assert not (tmp_path / PLANS_FILE).exists()


def test_operators_take_what_was_announced_and_called_off(tmp_path: Path) -> None:
    said = plan(tmp_path, "announce", "drain", "--where", "node=n1")["plan"]
    plan(tmp_path, "cancel", said["id"])
    lines, _ = read_plans(tmp_path)
    bus = EmbeddedBus(tmp_path / "bus", monotonic_ns=Clock())
    out: list[Record] = []
    runner = EmbeddedRunner(bus, None, make_operators(), out.append, live=False)
    known = []
    for line in lines:
        value = encode_payloads([finding_of_plan(line, "local")])
        (decoded,) = decode_logs(TOPIC_FINDINGS, value)
        assert isinstance(decoded, Finding)
        stands = plan_of(decoded.body["plan"], decoded.key, over=decoded.cleared)
        known.append((stands.key, stands.end > stands.begin))
        bus.append(TOPIC_FINDINGS, KEY_OF_PEOPLE, value)
        runner.drain()
    key = f"plan/people/{said['id']}"
    assert known == [(key, True), (key, False)]
    kept = {name: json.loads(row) for name, row in runner.rows("cluster", "plans")}
    assert kept[key]["where"] == {"node": ["n1"]}
    assert kept[key]["end"] < kept[key]["begin"], "called off"
    runner.close()
    bus.close()
