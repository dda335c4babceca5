"""The audit file: each act, refusal and turn of the breaker as a JSON line, on the disk before anything is done.

Append only, never cut off: it is small (a line is about 300 bytes, and rates are limited).
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path

AUDIT_FILE = "respond-audit.jsonl"


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditLine:
    """What was done, or was not, and by whose word. time: Unix seconds. revision 0, and "": it does not concern one.

    why: the reason of a refusal, as ``Why`` names it. by: the person who has reset the breaker. text: for people.
    """

    time: float
    outcome: str
    mode: str
    incident: str = ""
    revision: int = 0
    job: str = ""
    action: str = ""
    hook: str = ""
    operation: str = ""
    target: str = ""
    why: str = ""
    by: str = ""
    detail: str = ""
    text: str = ""

    def written(self) -> dict[str, str | int | float]:
        """The line as JSON data: what it concerns, and no more."""
        told = {name: getattr(self, name) for name in self.__slots__}
        return {name: value for name, value in told.items() if value not in ("", 0) or name == "time"}


class AuditFile:
    def __init__(self, folder: Path) -> None:
        """Raises OSError."""
        self.path = folder / AUDIT_FILE
        self._file = os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        size = os.fstat(self._file).st_size
        #: The last line has no end: a full disk or a crash struck.
        self._torn = size > 0 and os.pread(self._file, 1, size - 1) != b"\n"

    def write(self, told: AuditLine) -> None:
        """Appends a line; durable before it returns. Raises OSError."""
        line = json.dumps(told.written()).encode() + b"\n"
        line = b"\n" + line if self._torn else line
        self._torn = True
        if os.write(self._file, line) != len(line):
            raise OSError(f"{self.path}: no room")
        os.fdatasync(self._file)
        self._torn = False

    def close(self) -> None:
        """Closes the file; every line is on the disk already."""
        os.close(self._file)
