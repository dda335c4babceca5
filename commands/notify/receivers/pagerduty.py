"""PagerDuty, Events API v2. The dedup key is the incident's id: a repeated trigger is the same alert there."""

from __future__ import annotations

from datetime import datetime, timezone

from ..messages.notices import AlertState, Notice
from ..messages.routes import Urgency
from . import DeliveryAnswer, DeliveryContext, DeliveryOutcome
from .http import Http, json_body

#: Limits of the API.
MAX_SUMMARY_CHARS, MAX_KEY_CHARS, MAX_EVENT_BYTES = 1024, 255, 512 << 10
_ACTIONS = {AlertState.OPEN: "trigger", AlertState.ACKNOWLEDGED: "acknowledge", AlertState.CLOSED: "resolve"}
_SEVERITIES = {Urgency.PAGE: "critical", Urgency.TICKET: "warning"}


class PagerDuty:
    def __init__(self, http: Http, routing_key: str) -> None:
        self._http = http
        self._routing_key = routing_key

    def send(self, notice: Notice, telling: DeliveryContext) -> DeliveryAnswer:
        """Sends an event, or two where what is acknowledged was never triggered, and says what came of it.

        Never raises for what PagerDuty answers.
        """
        actions = [_ACTIONS[notice.standing]]
        if notice.standing is AlertState.ACKNOWLEDGED and telling.told is not AlertState.ACKNOWLEDGED and notice.is_new:
            actions.insert(0, "trigger")  # what was never triggered cannot be acknowledged
        for action in actions:
            reply = self._http.post(event(notice, action, self._routing_key), {"Content-Type": "application/json"})
            if reply.trouble is not None:
                return reply.trouble
        return DeliveryAnswer(outcome=DeliveryOutcome.TOLD)


def event(notice: Notice, action: str, routing_key: str) -> bytes:
    """The JSON of an event, of at most ``MAX_EVENT_BYTES``. action: trigger, acknowledge or resolve."""
    mark = f"[{notice.mark}] " if notice.mark else ""
    told = {
        "routing_key": routing_key,
        "event_action": action,
        "dedup_key": notice.key[:MAX_KEY_CHARS],
        "client": "whichrank",
    }
    if action != "trigger" and not notice.merged_into:
        return json_body(told)
    links = [{"href": notice.link, "text": "the incident"}] if notice.link else []
    stamp = {}
    if notice.since:
        stamp["timestamp"] = datetime.fromtimestamp(notice.since, tz=timezone.utc).isoformat()
    short = {"incident": notice.incident, "kind": notice.kind}
    body = b""
    for details in ({**dict(notice.rows), **short}, short):
        payload = {
            "summary": (mark + notice.title)[:MAX_SUMMARY_CHARS],
            "source": notice.cluster or "whichrank",
            "severity": "info" if notice.mark else _SEVERITIES[notice.urgency],
            "component": notice.suspect[:MAX_SUMMARY_CHARS],
            "group": notice.job,
            "class": notice.kind,
            "custom_details": details,
            **stamp,
        }
        body = json_body({**told, "payload": payload, "links": links})
        if len(body) <= MAX_EVENT_BYTES:  # it is larger only by rows: all else is bounded
            break
    return body
