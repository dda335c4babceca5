"""Fixtures for the GPU collector: played nodes, and collectors in processes of their own beside them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.played_amd.played import PlayedAmd, site
from tests.played_gpu.collecting import CollectingProcess
from tests.played_gpu.played import PlayedGpus, Profile, can_be_built

MakePlayed = Callable[[Profile], PlayedGpus]
Start = Callable[..., CollectingProcess]
StartAmd = Callable[..., CollectingProcess]


@pytest.fixture
def make_played(tmp_path: Path) -> MakePlayed:
    if not can_be_built():
        pytest.skip("a C compiler is needed for the played GPUs, and there is none")
    return lambda profile: PlayedGpus(profile, tmp_path / profile.value)


@pytest.fixture(params=Profile, ids=lambda profile: str(profile.value))
def played(request: pytest.FixtureRequest, make_played: MakePlayed) -> PlayedGpus:
    """A node of each profile in turn."""
    return make_played(request.param)


@pytest.fixture
def h100(make_played: MakePlayed) -> PlayedGpus:
    """For what does not depend on the profile."""
    return make_played(Profile.H100)


@pytest.fixture
def mi300x(tmp_path: Path) -> PlayedAmd:
    package = site()
    if package is None:
        pytest.skip("a C compiler and the package amdsmi are needed for AMD's played GPUs, and there are none")
    return PlayedAmd(package, tmp_path / "mi300x")


@pytest.fixture
def start_amd(tmp_path: Path) -> Iterator[StartAmd]:
    """``start_amd(played)``: a collector beside it, ended with the test. It sees no other processes by itself."""
    with ExitStack() as started:

        def begin(played: PlayedAmd, proc: Path | None = None) -> CollectingProcess:
            empty = tmp_path / "empty_proc"
            empty.mkdir(exist_ok=True)
            return started.enter_context(CollectingProcess(played.environment(), proc or empty, played.sys))

        yield begin


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """``start(played)``: a collector beside it, ended with the test. It sees no other processes unless proc says so."""
    with ExitStack() as started:

        def begin(played: PlayedGpus, proc: Path | None = None) -> CollectingProcess:
            if proc is None:
                proc = tmp_path / "empty_proc"
                proc.mkdir(exist_ok=True)
            return started.enter_context(CollectingProcess(played.environment(), proc))

        yield begin
