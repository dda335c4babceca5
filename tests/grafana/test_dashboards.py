"""The dashboards as files: current, whole, linked with each other, and of metrics that there are."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterator
from typing import Any

import pytest

from whichrank.grafana import generate
from whichrank.grafana.boards import all_dashboards
from whichrank.grafana.elements.metric_names import label_name, prometheus_name
from whichrank.grafana.elements.recordings import RECORDINGS
from whichrank.telemetry import attributes as names
from whichrank.telemetry.metric_encode import METRICS
from whichrank.telemetry.node_metrics import node_metrics

BOARDS = [dashboard.build() for dashboard in all_dashboards()]
UIDS = [board["uid"] for board in BOARDS]
#: What Grafana fills in by itself.
BUILT_IN = {"__rate_interval", "__range", "__url_time_range", "__data", "__value", "__field"}


@pytest.fixture(params=BOARDS, ids=UIDS)
def board(request: pytest.FixtureRequest) -> dict[str, Any]:
    found: dict[str, Any] = request.param
    return found


def shown(board: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield from (panel for panel in board["panels"] if panel["type"] != "row")


def test_the_files_are_what_the_code_makes() -> None:
    assert generate.main(["--check"]) == 0


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_nothing_in_them_is_unknown_to_grafana_s_own_types(board: dict[str, Any]) -> None:
    """What its SDK reads and writes again is all that there was: a key that is spelled wrongly would be lost."""
    from grafana_foundation_sdk.cog.encoder import JSONEncoder
    from grafana_foundation_sdk.models.dashboard import Dashboard

    def lost(before: Any, after: Any, place: str) -> Iterator[str]:
        if isinstance(before, dict):
            for name, value in before.items():
                if not isinstance(after, dict) or name not in after:
                    yield f"{place}.{name}"
                else:
                    yield from lost(value, after[name], f"{place}.{name}")
        elif isinstance(before, list):
            for number, (one, other) in enumerate(zip(before, after, strict=True)):
                yield from lost(one, other, f"{place}[{number}]")

    again = json.loads(JSONEncoder(sort_keys=True).encode(Dashboard.from_json(board)))
    assert list(lost(board, again, board["uid"])) == []


def test_there_are_the_eight() -> None:
    names = ("overview", "job", "incident", "node", "fleet", "goodput", "pipeline", "exporters")
    assert [uid.removeprefix("whichrank-") for uid in UIDS] == list(names)


def test_panels_are_numbered_and_do_not_overlap(board: dict[str, Any]) -> None:
    assert "id" not in board
    assert len({panel["id"] for panel in board["panels"]}) == len(board["panels"])
    places = [panel["gridPos"] for panel in board["panels"]]
    assert all(place["x"] + place["w"] <= 24 for place in places)
    for one, other in itertools.combinations(places, 2):
        apart = (
            one["x"] + one["w"] <= other["x"]
            or other["x"] + other["w"] <= one["x"]
            or one["y"] + one["h"] <= other["y"]
            or other["y"] + other["h"] <= one["y"]
        )
        assert apart, (one, other)


def test_every_panel_says_what_it_is_in_which_unit_and_what_emptiness_means(board: dict[str, Any]) -> None:
    for panel in shown(board):
        assert panel["title"]
        assert panel["description"], panel["title"]
        assert panel["fieldConfig"]["defaults"]["unit"], panel["title"]
        assert panel["type"] == "text" or panel["fieldConfig"]["defaults"]["noValue"], panel["title"]


def test_no_figure_is_coloured_by_limits_that_nobody_set(board: dict[str, Any]) -> None:
    """Grafana's own turn all that is above 80 red: a step, a count of ranks, a time."""
    for panel in shown(board):
        if panel["type"] in ("stat", "bargauge"):
            defaults = panel["fieldConfig"]["defaults"]
            assert defaults.get("color", {}).get("mode") == "fixed" or defaults["thresholds"]["steps"], panel["title"]


def test_no_table_shows_what_has_no_column_of_its_own(board: dict[str, Any]) -> None:
    """Of Grafana 9 as well, which knows only what is left out."""
    for panel in shown(board):
        if panel["type"] == "table":
            options = panel["transformations"][-1]["options"]
            assert set(options["excludeByName"]) == {"Time", "Value"} - set(options["includeByName"]), panel["title"]


def test_every_variable_is_defined(board: dict[str, Any]) -> None:
    defined = {variable["name"] for variable in board["templating"]["list"]} | BUILT_IN
    for panel in shown(board):
        text = json.dumps([panel["targets"], panel["fieldConfig"]]).replace("$d", "")
        assert set(re.findall(r"\$\{?(\w+)", text)) <= defined, panel["title"]


def test_links_lead_to_dashboards_and_give_them_their_variables(board: dict[str, Any]) -> None:
    variables = {each["uid"]: {v["name"] for v in each["templating"]["list"]} for each in BOARDS}
    for uid, given in re.findall(r"/d/([\w-]+)\?([^\"]*)", json.dumps(board["panels"])):
        assert uid in variables
        assert set(re.findall(r"var-(\w+)=", given)) <= variables[uid]


def test_every_metric_and_label_that_is_asked_for_is_one_that_is_sent(board: dict[str, Any]) -> None:
    metrics = {prometheus_name(name) for name in (*METRICS, *node_metrics())}
    labels = {label_name(a) for metric in METRICS.values() for a in metric.attributes}
    labels |= {label_name(a) for metric in node_metrics().values() for a in metric.attributes}
    labels |= {"whichrank_node_id", "whichrank_incident_document"}
    for panel in shown(board):
        for target in panel["targets"]:
            recorded = set(re.findall(r"\w+:\w+:\w+", target["expr"]))
            assert recorded <= {each.record for each in RECORDINGS}, panel["title"]
            sent = re.sub(r"\w+:\w+:\w+", "", target["expr"])
            words = set(re.findall(r"\b(?:whichrank|hw|system)_\w+", sent))
            assert words <= metrics | labels, panel["title"]


def test_every_attribute_that_events_are_asked_for_is_one_that_is_sent(board: dict[str, Any]) -> None:
    """In VictoriaLogs they keep their names."""
    known = {value for name, value in vars(names).items() if name.isupper() and isinstance(value, str)}
    for panel in shown(board):
        for target in panel["targets"]:
            if target["datasource"]["uid"] == "victorialogs":
                asked = set(re.findall(r"whichrank\.[a-z.]*[a-z](?=:|=|\)| |$)", target["expr"]))
                assert asked, panel["title"]
                assert asked <= known, panel["title"]


def test_everything_that_is_worked_out_is_shown() -> None:
    """By a panel, or by what a panel shows."""
    asked = json.dumps([BOARDS, [each.expr for each in RECORDINGS]])
    assert [each.record for each in RECORDINGS if each.record not in asked] == []


def test_no_panel_of_ranks_asks_for_a_line_for_each(board: dict[str, Any]) -> None:
    """At 16,384 ranks a series per rank is no picture: the k worst, shares of all, or one figure."""
    for panel in shown(board):
        for target in panel["targets"]:
            if "whichrank_rank}}" in target.get("legendFormat", ""):
                assert re.search(r"(top|bottom)k\(", target["expr"]), panel["title"]
