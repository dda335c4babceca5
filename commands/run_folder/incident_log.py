"""incidents.jsonl: one document per line and revision, in the order in which they were concluded.

Append only. After a crash the operators may conclude a revision again that is already in the file; it is written once.
"""

from __future__ import annotations

import contextlib
import errno
import os
import sys
from collections import deque
from collections.abc import Iterator
from pathlib import Path

from ...telemetry.incident import canonical_line, read_line
from ...telemetry.incident_document import IncidentDocument
from ...telemetry.incident_reading import read_incident
from ...telemetry.records import Incident
from ...telemetry.regular_files import read_regular

#: Of a run; a week of a noisy cluster is a tenth of it.
MOST_INCIDENTS_BYTES = 64 << 20


def read_incident_line(line: bytes) -> IncidentDocument:
    """The revision in a line of incidents.jsonl. Raises ValueError with one line of what is wrong."""
    return read_incident(read_line(line))


def read_lines(
    path: Path, owner: int | None = None, most_bytes: int = sys.maxsize
) -> Iterator[tuple[int, bytes, IncidentDocument | None]]:
    """Each line that incidents.jsonl has now: (number from 1, bytes, revision or None where it is no incident).

    owner: whose file it has to be; None: anybody's. Raises OSError, for a larger file as well.
    """
    for number, line in enumerate(read_regular(path, most_bytes, owner).splitlines(keepends=True), start=1):
        incident: IncidentDocument | None = None
        with contextlib.suppress(ValueError):
            incident = read_incident_line(line)
        yield number, line, incident


class IncidentLog:
    """Writes revisions once each; what a full disk refuses is kept and written when there is room again."""

    def __init__(self, path: Path) -> None:
        """Open or create. Raises OSError."""
        self.path = path
        self._taken: set[tuple[str, int]] = set()
        #: Lines that are not in the file yet, oldest first.
        self._pending: deque[bytes] = deque()
        self._torn = False  # the last line in the file has no end
        if path.exists():
            for _, line, known in read_lines(path):
                self._torn = not line.endswith(b"\n")
                if known is not None:
                    self._taken.add((known.id, known.revision))
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)

    @property
    def unwritten(self) -> int:
        """How many revisions are not in the file, as the disk refused them."""
        return len(self._pending)

    def append(self, incident: Incident) -> bool:
        """Writes a revision unless it is in the file. Whether it was new.

        Raises OSError when the disk refuses; the revision is kept then, and the next call tries again.
        """
        key = (str(incident.document["id"]), int(incident.document["revision"]))
        if key in self._taken:
            return False
        self._taken.add(key)
        self._pending.append(canonical_line(incident.document))
        self.flush()
        return True

    def flush(self) -> None:
        """Write what is pending. Raises OSError."""
        while self._pending:
            # A line on which a crash or a full disk struck stays, and the next begins anew.
            line = b"\n" + self._pending[0] if self._torn else self._pending[0]
            written = os.write(self._file, line)
            if written != len(line):
                self._torn = True
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self.path))
            self._torn = False
            self._pending.popleft()

    def close(self) -> None:
        """Write what is pending and close. Raises OSError when revisions could not be written."""
        try:
            self.flush()
        finally:
            os.close(self._file)
