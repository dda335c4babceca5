from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.commands.respond.parts import FakeKubernetes, FakeSlurm, Receiver, make_certificate


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    made = Receiver()
    yield made
    made.close()


@pytest.fixture
def slurm(tmp_path: Path) -> FakeSlurm:
    """Its folder is not on the PATH yet."""
    return FakeSlurm(tmp_path / "slurm-bin", sys.executable)


@pytest.fixture
def on_path(slurm: FakeSlurm, monkeypatch: pytest.MonkeyPatch) -> FakeSlurm:
    monkeypatch.setenv("PATH", f"{slurm.folder}:/usr/bin:/bin")
    return slurm


@pytest.fixture
def certificate(tmp_path: Path) -> Path:
    return make_certificate(tmp_path)


@pytest.fixture
def kubernetes(certificate: Path) -> Iterator[FakeKubernetes]:
    made = FakeKubernetes(certificate)
    yield made
    made.close()
