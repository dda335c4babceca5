"""Prometheus' own engine of rules in simulated time: series in, alerts out, by ``promtool test rules``."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from tests.stack.parts.go_programs import PROMETHEUS, built

PROMTOOL = replace(PROMETHEUS, name="promtool", package="./cmd/promtool")
#: Between two points of a series, as whichrank's metrics come.
STEP_S = 15


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    """At this time since the begin exactly these alerts of that name fire: labels and annotations of each."""

    at_s: int
    alert: str
    fires: Sequence[tuple[Mapping[str, str], Mapping[str, str]]] = field(default=())


def told_otherwise(
    rules: Path, series: Mapping[str, str], expected: Sequence[Expected], folder: Path, *, interval_s: int = STEP_S
) -> str:
    """series: values in promtool's notation, ``0x8 1x4 _x20``. What came otherwise, in promtool's words; "" nothing."""
    test: dict[str, Any] = {
        "rule_files": [str(rules)],
        "evaluation_interval": "10s",
        "tests": [
            {
                "interval": f"{interval_s}s",
                "input_series": [{"series": name, "values": values} for name, values in series.items()],
                "alert_rule_test": [
                    {
                        "eval_time": f"{each.at_s}s",
                        "alertname": each.alert,
                        "exp_alerts": [
                            {"exp_labels": dict(labels), "exp_annotations": dict(annotations)}
                            for labels, annotations in each.fires
                        ],
                    }
                    for each in expected
                ],
            }
        ],
    }
    path = folder / "rules-test.json"  # JSON is YAML
    path.write_text(json.dumps(test))
    run = subprocess.run(
        [built(PROMTOOL), "test", "rules", path], capture_output=True, text=True, timeout=120, check=False
    )
    return "" if run.returncode == 0 else run.stdout + run.stderr
