"""A dashboard as Grafana's classic JSON: variables, annotations, links to the others. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from .panels import GRAFANA, PROMETHEUS, Panel, layout

SCHEMA_VERSION = 42
TAG = "whichrank"


@dataclass(frozen=True, slots=True, kw_only=True)
class Variable:
    """What the reader chooses. query: PromQL of ``label_values``; every: whether all at once may be chosen."""

    name: str
    label: str
    query: str
    every: bool = True

    def build(self) -> dict[str, Any]:
        """The variable as Grafana's classic JSON has it."""
        made: dict[str, Any] = {
            "name": self.name,
            "label": self.label,
            "type": "query",
            "datasource": dict(PROMETHEUS),
            "query": {"query": self.query, "refId": self.name},
            "definition": self.query,
            "refresh": 2,
            "sort": 1,
            "multi": self.every,
            "includeAll": self.every,
            "options": [],
        }
        if self.every:
            made |= {"allValue": ".+", "current": {"text": ["All"], "value": ["$__all"]}}
        return made


@dataclass(frozen=True, slots=True, kw_only=True)
class TextVariable:
    """What is filled in by a link from another page: an incident, say."""

    name: str
    label: str

    def build(self) -> dict[str, Any]:
        """The variable as Grafana's classic JSON has it: a box in which the person types."""
        return {
            "name": self.name,
            "label": self.label,
            "type": "textbox",
            "query": "",
            "current": {"text": "", "value": ""},
            "options": [],
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Dashboard:
    """since: default range. refresh: of a page that somebody watches."""

    uid: str
    title: str
    description: str
    panels: Sequence[Panel]
    variables: Sequence[Variable | TextVariable] = ()
    since: str = "now-1h"
    refresh: str = "30s"
    #: Annotations of incidents have such tags (``whichrank grafana annotate``).
    annotated: Sequence[str] = (TAG,)
    extra: Mapping[str, Any] = field(default_factory=dict)

    def build(self) -> dict[str, Any]:
        """The whole document, as Grafana's API and its provisioning take it."""
        return {
            "uid": self.uid,
            "title": f"whichrank: {self.title}",
            "description": self.description,
            "tags": [TAG],
            "schemaVersion": SCHEMA_VERSION,
            "version": 1,
            "editable": False,
            "graphTooltip": 1,
            "timezone": "browser",
            "time": {"from": self.since, "to": "now"},
            "refresh": self.refresh,
            "fiscalYearStartMonth": 0,
            "templating": {"list": [variable.build() for variable in self.variables]},
            "annotations": {"list": [self._annotations()]},
            "links": [
                {
                    "type": "dashboards",
                    "title": "whichrank",
                    "tags": [TAG],
                    "asDropdown": False,
                    "includeVars": False,
                    "keepTime": True,
                    "targetBlank": False,
                    "icon": "external link",
                    "tooltip": "",
                    "url": "",
                }
            ],
            "panels": layout(self.panels),
            **self.extra,
        }

    def text(self) -> str:
        """The document as the text of a JSON file."""
        return json.dumps(self.build(), indent=1, ensure_ascii=False) + "\n"

    def _annotations(self) -> dict[str, Any]:
        return {
            "name": "Incidents",
            "datasource": dict(GRAFANA),
            "enable": True,
            "iconColor": "red",
            "target": {"type": "tags", "tags": list(self.annotated), "matchAny": False, "limit": 100},
        }
