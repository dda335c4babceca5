"""Texts of node events have a bounded length. Their secrets go when they leave the agent (``redaction_filter``)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ....telemetry.ring_layout import cut_text
from ..base.collector import NodeEvent

MAX_TEXT = 8192


def bounded(happening: NodeEvent) -> NodeEvent:
    """The event with every text of its attributes cut to a bounded length."""
    return replace(happening, attributes={name: _bounded(value) for name, value in happening.attributes.items()})


def _bounded(value: Any) -> Any:
    if isinstance(value, str):
        return cut_text(value, MAX_TEXT)
    return tuple(map(_bounded, value)) if isinstance(value, tuple) else value
