"""``GATHER_ALL=1``: these tests once more, with every job's blocks taken together as those of a large one are."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from whichrank.processors.job import operator
from whichrank.processors.job.state.micro_batch import FEWEST_NODES

#: Counts what a lone block costs.
_OF_LONE_BLOCKS = "test_cost.py"


@pytest.fixture(autouse=True, scope="session")
def _gather_all() -> Iterator[None]:
    """Before any fixture of a module makes what its tests compare with."""
    with pytest.MonkeyPatch.context() as patch:
        if os.environ.get("GATHER_ALL") == "1":
            patch.setattr(operator, "FEWEST_NODES", 1)
        yield


@pytest.fixture(autouse=True)
def _gather_none(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.node.path.name == _OF_LONE_BLOCKS:
        monkeypatch.setattr(operator, "FEWEST_NODES", FEWEST_NODES)
