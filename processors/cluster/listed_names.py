"""Rows that are lists of names.

A damaged one is read as empty: it is of one job or node, and whoever looks through the rows of all must not fail on it.
"""

from __future__ import annotations

import json


def read_names(row: bytes | None) -> list[str]:
    """The names in the row; [] without a row, and for what is no list of names."""
    try:
        found = json.loads(row or b"[]")
    except (ValueError, RecursionError):
        return []
    return [each for each in found if isinstance(each, str)] if isinstance(found, list) else []
