"""One table of node limits, read by those who watch jobs, those who check nodes, and those who read ports."""

from __future__ import annotations

import json
from collections import Counter

from whichrank.diagnosis.node_limits.table import rows_of


def _measured(part: str) -> list[str]:
    return [json.dumps([row["metric"], row["where"]], sort_keys=True) for row in rows_of(part)]


def test_what_is_measured_stands_in_one_row() -> None:
    """Each part of it may ask more than once, as a counter is asked per second and per hour."""
    for part in ("live", "check", "port"):
        twice = [measured for measured, times in Counter(_measured(part)).items() if times > 1]
        assert all("symbol_error" in each or "xid.last" in each or "throttle_bits" in each for each in twice), part


def test_what_is_asked_of_running_jobs_and_of_nodes_before_them_is_side_by_side() -> None:
    both = set(_measured("live")) & set(_measured("check"))
    assert len(both) >= 7
    assert len(set(_measured("live")) & set(_measured("port"))) >= 8
