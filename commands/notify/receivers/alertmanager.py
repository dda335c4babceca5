"""Prometheus Alertmanager, API v2. An alert is known by its labels: they stay what they were when it was first told.

Labels are the incident's id, severity and bucket, so that a revised suspect is no second page; all words are
annotations. An alert that nobody repeats ends by itself, so it is said again long before that.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime, timezone

from ..messages.notices import AlertState, Notice
from . import DeliveryAnswer, DeliveryContext, DeliveryOutcome, ReceiverReference
from .http import Http, json_body

ALERT_NAME = "WhichrankIncident"
_PATH = "/api/v2/alerts"
#: Of the time after which an alert ends by itself.
_REPEATED_AFTER = 1.0 / 3.0


class Alertmanager:
    def __init__(self, http: Http, token: str, *, lasts_s: float, clock: Callable[[], float]) -> None:
        self._http = http
        self._headers = {"Content-Type": "application/json", **({"Authorization": f"Bearer {token}"} if token else {})}
        self._lasts_s = lasts_s
        self._clock = clock

    def send(self, notice: Notice, telling: DeliveryContext) -> DeliveryAnswer:
        """Sends an alert with the labels under which it is known there, and says what came of it.

        One that got louder ends, and another begins. Never raises for what Alertmanager answers.
        """
        now = self._clock()
        labels = labels_of(notice)
        known = telling.reference.labels
        alerts = []
        if known and not notice.is_new:
            if known.get("severity") == "ticket" and labels["severity"] == "page":
                alerts.append(_alert(notice, known, now, now))  # told louder from now on, as another alert
            else:
                labels = known
        ends = now if notice.standing is AlertState.CLOSED else now + self._lasts_s
        alerts.append(_alert(notice, labels, now, ends))
        reply = self._http.post(json_body(alerts), self._headers, _PATH)
        if reply.trouble is not None:
            return reply.trouble
        again_s = None if notice.standing is AlertState.CLOSED else self._lasts_s * _REPEATED_AFTER
        return DeliveryAnswer(outcome=DeliveryOutcome.TOLD, reference=ReceiverReference(labels=labels), again_s=again_s)


def labels_of(notice: Notice) -> Mapping[str, str]:
    """The labels by which Alertmanager knows the alert."""
    labels = {
        "alertname": ALERT_NAME,
        "incident": notice.key,
        "severity": notice.urgency.value,
        "bucket": notice.bucket,
    }
    return {**labels, "mark": notice.mark} if notice.mark else labels


def _alert(notice: Notice, labels: Mapping[str, str], now: float, ends: float) -> Mapping[str, str | Mapping[str, str]]:
    """now, ends: Unix seconds."""
    annotations = {
        "summary": notice.title,
        "description": "\n".join(f"{name}: {text}" for name, text in notice.rows),
        "kind": notice.kind,
        "suspect": notice.suspect,
        "job": notice.job,
        "owner": notice.owner,
        "cluster": notice.cluster,
        "standing": notice.standing.value,
        "merged_into": notice.merged_into,
    }
    alert: dict[str, str | Mapping[str, str]] = {
        "labels": labels,
        "annotations": {name: text for name, text in annotations.items() if text},
        "startsAt": _stamp(min(notice.since or now, now)),
        "endsAt": _stamp(ends),
    }
    return {**alert, "generatorURL": notice.link} if notice.link else alert


def _stamp(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, tz=timezone.utc).isoformat(timespec="milliseconds").replace("+00:00", "Z")
