"""Acts and refusals of ``whichrank respond`` as OTLP log events, entries for ``RequestBuilder``. Pure functions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from . import attributes as names
from .otlp_wire import attributes, bytes_field, entry, fixed64_field, resource, text_field, varint_field
from .response_outcomes import Outcome
from .vocabulary import EventName

#: Field numbers of LogRecord (opentelemetry/proto/logs/v1/logs.proto); 1 is the string of an AnyValue.
_TIME, _SEVERITY, _SEVERITY_TEXT, _BODY, _ATTRIBUTES, _EVENT_NAME = 1, 2, 3, 5, 6, 12
#: OTLP's INFO, WARN and ERROR.
_INFO, _WARN, _ERROR = (9, "INFO"), (13, "WARN"), (17, "ERROR")
_SEVERITIES = {
    Outcome.REFUSED.value: _WARN,
    Outcome.FAILED.value: _ERROR,
    Outcome.UNFINISHED.value: _ERROR,
    Outcome.BREAKER_OPENED.value: _ERROR,
}


def response_event(told: Mapping[str, Any]) -> bytes:
    """An act or refusal of ``whichrank respond`` as a LogRecord, an entry for ``RequestBuilder``.

    told: a line of the audit file: ``time`` (Unix seconds), ``outcome``, ``text``, and what else is known.
    """
    number, word = _SEVERITIES.get(str(told["outcome"]), _INFO)
    shown = {
        names.INCIDENT_ID: told.get("incident"),
        names.INCIDENT_REVISION: told.get("revision"),
        names.JOB_ID: told.get("job"),
        names.RESPONSE_ACTION: told.get("action"),
        names.RESPONSE_HOOK: told.get("hook"),
        names.RESPONSE_OPERATION: told.get("operation"),
        names.RESPONSE_TARGET: told.get("target"),
        names.RESPONSE_WHY: told.get("why"),
        names.RESPONSE_DETAIL: told.get("detail"),
        names.RESPONSE_MODE: told.get("mode"),
    }
    return entry(
        fixed64_field(_TIME, int(float(told["time"]) * 1e9))
        + varint_field(_SEVERITY, number)
        + text_field(_SEVERITY_TEXT, word)
        + bytes_field(_BODY, text_field(1, str(told.get("text") or "")))
        + attributes(_ATTRIBUTES, shown)
        + text_field(_EVENT_NAME, f"{EventName.RESPONSE.value}.{told['outcome']}")
    )


def response_resource(cluster: str, node: str) -> bytes:
    """Serialized OTLP Resource of ``whichrank respond``. node: the host it runs on."""
    return resource({names.SERVICE_NAME: "whichrank-respond", names.CLUSTER_ID: cluster, names.HOST_NAME: node})
