"""Tests that watch the clock: how soon something is said of a real job, and what whichrank costs one.

What can be asked of the processes' own stamps, or of a clock that is played, is not here. These are run alone, one
after the other (``make test``), and 20 times at a load of 4 by ``python -m tests.under_load``.
"""

from __future__ import annotations

from pathlib import Path

import pytest

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """``-m clock`` chooses them, ``-m 'not clock'`` leaves them out."""
    for item in items:
        if HERE in item.path.parents:
            item.add_marker("clock")
