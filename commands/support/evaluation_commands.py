"""Commands that come with another distribution, whichrank-evaluation: they judge whichrank, and watch nobody's job.

The standard library alone: ``entry`` asks before anything else is imported.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec
from typing import Final

DISTRIBUTION: Final = "whichrank-evaluation"
EXTRA: Final = "evaluation"
#: It is made from whichrank's own tree.
IN_A_CHECKOUT: Final = "in a checkout: pip install '.[agent]' ./evaluation"
_PACKAGE = "whichrank.evaluation"
#: By the command's word, as in ``late_commands``.
COMMANDS: Final[Mapping[str, str]] = {
    "simulate": f"{_PACKAGE}.simulate.simulate_flags",
    "bench": f"{_PACKAGE}.bench.bench_flags",
}


def installed_commands() -> Mapping[str, str]:
    """``COMMANDS`` where the distribution is installed (in a checkout it always is), else none."""
    return COMMANDS if find_spec(_PACKAGE) is not None else {}
