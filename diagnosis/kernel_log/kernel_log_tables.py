"""The data files beside this: read once, checked, given out as frozen records."""

from __future__ import annotations

import sys
from functools import cache
from importlib import resources
from typing import Any

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


def read_toml(name: str) -> dict[str, Any]:
    """The content of a TOML file of this package. Raises OSError or tomllib.TOMLDecodeError."""
    document: dict[str, Any] = tomllib.loads(resources.files(__package__).joinpath(name).read_text(encoding="utf-8"))
    return document


@cache
def read_tsv(name: str) -> tuple[dict[str, str], ...]:
    """Rows of a file of this package, each by the names in its first line.

    Raises ValueError if a row has another number of cells.
    """
    text = resources.files(__package__).joinpath(name).read_text(encoding="utf-8")
    heading, *rows = (line.split("\t") for line in text.splitlines() if line)
    for number, row in enumerate(rows, 2):
        if len(row) != len(heading):
            raise ValueError(f"{name}:{number}: {len(row)} cells, the first line has {len(heading)}")
    return tuple(dict(zip(heading, row, strict=True)) for row in rows)
