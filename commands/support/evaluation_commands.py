"""Commands that come with another distribution, whichrank-evaluation: they judge whichrank, and watch nobody's job.

The standard library alone: ``entry`` asks before anything else is imported.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec
from typing import Final

DISTRIBUTION: Final = "whichrank-evaluation"
#: From a checkout: it is made from whichrank's own tree.
HOW_TO_INSTALL: Final = "pip install '.[agent]' ./evaluation, in a checkout of whichrank"
_PACKAGE = "whichrank.evaluation"
#: By the command's word, as in ``late_commands``.
COMMANDS: Final[Mapping[str, str]] = {
    "simulate": f"{_PACKAGE}.simulate.simulate_flags",
    "bench": f"{_PACKAGE}.bench.bench_flags",
}


def installed_commands() -> Mapping[str, str]:
    """``COMMANDS`` where the distribution is installed (in a checkout it always is), else none."""
    return COMMANDS if find_spec(_PACKAGE) is not None else {}
