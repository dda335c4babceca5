"""Contact points, policies and templates for those who page from Grafana: whole, and known to Grafana's own types."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from whichrank.grafana.elements.metric_names import label_name
from whichrank.grafana.paging import VARIABLES, contact_points, policies, templates
from whichrank.telemetry import attributes as names


def test_what_the_tree_names_is_there() -> None:
    points = {point["name"] for point in contact_points()["contactPoints"]}
    (tree,) = policies()["policies"]
    assert {tree["receiver"], *(route["receiver"] for route in tree["routes"])} == points
    used = set(re.findall(r'template \\?"([\w.]+)', json.dumps(contact_points())))
    (made,) = templates()["templates"]
    assert used == set(re.findall(r'define "([\w.]+)"', made["template"]))


def test_pages_wait_for_nobody_and_an_incident_is_one_message() -> None:
    (tree,) = policies()["policies"]
    (pages,) = tree["routes"]
    assert pages["object_matchers"] == [["severity", "=", "page"]]
    assert pages["group_wait"] == "0s"
    assert label_name(names.INCIDENT_ID) in pages["group_by"]


def test_the_variables_are_those_that_are_told() -> None:
    files = json.dumps([contact_points(), policies(), templates()])
    assert set(re.findall(r"\$(\w+)", files)) == set(VARIABLES)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_nothing_in_them_is_unknown_to_grafana_s_own_types() -> None:
    from grafana_foundation_sdk.cog.encoder import JSONEncoder
    from grafana_foundation_sdk.models.alerting import ContactPoint, NotificationPolicy

    def again(kind: Any, content: dict[str, Any]) -> Any:
        return json.loads(JSONEncoder().encode(kind.from_json(content)))

    (tree,) = policies()["policies"]
    known = {name: value for name, value in tree.items() if name != "orgId"}  # of files alone
    assert again(NotificationPolicy, known) == known
    for point in contact_points()["contactPoints"]:
        for receiver in point["receivers"]:
            assert again(ContactPoint, receiver) == receiver
