"""Since when a fault is felt: what slows a rank by and by, or between two steps, is felt once a step shows it."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import Any

#: Of its length without the fault, by so much more a step is longer.
FELT = 0.1


def onset_s(truth: Mapping[str, Any], fault: Mapping[str, Any]) -> float:
    """When the fault is felt, in seconds of the simulation: the begin of the first step that it made a tenth longer.

    Where there is none, and for faults that slow no single rank, when the fault's parameter changed.
    """
    felt_s = _felt_s(truth, fault)
    return float(fault["at_s"]) if felt_s is None else felt_s


def is_felt(truth: Mapping[str, Any], fault: Mapping[str, Any]) -> bool:
    """Whether the fault made any step a tenth longer; True for faults that slow no single rank, as the ledger cannot
    tell.

    Of a thousand ranks one always has bad luck, and waits for that one hide who is slower by little.
    """
    return "rank_slow" not in fault["kinds"] or _felt_s(truth, fault) is not None


def _felt_s(truth: Mapping[str, Any], fault: Mapping[str, Any]) -> float | None:
    at_s = float(fault["at_s"])
    if "rank_slow" not in fault["kinds"]:
        return None
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
    return None
