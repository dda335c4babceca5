"""Texts of happenings on their way off the node: without secrets, and of bounded length. The one gate for all logs."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import Any

from ....telemetry.redaction import redact
from ..collector import Happening

#: A text is cut after its secrets were removed: one that is cut is not known as one.
MAX_TEXT = 8192
#: Of a storm, all but the lines themselves are the same few words.
_WORD = 64


def redacted(happening: Happening) -> Happening:
    return replace(happening, attributes={name: _safe(value) for name, value in happening.attributes.items()})


def _safe(value: Any) -> Any:
    if isinstance(value, str):
        return _safe_word(value) if len(value) <= _WORD else redact(value[: 4 * MAX_TEXT])[:MAX_TEXT]
    return tuple(_safe(each) for each in value) if isinstance(value, tuple) else value


@lru_cache(1024)
def _safe_word(value: str) -> str:
    return redact(value)
