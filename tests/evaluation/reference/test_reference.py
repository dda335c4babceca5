"""docs/reference.md is current, nothing that the code knows is missing from it, and real events carry what it says."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from pydantic import BaseModel
from typer.testing import CliRunner

from whichrank.commands.main import app
from whichrank.commands.settings.settings import ALL_SETTINGS
from whichrank.evaluation.reference import settings, telemetry, words
from whichrank.evaluation.reference.markdown import table
from whichrank.evaluation.reference.reference_page import FILE, main, reference
from whichrank.evaluation.reference.span_kinds import span_kinds
from whichrank.telemetry import attributes as names
from whichrank.telemetry.evidence_facts import How, SignalSender
from whichrank.telemetry.metric_encode import METRICS
from whichrank.telemetry.node_metrics import node_metrics
from whichrank.telemetry.otlp import decode_logs
from whichrank.telemetry.records import Event
from whichrank.telemetry.response_outcomes import Outcome
from whichrank.telemetry.tables import TABLES
from whichrank.telemetry.vocabulary import (
    Action,
    Bucket,
    CausalRole,
    Change,
    EventName,
    IncidentState,
    Kind,
    Phase,
    Scope,
    Severity,
    TimeBucket,
)
from whichrank.transport.embedded import EmbeddedBus
from whichrank.transport.kafka_topics import TOPICS

ROOT = Path(__file__).parents[3]
#: First cells of heads of tables.
HEADS = {"Key", "Variable", "Metric", "Topic", "Event", "Span", "Attribute", "Word", "Kind"}
#: Where the figures of a service are named.
SERVED = {"notify": "commands/notify/notify_health.py", "respond": "commands/respond/respond_health.py"}
#: And what both serve.
SERVED_BY_BOTH = "commands/incident_service/service_pages.py"
#: What of an event's attributes is named by who tells it, so that no table can have them.
NAMED_FREELY = {EventName.AGENT_HEALTH, EventName.NODE_TOPOLOGY, EventName.SCHEDULER}


def rows(text: str) -> dict[str, list[str]]:
    """Cells of each row by its first one, without code marks."""
    found = {}
    for line in text.splitlines():
        if line.startswith("| "):
            first, *rest = re.split(r"(?<!\\) \| ", line.removeprefix("| ").removesuffix(" |"))
            found[first.strip("`")] = rest
    return found


def section(heading: str) -> dict[str, list[str]]:
    """Its tables, but for those of tables within the settings file."""
    whole = re.search(rf"^## {heading}\n(.*?)(?=^## |\Z)", FILE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    assert whole is not None, heading
    found = rows(whole[1].split("### Table")[0])
    return {name: cells for name, cells in found.items() if name not in HEADS}


def test_the_file_is_what_the_code_makes() -> None:
    assert FILE.read_text(encoding="utf-8") == reference(), "run: make reference"


def test_a_file_that_is_not_current_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stale = tmp_path / "reference.md"
    stale.write_text(reference().replace("`whichrank.step.duration`", "`whichrank.step.length`"))
    monkeypatch.setattr("whichrank.evaluation.reference.reference_page.FILE", stale)
    assert main(["--check"]) == 1
    assert main([]) == 0
    assert main(["--check"]) == 0
    assert stale.read_text() == reference()


def test_every_setting_has_a_row_with_its_variable_and_words() -> None:
    table = section("Settings")
    keys = {key: field for kind in ALL_SETTINGS for key, field in kind.model_fields.items()}
    for key, field in keys.items():
        variable, _, kind, default, what = table[key]
        assert variable == f"`WHICHRANK_{key.upper()}`"
        assert kind
        assert "class" not in kind
        assert default
        assert what == " ".join((field.description or "").split()).replace("|", "\\|")
        assert what, key
    text = FILE.read_text(encoding="utf-8")
    for heading, model in settings.TABLES.items():
        assert set(rows(text.split(f"### Table `{heading}`")[1].split("\n#")[0])) >= set(model.model_fields)


def test_each_group_leaves_out_only_what_another_tells() -> None:
    told = {(kind, key) for _, kind, base, _ in settings.GROUPS for key, _ in settings.keys_of(kind, base)}
    for kind in ALL_SETTINGS:
        classes = [each for each in kind.__mro__ if isinstance(each, type) and issubclass(each, BaseModel)]
        for key in kind.model_fields:
            assert any((each, key) in told for each in classes), (kind, key)


@pytest.mark.parametrize(
    ("command", "flag", "key"),
    [
        ("run", "--json", "json_lines"),
        ("process", "--shadow", "shadow"),
        ("respond", "--act", "respond_act"),
        ("respond", "--from", "respond_from"),
        ("notify", "--health", "notify_health"),
        ("grafana annotate", "--url", "grafana_url"),
        ("topics", "--partitions", "kafka_partitions"),
    ],
)
def test_flags_stand_beside_their_keys(command: str, flag: str, key: str) -> None:
    assert f"`{flag}`" in section("Settings")[key][1]
    assert flag in {name for each in settings.program()[command].params for name in each.opts}


def test_a_flag_of_the_table_sets_its_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Asked of the program itself: a wrong pair would leave the key as it was."""
    monkeypatch.chdir(tmp_path)
    begin = {"notify": ["--from", "."], "respond": ["--from", "."], "process": ["--kafka", "a:1"]}
    for _, kind, _, command in settings.GROUPS:
        if command not in ("run", "agent", "process", "respond", "notify"):
            continue
        for key, flags in settings.flags_of(command, kind).items():
            flag = flags.split(",")[0].strip("`")
            option = next(each for each in settings.program()[command].params if flag in each.opts)
            value = [] if getattr(option, "is_flag", False) else [_value_for(key, tmp_path)]
            given = [command, *begin.get(command, ["--kafka", "a:1"]), flag, *value, "--print-config"]
            told = CliRunner().invoke(app, given)
            assert told.exit_code == 0, (given, told.output)
            assert re.search(rf"^{key} = .*# flag;", told.output, re.MULTILINE), (given, told.output)


