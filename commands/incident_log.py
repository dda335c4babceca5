"""incidents.jsonl: one document per line and revision, in the order in which they were concluded.

Append only. After a crash the operators may conclude a revision again that is already in the file; it is written once.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ..telemetry.incident import Document, canonical_line, read_line


def read_lines(path: Path) -> Iterator[tuple[int, bytes, Document | None]]:
    """Yield (line number from 1, bytes, document or None where the line is no document). Raises OSError."""
    for number, line in enumerate(path.read_bytes().splitlines(keepends=True), start=1):
        document: Document | None = None
        with contextlib.suppress(ValueError):
            document = read_line(line)
        yield number, line, document


class IncidentLog:
    """Writes revisions once each."""

    def __init__(self, path: Path) -> None:
        """Open or create. Raises OSError."""
        self.path = path
        self._written: set[tuple[str, int]] = set()
        torn = False
        if path.exists():
            for _, line, document in read_lines(path):
                torn = not line.endswith(b"\n")
                if document is not None:
                    self._written.add((str(document["id"]), int(document.get("revision", 0))))
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
        if torn:
            os.write(self._file, b"\n")  # the line on which a crash struck stays, and the next begins anew

    def append(self, document: Mapping[str, Any]) -> bool:
        """Write it unless this revision is in the file. Returns whether it was new. Raises OSError."""
        key = (str(document["id"]), int(document["revision"]))
        if key in self._written:
            return False
        line = canonical_line(document)
        if os.write(self._file, line) != len(line):
            raise OSError(f"{self.path}: disk full, an incident was written in part")
        self._written.add(key)
        return True

    def close(self) -> None:
        os.close(self._file)
