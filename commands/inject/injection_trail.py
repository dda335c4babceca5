"""What is injected, written down: a line for people, a line in the audit file of the run, an event.

None of it goes to what judges: the audit file is read by people and by the accounting, the event goes to the endpoint
for telemetry that this command's own environment names.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

from ...telemetry import attributes as names
from ...telemetry.injection_words import AUDIT_HOOK
from ...telemetry.otlp_wire import RequestBuilder
from ...telemetry.response_events import response_event, response_resource
from ...telemetry.response_outcomes import Outcome
from ...telemetry.topics import TOPIC_LOGS
from ..incident_service.audit import AuditFile, AuditLine
from ..otlp_out.environment import LOGS
from ..otlp_out.otlp_sender import OtlpSender

LIVE = "live"
_REQUEST_BYTES = 64 << 10
_CLOSE_S = 2.0


class InjectionTrail:
    """say: takes lines for people. Make it after the guard is: it may start threads."""

    def __init__(self, run: Path, *, job: str, node: str, say: Callable[[str], None]) -> None:
        """Raises OSError where the run's folder takes no file."""
        self._job, self._say = job, say
        self._file = AuditFile(run)
        self._resource = response_resource("", node)
        self._sender = OtlpSender(os.environ, frozenset({LOGS}))

    def write(self, outcome: Outcome, kind: str, target: str, text: str, *, at_s: float | None = None) -> None:
        """Writes the line, tells the event, says the text. Raises OSError where the file takes nothing: then nothing is
        to be done. at_s: when it happened, Unix seconds; None: now.
        """
        line = AuditLine(
            time=round(time.time() if at_s is None else at_s, 3),
            outcome=outcome.value,
            mode=LIVE,
            job=self._job,
            hook=AUDIT_HOOK,
            operation=kind,
            target=target,
            by=f"uid {os.getuid()}",
            text=text,
        )
        self._file.write(line)
        self._say(text)
        builder = RequestBuilder(names.SCOPE_NAME, _REQUEST_BYTES, {names.COPY: True})
        builder.add(self._resource, [response_event(line.written())])
        for request in builder.take():
            self._sender.send(TOPIC_LOGS, request)

    def close(self) -> None:
        """Waits shortly for the endpoint, and says what it did not take."""
        self._file.close()
        self._sender.close(_CLOSE_S)
        if self._sender.problem:
            self._say(self._sender.problem)
