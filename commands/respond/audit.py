"""The audit file: each act, refusal and turn of the breaker as a JSON line, on the disk before anything is done.

Append only, never cut off: it is small (a line is about 300 bytes, and rates are limited).
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

AUDIT_FILE = "respond-audit.jsonl"


class AuditFile:
    def __init__(self, folder: Path) -> None:
        """Raises OSError."""
        self.path = folder / AUDIT_FILE
        self._file = os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        size = os.fstat(self._file).st_size
        #: The last line has no end: a full disk or a crash struck.
        self._torn = size > 0 and os.pread(self._file, 1, size - 1) != b"\n"

    def write(self, told: Mapping[str, Any]) -> None:
        """Durable before it returns. Raises OSError."""
        line = json.dumps({name: value for name, value in told.items() if value not in (None, "")}).encode() + b"\n"
        line = b"\n" + line if self._torn else line
        self._torn = True
        if os.write(self._file, line) != len(line):
            raise OSError(f"{self.path}: no room")
        os.fdatasync(self._file)
        self._torn = False

    def close(self) -> None:
        os.close(self._file)
