"""Moments of documents as people read them, in UTC. Pure."""

from __future__ import annotations

import time
from typing import Any


def when(seconds: Any) -> str:
    """Unix seconds as ``2026-11-22 20:35:01`` in UTC; "unknown" for what is none."""
    if not isinstance(seconds, int | float):
        return "unknown"
    try:
        return time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(seconds))
    except (ValueError, OverflowError, OSError):
        return "unknown"
