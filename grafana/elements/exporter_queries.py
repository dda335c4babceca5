"""Queries of other people's exporters' metrics, made from the crosswalk: what it translates can be seen, too. Pure.

Prometheus has their points under the exporters' own names, as they came. A query asks for all names that the crosswalk
knows for one of our metrics, in our unit; label ``kind`` says which of them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from ...diagnosis.crosswalk.rules import CrosswalkRule, sources
from .panels import Query

_LABEL = re.compile(r"\{([A-Za-z_][\w.]*)\}")
_NOT_A_WORD = re.compile(r"[^a-zA-Z0-9_]+")
_WINDOW = "[$__rate_interval]"
#: By which an exporter is told apart from others of its kind, besides "instance".
_WHO = {"gnmi.toml": ("source",), "ufm.toml": ("node_desc", "node_description"), "dcgm.toml": ("Hostname",),
        "infiniband.toml": ("switch",)}  # fmt: skip
#: Lines that one can still read.
MOST_LINES = 20


class PanelForm(Enum):
    """How a metric is shown: as it is, or per second."""

    LEVEL = "level"
    RATE = "rate"


@dataclass(frozen=True, slots=True, kw_only=True)
class ExporterMetric:
    """What is asked for: a metric of ours with these attributes, of these files of the crosswalk ("": all)."""

    metric: str
    where: Mapping[str, str]
    form: PanelForm
    files: tuple[str, ...] = ()


def told(metric: str, form: PanelForm, *files: str, **where: str) -> ExporterMetric:
    """where: attributes with "_" in place of ".", as ``hw_type="network"``."""
    return ExporterMetric(
        metric=metric, where={name.replace("_", "."): value for name, value in where.items()}, form=form, files=files
    )


def exporter_query(*asked: ExporterMetric, per: ExporterMetric | None = None, only: str = "") -> Query:
    """The highest lines of what is asked for. per: divided by this, of the same devices; only: a comparison, "< 1"."""
    parts, labels = [], dict[str, None]()
    for each in asked:
        for file, rule, names in _rules(each):
            by = _labels(file, rule)
            expr = _one(each.form, rule, names, by)
            if per is not None:
                below = [(other, text) for _, other, text in _rules(per) if _is_beside(rule, other)]
                expr = " or ".join(f"{expr} / ({_one(per.form, other, text, by)} > 0)" for other, text in below)
            parts.append(f'label_replace({expr}{f" {only}" if only else ""}, "kind", "{_kind(rule)}", "", "")')
            labels |= dict.fromkeys(by)
    legend = " ".join(f"{{{{{label}}}}}" for label in (*labels, "kind"))
    return Query(expr=f"topk({MOST_LINES}, {' or '.join(parts)})", legend=legend)


def _rules(asked: ExporterMetric) -> Iterator[tuple[str, CrosswalkRule, str]]:
    for file, source in sources().items():
        if asked.files and file.removesuffix(".toml") not in asked.files:
            continue
        for rule, names in source.written:
            is_it = all(
                "{" in (own := rule.attributes.get(key, "")) or own == value for key, value in asked.where.items()
            )
            if rule.metric == asked.metric and is_it:
                yield file, rule, names


def _one(form: PanelForm, rule: CrosswalkRule, names: str, by: Sequence[str]) -> str:
    series = f'{{__name__=~"{names}"}}'
    grouped = f"by ({', '.join(by)})"
    if form is PanelForm.RATE:
        expr = f"sum {grouped} (rate({series}{_WINDOW}))"
    elif rule.one_if is not None:
        expr = f"max {grouped} ({series} == bool {rule.one_if:g})"
    else:
        expr = f"max {grouped} ({series})"
    return expr if rule.factor == 1 else f"{expr} * {rule.factor:g}"


def _labels(file: str, rule: CrosswalkRule) -> list[str]:
    forms = (*rule.device, *rule.attributes.values())
    found = [_NOT_A_WORD.sub("_", label) for form in forms for label in _LABEL.findall(form)]
    return list(dict.fromkeys(["instance", *_WHO.get(file, ()), *found]))


def _is_beside(rule: CrosswalkRule, other: CrosswalkRule) -> bool:
    """Whether both tell of the same: of one exporter, in the same direction or of the same operation."""
    shared = set(rule.attributes) & set(other.attributes)
    return rule.device == other.device and all(rule.attributes[key] == other.attributes[key] for key in shared)


def _kind(rule: CrosswalkRule) -> str:
    said = [text for key, text in rule.attributes.items() if "{" not in text and key != "hw.type"]
    return " ".join(said) or rule.metric.rpartition(".")[2]
