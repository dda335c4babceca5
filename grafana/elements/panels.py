"""Builders of panels: plain dicts of Grafana's classic schema, with unit, description and empty state. Pure.

File provisioning loads nothing but the classic schema (shared facts, 3.2). Panels are laid out in rows of 24 columns by
``layout``; ids follow from the order, so that generated files change only where a panel did.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

Panel = dict[str, Any]
PROMETHEUS = {"type": "prometheus", "uid": "prometheus"}
VICTORIALOGS = {"type": "victoriametrics-logs-datasource", "uid": "victorialogs"}
LOKI = {"type": "loki", "uid": "loki"}
GRAFANA = {"type": "grafana", "uid": "-- Grafana --"}
COLUMNS = 24
#: Green, yellow, red: what needs nobody, what somebody should look at, what somebody has to.
GOOD, ODD, BAD = "green", "yellow", "red"
#: Of figures and bars that are neither good nor bad. Without it Grafana colours by limits of its own: red from 80 on.
_PLAIN_FIGURE, _PLAIN_BAR = ({"mode": "fixed", "fixedColor": color} for color in ("text", "blue"))


class LogStore(Enum):
    """Where events are. VictoriaLogs is what compose brings and tests ask; Loki is for those who have one."""

    VICTORIALOGS = "victorialogs"
    LOKI = "loki"


@dataclass(frozen=True, slots=True, kw_only=True)
class LogQuery:
    """The same question in the language of each store."""

    logsql: str
    logql: str
    #: Of Loki's answer; LogsQL says by itself how much it wants.
    loki_lines: int = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    """expr: PromQL. legend: of a series, ``{{label}}``. instant: one value for now, not for each moment."""

    expr: str
    legend: str = ""
    instant: bool = False
    as_table: bool = False
    source: Mapping[str, str] = field(default_factory=lambda: PROMETHEUS)
    #: Keys of the target that only this kind of source has.
    own: Mapping[str, Any] | None = None

    def target(self, number: int) -> dict[str, Any]:
        """The query as a panel's target; ``number`` of it in its panel makes the letter by which others refer to it."""
        target: dict[str, Any] = {
            "refId": chr(ord("A") + number),
            "datasource": dict(self.source),
            "expr": self.expr,
        }
        if self.own is not None:
            return target | dict(self.own)
        target |= {"legendFormat": self.legend, "instant": self.instant, "range": not self.instant}
        if self.as_table:
            target["format"] = "table"
        return target


def link(title: str, url: str) -> dict[str, Any]:
    """A link from a value to another page; ``${__data.fields.NAME}`` and ``${__field.labels.NAME}`` are filled in."""
    return {"title": title, "url": url, "targetBlank": False}


def board(uid: str, **variables: str) -> str:
    """The address of another dashboard, at the same time range. variables: name -> expression."""
    given = "".join(f"&var-{name}={value}" for name, value in variables.items())
    return f"/d/{uid}?${{__url_time_range}}{given}"


def thresholds(*steps: tuple[float | None, str]) -> dict[str, Any]:
    """Grafana's thresholds: the colour from each value on; None is the colour below all others."""
    return {"mode": "absolute", "steps": [{"value": value, "color": color} for value, color in steps]}


def panel(
    kind: str,
    title: str,
    description: str,
    queries: Sequence[Query],
    *,
    unit: str,
    width: int = 12,
    height: int = 8,
    empty: str = "",
    links: Sequence[Mapping[str, Any]] = (),
    limits: Mapping[str, Any] | None = None,
    custom: Mapping[str, Any] | None = None,
    options: Mapping[str, Any] | None = None,
    transformations: Sequence[Mapping[str, Any]] = (),
    overrides: Sequence[Mapping[str, Any]] = (),
    **defaults: Any,
) -> Panel:
    """A panel of this kind as Grafana's classic JSON, at no place yet (``layout`` gives it one).

    unit, kind: as Grafana names them; width, height: on its grid. empty: what is shown where there is nothing, so that
    nobody takes it for a fault of the page. limits: of ``thresholds``. defaults: further field defaults.
    """
    shown: dict[str, Any] = {"unit": unit, **defaults}
    if empty:
        shown["noValue"] = empty
    if links:
        shown["links"] = [dict(each) for each in links]
    if limits is not None:
        shown["thresholds"] = dict(limits)
    if custom is not None:
        shown["custom"] = dict(custom)
    made: Panel = {
        "type": kind,
        "title": title,
        "description": description,
        "datasource": dict(queries[0].source) if queries else dict(GRAFANA),
        "gridPos": {"h": height, "w": width, "x": 0, "y": 0},
        "fieldConfig": {"defaults": shown, "overrides": [dict(each) for each in overrides]},
        "options": dict(options or {}),
        "targets": [query.target(number) for number, query in enumerate(queries)],
    }
    if transformations:
        made["transformations"] = [dict(each) for each in transformations]
    return made


def lines(title: str, description: str, *queries: Query, unit: str, stack: bool = False, **more: Any) -> Panel:
    """A time-series panel: a line per series. stack: they are parts of one whole.

    unit: as Grafana names it; more: as ``panel`` takes it.
    """
    custom: dict[str, Any] = {"fillOpacity": 60 if stack else 0, "lineWidth": 1, "showPoints": "never"}
    if stack:
        custom["stacking"] = {"mode": "normal", "group": "A"}
    options = {
        "legend": {"displayMode": "list", "placement": "bottom", "showLegend": True},
        "tooltip": {"mode": "multi", "sort": "desc"},
    }
    return panel("timeseries", title, description, queries, unit=unit, custom=custom, options=options, **more)


