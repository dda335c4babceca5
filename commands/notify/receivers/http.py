"""One request to a receiver by urllib3, and what its answer means for another try. Bodies and secrets are not told."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import urllib3
from urllib3.util import Retry

from ...support.bounded_http import ask, bounded_pool
from . import DeliveryAnswer, DeliveryOutcome

#: A connection that is refused is tried again at once, twice; it cannot have arrived.
_CONNECT_TRIES, _PAUSE_S = 2, 0.2
_TRY_AGAIN = frozenset({408, 425, 429})
#: A token or an address that a person has to mend: tried again, seldom.
_MENDED_BY_PEOPLE = frozenset({401, 403, 404})
_MENDED_PAUSE_S = 60.0
_MAX_SHOWN_CHARS = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """body: of a successful answer, else empty. trouble None: it succeeded."""

    body: bytes = b""
    trouble: DeliveryAnswer | None = None


class Http:
    """timeout_s: between two bytes. A request takes three times that at most, however slowly its answer drips."""

    def __init__(self, url: str, *, timeout_s: float, ca: Path | None = None) -> None:
        parts = urlsplit(url)
        self._url = url
        #: The query may hold what others must not see.
        self.shown = f"{parts.scheme}://{parts.hostname}{f':{parts.port}' if parts.port else ''}{parts.path}"
        self._pool = bounded_pool(
            timeout_s=timeout_s,
            ca=ca,
            retries=Retry(
                total=_CONNECT_TRIES,
                connect=_CONNECT_TRIES,
                read=0,
                other=0,
                redirect=0,
                status=0,
                backoff_factor=_PAUSE_S,
                raise_on_redirect=False,
                respect_retry_after_header=False,  # it may ask for hours, and others wait behind it
            ),
        )

    def post(self, body: bytes, headers: Mapping[str, str], path: str = "") -> Reply:
        """Sends a POST request once, and says what its answer means. path: put behind the address.

        Never raises for what a server does.
        """
        return self._ask("POST", path, headers, body=body)

    def get(self, path: str, fields: Mapping[str, str], headers: Mapping[str, str]) -> Reply:
        """Sends a GET request once, and says what its answer means.

        fields: of the query; path: put behind the address.
        """
        return self._ask("GET", path, headers, fields=dict(fields))

    def _ask(self, method: str, path: str, headers: Mapping[str, str], **more: Any) -> Reply:
        try:
            answer, content = ask(self._pool, method, self._url + path, headers=headers, **more)
        except urllib3.exceptions.HTTPError as error:
            reason = getattr(error, "reason", None) or error
            # Whether a request that was not answered has arrived, nobody can say.
            is_unsure = not isinstance(
                reason, urllib3.exceptions.NewConnectionError | urllib3.exceptions.ConnectTimeoutError
            )
            detail = f"{self.shown}{path}: {type(reason).__name__}"
            return Reply(trouble=DeliveryAnswer(outcome=DeliveryOutcome.AGAIN, detail=detail, is_unsure=is_unsure))
        if 200 <= answer.status < 300:
            return Reply(body=content)
        detail = f"{self.shown}{path} answered {answer.status}"
        if answer.status in _TRY_AGAIN or answer.status >= 500:
            waits_s = _retry_after_s(answer.headers.get("Retry-After"))
            is_unsure = answer.status >= 500
            trouble = DeliveryAnswer(
                outcome=DeliveryOutcome.AGAIN, detail=detail, retry_after_s=waits_s, is_unsure=is_unsure
            )
        elif answer.status in _MENDED_BY_PEOPLE or answer.status < 400:
            trouble = DeliveryAnswer(outcome=DeliveryOutcome.AGAIN, detail=detail, retry_after_s=_MENDED_PAUSE_S)
        else:
            trouble = DeliveryAnswer(outcome=DeliveryOutcome.REFUSED, detail=detail)
        return Reply(trouble=trouble)


def json_body(value: object) -> bytes:
    """A value as compact JSON in UTF-8. Raises ValueError for a number that JSON has not."""
    return json.dumps(value, separators=(",", ":"), allow_nan=False).encode()


def _retry_after_s(value: str | None) -> float | None:
    """Seconds or a date, as HTTP has them; None for neither."""
    if not value:
        return None
    try:
        return float(Retry().parse_retry_after(value))
    except (urllib3.exceptions.InvalidHeader, ValueError, OverflowError):
        return None
