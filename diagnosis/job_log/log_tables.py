"""The tables beside this package's modules: TOML files that are data of it, and nothing else."""

from __future__ import annotations

import sys
from importlib import resources
from typing import Any

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib  # type: ignore[import-not-found,unused-ignore]


def table(name: str) -> dict[str, Any]:
    """The content of one of this package's TOML files. name: as "classes.toml" or "rules/10_gpu.toml"."""
    file = resources.files(__package__)
    for part in name.split("/"):
        file = file / part
    entries: dict[str, Any] = tomllib.loads(file.read_text(encoding="utf-8"))
    return entries


def tables_in(folder: str) -> list[str]:
    """Names of the TOML files in a folder of this package, sorted."""
    files = (resources.files(__package__) / folder).iterdir()
    return sorted(file.name for file in files if file.name.endswith(".toml"))