def _value_for(key: str, folder: Path) -> str:
    if key == "judge_secret_file":
        secret = folder / "secret"
        secret.write_text("a secret of the job's own")
        secret.chmod(0o600)
        return str(secret)
    known = {"view": "none", "level": "status", "disable": "desync", "capture_limit": "1GiB", "spool_limit": "1GiB"}
    known |= {"engine": "flink", "otlp": "http://host:4318"}
    known |= {"restarts": "3", "restart_on": "hang", "restart_spares": "node-7", "restart_grace_s": "20"}
    return known.get(key, "slurm" if key == "respond_hooks" else "host:8461")


def test_every_command_is_there_with_all_its_flags() -> None:
    text = FILE.read_text(encoding="utf-8")
    for name, command in settings.program().items():
        part = text.split(f"### whichrank {name}\n\n")[-1].split("\n###")[0].split("\n## ")[0]
        for parameter in command.params:
            is_shown = (
                parameter.param_type_name == "option"
                and parameter.name != "help"
                and not getattr(parameter, "hidden", False)
            )
            for flag in parameter.opts if parameter.param_type_name == "option" and parameter.name != "help" else ():
                assert (f"`{flag}`" in part) == is_shown, (name, flag)
    assert {"run", "incidents show", "diagnose job-log", "grafana sync", "respond", "respond status"} <= set(
        settings.program()
    )


def test_exit_status_is_read_from_the_help() -> None:
    assert settings.exit_status("Words.\n\nExit status: 0; 1 if\n    wrong.\n\nMore.") == "0; 1 if wrong."
    assert settings.exit_status("Words.") == ""
    assert "Exit status: 0; 1 if the incidents differ" in FILE.read_text(encoding="utf-8")


def test_every_metric_has_unit_kind_attributes_and_words() -> None:
    ours, of_nodes, spelled = section("Metrics of jobs and of whichrank"), section("Metrics of nodes"), None
    for name, metric in METRICS.items():
        unit, kind, attributes, text = ours[name]
        assert (unit, kind, text) == (names.METRIC_UNITS[name], metric.instrument.value, metric.description)
        assert [each.strip("`") for each in attributes.split(", ") if each] == list(metric.attributes)
    for name, each in node_metrics().items():
        assert of_nodes[name][0] == each.unit
        assert of_nodes[name][3] == " ".join(each.description.split()).replace("|", "\\|")
    spelled = section("Names in Prometheus")
    assert set(METRICS) | set(node_metrics()) <= set(spelled)
    assert spelled["whichrank.step.duration"] == ["`whichrank_step_duration_seconds`"]


def test_what_services_serve_is_there() -> None:
    served = section("Metrics that services serve themselves")
    assert {telemetry.served_name(family) for family in telemetry.own_families()} <= set(served)
    written = {
        f"whichrank_{service}_{name}"
        for service, path in SERVED.items()
        for name in (
            *re.findall(r'whichrank_(?:process|notify|respond)_([a-z_]+)"', (ROOT / path).read_text()),
            *re.findall(r'{prefix}_([a-z_]+)"', (ROOT / SERVED_BY_BOTH).read_text()),
        )
    }
    assert len(written) >= 10
    assert written - {name.removesuffix("_total") for name in served} == set()


