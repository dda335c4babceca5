"""One Flink cluster for all tests of this folder; each of them ends its own job."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.stack.parts.flink import Flink, require_flink


@pytest.fixture(scope="session")
def flink(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Flink]:
    require_flink()
    cluster = Flink(tmp_path_factory.mktemp("flink"))
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.kill()
