"""When a revision was news, and until when it waits: for services that read documents. Pure functions."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any


def told_at(document: Mapping[str, Any]) -> float:
    """The newest time that a revision knows of itself, Unix seconds."""
    times = document.get("times") or {}
    return max(float(times[name] or 0.0) for name in ("onset", "detected", "attributed", "resolved") if name in times)


def held_until(document: Mapping[str, Any]) -> float:
    """Until when it waits for a cause that several jobs may share, Unix seconds; 0.0 it does not, inf nobody knows."""
    hold = document.get("hold")
    if hold is None:
        return 0.0
    until = hold.get("until") if isinstance(hold, Mapping) else None
    return float(until) if isinstance(until, int | float) else math.inf
