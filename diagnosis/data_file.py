"""Tables of rules that lie beside the code as TOML."""

from __future__ import annotations

import sys
from importlib import resources
from typing import Any

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib  # type: ignore[import-not-found,unused-ignore]


def read_toml(package: str, name: str) -> dict[str, Any]:
    """The content of a TOML file beside a module. Raises OSError or tomllib.TOMLDecodeError.

    package: the module beside which the file lies (``__package__``).
    """
    table: dict[str, Any] = tomllib.loads(resources.files(package).joinpath(name).read_text(encoding="utf-8"))
    return table
