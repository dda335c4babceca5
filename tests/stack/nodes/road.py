"""Whether an incident that lies on Kafka came to people: in VictoriaLogs, in Jaeger, and as an answer of Prometheus."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from tests.stack.parts.whole_stack import Stack

PATIENCE_S = 60.0


def find_gaps(stack: Stack, job: str, document: Mapping[str, Any]) -> list[str]:
    """What is missing of this incident's last revision, a line each."""
    incident = str(document["id"])
    gauge = f'last_over_time(whichrank_incident_active{{whichrank_incident_id="{incident}"}}[1h])'
    events: list[dict[str, str]] = []

    def is_told() -> bool:
        events[:] = stack.logs.query(f'whichrank.incident.id:="{incident}"')
        return bool(events)

    gaps = []
    if not _within(lambda: bool(stack.prometheus.query(gauge))):
        gaps.append("its gauge does not answer in PromQL")
    if not _within(is_told):
        gaps.append("no log event in VictoriaLogs")
    traces = {event.get("trace_id") for event in events} - {None, ""}

    def has_span() -> bool:
        spans = stack.jaeger.spans_of_job(job)
        own = any(span["name"] == f"incident {document['kind']}" for span in spans)
        return own or (document["state"] != "resolved" and any(span["traceId"] in traces for span in spans))

    if (document["state"] == "resolved" or traces) and not _within(has_span):
        gaps.append("no span")
    return gaps


def _within(question: Callable[[], bool]) -> bool:
    until = time.monotonic() + PATIENCE_S
    while not question():
        if time.monotonic() > until:
            return False
        time.sleep(0.3)
    return True
