"""Incidents as annotations of a Grafana: made once, changed, closed; tags that people added stay."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.grafana.small_grafana import TOKEN, SmallGrafana, running
from whichrank.grafana import annotate
from whichrank.grafana.site import GrafanaSite


@pytest.fixture
def grafana() -> Iterator[SmallGrafana]:
    with running(SmallGrafana()) as made:
        yield made


def document(state: str = "open", resolved: float | None = None) -> dict[str, Any]:
    return {
        "id": "1f0c", "kind": "rank_slow", "severity": "ticket", "state": state, "job": {"id": "pretrain"},
        "jobs": [{"id": "pretrain"}, {"id": "other"}],
        "times": {"onset": 100.5, "detected": 104.0, "attributed": 104.0, "resolved": resolved},
    }  # fmt: skip


def test_an_incident_is_one_region_from_its_onset_to_its_end(grafana: SmallGrafana) -> None:
    site = GrafanaSite(grafana.url, TOKEN)
    assert annotate.put(site, document(), "rank 3 is slow") == "made"
    assert annotate.put(site, document(), "rank 3 is slow") == ""
    (made,) = grafana.annotations.values()
    assert made["time"] == 100_500
    assert {"whichrank", "incident:1f0c", "job:pretrain", "job:other"} <= set(made["tags"])
    made["tags"].append("seen-by-anna")
    assert annotate.put(site, document("resolved", 160.0), "rank 3 was slow") == "changed"
    (closed,) = grafana.annotations.values()
    assert closed["timeEnd"] == 160_000
    assert "seen-by-anna" in closed["tags"]
    assert "resolved" in closed["text"]


def test_what_a_job_is_called_is_no_markup() -> None:
    text = annotate.text_of(document(), "<script>alert(1)</script> & co")
    assert "<script>" not in text
    assert "&lt;script&gt;alert(1)&lt;/script&gt; &amp; co" in text