def test_every_attribute_has_words() -> None:
    used = {each for metric in METRICS.values() for each in metric.attributes}
    used |= {telemetry.seconds_of_phase(name) for kind in span_kinds() for name, _ in kind.attributes}
    assert used - set(words.ATTRIBUTES) == set()
    assert set(section("Attributes")) >= used


def test_spans_carry_what_the_table_says() -> None:
    table = section("Spans")
    assert "`whichrank.step.loss` double" in table["step"][0]
    assert "`whichrank.step.seconds.PHASE` double" in table["step"][0]
    collective = next(cells for name, cells in table.items() if name.startswith("a collective: all_reduce"))
    assert "`whichrank.collective.polled` bool" in collective[0]
    assert collective[1] == "`started`"
    assert "`whichrank.incident.suspect.gpu` string" in table["incident KIND"][0]


def test_every_event_has_a_row() -> None:
    assert set(words.EVENTS) == set(EventName)
    table = section("Events")
    for name in EventName:
        cells = table.get(name.value) or table.get(f"{name.value}.CHANGE") or table[f"{name.value}.OUTCOME"]
        assert cells[-1] == words.EVENTS[name]
    for name, columns in TABLES.items():
        assert cells_name_all(table[name.value][0], columns.names or ())
    listed = set(telemetry.event_attributes())
    own = {*TABLES, EventName.FINDING, EventName.INCIDENT, EventName.RESPONSE, EventName.EVIDENCE}
    assert set(EventName) - listed - own == {EventName.TICK, EventName.INPUT_SILENT}


def cells_name_all(cell: str, wanted: tuple[str, ...]) -> bool:
    return all(f"`{name}`" in cell for name in wanted)


def test_a_row_of_another_length_is_refused() -> None:
    with pytest.raises(ValueError, match="1 cells below 2"):
        table(("a", "b"), [("only one",)])


def test_attributes_are_split_outside_of_parentheses() -> None:
    assert list(telemetry.split_attributes("a* (one, two), b; c")) == ["a* (one, two)", "b", "c"]


def test_topics_and_closed_sets_are_whole() -> None:
    assert set(words.TOPICS) == {plan.name for plan in TOPICS} == set(section("Topics"))
    sets = {word for found in words.SETS.values() for word in found}
    assert sets == {
        *(*Bucket, *Scope, *Severity, *IncidentState, *Change),
        *(*CausalRole, *Action, *Outcome),
        *(*How, *SignalSender),
    }
    assert set(words.TIME_BUCKETS) == set(TimeBucket)
    assert set(words.PHASES) == set(Phase)
    text = FILE.read_text(encoding="utf-8")
    for kind in Kind:
        assert f"[`{kind.value}`](runbooks/{kind.value}.md)" in text


def test_every_variable_of_the_code_is_there() -> None:
    told = {*section("Other variables"), *(cells[0].strip("`") for cells in section("Settings").values() if cells)}
    used = {
        match
        for folder in ("instrumentation", "telemetry", "agents", "commands")
        for path in (ROOT / folder).rglob("*.py")
        for match in re.findall(r"[\"'](WHICHRANK_[A-Z_]+)[\"']", path.read_text(encoding="utf-8"))
        if not match.endswith("_")
    }
    assert len(used) > 10
    assert used - told == set()


def real_events(folder: Path) -> Iterator[Event]:
    bus = EmbeddedBus(folder / "capture", read_only=True)
    after = 0
    while messages := bus.read(after, 1000):
        after = messages[-1].position
        for message in messages:
            yield from (each for each in decode_logs(message.topic, message.value) if isinstance(each, Event))
    bus.close()


def test_real_events_carry_nothing_that_the_table_has_not(tmp_path: Path) -> None:
    run = tmp_path / "run"
    told = CliRunner().invoke(
        app, ["simulate", "--scenario", "gpu_off_the_bus", "--ranks", "16", "--seed", "3", "--out", str(run)]
    )
    assert told.exit_code == 0, told.output
    table, missing, seen = section("Events"), set(), set()
    for event in real_events(run):
        seen.add(event.name)
        cell = "" if event.name in NAMED_FREELY else table[event.name.value][0]
        missing |= {f"{event.name.value} {each}" for each in event.attributes if cell and not names_it(cell, each)}
    assert {EventName.RANK_STARTED, EventName.RANK_EXIT, EventName.DEVICE_EVENT, EventName.CHANGE} <= seen
    assert sorted(missing) == []


def names_it(cell: str, attribute: str) -> bool:
    return f"`{names.wire_name(attribute)}`" in cell
