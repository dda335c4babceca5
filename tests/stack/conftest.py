"""Real parts of a telemetry stack for tests, each built or fetched once into the user's cache (``parts/``).

Run by ``make stack``, not by ``make test``. Where Java, Maven or Go is missing, the tests that need it are skipped and
say so; ``.ci/run`` installs them and takes such a skip for a failure.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest

from tests.stack.job_that_went_on import JobThatWentOn, Seen
from tests.stack.parts.file_collector import FileCollector
from tests.stack.parts.kafka import PLAIN, Kafka, Security
from tests.stack.parts.whole_stack import Stack, assemble

_numbers = itertools.count()
_BESIDE = "beside"


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers",
        f"{_BESIDE}(fixture): that fixture of the session sleeps for minutes: it begins first, and the test comes last",
    )


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: item.get_closest_marker(_BESIDE) is not None)


@pytest.fixture(scope="session", autouse=True)
def begins_first(request: pytest.FixtureRequest) -> None:
    """What sleeps for minutes does so while the other tests run. Where it cannot begin, its own test says why."""
    for item in request.session.items:
        if (mark := item.get_closest_marker(_BESIDE)) is not None:
            with suppress(Exception, pytest.skip.Exception, pytest.fail.Exception):
                request.getfixturevalue(mark.args[0])


@pytest.fixture(scope="session")
def job_that_went_on(kafka: Kafka, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Future[Seen]]:
    job = JobThatWentOn(kafka, "job-that-went-on.", tmp_path_factory.mktemp("job-that-went-on"))
    with ThreadPoolExecutor(1) as pool:
        yield pool.submit(job.watch)
        job.end()


@pytest.fixture(scope="session")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kafka]:
    """One plain broker that all tests share; nobody stops it. Make your topics under ``topic_prefix``."""
    broker = Kafka(tmp_path_factory.mktemp("kafka"))
    try:
        broker.start()
        yield broker
    finally:
        broker.kill()


@pytest.fixture
def topic_prefix() -> str:
    """Unused before, on the shared broker."""
    return f"test{next(_numbers)}."


@pytest.fixture
def fresh_kafka(tmp_path: Path) -> Iterator[Callable[..., Kafka]]:
    """``fresh_kafka(SECURITY)``: a started broker of the test's own, to be killed, restarted or locked."""
    brokers: list[Kafka] = []

    def make(security: Security = PLAIN, *, host: str = "127.0.0.1", start: bool = True) -> Kafka:
        broker = Kafka(tmp_path / f"kafka{len(brokers)}", security=security, host=host)
        brokers.append(broker)
        if start:
            broker.start()
        return broker

    yield make
    for broker in brokers:
        broker.kill()


@pytest.fixture
def collector(tmp_path: Path) -> Iterator[FileCollector]:
    """A Collector that writes what it receives by OTLP/HTTP on a loopback port to files."""
    collector = FileCollector(tmp_path / "collector")
    try:
        collector.service.start()
        yield collector
    finally:
        collector.service.kill()


@pytest.fixture(scope="session")
def stack(kafka: Kafka, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """Started once, on the shared broker; Kafka has the topics that the bridge reads."""
    stack = assemble(kafka, tmp_path_factory.mktemp("stack"))
    try:
        stack.start()
        yield stack
    finally:
        stack.kill()
