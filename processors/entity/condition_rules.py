"""What makes a condition, how long it lasts, and what it may explain: rules as fields (``rules`` reads them). Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from ...telemetry.evidence_facts import EvidenceFact, How
from ...telemetry.vocabulary import Action, EventName, Kind, Scope
from .loads import load_load_rules

#: Not asked anything by a rule: it says what is seen at all (``watch``).
WATCHING = "whichrank.collector.watching"
#: Its attribute.
COLLECTOR = "whichrank.collector"
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
    #: Against its own past: so many times its usual value, rate per second, or mean per count of another metric; so
    #: much less than its usual value, or less than this share of it. What is usual: the series' own mean (``past``).
    TIMES_USUAL = "times_usual"
    RATE_TIMES_USUAL = "rate_times_usual"
    MEAN_TIMES_USUAL = "mean_times_usual"
    FALLS_BY = "falls_by"
    FALLS_TO = "falls_to"
    #: What it grew by per count of another metric (``per``): a latency, or a share of failures.
    MEAN_ABOVE = "mean_above"
    #: The value, a whole number, has any of the threshold's bits.
    BITS = "bits"
    #: It is the threshold, and was not always: a code that stays says nothing new.
    BECOMES = "becomes"


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
    """A rule for events of one source, with these words, codes and domains (empty: any), from this severity on."""

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

    entity: kind of the entities that are asked. of: not the value is asked, but its share of this other metric of the
    same device. per: its growth is divided by that of this other counter of the same device. floor: what is compared
    with its usual must be above it, too. only_while: it never holds while this other metric of the device is 0.
    unless_watched: nobody is asked where this collector sees its source, which knows better.
    """

    entity: str
    metric: str
    where: Mapping[str, str]
    of: str
    per: str
    floor: float
    only_while: str
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
class EndingPattern:
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
        """Whether a rank ended in this way; where ``fact`` lists several endings, one that fits is enough."""
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
    #: Counters by whose growth that of others is divided, and the rules that do.
    counts: Mapping[str, tuple[MetricRule, ...]]
    ends_with: Mapping[str, EndingPattern]

    @property
    def wanted(self) -> frozenset[str]:
        """Names of all metrics that the entity operator reads."""
        asked = frozenset(self.metrics) | frozenset(self.limits) | frozenset(self.counts)
        return asked | frozenset(load_load_rules()) | {WATCHING}

    def of_entity(self, kind: str) -> Rules:
        """The same with the metric rules of this kind of entity alone."""

        def only(rules: Mapping[str, tuple[MetricRule, ...]]) -> dict[str, tuple[MetricRule, ...]]:
            kept = {name: tuple(rule for rule in each if rule.entity == kind) for name, each in rules.items()}
            return {name: each for name, each in kept.items() if each}

        return Rules(
            events=self.events,
            metrics=only(self.metrics),
            limits=only(self.limits),
            counts=only(self.counts),
            ends_with=self.ends_with,
        )

    def of_event(self, source: EventName, word: str, code: str, domain: str, severity: str) -> EventRule | None:
        """The first rule that fits an event; None where the event is nothing to remember. severity: a word of
        SEVERITIES.
        """
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
