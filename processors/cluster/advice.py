"""What to do about an incident: one action for each, automatic or a person's, with the reason, from ``advice.toml``.

The table is asked row by row, the first that fits holds. Two things it cannot say otherwise: nothing that takes a node
out is ever advised for a fault of the program, nor where the run failed alike at the same step on other nodes; and what
was tried as often as the row allows goes to a person. Pure functions over the document's fields.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Any

from ...diagnosis.data_file import read_toml
from ...telemetry.kind_sets import PROGRAM_DEFECT_KINDS
from ...telemetry.vocabulary import Action, Bucket, Kind, Scope, Severity
from .failures import Precedents, Row, failure_of, last_end, precedents

FILE = "advice.toml"
#: They take a node away from its jobs, now or later.
EVICTING = frozenset({Action.RESTART_WITHOUT_NODE, Action.DRAIN_AFTER_JOB, Action.REPLACE_LINK})
AUTOMATIC, HUMAN = "automatic", "human"
NO_CAUSE = "none"
DOMAINS = frozenset(
    {"hardware", "host", "network", "storage", "process", "scheduler", "application", "telemetry", NO_CAUSE}
)
HISTORIES = frozenset({"elsewhere", "storm"})
MOTION_SIGNAL = "process.motion"
MOTIONS = ("moves", "in_io", "still")
_MAX_NAMED = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Situation:
    """What the table is asked: of the document, of its cause, and of the run's earlier attempts."""

    bucket: str
    kind: str
    scope: str
    severity: str
    domain: str
    asked: str
    device_kind: str
    #: Type of the exception that the suspect raised; "": it raised none.
    raised: str
    is_changed: bool
    #: What the one who is waited for does (``process.motion``); "" where nobody is waited for, or nobody knows.
    motion: str
    before: Precedents

    @property
    def is_of_program(self) -> bool:
        """No node is to be taken out for it."""
        return (
            self.scope == Scope.APPLICATION.value
            or self.domain == "application"
            or self.kind in PROGRAM_DEFECT_KINDS
            or self.before.elsewhere
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Then:
    """What follows when a row's retries are used up; a person's."""

    action: Action
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """A row. An empty set fits everything. retries None: of something that is no retry."""

    action: Action
    by: str
    text: str
    buckets: frozenset[str]
    kinds: frozenset[str]
    scopes: frozenset[str]
    severities: frozenset[str]
    motions: frozenset[str]
    domains: frozenset[str]
    asked: frozenset[str]
    devices: frozenset[str]
    history: frozenset[str]
    errors: re.Pattern[str] | None
    changed: bool | None
    retries: int | None
    then: Then

    def fits(self, situation: Situation, history: Set[str]) -> bool:
        if self.action in EVICTING and situation.is_of_program:
            return False
        pairs = (
            (self.buckets, situation.bucket),
            (self.kinds, situation.kind),
            (self.scopes, situation.scope),
            (self.severities, situation.severity),
            (self.motions, situation.motion),
            (self.domains, situation.domain),
            (self.asked, situation.asked),
            (self.devices, situation.device_kind),
        )
        if any(wanted and value not in wanted for wanted, value in pairs):
            return False
        if self.history and not self.history & history:
            return False
        if self.errors is not None and not self.errors.match(situation.raised):
            return False
        return self.changed is None or self.changed == situation.is_changed


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    rows: tuple[Rule, ...]
    storm_failures: int
    storm_s: float


@lru_cache(maxsize=1024)
def rows_for(bucket: str, kind: str) -> tuple[Rule, ...]:
    """Those that may fit what has this bucket and this kind, in their order."""
    return tuple(
        rule
        for rule in load_rules().rows
        if (not rule.buckets or bucket in rule.buckets) and (not rule.kinds or kind in rule.kinds)
    )


def advise(fields: Mapping[str, Any], asked: str | None, earlier: Iterable[Row] = ()) -> dict[str, Any]:
    """``advice`` of an incident.

    fields: its document's, ``cause`` included where there is one; asked: the action that the cause asks for. earlier:
    failures of the run, as ``FailureRegister`` keeps them. The result has ``retry`` with ``number`` and ``of`` where
    something is tried again: after ``of`` failures alike a person is told.
    """
    rules = load_rules()
    before = precedents(failure_of(fields), earlier, rules.storm_s)
    situation = situation_of(fields, asked, before)
    return choose(situation, _words(fields, before, rules))


def choose(situation: Situation, words: Mapping[str, Any]) -> dict[str, Any]:
    """words: what texts may name."""
    rules = load_rules()
    history = {"elsewhere"} if situation.before.elsewhere else set()
    if situation.before.recent >= rules.storm_failures:
        history.add("storm")
    rows = rows_for(situation.bucket, situation.kind)
    rule = next(rule for rule in rows if rule.fits(situation, history))  # the last one always does
    if rule.retries is None:
        return {"action": rule.action.value, "by": rule.by, "text": rule.text.format(**words)}
    retry = {"number": situation.before.alike + 1, "of": rule.retries}
    if situation.before.alike >= rule.retries:
        text = rule.then.text.format(**words)
        return {"action": rule.then.action.value, "by": HUMAN, "text": text, "retry": {**retry, "number": rule.retries}}
    text = f"{rule.text.format(**words)} (retry {retry['number']} of {retry['of']})"
    return {"action": rule.action.value, "by": rule.by, "text": text, "retry": retry}


def situation_of(fields: Mapping[str, Any], asked: str | None, before: Precedents) -> Situation:
    cause, end = fields.get("cause") or {}, last_end(fields.get("evidence") or ())
    return Situation(
        bucket=str(fields["bucket"]),
        kind=str(fields["kind"]),
        scope=str(fields.get("scope") or ""),
        severity=str(fields.get("severity") or ""),
        domain=str(cause.get("domain") or NO_CAUSE),
        asked=asked or "",
        device_kind=str(cause.get("device_kind") or ""),
        raised="" if end is None else end.type,
        motion=_motion(fields.get("evidence") or ()),
        is_changed=bool((fields.get("history") or {}).get("last_change")),
        before=before,
    )


def _motion(evidence: Iterable[Mapping[str, Any]]) -> str:
    """Of several who are waited for, whether any of them moves."""
    found = {str(row.get("value")) for row in evidence if row.get("signal") == MOTION_SIGNAL}
    return next((word for word in MOTIONS if word in found), "")


def _words(fields: Mapping[str, Any], before: Precedents, rules: Rules) -> dict[str, Any]:
    cause = fields.get("cause") or {}
    suspects = fields.get("suspects") or ()
    nodes = sorted({str(suspect["node"]) for suspect in suspects if suspect.get("node")})
    step = (fields.get("first_bad") or {}).get("step")
    entity, device = str(cause.get("entity") or ""), str(cause.get("device") or "")
    return {
        "entity": entity or "it",
        "device": f"{cause.get('device_kind')} {short_device(device)} of {entity}" if device else entity or "it",
        "place": device or "that line",
        "suspect": _listed([f"{s.get('scope') or 'rank'} {s.get('id')}" for s in suspects]) or "a rank",
        "node": _listed(nodes) or "its node",
        "step": "that step" if step is None else step,
        "tries": before.alike,
        "failures": before.recent,
        "minutes": round(rules.storm_s / 60.0),
    }


def short_device(device: str) -> str:
    """A GPU's UUID up to its second dash, as people say it."""
    return "-".join(device.split("-")[:2]) if device.startswith("GPU-") else device


def _listed(names: Sequence[str]) -> str:
    more = len(names) - _MAX_NAMED
    return ", ".join(names[:_MAX_NAMED]) + (f" and {more} more" if more > 0 else "")


@cache
def load_rules() -> Rules:
    """Raises KeyError or ValueError for a table that is wrong; a test reads it."""
    content = read_toml(__package__, FILE)
    thens = {
        name: Then(action=Action(entry["action"]), text=_checked(entry["text"]))
        for name, entry in content["then"].items()
    }
    rows = tuple(_rule(entry, thens) for entry in content["advice"])
    if any(set(entry) - _KEYS for entry in content["advice"]) or set(content["advice"][-1]) - {"action", "by", "text"}:
        raise ValueError(f"{FILE}: a key that is none, or a last row that does not fit everything")
    storm = content["storm"]
    return Rules(rows=rows, storm_failures=int(storm["failures"]), storm_s=60.0 * float(storm["minutes"]))


_KEYS = {
    *(
        "action",
        "by",
        "text",
        "buckets",
        "kinds",
        "scopes",
        "severities",
        "motions",
        "domains",
        "asked",
        "devices",
        "history",
    ),
    *("errors", "changed", "retries", "then"),
}
_WORDS = ("entity", "device", "place", "suspect", "node", "step", "tries", "failures", "minutes")


def _rule(entry: Mapping[str, Any], thens: Mapping[str, Then]) -> Rule:
    by = str(entry["by"])
    if by not in (AUTOMATIC, HUMAN):
        raise ValueError(f"{FILE}: by {by!r}")
    retries = entry.get("retries")
    return Rule(
        action=Action(entry["action"]),
        by=by,
        text=_checked(entry["text"]),
        buckets=_members(entry, "buckets", {bucket.value for bucket in Bucket}),
        kinds=_members(entry, "kinds", {kind.value for kind in Kind}),
        scopes=_members(entry, "scopes", {scope.value for scope in Scope}),
        severities=_members(entry, "severities", {severity.value for severity in Severity}),
        motions=_members(entry, "motions", MOTIONS),
        domains=_members(entry, "domains", DOMAINS),
        asked=_members(entry, "asked", {action.value for action in Action}),
        devices=frozenset(entry.get("devices", ())),
        history=_members(entry, "history", HISTORIES),
        errors=re.compile(entry["errors"]) if "errors" in entry else None,
        changed=entry.get("changed"),
        retries=None if retries is None else int(retries),
        then=thens[entry.get("then", Action.ASK_A_HUMAN.value)],
    )


def _members(entry: Mapping[str, Any], name: str, known: Iterable[str]) -> frozenset[str]:
    members = frozenset(entry.get(name, ()))
    if unknown := members - frozenset(known):
        raise ValueError(f"{FILE}: {name}: {', '.join(sorted(unknown))}")
    return members


def _checked(text: str) -> str:
    """Raises KeyError for a word in braces that nobody fills in."""
    text.format(**dict.fromkeys(_WORDS, ""))
    return text
