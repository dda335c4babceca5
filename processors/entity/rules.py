"""Which signals make a condition, how long it lasts, and what it may explain.

Read from ``conditions.toml`` (events) and ``diagnosis.node_limits`` (metrics).

The words of kernel events, their severity and their domain come with the event (``diagnosis.kernel_log`` owns the
catalogue); here stands only what follows for jobs.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass, fields
from enum import Enum
from functools import cache
from importlib import resources
from signal import Signals
from typing import Any

from ...diagnosis.kernel_log.xid import XID, xids_of_effect
from ...diagnosis.node_limits.table import rows_of
from ...telemetry.evidence_facts import EvidenceFact, How
from ...telemetry.vocabulary import Action, EventName, Kind, Phase, Scope
from .loads import load_load_rules

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib  # type: ignore[import-not-found,unused-ignore]

FILE = "conditions.toml"
#: Not asked anything by a rule: it says what is seen at all (``watch``).
WATCHING = "whichrank.collector.watching"
#: An instant of a condition is one place on the node's clock; signals that come by polling are as old as a period.
SEVERITIES = ("info", "warning", "error", "fatal")


class Test(Enum):
    """What a metric is asked."""

    ABOVE = "above"
    BELOW = "below"
    #: Is below the threshold, and was not always: a port that nobody uses is no fault.
    DROPS_BELOW = "drops_below"
    #: Is above it, and was not always: a file system that never answered a stranger's look is no fault.
    RISES_ABOVE = "rises_above"
    #: A counter grew since the last sample by more than the threshold; a reset is no growth.
    GROWS = "grows"
    #: Per second, between two samples.
    RATE_ABOVE = "rate_above"
    #: Differs from the same metric of the node's other devices of its kind by more than this share of their median.
    BELOW_PEERS = "below_peers"
    ABOVE_PEERS = "above_peers"


@dataclass(frozen=True, slots=True, kw_only=True)
class Effect:
    """What a condition means for jobs.

    explains: kinds of incidents that it may be the cause of. A fault that began in [onset - before_s, onset + slack]
    explains an incident; its signal may come lag_s after it began. lasts_s: a condition told by events ends so long
    after the last of them, unless something ends it earlier. tolerated_s, tolerated_times: one that is over so soon is
    no cause, unless it comes more often than that within five minutes. ends_with: of a rank of which it is known how
    it ended it is the cause only if that fits ``Rules.ends_with`` of this name; "": however it ended.
    at_once: what is measured to last stops a rank when it begins, if at all: before_s holds for it, too.
    planned: somebody means to end what it concerns: what it explains, if it was known before, is no fault.
    symptom: it tells how a rank is held, not by what: anything else that explains the same says more.
    """

    explains: frozenset[Kind]
    scope: Scope
    action: Action | None
    before_s: float
    lag_s: float
    lasts_s: float
    tolerated_s: float
    tolerated_times: int
    ends_with: str
    at_once: bool
    planned: bool
    symptom: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class EventRule:
    """For events of this name and these words (empty: any), from this severity on."""

    source: EventName
    words: frozenset[str]
    codes: frozenset[str]
    domains: frozenset[str]
    severity: int  # index in SEVERITIES
    condition: str  # "": made of the event's word and code
    domain: str  # where the event does not say its own
    ends: frozenset[str]  # words of events that end it on the same device
    of_process: bool  # it concerns the process that it names, and nobody else
    effect: Effect


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricRule:
    """A metric (of points with these attributes) that is asked one question for ``hold_s``.

    of: not the value is asked, but its share of this other metric of the same device. unless_watched: nobody is asked
    where this collector sees its source, which knows better.
    """

    metric: str
    where: Mapping[str, str]
    of: str
    unless_watched: str
    test: Test
    threshold: float
    hold_s: float
    clear_s: float
    condition: str
    device_kind: str
    device: tuple[str, ...]  # attributes that name the device
    severity: str
    domain: str
    shows: str  # words for people: {value}, {device}, and with ``of`` {share} in percent are put in
    effect: Effect


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """How a rank ends by a thing of one sort. An empty field fits nothing, one field that fits is enough.

    said: of what it raised. phases: where its training was; a line of the program, where one is known, says more.
    """

    said: re.Pattern[str]
    hows: frozenset[How]
    signals: frozenset[int]
    exit_codes: frozenset[int]
    phases: frozenset[str]
    in_thread: bool

    def fits(self, fact: EvidenceFact) -> bool:
        if fact.how in self.hows or any(map(self.fits, fact.endings)):
            return True
        if not fact.file and fact.phase in self.phases:
            return True
        if fact.how is How.RAISED:
            return (self.in_thread and fact.in_thread) or self.said.search(fact.said) is not None
        return fact.signal in self.signals or fact.exit_code in self.exit_codes


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    events: tuple[EventRule, ...]
    metrics: Mapping[str, tuple[MetricRule, ...]]
    #: Metrics that others are compared with, and the rules that do.
    limits: Mapping[str, tuple[MetricRule, ...]]
    ends_with: Mapping[str, Ending]

    @property
    def wanted(self) -> frozenset[str]:
        """Names of all metrics that this operator reads."""
        return frozenset(self.metrics) | frozenset(self.limits) | frozenset(load_load_rules()) | {WATCHING}

    def of_event(self, source: EventName, word: str, code: str, domain: str, severity: str) -> EventRule | None:
        """The first that fits; None where an event is nothing to remember."""
        rank = SEVERITIES.index(severity) if severity in SEVERITIES else 0
        for rule in self.events:
            if (
                rule.source is source
                and (not rule.words or word in rule.words)
                and (not rule.codes or code in rule.codes)
                and (not rule.domains or domain in rule.domains)
                and rank >= rule.severity
            ):
                return rule
        return None


@cache
def load_rules() -> Rules:
    """Raises KeyError or ValueError for a file that is wrong; a test reads it."""
    content: dict[str, Any] = tomllib.loads(resources.files(__package__).joinpath(FILE).read_text(encoding="utf-8"))
    groups = {name: frozenset(map(Kind, kinds)) for name, kinds in content["kinds"].items()}
    ends_with = {name: _ending(entry) for name, entry in content["ends_with"].items()}
    events = tuple(rule for entry in content["event"] for rule in _event_rules(entry, groups))
    metrics: dict[str, tuple[MetricRule, ...]] = {}
    limits: dict[str, tuple[MetricRule, ...]] = {}
    for entry in rows_of("live"):
        rule = _metric_rule(entry, groups)
        metrics[rule.metric] = (*metrics.get(rule.metric, ()), rule)
        if rule.of:
            limits[rule.of] = (*limits.get(rule.of, ()), rule)
    return Rules(events=events, metrics=metrics, limits=limits, ends_with=ends_with)


def _ending(entry: Mapping[str, Any]) -> Ending:
    if unknown := set(entry) - {field.name for field in fields(Ending)}:
        raise ValueError(f"{FILE}: ends_with: {', '.join(sorted(unknown))}")
    return Ending(
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


def _metric_rule(entry: Mapping[str, Any], groups: Mapping[str, frozenset[Kind]]) -> MetricRule:
    return MetricRule(
        metric=entry["metric"],
        where=dict(entry.get("where", {})),
        of=entry.get("of", ""),
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
