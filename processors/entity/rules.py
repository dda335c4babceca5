"""Which signals make a condition, how long it lasts, and what it may explain.

Read from ``conditions.toml`` (events) and ``diagnosis.node_limits`` (metrics).

The words of kernel events, their severity and their domain come with the event (``diagnosis.kernel_log`` owns the
catalogue); here stands only what follows for jobs.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from dataclasses import fields
from functools import cache
from importlib import resources
from signal import Signals
from typing import Any

from ...diagnosis.kernel_log.xid import XID, xids_of_effect
from ...diagnosis.node_limits.table import FILES, rows_of
from ...telemetry.evidence_facts import How
from ...telemetry.vocabulary import Action, EventName, Kind, Phase, Scope
from .condition_rules import SEVERITIES, Effect, EndingPattern, EventRule, MetricRule, Rules, Test

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib  # type: ignore[import-not-found,unused-ignore]

FILE = "conditions.toml"


@cache
def load_rules() -> Rules:
    """The rules from ``conditions.toml`` and the limits of nodes. Raises KeyError or ValueError where a
    file is wrong.
    """
    content: dict[str, Any] = tomllib.loads(resources.files(__package__).joinpath(FILE).read_text(encoding="utf-8"))
    groups = {name: frozenset(map(Kind, kinds)) for name, kinds in content["kinds"].items()}
    ends_with = {name: _ending(entry) for name, entry in content["ends_with"].items()}
    events = tuple(rule for entry in content["event"] for rule in _event_rules(entry, groups))
    metrics: dict[str, tuple[MetricRule, ...]] = {}
    limits: dict[str, tuple[MetricRule, ...]] = {}
    counts: dict[str, tuple[MetricRule, ...]] = {}
    for entity in FILES:
        for entry in rows_of("live", entity):
            rule = _metric_rule(entry, entity, groups)
            for known, name in (
                (metrics, rule.metric),
                (limits, rule.of),
                (limits, rule.only_while),
                (counts, rule.per),
            ):
                if name:
                    known[name] = (*known.get(name, ()), rule)
    return Rules(events=events, metrics=metrics, limits=limits, counts=counts, ends_with=ends_with)


def _ending(entry: Mapping[str, Any]) -> EndingPattern:
    if unknown := set(entry) - {field.name for field in fields(EndingPattern)}:
        raise ValueError(f"{FILE}: ends_with: {', '.join(sorted(unknown))}")
    return EndingPattern(
        said=re.compile("|".join(entry["said"]), re.IGNORECASE),
        hows=frozenset(map(How, entry.get("hows", ()))),
        signals=frozenset(int(Signals[name]) for name in entry.get("signals", ())),
        exit_codes=frozenset(entry.get("exit_codes", ())),
        phases=frozenset(Phase[name.upper()].name.lower() for name in entry.get("phases", ())),
        in_thread=bool(entry.get("in_thread", False)),
    )


def _effect(entry: Mapping[str, Any], groups: Mapping[str, frozenset[Kind]]) -> Effect:
    return Effect(
        explains=frozenset().union(*(groups[name] for name in entry["explains"])),
        scope=Scope(entry["scope"]),
        action=Action(entry["action"]) if "action" in entry else None,
        before_s=float(entry.get("before_s", 60.0)),
        lag_s=float(entry.get("lag_s", 2.0)),
        lasts_s=float(entry.get("lasts_s", 3600.0)),
        tolerated_s=float(entry.get("tolerated_s", 0.0)),
        tolerated_times=int(entry.get("tolerated_times", 0)),
        ends_with=entry.get("ends_with", ""),
        at_once=bool(entry.get("at_once", False)),
        planned=bool(entry.get("planned", False)),
        symptom=bool(entry.get("symptom", False)),
    )


def _event_rules(entry: Mapping[str, Any], groups: Mapping[str, frozenset[Kind]]) -> list[EventRule]:
    """One for each source: the kernel's log and the driver tell the same."""
    words, codes = frozenset(entry.get("words", ())), frozenset[str]()
    if "xid_effect" in entry:
        words, codes = frozenset({XID}), frozenset(xids_of_effect(entry["xid_effect"]))
    sources = entry["source"] if isinstance(entry["source"], list) else [entry["source"]]
    return [
        EventRule(
            source=EventName(source),
            words=words,
            codes=codes,
            domains=frozenset(entry.get("domains", ())),
            severity=SEVERITIES.index(entry.get("severity", "info")),
            condition=entry.get("condition", ""),
            domain=entry.get("domain", "hardware"),
            ends=frozenset(entry.get("ends", ())),
            of_process=bool(entry.get("of_process", False)),
            effect=_effect(entry, groups),
        )
        for source in sources
    ]


def _metric_rule(entry: Mapping[str, Any], entity: str, groups: Mapping[str, frozenset[Kind]]) -> MetricRule:
    return MetricRule(
        entity=entity,
        metric=entry["metric"],
        where=dict(entry.get("where", {})),
        of=entry.get("of", ""),
        per=entry.get("per", ""),
        floor=float(entry.get("floor", 0.0)),
        only_while=entry.get("only_while", ""),
        unless_watched=entry.get("unless_watched", ""),
        test=Test(entry["test"]),
        threshold=float(entry["threshold"]),
        hold_s=float(entry.get("hold_s", 0.0)),
        clear_s=float(entry.get("clear_s", 30.0)),
        condition=entry["condition"],
        device_kind=entry["device_kind"],
        device=tuple(entry.get("device", ())),
        severity=entry["severity"],
        domain=entry["domain"],
        shows=entry["shows"],
        effect=_effect(entry, groups),
    )
