"""How each of kafka-python's clients reaches the brokers, and how its errors become ours."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Iterator
from typing import Any

from kafka.errors import KafkaError, KafkaTimeoutError

from .kafka_client import KafkaTrouble
from .kafka_errors import explain
from .kafka_settings import KafkaSettings

_MS = 1000.0

# The library logs each attempt to connect; what matters comes to us as an exception, and is said once.
logging.getLogger("kafka").setLevel(logging.CRITICAL)


class _Refusals(logging.Handler):
    """Why connections failed lately: that it was the password or a certificate, the library says only in its log.

    And not even always: brokers close a connection whose login failed, which may be all that is seen of it.
    """

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self._last: dict[str, tuple[float, str]] = {}

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        for kind, mark in (("login", "SaslAuthenticationFailed"), ("tls", "[SSL"), ("closed", "socket disconnected")):
            if mark in text:
                self._last[kind] = (time.monotonic(), text.rpartition(": ")[2] if kind == "tls" else "")

    def explain(self, error: KafkaTimeoutError, settings: KafkaSettings, what: str, began_s: float) -> KafkaTrouble:
        seen = {kind: text for kind, (at_s, text) in self._last.items() if at_s >= began_s}
        if "tls" in seen:
            return explain(error, settings, what, name="ssl", text=seen["tls"])
        if settings.sasl and ("login" in seen or "closed" in seen):
            return explain(
                error,
                settings,
                what,
                name="authentication",
                text="it closes the connection at the login; is kafka_tls right?",
            )
        return explain(error, settings, what)


_refusals = _Refusals()
for _name in ("kafka.net.manager", "kafka.net.transport"):
    _logger = logging.getLogger(_name)
    _logger.addHandler(_refusals)
    _logger.setLevel(logging.ERROR)
    _logger.propagate = False


def common_options(settings: KafkaSettings) -> dict[str, Any]:
    """What producer, consumer and admin are all told, in kafka-python's names."""
    options: dict[str, Any] = {
        "bootstrap_servers": [part.strip() for part in settings.brokers.split(",")],
        "client_id": settings.client_id,
        "security_protocol": settings.security_protocol,
        "request_timeout_ms": round(settings.request_timeout_s * _MS),
        "bootstrap_timeout_ms": round(settings.request_timeout_s * _MS),
        "reconnect_backoff_max_ms": 2000,
    }
    if settings.api_version:
        options["api_version"] = tuple(int(number) for number in settings.api_version.split("."))
    if settings.tls:
        options |= {
            "ssl_cafile": str(settings.tls_ca) if settings.tls_ca else None,
            "ssl_certfile": str(settings.tls_certificate) if settings.tls_certificate else None,
            "ssl_keyfile": str(settings.tls_key) if settings.tls_key else None,
            "ssl_check_hostname": settings.tls_check_host,
        }
    if settings.sasl:
        options |= {
            "sasl_mechanism": settings.sasl,
            "sasl_plain_username": settings.user,
            "sasl_plain_password": settings.password,
        }
    return options


@contextlib.contextmanager
def explained(settings: KafkaSettings, what: str) -> Iterator[None]:
    """A context in which the library's errors become KafkaTrouble (or Fenced). what: what is tried, for its text."""
    began_s = time.monotonic()
    try:
        yield
    except KafkaTimeoutError as error:
        raise _refusals.explain(error, settings, what, began_s) from error
    except (KafkaError, OSError, AssertionError, ValueError, RuntimeError) as error:
        raise explain(error, settings, what) from error