def number(title: str, description: str, query: Query, *, unit: str, **more: Any) -> Panel:
    """A stat panel: one figure for now. unit: as Grafana names it; more: as ``panel`` takes it."""
    options = {
        "reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False},
        "colorMode": "background" if more.get("limits") else "value",
        "graphMode": "none",
        "textMode": "auto",
    }
    more.setdefault("width", 4)
    more.setdefault("height", 4)
    if not more.get("limits"):
        more.setdefault("color", _PLAIN_FIGURE)
    return panel("stat", title, description, [query], unit=unit, options=options, **more)


def bars(title: str, description: str, query: Query, *, unit: str, **more: Any) -> Panel:
    """A bar-gauge panel: one bar for each series; who has most of it. unit: as Grafana names it.

    more: as ``panel`` takes it.
    """
    options = {
        "displayMode": "basic",
        "orientation": "horizontal",
        "valueMode": "color",
        "showUnfilled": False,
        "text": {"titleSize": 11, "valueSize": 16},
        "reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False},
    }
    if not more.get("limits"):
        more.setdefault("color", _PLAIN_BAR)
    # Of a single series Grafana shows no name unless it is asked for.
    more.setdefault("displayName", re.sub(r"\{\{(\w+)\}\}", r"${__field.labels.\1}", query.legend))
    return panel("bargauge", title, description, [query], unit=unit, options=options, min=0, **more)


def heat(title: str, description: str, query: Query, *, unit: str, **more: Any) -> Panel:
    """A status-history panel: a row for each series, time across, so that who differs is seen at a glance.

    For at most some hundred series. unit: as Grafana names it; more: as ``panel`` takes it.
    """
    options = {"showValue": "never", "rowHeight": 0.95, "legend": {"showLegend": False, "displayMode": "list"}}
    return panel(
        "status-history", title, description, [query], unit=unit, options=options, custom={"fillOpacity": 90}, **more
    )


def table(title: str, description: str, *queries: Query, columns: Mapping[str, str], **more: Any) -> Panel:
    """A table panel. columns: which fields are shown, in their order, and what they are called; all others are hidden.

    more: as ``panel`` takes it.
    """
    order = {name: place for place, name in enumerate(columns)}
    # Before Grafana 10 only what is left out by name is hidden.
    left_out = {name: True for name in ("Time", "Value") if name not in columns}
    organize = {
        "id": "organize",
        "options": {
            "includeByName": dict.fromkeys(columns, True),
            "excludeByName": left_out,
            "indexByName": order,
            "renameByName": dict(columns),
        },
    }
    changes = [
        *more.pop("transformations", ()),
        *([{"id": "merge", "options": {}}] if len(queries) > 1 else []),
        organize,
    ]
    options = {"showHeader": True, "cellHeight": "sm", "sortBy": more.pop("sort", [])}
    more.setdefault("width", COLUMNS)
    unit = more.pop("unit", "short")
    return panel("table", title, description, queries, unit=unit, options=options, transformations=changes, **more)


def events(title: str, description: str, query: LogQuery, logs: LogStore, **more: Any) -> Panel:
    """A logs panel: lines of the store of events, the newest first. more: as ``panel`` takes it."""
    options = {
        "showTime": True,
        "wrapLogMessage": True,
        "enableLogDetails": True,
        "sortOrder": "Descending",
        "dedupStrategy": "none",
    }
    more.setdefault("width", COLUMNS)
    return panel("logs", title, description, [_of_events(query, logs)], unit="none", options=options, **more)


def _of_events(query: LogQuery, logs: LogStore) -> Query:
    if logs is LogStore.LOKI:
        return Query(expr=query.logql, source=LOKI, own={"queryType": "range", "maxLines": query.loki_lines})
    own = {"queryType": "instant", "editorMode": "code", "maxLines": 200}
    return Query(expr=query.logsql, source=VICTORIALOGS, own=own)


def words(title: str, content: str, *, width: int = COLUMNS, height: int = 3) -> Panel:
    """A text panel of Markdown, for what a page is for, and where to go from here."""
    made = panel("text", title, content.split("\n", 1)[0], [], unit="none", width=width, height=height)
    return made | {"options": {"mode": "markdown", "content": content}}


def section(title: str) -> Panel:
    """A row: a heading over the panels that follow."""
    return {
        "type": "row",
        "title": title,
        "collapsed": False,
        "panels": [],
        "gridPos": {"h": 1, "w": COLUMNS, "x": 0, "y": 0},
    }


def layout(panels: Sequence[Panel]) -> list[Panel]:
    """The panels with places, side by side while they fit, else below, and with ids in order."""
    x = y = tallest = 0
    placed: list[Panel] = []
    for number_of, each in enumerate(panels, start=1):
        place = dict(each["gridPos"])
        if x + place["w"] > COLUMNS:
            x, y, tallest = 0, y + tallest, 0
        placed.append({"id": number_of, **each, "gridPos": place | {"x": x, "y": y}})
        x, tallest = x + place["w"], max(tallest, place["h"])
    return placed
