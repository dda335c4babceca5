"""Which half of the instrumentation runs: the C one where it was built and is wanted, else the one in Python."""

from __future__ import annotations

import os


def native_wanted() -> bool:
    """Whether the C half may be used: False where the environment says ``WHICHRANK_NATIVE=0``."""
    return os.environ.get("WHICHRANK_NATIVE", "1") != "0"
