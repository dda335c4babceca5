"""What ``whichrank grafana sync`` wants a Grafana to hold: folder, dashboards, groups of rules, data sources. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from .boards import all_dashboards
from .elements.panels import LogStore
from .rules import FOLDER, grafana_rules

FOLDER_UID = FOLDER
#: Data sources that the dashboards ask, by their uids in a Grafana that has no own ones for them: their types.
SOURCES: Mapping[str, str] = {
    "prometheus": "prometheus",
    "victorialogs": "victoriametrics-logs-datasource",
    "jaeger": "jaeger",
}
#: Who has one of these names it instead of the other: panels then ask Loki in its own language.
INSTEAD: Mapping[str, str] = {"loki": "victorialogs", "tempo": "jaeger"}
TYPES: Mapping[str, str] = {**SOURCES, **{kind: kind for kind in INSTEAD}}
#: Keys of rules, by the Grafana that first knew them. An older one drops them without a word: there an alert ends with
#: the first look that does not find its incident.
_KNOWN_SINCE = {"keep_firing_for": 12, "missingSeriesEvalsToResolve": 12}


@dataclass(frozen=True, slots=True, kw_only=True)
class Desired:
    """dashboards: by uid. groups: by name, as the provisioning API takes them. sources: those to be made, by uid."""

    dashboards: Mapping[str, Mapping[str, Any]]
    groups: Mapping[str, Mapping[str, Any]]
    sources: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)


def desired(uids: Mapping[str, str] | None = None, urls: Mapping[str, str] | None = None) -> Desired:
    """Dashboards, groups of rules and data sources that a Grafana is to hold.

    uids: of the data sources that are there already, by kind. urls: of those that are to be made.
    """
    known = {**{kind: kind for kind in TYPES}, **(uids or {})}
    logs = LogStore.LOKI if "loki" in {*(uids or {}), *(urls or {})} else LogStore.VICTORIALOGS
    dashboards = {board.uid: _with_sources(board.build(), known) for board in all_dashboards(logs)}
    groups = {group["name"]: _with_sources(_for_api(group), known) for group in grafana_rules()["groups"]}
    sources = {
        known[kind]: {
            "name": f"whichrank {kind}",
            "uid": known[kind],
            "type": TYPES[kind],
            "access": "proxy",
            "url": url,
        }
        for kind, url in (urls or {}).items()
    }
    return Desired(dashboards=dashboards, groups=groups, sources=sources)


def for_grafana(wanted: Desired, major: int) -> Desired:
    """``wanted`` without what a Grafana of this major version does not know: it would never have it."""
    unknown = {name for name, since in _KNOWN_SINCE.items() if major < since}
    groups = {
        name: {
            **group,
            "rules": [{key: value for key, value in rule.items() if key not in unknown} for rule in group["rules"]],
        }
        for name, group in wanted.groups.items()
    }
    return replace(wanted, groups=groups)


def _with_sources(content: Mapping[str, Any], uids: Mapping[str, str]) -> dict[str, Any]:
    """Every reference to one of our data sources leads to that Grafana's."""

    def of(value: Any) -> Any:
        if isinstance(value, Mapping):
            found = {name: of(each) for name, each in value.items()}
            if found.get("uid") in uids and found.get("type") == TYPES[found["uid"]]:
                found["uid"] = uids[found["uid"]]
            if found.get("datasourceUid") in uids:
                found["datasourceUid"] = uids[found["datasourceUid"]]
            return found
        return [of(each) for each in value] if isinstance(value, list | tuple) else value

    made: dict[str, Any] = of(content)
    return made


def _for_api(group: Mapping[str, Any]) -> dict[str, Any]:
    """The HTTP API spells some keys otherwise than the files do."""
    return {
        "title": group["name"],
        "folderUid": FOLDER_UID,
        "interval": int(str(group["interval"]).removesuffix("s")),
        "rules": [_rule(rule, str(group["name"])) for rule in group["rules"]],
    }


def _rule(rule: Mapping[str, Any], group: str) -> dict[str, Any]:
    made = {
        "uid": rule["uid"],
        "title": rule["title"],
        "orgID": 1,
        "folderUID": FOLDER_UID,
        "ruleGroup": group,
        "condition": rule["condition"],
        "data": rule["data"],
        "noDataState": rule["noDataState"],
        "execErrState": rule["execErrState"],
        "for": _duration(rule["for"]),
        "labels": rule["labels"],
        "annotations": {
            **rule["annotations"],
            "__dashboardUid__": rule["dashboardUid"],
            "__panelId__": str(rule["panelId"]),
        },
    }
    if "keepFiringFor" in rule:
        made["keep_firing_for"] = rule["keepFiringFor"]
    if "missing_series_evals_to_resolve" in rule:
        made["missingSeriesEvalsToResolve"] = rule["missing_series_evals_to_resolve"]
    return made


def _duration(seconds: str) -> str:
    """As Grafana gives it back: 60s is 1m."""
    count = int(seconds.removesuffix("s"))
    return f"{count // 60}m" if count and count % 60 == 0 else f"{count}s"


def holds(there: Any, wanted: Any) -> bool:
    """Whether all that is wanted is there; a Grafana may add keys of its own."""
    if isinstance(wanted, Mapping):
        return isinstance(there, Mapping) and all(name in there and holds(there[name], v) for name, v in wanted.items())
    if isinstance(wanted, Sequence) and not isinstance(wanted, str):
        return (
            isinstance(there, Sequence)
            and len(there) == len(wanted)
            and all(holds(one, other) for one, other in zip(there, wanted, strict=True))
        )
    return bool(there == wanted)


def lines_of(content: Mapping[str, Any] | None, like: Mapping[str, Any]) -> list[str]:
    """The content as lines of JSON, for a difference; only keys that are in ``like``. None: no lines."""
    return json.dumps(_part(content, like), indent=1, sort_keys=True).splitlines() if content is not None else []


def _part(there: Any, wanted: Any) -> Any:
    if isinstance(there, Mapping) and isinstance(wanted, Mapping):
        return {name: _part(there[name], wanted[name]) for name in wanted if name in there}
    if isinstance(there, list) and isinstance(wanted, list) and len(there) == len(wanted):
        return [_part(one, other) for one, other in zip(there, wanted, strict=True)]
    return there
