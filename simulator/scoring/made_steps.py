"""Delays in steps of the job: how many it has made, and how many it would have made without the fault. Pure."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

_STEPS = ("productive", "rework")


def usual_step_s(truth: Mapping[str, Any], fault: Mapping[str, Any]) -> float:
    """Median length in seconds of a step of the struck jobs before the fault; nan where they made none.

    truth: as ``truth.json`` has it; fault: one of its faults.
    """
    jobs, at_ns = _jobs_of(fault), float(fault["at_s"]) * 1e9
    lengths = [
        (span["end_ns"] - span["begin_ns"]) / 1e9
        for span in truth["spans"]
        if span["bucket"] in _STEPS and span["end_ns"] <= at_ns and (not jobs or span["job"] in jobs)
    ]
    return median(lengths) if lengths else math.nan


def steps_made(truth: Mapping[str, Any], fault: Mapping[str, Any], from_s: float, until_s: float) -> float:
    """How many steps the struck job has made from ``from_s`` to ``until_s``, parts of them included.

    Of several jobs the first by name that made any. After its last step, as many as it would have made; nan: it never
    made one.
    """
    usual_s = usual_step_s(truth, fault)
    for job in sorted(_jobs_of(fault) or truth["jobs"]):
        mine = (span for span in truth["spans"] if span["job"] == job and span["bucket"] in _STEPS)
        ends_s = sorted(span["end_ns"] / 1e9 for span in mine)
        if ends_s:
            return _place(ends_s, until_s, usual_s) - _place(ends_s, from_s, usual_s)
    return (until_s - from_s) / usual_s


def _place(ends_s: Sequence[float], at_s: float, usual_s: float) -> float:
    """How many steps have ended by then, and how much of the next one is over."""
    ended = bisect_right(ends_s, at_s)
    if ended == len(ends_s):
        return ended + (at_s - ends_s[-1]) / usual_s
    begin_s = ends_s[ended - 1] if ended else min(at_s, ends_s[0] - usual_s)
    return ended + (at_s - begin_s) / (ends_s[ended] - begin_s)


def _jobs_of(fault: Mapping[str, Any]) -> set[str]:
    return {fault["job"], *fault["victims"]} - {""}
