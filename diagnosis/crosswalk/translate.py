"""One foreign metric point -> one of ours, with the entity that it is about. Pure."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from enum import Enum
from functools import lru_cache
from typing import NamedTuple

from ...telemetry.records import Point
from .hosts import entity_of, host_of
from .rules import CrosswalkRule, rule_for

_LABEL = re.compile(r"\{([A-Za-z_][\w.]*)\}")
_MAX_TEXT = 256
#: Metrics with labels, as they were told.
_REMEMBERED = 65_536
#: InfiniBand's descriptions of who is at a port: "MF0;leaf-1:MQM9700/U1" of a switch, "node-7 mlx5_0" or
#: "node-7 HCA-1" of a host.
_SWITCH_DESCRIPTION = re.compile(r"MF\d+;(?P<name>[^:;]{1,100})[:;]")
_HOST_DESCRIPTION = re.compile(r"(?P<host>\S{1,100})\s+(?P<device>(?:mlx5|mlx4|hfi1|ibp\w*)_?\w*|HCA-\d+)\s*$")
_DESCRIPTIONS = ("node_desc", "node_description", "node_name", "device_name", "description", "system_name", "switch")


class EntityKind(str, Enum):
    """What a foreign point may be about (``telemetry.records.Samples``)."""

    NODE = "node"
    SWITCH = "switch"
    STORAGE = "storage"
    SERVICE = "service"
    POWER = "power"


class Crossed(NamedTuple):
    """``entity_id``: as ``hosts`` finds it, "" if nothing names one. The point is one of telemetry/node_metrics."""

    entity_kind: EntityKind
    entity_id: str
    point: Point


class Meaning(NamedTuple):
    """What a foreign series is about, whatever its numbers: the rule that says what they become, and as in Crossed."""

    rule: CrosswalkRule
    entity_kind: EntityKind
    entity_id: str
    attributes: Mapping[str, str]


def meaning_of(
    name: str, attributes: Mapping[str, object], resource: Mapping[str, object], aliases: Mapping[str, str]
) -> Meaning | None:
    """As ``crosswalk``, of a series; None: a metric that nobody here knows, or of a device that is none."""
    rule = rule_for(name)
    if rule is None:
        return None
    told = tuple([(key, text) for key, text in attributes.items() if isinstance(text, (str, int))])
    ours = _our_attributes(name, told)
    if ours is None:
        return None
    kind, entity = _entity(rule, attributes, resource, aliases)
    return Meaning(rule, kind, entity, ours)


def crosswalk(
    name: str,
    attributes: Mapping[str, object],
    resource: Mapping[str, object],
    value: float,
    *,
    time_ns: int = 0,
    start_ns: int = 0,
    aliases: Mapping[str, str] | None = None,
) -> Crossed | None:
    """Translates a point of a foreign metric into one of ours, with the node or switch that it is about.

    None: a metric that nobody here knows, of a device that is none, or without a value. attributes: of the point,
    resource: of whoever sent it, as OTLP has them; times in Unix ns. aliases: see ``hosts.entity_of``.
    """
    rule = rule_for(name)
    if rule is None or not rule.holds_of(value):
        return None
    ours_value = value * rule.factor if rule.one_if is None else float(value == rule.one_if)
    if not (math.isfinite(value) and math.isfinite(ours_value)):
        return None
    meaning = meaning_of(name, attributes, resource, aliases or {})
    if meaning is None:
        return None
    point = Point(name=rule.metric, value=ours_value, attributes=meaning.attributes, time_ns=time_ns, start_ns=start_ns)
    return Crossed(meaning.entity_kind, meaning.entity_id, point)


@lru_cache(maxsize=_REMEMBERED)
def _our_attributes(name: str, told: tuple[tuple[str, object], ...]) -> Mapping[str, str] | None:
    """Attributes of our point for a foreign one with these labels; None where they say that it is of nothing.

    The same object for the same labels: of most exporters they are the same on all hosts.
    """
    rule, labels = rule_for(name), dict(told)
    if rule is None or not rule.is_about(labels):
        return None
    ours: dict[str, str] = {}
    if rule.device:
        device = next((text for text in (_filled(form, labels) for form in rule.device) if text), "")
        if not device:
            return None
        port_device = _host_described(labels)[1] if rule.entity == "fabric" else ""
        ours[rule.device_attribute] = f"{port_device}/{device}" if port_device else device
    for key, form in rule.attributes.items():
        text = _filled(form, labels)
        if text is None:
            return None
        ours[key] = text
    return ours


def _filled(form: str, labels: Mapping[str, object]) -> str | None:
    """The form with labels' values in it; None if one of them is not there."""
    missing = False

    def value_of(match: re.Match[str]) -> str:
        nonlocal missing
        text = labels.get(match[1])
        if not isinstance(text, (str, int)) or text == "":
            missing = True
            return ""
        return str(text)[:_MAX_TEXT]

    filled = _LABEL.sub(value_of, form)
    return None if missing else filled


def _described(labels: Mapping[str, object]) -> list[str]:
    return [text for text in (labels.get(label) for label in _DESCRIPTIONS) if isinstance(text, str)]


def _host_described(labels: Mapping[str, object]) -> tuple[str, str]:
    """Host and InfiniBand device whose port it is, where the port's number alone would not say which; "" of others."""
    for text in _described(labels):
        if _SWITCH_DESCRIPTION.match(text) is not None:
            break
        host = _HOST_DESCRIPTION.match(text)
        if host is not None:
            return host_of(host["host"]), host["device"]
    return "", ""


def _entity(
    rule: CrosswalkRule, labels: Mapping[str, object], resource: Mapping[str, object], aliases: Mapping[str, str]
) -> tuple[EntityKind, str]:
    if rule.entity != "fabric":
        return EntityKind(rule.entity), entity_of(rule.entity, labels, resource, aliases)
    descriptions = _described(labels)
    for text in descriptions:
        switch = _SWITCH_DESCRIPTION.match(text)
        if switch is not None:
            return EntityKind.SWITCH, switch["name"].strip().lower()
        host = _HOST_DESCRIPTION.match(text)
        if host is not None:
            known = host_of(host["host"])
            return EntityKind.NODE, aliases.get(known, known)
    kind = str(labels.get("device_type") or labels.get("node_type") or "").lower()
    if kind in ("host", "hca", "ca", "server", "1"):
        return EntityKind.NODE, entity_of("node", labels, resource, aliases)
    named = next((host for host in map(host_of, descriptions) if host), "")
    guid = labels.get("node_guid") or labels.get("guid")
    return EntityKind.SWITCH, named or (guid.lower()[:_MAX_TEXT] if isinstance(guid, str) else "")
