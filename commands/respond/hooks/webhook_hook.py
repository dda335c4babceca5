"""A signed request to somebody's own automation, after the Standard Webhooks scheme.

The id is the same in every try and after a restart, so that the receiver can tell a repetition. Tries and pauses are
urllib3's; redirects are not followed.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable
from urllib.parse import urlsplit

import urllib3
from urllib3.util import Retry

from ....telemetry.incident_writing import write_incident
from ....telemetry.response_outcomes import Outcome
from ...support.bounded_http import ask, bounded_pool
from ...support.webhook_signature import key_of, signed_headers
from ..planning.acts import Act, HookOperation, HookResult

_PAUSE_S, _LONGEST_PAUSE_S = 0.5, 10.0
#: Answers that another try may change. Everything else that is no success is final.
_TRY_AGAIN = (408, 425, 429, 500, 502, 503, 504)
_MAX_SHOWN_CHARS = 200


class WebhookHook:
    name = "webhook"
    can = frozenset({HookOperation.TELL})

    def __init__(
        self, url: str, secret: str, *, tries: int, timeout_s: float, clock: Callable[[], float] = time.time
    ) -> None:
        """Raises ValueError for a secret that says it is base64 and is not."""
        self._url = url
        self._key = key_of(secret, "respond_webhook_secret")
        self._clock = clock
        parts = urlsplit(url)
        #: User, password and query stay out of all that is said.
        self._shown = f"{parts.scheme}://{parts.hostname}{f':{parts.port}' if parts.port else ''}{parts.path}"
        self._pool = bounded_pool(
            timeout_s=timeout_s,
            retries=Retry(
                total=tries - 1,
                redirect=0,
                backoff_factor=_PAUSE_S,
                backoff_max=_LONGEST_PAUSE_S,
                status_forcelist=_TRY_AGAIN,
                allowed_methods=None,  # POST, too: the id tells repetitions
                raise_on_status=False,
                raise_on_redirect=False,
                respect_retry_after_header=False,  # it may ask for hours
            ),
        )

    def describe(self, act: Act) -> str:
        """Where the request would be sent, without what the query holds."""
        return f"POST {self._shown}"

    def do(self, act: Act) -> HookResult:
        """Sends a signed request, and says what came of it.

        The same act has the same id, so that a receiver can tell a repetition.
        """
        identity = hashlib.sha256(act.key.encode()).hexdigest()[:32]
        body = payload(act)
        headers = signed_headers(self._key, identity, int(self._clock()), body)
        try:
            answer, _ = ask(self._pool, "POST", self._url, body=body, headers=headers)
        except urllib3.exceptions.HTTPError as error:
            reason = getattr(error, "reason", None) or error
            return HookResult(
                outcome=Outcome.FAILED, detail=f"{self._shown}: {type(reason).__name__}"[:_MAX_SHOWN_CHARS]
            )
        tries = len(answer.retries.history) + 1 if answer.retries is not None else 1
        after = f" after {tries} tries" if tries > 1 else ""
        if 200 <= answer.status < 300:
            return HookResult(outcome=Outcome.DONE, detail=f"{answer.status}{after}")
        return HookResult(outcome=Outcome.FAILED, detail=f"{self._shown} answered {answer.status}{after}")


def payload(act: Act) -> bytes:
    """The body of the request: what is advised, and the whole incident document."""
    advice = act.document.advice
    told = {
        "schema": 1,
        "type": "whichrank.response",
        "incident": act.incident,
        "revision": act.revision,
        "action": act.action,
        "text": None if advice is None else advice.text,
        "job": act.job,
        "attempt": act.attempt,
        "document": write_incident(act.document),
    }
    return json.dumps(told, separators=(",", ":"), allow_nan=False).encode()
