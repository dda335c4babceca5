"""Files that outlive the fault: ring copies and stacks of suspects, in a folder that never exceeds its bound.

Called by the polling thread; writes are small and atomic (rename). The oldest files of this run go first when the
bound is reached. A full or missing disk is counted, never raised.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections import deque
from pathlib import Path

from ...telemetry.evidence_pieces import EvidencePiece
from ..base.health import AgentHealth

_UNSAFE = re.compile(r"[^A-Za-z0-9._-]+")


def kept_name(file: EvidencePiece) -> str:
    """The name under which a file of evidence is kept: the incident's id before it where there is one.

    Of one rank, several incidents may ask for the same file.
    """
    return f"{file.incident}-{file.name}" if file.incident else file.name


class EvidenceStore:
    """``directory`` None: evidence is not kept."""

    def __init__(self, directory: Path | None, limit_bytes: int, health: AgentHealth) -> None:
        self._directory = directory
        self._limit_bytes = limit_bytes
        self._health = health
        self._files: deque[tuple[Path, int]] = deque()
        self._bytes = 0
        if directory is not None:
            self._adopt(directory)

    def _adopt(self, directory: Path) -> None:
        """Files of an earlier agent in this folder count towards the bound."""
        try:
            found = sorted((entry.stat().st_mtime_ns, entry) for entry in os.scandir(directory) if entry.is_file())
            for _, entry in found:
                self._files.append((Path(entry.path), entry.stat().st_size))
                self._bytes += entry.stat().st_size
        except OSError:
            return

    @property
    def bytes_kept(self) -> int:
        """Bytes of all files in the folder, as far as this store knows them."""
        return self._bytes

    def save(self, name: str, content: bytes) -> Path | None:
        """Writes a file into the folder and returns its path; one of the same name is replaced.

        Older files are removed, and counted, to stay under the limit. None: nothing to keep, too large, or it failed.
        """
        if self._directory is None or not content:
            return None
        if len(content) > self._limit_bytes:
            self._health.drop("evidence_too_large")
            return None
        while self._files and self._bytes + len(content) > self._limit_bytes:
            oldest, size = self._files.popleft()
            self._bytes -= size
            self._health.drop("evidence_replaced")
            try:
                oldest.unlink(missing_ok=True)
            except OSError:
                self._health.drop("evidence_unremovable")
        path = self._directory / _UNSAFE.sub("_", name)
        partial = path.with_name(f".{path.name}.partial")
        try:
            self._directory.mkdir(parents=True, exist_ok=True)
            partial.write_bytes(content)
            for place, (known, size) in enumerate(self._files):
                if known == path:
                    self._bytes -= size
                    del self._files[place]
                    break
            partial.replace(path)
        except OSError as error:
            self._health.drop("evidence_not_written")
            self._health.report(f"evidence {path}: {error.strerror or error}")
            with contextlib.suppress(OSError):
                partial.unlink(missing_ok=True)
            return None
        self._files.append((path, len(content)))
        self._bytes += len(content)
        return path
