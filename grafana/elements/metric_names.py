"""How Prometheus calls what whichrank sends: its OTLP receiver makes names of metrics and units. Pure.

The rules are those of Prometheus 3 (``UnderscoreEscapingWithSuffixes``, its default): dots become underscores, the unit
is appended in words, counters end in ``_total``, gauges of unit 1 in ``_ratio``; annotations in braces are no unit.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache

from ...telemetry import attributes as names
from ...telemetry.metric_encode import METRICS
from ...telemetry.node_metrics import node_metrics

_UNITS: Mapping[str, str] = {
    "s": "seconds",
    "ms": "milliseconds",
    "By": "bytes",
    "bit": "bits",
    "W": "watts",
    "J": "joules",
    "Cel": "celsius",
    "Hz": "hertz",
    "1": "",
}
_PER: Mapping[str, str] = {"s": "second", "m": "minute", "h": "hour", "d": "day"}
_NOT_A_WORD = re.compile(r"[^a-zA-Z0-9]+")


def label_name(attribute: str) -> str:
    """An attribute's name as a label of Prometheus: ``whichrank_job_id`` for ``whichrank.job.id``."""
    return _NOT_A_WORD.sub("_", attribute)


def prometheus_name(metric: str) -> str:
    """The name in Prometheus of a metric that whichrank sends. Raises KeyError for one that it does not."""
    return _known()[metric]


@cache
def _known() -> Mapping[str, str]:
    found = {name: _name(name, names.METRIC_UNITS[name], metric.instrument.value) for name, metric in METRICS.items()}
    return found | {name: _name(name, each.unit, each.instrument.value) for name, each in node_metrics().items()}


def _name(metric: str, unit: str, instrument: str) -> str:
    words = _NOT_A_WORD.sub("_", metric).strip("_").split("_")
    main, _, per = unit.partition("/")
    for word in (_UNITS.get(main, "") if "{" not in main else "", f"per_{_PER[per]}" if per in _PER else ""):
        if word and not "_".join(words).endswith(word):
            words.append(word)
    if instrument == "counter":
        words = [*(word for word in words if word != "total"), "total"]
    elif instrument == "gauge" and unit == "1":
        words = [*(word for word in words if word != "ratio"), "ratio"]
    return "_".join(words)
