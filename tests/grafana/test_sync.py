"""``whichrank grafana sync``: into a Grafana that others use, over real HTTP; what is theirs stays as it is."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from tests.grafana.small_grafana import TOKEN, SmallGrafana, running
from whichrank.commands.main import app
from whichrank.grafana.boards import all_dashboards
from whichrank.grafana.desired import SOURCES, TYPES
from whichrank.grafana.rules import GROUP, SELF_GROUP

UIDS = {dashboard.uid for dashboard in all_dashboards()}


@pytest.fixture
def grafana(monkeypatch: pytest.MonkeyPatch) -> Iterator[SmallGrafana]:
    """With a folder, a dashboard, rules and data sources of somebody else."""
    made = SmallGrafana()
    made.folders["theirs"] = {"id": 90, "uid": "theirs", "title": "Their own"}
    made.dashboards["mine-01"] = {"id": 91, "uid": "mine-01", "title": "Cluster", "tags": ["whichrank"], "panels": []}
    made.where["mine-01"] = "theirs"
    made.groups["theirs", "disks"] = {"title": "disks", "folderUid": "theirs", "rules": [{"uid": "full"}]}
    for kind, type_of_it in TYPES.items():
        made.sources[f"their-{kind}"] = {"id": 95, "uid": f"their-{kind}", "type": type_of_it}
    monkeypatch.setenv("GRAFANA_TOKEN", TOKEN)
    monkeypatch.delenv("GRAFANA_URL", raising=False)
    with running(made):
        yield made


USE = [word for kind in SOURCES for word in ("--use", f"{kind}=their-{kind}")]


def sync(grafana: SmallGrafana, *words: str) -> Result:
    return CliRunner().invoke(app, ["grafana", "sync", "--url", grafana.url, *words])


def foreign(grafana: SmallGrafana) -> str:
    """As bytes that must not change."""
    return json.dumps(
        [
            {uid: each for uid, each in grafana.folders.items() if uid != "whichrank"},
            {uid: each for uid, each in grafana.dashboards.items() if uid not in UIDS},
            [group for (folder, _), group in grafana.groups.items() if folder != "whichrank"],
            {uid: each for uid, each in grafana.sources.items() if uid.startswith("their-")},
        ]
    )


def test_everything_is_put_into_a_folder_of_its_own_and_nothing_else_changes(grafana: SmallGrafana) -> None:
    before = foreign(grafana)
    done = sync(grafana, *USE)
    assert done.exit_code == 0, done.output
    assert set(grafana.dashboards) >= UIDS
    assert {grafana.where[uid] for uid in UIDS} == {"whichrank"}
    assert {name for folder, name in grafana.groups if folder == "whichrank"} == {GROUP, SELF_GROUP}
    assert foreign(grafana) == before
    assert {path.split("/")[2] for _, path in grafana.written} == {"folders", "dashboards", "v1"}
    assert not any("polic" in path or "contact" in path or "template" in path for _, path in grafana.written)


def test_a_second_time_changes_nothing(grafana: SmallGrafana) -> None:
    sync(grafana, *USE)
    grafana.written.clear()
    done = sync(grafana, *USE)
    assert (done.exit_code, done.stdout.strip(), grafana.written) == (0, "all is as it should be", [])


def test_a_second_time_changes_nothing_in_a_grafana_that_does_not_know_every_key_of_our_rules(
    grafana: SmallGrafana,
) -> None:
    grafana.version = "9.4.0-pre"
    sync(grafana, *USE)
    assert "keep_firing_for" not in json.dumps(list(grafana.groups.values()))
    assert sync(grafana, *USE).stdout.strip() == "all is as it should be"


def test_a_dry_run_shows_the_difference_and_changes_nothing(grafana: SmallGrafana) -> None:
    sync(grafana, *USE)
    grafana.dashboards["whichrank-job"]["title"] = "changed by hand"
    grafana.groups["whichrank", GROUP]["rules"][0]["for"] = "10m"
    grafana.written.clear()
    done = sync(grafana, *USE, "--dry-run")
    assert '- "title": "changed by hand"' in done.stdout
    assert '"for": "10m"' in done.stdout
    assert "2 would be changed" in done.stdout
    assert grafana.written == []
    assert "2 were changed" in sync(grafana, *USE).stdout


def test_the_data_sources_of_that_grafana_are_asked(grafana: SmallGrafana) -> None:
    sync(grafana, *USE)
    text = json.dumps([grafana.dashboards[uid] for uid in UIDS]) + json.dumps(list(grafana.groups.values()))
    assert '"their-prometheus"' in text
    assert '"uid": "prometheus"' not in text
    assert '"datasourceUid": "prometheus"' not in text


def test_a_source_that_is_missing_is_told_and_one_that_is_given_is_made(grafana: SmallGrafana) -> None:
    done = sync(grafana)
    assert "has no data source victorialogs" in done.stderr
    done = sync(grafana, "--make", "victorialogs=http://127.0.0.1:9428", "--make", "prometheus=http://127.0.0.1:9090")
    made = grafana.sources["victorialogs"]
    assert (made["url"], made["type"]) == ("http://127.0.0.1:9428", "victoriametrics-logs-datasource")
    assert "has no data source" not in done.stderr


def log_targets(grafana: SmallGrafana) -> list[dict[str, Any]]:
    panels = [panel for uid in UIDS for panel in grafana.dashboards[uid]["panels"] if panel["type"] == "logs"]
    return [target for panel in panels for target in panel["targets"]]


def test_panels_of_events_ask_victorialogs_in_its_language(grafana: SmallGrafana) -> None:
    done = sync(grafana, *USE)
    sources = {(target["datasource"]["type"], target["datasource"]["uid"]) for target in log_targets(grafana)}
    assert sources == {("victoriametrics-logs-datasource", "their-victorialogs")}
    assert all("whichrank." in target["expr"] for target in log_targets(grafana))
    assert "LogQL" not in done.stderr


def test_who_has_a_loki_gets_its_queries_and_is_told_that_nobody_runs_them(grafana: SmallGrafana) -> None:
    done = sync(
        grafana, "--use", "prometheus=their-prometheus", "--use", "loki=their-loki", "--use", "tempo=their-tempo"
    )
    assert done.exit_code == 0, done.output
    targets = log_targets(grafana)
    assert {(target["datasource"]["type"], target["datasource"]["uid"]) for target in targets} == {
        ("loki", "their-loki")
    }
    told = [target["expr"].replace("whichrank.(rank|checkpoint)", "") for target in targets]  # names of events
    assert all("whichrank_" in expr and "whichrank." not in expr for expr in told)
    assert "no test runs these queries" in done.stderr
    assert "victoria" not in json.dumps([grafana.dashboards[uid] for uid in UIDS])
    # And back again.
    assert "no test runs" not in sync(grafana, *USE).stderr
    assert {target["datasource"]["uid"] for target in log_targets(grafana)} == {"their-victorialogs"}


@pytest.mark.parametrize("what", ["folder", "dashboard"])
def test_what_has_our_name_and_is_somebody_else_s_is_refused(grafana: SmallGrafana, what: str) -> None:
    if what == "folder":
        grafana.folders["whichrank"] = {"id": 92, "uid": "whichrank", "title": "My tests of whichrank"}
    else:
        grafana.dashboards["whichrank-job"] = {"id": 93, "uid": "whichrank-job", "title": "copy"}
        grafana.where["whichrank-job"] = "theirs"
    done = sync(grafana, *USE)
    assert done.exit_code == 2
    assert "Traceback" not in done.output
    assert grafana.dashboards.get("whichrank-job", {}).get("title") in (None, "copy")


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--use", "prometheus"], "give TYPE=VALUE"),
        (["--use", "mysql=x"], "give TYPE=VALUE"),
        (["--use", "loki=x", "--use", "victorialogs=y"], "both loki and victorialogs are named"),
        (["--use", "jaeger=x", "--make", "tempo=http://127.0.0.1:3200"], "both tempo and jaeger are named"),
        (["--token-file", "/nowhere/token"], "No such file"),
    ],
)
def test_what_cannot_be_is_told_in_one_line(grafana: SmallGrafana, words: list[str], says: str) -> None:
    done = sync(grafana, *words)
    assert done.exit_code == 2
    assert says in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


def test_a_refused_token_and_a_grafana_that_is_away_are_told_in_one_line(
    grafana: SmallGrafana, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GRAFANA_TOKEN", "made-up-and-wrong")
    refused = sync(grafana)
    away = CliRunner().invoke(app, ["grafana", "sync", "--url", "http://127.0.0.1:9"])
    for done in (refused, away):
        assert done.exit_code == 2
        assert len(done.stderr.strip().splitlines()) == 1
        assert "made-up-and-wrong" not in done.output
    assert "401" in refused.stderr


def test_export_writes_files_and_spares_those_that_are_there(tmp_path: Path) -> None:
    def export(*words: str) -> Result:
        return CliRunner().invoke(app, ["grafana", "export", str(tmp_path / "out"), *words])

    assert export().exit_code == 0
    boards: list[dict[str, Any]] = [json.loads(p.read_text()) for p in (tmp_path / "out" / "dashboards").glob("*.json")]
    assert {board["uid"] for board in boards} == UIDS
    assert (tmp_path / "out" / "provisioning" / "alerting" / "whichrank.yaml").is_file()
    (tmp_path / "out" / "prometheus" / "rules.yml").write_text("groups: []\n")
    refused = export()
    assert refused.exit_code == 2
    assert "--force" in refused.stderr
    assert export("--force").exit_code == 0
