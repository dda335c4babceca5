"""What the supervisor does and refuses: a line in the run's audit file before the act, an event, a line for people."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from ...telemetry import attributes as names
from ...telemetry.incident_document import IncidentDocument
from ...telemetry.otlp_wire import RequestBuilder
from ...telemetry.response_events import response_event, response_resource
from ...telemetry.response_outcomes import Outcome
from ..incident_service.audit import AUDIT_FILE, AuditFile, AuditLine
from .decision import Decision

HOOK, RESTART_JOB = "run", "restart_job"
LIVE, DRY = "live", "dry"
_REQUEST_BYTES = 256 << 10


class Trail:
    """tell: takes events as an OTLP request of logs. say: takes a line for people."""

    def __init__(
        self,
        folder: Path,
        *,
        job: str,
        cluster: str,
        node: str,
        dry: bool,
        tell: Callable[[bytes], None],
        say: Callable[[str], None],
    ) -> None:
        self._job, self._mode = job, DRY if dry else LIVE
        self._tell, self.say = tell, say
        self._resource = response_resource(cluster, node)
        self._path = folder / AUDIT_FILE
        self._file: AuditFile | None = None
        self._folder = folder

    def write(self, outcome: Outcome, decision: Decision, text: str, *, operation: str = RESTART_JOB) -> bool:
        """Writes the line, tells the event, says the text. False where the file does not take it: then nothing is to
        be done.
        """
        incident = decision.incident or IncidentDocument()
        line = AuditLine(
            time=round(time.time(), 3),
            outcome=outcome.value,
            mode=self._mode,
            incident=incident.id,
            revision=incident.revision,
            job=self._job,
            action=decision.verdict.value,
            hook=HOOK,
            operation=operation,
            target=decision.node or self._job,
            why=decision.reason.name.lower(),
            detail=decision.detail,
            text=text,
        )
        self.say(text)
        builder = RequestBuilder(names.SCOPE_NAME, _REQUEST_BYTES, {names.COPY: True})
        builder.add(self._resource, [response_event(line.written())])
        for request in builder.take():
            self._tell(request)
        try:
            if self._file is None:
                self._file = AuditFile(self._folder)
            self._file.write(line)
        except OSError as error:
            self.say(f"{self._path}: {error.strerror or error}; what cannot be written down is not done")
            return False
        return True

    def close(self) -> None:
        """Closes the file; every line is on the disk already."""
        if self._file is not None:
            self._file.close()
            self._file = None
