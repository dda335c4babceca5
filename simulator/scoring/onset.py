"""Since when a fault is felt: what slows a rank by and by, or between two steps, is felt once a step shows it."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import Any

#: Of its length without the fault, by so much more a step is longer.
FELT = 0.1


def onset_s(truth: Mapping[str, Any], fault: Mapping[str, Any]) -> float:
    """Begin of the first step that a rank slower than the others made a tenth longer than it would have been with the
    same draws; where there is none, and for faults that slow no single rank, when the fault's parameter changed."""
    at_s = float(fault["at_s"])
    if "rank_slow" not in fault["kinds"]:
        return at_s
    jobs = {fault["job"], *fault["victims"]} - {""}
    for job in sorted(jobs or truth["jobs"]):
        begin_ns = 0
        spans = [span for span in truth["spans"] if span["job"] == job and span["end_ns"] > at_s * 1e9]
        for span, following in pairwise(spans):
            if span["bucket"] in ("productive", "rework"):
                begin_ns = span["end_ns"]
            lost_ns = (span["end_ns"] - span["begin_ns"]) * (span["bucket"] == "straggler_loss")
            if lost_ns and lost_ns >= FELT * (following["end_ns"] - following["begin_ns"]):
                return max(at_s, begin_ns / 1e9)
    return at_s
