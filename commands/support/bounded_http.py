"""Requests by urllib3 whose answers are bounded in time and size, and are taken as they come: whoever answers could
else hold a service or fill its memory, or have a token or an incident sent elsewhere.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from pathlib import Path
from typing import Any

import urllib3
from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.connectionpool import HTTPConnectionPool, HTTPSConnectionPool
from urllib3.util import Retry

#: Of the time-out, for a whole request.
_LONGEST = 3.0
MAX_ANSWER_BYTES = 1 << 20


class _Ending:
    """A connection that ends at a time, whatever still comes: a time-out alone begins anew with each byte.

    Each request has a connection of its own.
    """

    sock: Any
    ends_after_s: float

    def connect(self) -> None:
        """Connects, and has the end of it set. Raises as urllib3's connections do."""
        super().connect()  # type: ignore[misc]
        end = threading.Timer(self.ends_after_s, _cut, (self.sock,))
        end.daemon = True
        end.start()


def _cut(connected: socket.socket) -> None:
    with contextlib.suppress(OSError):
        connected.shutdown(socket.SHUT_RDWR)


def _ending_pools(ends_after_s: float) -> dict[str, type[HTTPConnectionPool]]:
    plain = type("PlainEnding", (_Ending, HTTPConnection), {"ends_after_s": ends_after_s})
    secure = type("SecureEnding", (_Ending, HTTPSConnection), {"ends_after_s": ends_after_s})
    return {
        "http": type("PlainEndingPool", (HTTPConnectionPool,), {"ConnectionCls": plain}),
        "https": type("SecureEndingPool", (HTTPSConnectionPool,), {"ConnectionCls": secure}),
    }


def bounded_pool(*, timeout_s: float, retries: Retry, ca: Path | None = None) -> urllib3.PoolManager:
    """For ``ask``. timeout_s: between two bytes; a try takes three times that at most, however slowly it drips."""
    pool = urllib3.PoolManager(
        timeout=urllib3.Timeout(total=timeout_s), ca_certs=None if ca is None else str(ca), retries=retries
    )
    pool.pool_classes_by_scheme = _ending_pools(_LONGEST * timeout_s)
    return pool


def ask(pool: urllib3.PoolManager, method: str, url: str, **more: Any) -> tuple[urllib3.BaseHTTPResponse, bytes]:
    """The answer and the begin of its body, packed if it came so. Redirects are answers like others.

    more: of urllib3's request. Raises urllib3's HTTPError, and OSError for certificates that are not there.
    """
    headers = {"User-Agent": "whichrank", "Connection": "close", **more.pop("headers", {})}
    answer = pool.request(
        method, url, headers=headers, redirect=False, preload_content=False, decode_content=False, **more
    )
    content = answer.read(MAX_ANSWER_BYTES)
    answer.close()
    return answer, content
