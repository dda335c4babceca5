"""Texts of happenings on their way off the node: without secrets, and of bounded length. The one gate for all logs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ...telemetry.redaction import redact
from .collector import Happening

MAX_TEXT = 8192


def redacted(happening: Happening) -> Happening:
    return replace(happening, attributes={name: _safe(value) for name, value in happening.attributes.items()})


def _safe(value: Any) -> Any:
    if isinstance(value, str):
        return redact(value[: 4 * MAX_TEXT])[:MAX_TEXT]  # a secret that is cut is not known as one
    return tuple(_safe(each) for each in value) if isinstance(value, tuple) else value
