"""What a rank's ring says of an emergency save, as the attributes of a CHECKPOINT_EMERGENCY. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from ...telemetry.emergency_words import MOST_REASON, EmergencyState, MissedWhy
from ...telemetry.printable import printable
from ...telemetry.ring_layout import cut_text

_STATES, _WHYS = frozenset(each.value for each in EmergencyState), frozenset(each.value for each in MissedWhy)
_TEXTS = {"reason": MOST_REASON, "missing": 400, "error": 400}
_MOST_STEP = 1 << 48


def emergency_told(payload: Mapping[str, Any], now_ns: int) -> tuple[int, dict[str, Any]] | None:
    """Monotonic ns and attributes from the JSON of a ring's definition; None for what is none. now_ns: monotonic.

    The program writes its ring, so each value is checked; what does not fit is left out, a time counts as ``now_ns``.
    """
    request, state, time_ns = payload.get("request"), payload.get("state"), payload.get("time_ns")
    if not _is_count(request) or not isinstance(state, str) or state not in _STATES:
        return None
    attributes: dict[str, Any] = {"request": request, "state": state}
    for name, longest in _TEXTS.items():
        text = payload.get(name)
        if isinstance(text, str) and text:
            attributes[name] = printable(cut_text(text, longest))
    for name in ("seconds", "seconds_left"):
        value = payload.get(name)
        if isinstance(value, int | float) and math.isfinite(value) and value >= 0:
            attributes[name] = float(value)
    why = payload.get("why")
    if isinstance(why, str) and why in _WHYS:
        attributes["why"] = why
    if _is_count(payload.get("step")):
        attributes["step"] = payload["step"]
    return (min(time_ns, now_ns) if isinstance(time_ns, int) and time_ns > 0 else now_ns), attributes


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < _MOST_STEP
