"""Which causes can be shared: ``rules.toml`` as data. The file's head says what each key is."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources

from ....telemetry.evidence_facts import How
from ....telemetry.vocabulary import Action, Bucket, Kind, Scope, Severity

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib  # type: ignore[import-not-found,unused-ignore]

FILE = "rules.toml"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Rule:
    name: str
    kind: Kind
    scope: Scope
    bucket: Bucket
    severity: Severity
    family: str
    attribute: str
    explains: frozenset[str]
    phases: frozenset[str]
    unknown_phase: float
    errors: re.Pattern[str] | None
    ends: frozenset[str]
    conditions: frozenset[str]
    symptoms: frozenset[str]
    signs: frozenset[str]
    window_s: float
    patience_s: float
    p1: float
    inside: float
    prior: float
    min_jobs: int
    min_nodes: int
    alone_with_sign: bool
    needs_symptom: bool
    stays_s: float
    action: Action
    by: str
    says: str
    advice: str


@cache
def load_shared_rules() -> Mapping[str, Rule]:
    """The rules of ``rules.toml`` by name, in its order. Raises KeyError or ValueError where it is wrong; a test reads
    it.
    """
    content = tomllib.loads(resources.files(__package__).joinpath(FILE).read_text(encoding="utf-8"))
    rules = [
        Rule(
            name=entry["name"],
            kind=Kind(entry["kind"]),
            scope=Scope(entry["scope"]),
            bucket=Bucket(entry["bucket"]),
            severity=Severity(entry["severity"]),
            family=entry["family"],
            attribute=entry.get("attribute", ""),
            explains=frozenset(Kind(kind).value for kind in entry.get("explains", ())),
            phases=frozenset(entry.get("phases", ())),
            unknown_phase=float(entry.get("unknown_phase", 0.0)),
            errors=re.compile("|".join(entry["errors"]), re.IGNORECASE) if entry.get("errors") else None,
            ends=frozenset(How(how).value for how in entry.get("ends", ())),
            conditions=frozenset(entry.get("conditions", ())),
            symptoms=frozenset(entry.get("symptoms", ())),
            signs=frozenset(entry.get("signs", ())),
            window_s=float(entry.get("window_s", 60.0)),
            patience_s=float(entry.get("patience_s", 30.0)),
            p1=float(entry.get("p1", 0.9)),
            inside=float(entry.get("inside", 1.0)),
            prior=float(entry.get("prior", 0.0)),
            min_jobs=int(entry.get("min_jobs", 2)),
            min_nodes=int(entry.get("min_nodes", 0)),
            alone_with_sign=bool(entry.get("alone_with_sign", False)),
            needs_symptom=bool(entry.get("needs_symptom", False)),
            stays_s=float(entry.get("stays_s", 0.0)),
            action=Action(entry["action"]),
            by=entry["by"],
            says=entry["says"],
            advice=entry["advice"],
        )
        for entry in content["rule"]
    ]
    return {rule.name: rule for rule in rules}


def rules_of(family: str) -> list[Rule]:
    """Rules of a family, which are looked at in the same way, in the file's order; [] for none."""
    return [rule for rule in load_shared_rules().values() if rule.family == family]


def the_rule(family: str) -> Rule:
    """The only rule of a family. Raises ValueError where there are several or none."""
    (rule,) = rules_of(family)
    return rule
