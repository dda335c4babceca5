"""A played node with eight H100, and one of each profile."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.played_gpu.played import PlayedGpus, Profile, can_be_built


@pytest.fixture(params=Profile, ids=lambda profile: str(profile.value))
def played(request: pytest.FixtureRequest, tmp_path: Path) -> PlayedGpus:
    return _idle(request.param, tmp_path)


@pytest.fixture
def h100(tmp_path: Path) -> PlayedGpus:
    return _idle(Profile.H100, tmp_path)


def _idle(profile: Profile, folder: Path) -> PlayedGpus:
    """As between two jobs: nothing lies in the GPUs' memory."""
    if not can_be_built():
        pytest.skip("a C compiler is needed for the played GPUs, and there is none")
    gpus = PlayedGpus(profile, folder / profile.value)
    gpus.set_all({"memory.used": 0})
    return gpus
