"""A signed webhook: the whole incident as JSON, to somebody's own automation."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import replace

from ....telemetry.incident_writing import write_incident
from ....telemetry.redaction import redact_data
from ...support.webhook_signature import key_of, signed_headers
from ..messages.notices import Notice
from . import DeliveryAnswer, DeliveryContext, DeliveryOutcome, ReceiverReference
from .http import Http, json_body


class WebhookReceiver:
    def __init__(self, http: Http, secret: str, *, clock: Callable[[], float]) -> None:
        """Raises ValueError for a secret that says it is base64 and is not."""
        self._http = http
        self._key = key_of(secret, "the webhook's secret")
        self._clock = clock

    def send(self, notice: Notice, telling: DeliveryContext) -> DeliveryAnswer:
        """Posts the notice, signed, and says what came of it. Never raises for what the receiver answers.

        An opening is told under an id of its own, so that a repetition can be told from a change.
        """
        openings = telling.reference.openings + notice.is_new
        reference = ReceiverReference(openings=openings)
        if notice.is_new:
            # The same id however often it is tried and whatever is known by then: the receiver can tell a repetition.
            trouble = self._post(notice, f"{notice.key}/opened/{openings}")
            if trouble is not None or not telling.is_unsure:
                return trouble or DeliveryAnswer(outcome=DeliveryOutcome.TOLD, reference=reference)
            notice = replace(notice, is_new=False)  # it may have taken an earlier try, which said something else
        trouble = self._post(notice, f"{notice.key}/{notice.incident}/{notice.revision}/{notice.topic}")
        return trouble or DeliveryAnswer(outcome=DeliveryOutcome.TOLD, reference=reference)

    def _post(self, notice: Notice, identity: str) -> DeliveryAnswer | None:
        """None: it was taken."""
        body = payload(notice)
        named = hashlib.sha256(identity.encode()).hexdigest()[:32]
        return self._http.post(body, signed_headers(self._key, named, int(self._clock()), body)).trouble


def payload(notice: Notice) -> bytes:
    """The body of the request: the notice, and the whole incident without what looks like a secret."""
    return json_body(
        {
            "schema": 1,
            "type": "whichrank.incident",
            "key": notice.key,
            "incident": notice.incident,
            "revision": notice.revision,
            "standing": notice.standing.value,
            "urgency": notice.urgency.value,
            "is_new": notice.is_new,
            "mark": notice.mark or None,
            "title": notice.title,
            "merged_into": notice.merged_into or None,
            "link": notice.link or None,
            "document": None if notice.document is None else redact_data(write_incident(notice.document)),
        }
    )
