"""How each of confluent-kafka's clients reaches the brokers, and how its errors become ours."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from typing import Any

from confluent_kafka import (
    Consumer,
    KafkaError,
    KafkaException,
    Producer,
)
from confluent_kafka.admin import AdminClient

from .kafka_client import KafkaTrouble
from .kafka_errors import explain
from .kafka_settings import KafkaSettings

_MS = 1000.0
# What matters comes to us as an error, and is said once.
_silent = logging.getLogger("whichrank.librdkafka")
_silent.addHandler(logging.NullHandler())
_silent.propagate = False


class Heard:
    """What the library says beside its return values: the reason why no broker answers comes only here."""

    def __init__(self, settings: KafkaSettings) -> None:
        self._settings = settings
        self.last: KafkaError | None = None

    def __call__(self, error: KafkaError) -> None:
        # "all brokers are down" follows each reason, and says less.
        if self.last is None or error.name() != "_ALL_BROKERS_DOWN":
            self.last = error

    def trouble(self, error: BaseException, what: str) -> KafkaTrouble:
        """The KafkaTrouble to raise for an error of the library.

        what: what was tried ("read", "begin a transaction").
        """
        told = _kafka_error(error)
        name = told.name() if told is not None else None
        if self.last is not None and name in (None, "_TRANSPORT", "_TIMED_OUT", "_ALL_BROKERS_DOWN"):
            told, name = self.last, self.last.name()
        return explain(error, self._settings, what, name=name, text=told.str() if told is not None else None)


def _kafka_error(error: BaseException) -> KafkaError | None:
    found = error.args[0] if isinstance(error, KafkaException) and error.args else error
    return found if isinstance(found, KafkaError) else None


def common_options(settings: KafkaSettings, heard: Heard) -> dict[str, Any]:
    """What producer, consumer and admin are all told, in librdkafka's names. heard: is called with errors."""
    options: dict[str, Any] = {
        "bootstrap.servers": settings.brokers,
        "client.id": settings.client_id,
        "security.protocol": settings.security_protocol,
        "socket.timeout.ms": round(settings.request_timeout_s * _MS),
        "reconnect.backoff.max.ms": 2000,
        "allow.auto.create.topics": False,
        "error_cb": heard,
        "logger": _silent,
    }
    if settings.api_version:
        options |= {"api.version.request": False, "broker.version.fallback": settings.api_version}
    if settings.tls:
        given = {
            "ssl.ca.location": settings.tls_ca,
            "ssl.certificate.location": settings.tls_certificate,
            "ssl.key.location": settings.tls_key,
        }
        options |= {name: str(path) for name, path in given.items() if path}
        options["ssl.endpoint.identification.algorithm"] = "https" if settings.tls_check_host else "none"
    if settings.sasl:
        options |= {
            "sasl.mechanism": settings.sasl,
            "sasl.username": settings.user,
            "sasl.password": settings.password,
        }
    return options


def reach(client: Producer | Consumer | AdminClient, timeout_s: float) -> None:
    """Asks the brokers for their topics, to see that one answers.

    Raises KafkaException if none does; ``error_cb`` has then heard the reason.
    """
    try:
        client.list_topics(timeout=timeout_s)
    except KafkaException:
        client.poll(0)
        raise


@contextlib.contextmanager
def explained(heard: Heard, what: str) -> Iterator[None]:
    """A context in which the library's errors become KafkaTrouble (or Fenced). what: what is tried, for its text."""
    try:
        yield
    except (KafkaException, ValueError, OSError) as error:
        raise heard.trouble(error, what) from error
