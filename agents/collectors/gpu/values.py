"""A point of a GPU to be."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Value:
    """One point to be. ``labels``: those beside the GPU's own."""

    metric: str
    value: float
    labels: Mapping[str, str] = field(default_factory=dict)
