"""Pressure stall information of the kernel (Linux 4.20): the share of time in which somebody, or everybody, waited."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ..base.small_files import decimal_number, whole_number


@dataclass(frozen=True, slots=True)
class Pressure:
    share: float  # of the last 10 s, 0 to 1
    total_s: float


def parse_pressure(text: str) -> Mapping[str, Pressure]:
    """A pressure file (lines ``some avg10=0.12 avg60=… total=123``) by each line's first word: ``some``, ``full``.

    Lines that cannot be read are left out.
    """
    found: dict[str, Pressure] = {}
    for line in text.splitlines():
        kind, *words = line.split()[:8] or [""]
        values = dict(word.partition("=")[::2] for word in words)
        share = decimal_number(values.get("avg10", ""))
        total_us = whole_number(values.get("total", ""))
        if kind in ("some", "full") and share is not None and total_us is not None:
            found[kind] = Pressure(share / 100, total_us / 1e6)
    return found
