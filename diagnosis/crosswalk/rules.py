"""The tables of the crosswalk, read and checked once. A file per exporter:

    [source]
    entity = "node"                    # node | switch | storage | service | power | fabric; a rule may say another
    device = ["{UUID}", "gpu{gpu}"]    # the first whose labels are all there; absent: the metric has no device
    device_attribute = "hw.id"         # the attribute that holds it
    ignored = { device = "veth.*" }    # points with such a whole label are left out
    only = { fstype = "nfs.*" }        # so are those without such a one; a rule may say its own
    [[rule]]
    names = ["DCGM_FI_DEV_GPU_UTIL"]   # as the exporter gives them
    metric = "hw.gpu.utilization"      # of telemetry/node_metrics
    factor = 0.01                      # of its unit to ours
    attributes = { "hw.type" = "gpu" } # "{label}" stands for a label's value; without that label the point is left out
    one_if = 1                         # the value is a state: 1 if it is this, else 0
    at_least = 0                       # smaller values mean that nothing is known
    at_most = 4                        # likewise larger ones

How names are compared: exactly, with or without "_total"; after ``strip`` (prefixes) too; with ``path`` by how they
end, written with underscores; with ``letters`` by letters and digits alone.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from importlib import resources
from typing import Any

from ..data_file import read_toml

_NO_RULES = frozenset({"hosts.toml"})
#: Other people's metrics have a few thousand names; what nobody knows is looked up again when this is full.
_REMEMBERED_NAMES = 8192
_WORD_OF_NAME = re.compile(r"[A-Z]+[a-z0-9]*|[a-z0-9]+")
_NOT_WORD = re.compile(r"[^a-z0-9]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class CrosswalkRule:
    metric: str
    entity: str
    factor: float
    attributes: Mapping[str, str]
    device: tuple[str, ...]
    device_attribute: str
    one_if: float | None
    at_least: float | None
    at_most: float | None
    ignored: Mapping[str, re.Pattern[str]]
    only: Mapping[str, re.Pattern[str]]

    def holds_of(self, value: float) -> bool:
        """Whether a value of the metric means that anything is known."""
        return (self.at_least is None or value >= self.at_least) and (self.at_most is None or value <= self.at_most)

    def is_about(self, labels: Mapping[str, object]) -> bool:
        """Whether a point of the metric with these labels is of anything that the rule translates."""
        if any(form.fullmatch(str(labels.get(label, ""))) for label, form in self.ignored.items()):
            return False
        return all(form.fullmatch(str(labels.get(label, ""))) for label, form in self.only.items())


@dataclass(frozen=True, slots=True)
class _Source:
    """Rules of one file by name in the form in which that file's names are compared.

    written: each rule with a regular expression (RE2) of all ways in which its names are written.
    """

    rules: Mapping[str, CrosswalkRule]
    written: Sequence[tuple[CrosswalkRule, str]]
    strip: tuple[str, ...]
    is_path: bool
    is_letters: bool


@cache
def sources() -> Mapping[str, _Source]:
    """Rules by the file that they stand in. Raises ValueError or KeyError for a table that is wrong."""
    names = sorted(entry.name for entry in resources.files(__package__).iterdir() if entry.name.endswith(".toml"))
    return {name: _read(read_toml(__package__, name)) for name in names if name not in _NO_RULES}


def _read(table: Mapping[str, Any]) -> _Source:
    source = table["source"]
    is_path, is_letters = source.get("path", False), source.get("letters", False)
    ignored = _forms(source.get("ignored", {}))
    rules: dict[str, CrosswalkRule] = {}
    written: list[tuple[CrosswalkRule, str]] = []
    strip = tuple(source.get("strip", ()))
    for entry in table["rule"]:
        rule = CrosswalkRule(
            metric=entry["metric"],
            entity=entry.get("entity", source["entity"]),
            factor=float(entry.get("factor", 1)),
            attributes=entry.get("attributes", {}),
            device=tuple(entry.get("device", source.get("device", ()))),
            device_attribute=entry.get("device_attribute", source.get("device_attribute", "")),
            one_if=entry.get("one_if"),
            at_least=entry.get("at_least"),
            at_most=entry.get("at_most"),
            ignored=ignored,
            only=_forms(entry.get("only", source.get("only", {}))),
        )
        written.append((rule, _written(entry["names"], strip, is_path=is_path, is_letters=is_letters)))
        for name in entry["names"]:
            spelt = _letters(name) if is_letters else name
            if spelt in rules:
                raise ValueError(f"{name} stands there twice")
            rules[spelt] = rule
    return _Source(rules, written, strip, is_path, is_letters)


def _written(names: Sequence[str], strip: Sequence[str], *, is_path: bool, is_letters: bool) -> str:
    """All ways in which collectors and Prometheus write these names, as an expression that fits a whole name."""
    # Prometheus keeps one "total" of a counter that came by OTLP, and puts it last.
    words = [name.removesuffix("_total").replace("_total_", "_(?:total_)?") for name in names]
    if is_letters:
        words = ["_?".join(_WORD_OF_NAME.findall(name)) for name in words]
    before = (
        ".*" if is_path else f"(?:{'|'.join(each + ('_?' if is_letters else '') for each in strip)})?" if strip else ""
    )
    of_names = words[0] if len(words) == 1 else f"(?:{'|'.join(words)})"
    return f"{'(?i)' if is_letters else ''}{before}{of_names}(?:_total)?"


def _forms(texts: Mapping[str, str]) -> Mapping[str, re.Pattern[str]]:
    return {label: re.compile(text) for label, text in texts.items()}


@lru_cache(maxsize=_REMEMBERED_NAMES)
def rule_for(name: str) -> CrosswalkRule | None:
    """The rule that translates a foreign metric of this name; None: nobody here knows it."""
    for source in sources().values():
        rule = _find(source, name)
        if rule is not None:
            return rule
    return None


def _find(source: _Source, name: str) -> CrosswalkRule | None:
    if source.is_path:
        path = _NOT_WORD.sub("_", name.lower()).strip("_")
        return next((rule for end, rule in source.rules.items() if path == end or path.endswith("_" + end)), None)
    spelt = _letters(name) if source.is_letters else name
    while True:
        for form in (spelt, spelt + "_total", spelt.removesuffix("_total")):
            if form in source.rules:
                return source.rules[form]
        shorter = next((spelt[len(prefix) :] for prefix in source.strip if spelt.startswith(prefix)), spelt)
        if shorter == spelt:
            return None
        spelt = shorter


def _letters(name: str) -> str:
    return _NOT_WORD.sub("", name.lower())
