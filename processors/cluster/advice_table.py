"""``advice.toml``: what is advised for which incident, row by row. The file's head says what each key is. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Any

from ...diagnosis.data_file import read_toml
from ...telemetry.vocabulary import Action, Bucket, Kind, Scope, Severity

FILE = "advice.toml"
AUTOMATIC, HUMAN = "automatic", "human"
NO_CAUSE = "none"
DOMAINS = frozenset(
    {"hardware", "host", "network", "storage", "process", "scheduler", "application", "telemetry", NO_CAUSE}
)
HISTORIES = frozenset({"elsewhere", "stuck", "storm"})
MOTIONS = ("moves", "in_io", "still")


@dataclass(frozen=True, slots=True, kw_only=True)
class Then:
    """What is advised to a person once a row's retries are used up."""

    action: Action
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AdviceRow:
    """A row: what it fits, and what is advised then. An empty set fits everything, and so does None.

    retries: how often it is tried before ``then`` is advised; None: it is no retry.
    """

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


@dataclass(frozen=True, slots=True, kw_only=True)
class AdviceTable:
    """The rows, first that holds counts; and what a storm is: ``storm_failures`` failed attempts within ``storm_s``
    seconds.
    """

    rows: tuple[AdviceRow, ...]
    storm_failures: int
    storm_s: float


@cache
def load_advice() -> AdviceTable:
    """The table from ``advice.toml``. Raises KeyError or ValueError where the file is wrong; a test reads it."""
    content = read_toml(__package__, FILE)
    thens = {
        name: Then(action=Action(entry["action"]), text=_checked(entry["text"]))
        for name, entry in content["then"].items()
    }
    rows = tuple(_rule(entry, thens) for entry in content["advice"])
    if any(set(entry) - _KEYS for entry in content["advice"]) or set(content["advice"][-1]) - {"action", "by", "text"}:
        raise ValueError(f"{FILE}: a key that is none, or a last row that does not fit everything")
    storm = content["storm"]
    return AdviceTable(rows=rows, storm_failures=int(storm["failures"]), storm_s=60.0 * float(storm["minutes"]))


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
_WORDS = ("entity", "device", "place", "suspect", "node", "step", "tries", "failures", "minutes", "attempts")


def _rule(entry: Mapping[str, Any], thens: Mapping[str, Then]) -> AdviceRow:
    by = str(entry["by"])
    if by not in (AUTOMATIC, HUMAN):
        raise ValueError(f"{FILE}: by {by!r}")
    retries = entry.get("retries")
    return AdviceRow(
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


@lru_cache(maxsize=1024)
def rows_for(bucket: str, kind: str) -> tuple[AdviceRow, ...]:
    """Rows that may fit an incident of this bucket and kind, in the table's order; other keys are not looked at."""
    return tuple(
        rule
        for rule in load_advice().rows
        if (not rule.buckets or bucket in rule.buckets) and (not rule.kinds or kind in rule.kinds)
    )
