"""What was measured is kept, one file per run, so that nothing is run twice and what was interrupted goes on.

A folder of results holds one folder per version of the code: runs of other versions count for nothing. A file is
written whole or not at all; several benches may write into one folder.
"""

from __future__ import annotations

import functools
import hashlib
import os
from pathlib import Path

from .code_closure import code_closure

_HERE = Path(__file__).resolve()
_PACKAGE = _HERE.parents[2]
#: What is measured follows from these and all that they import. Everything else may change, agents and commands that no
#: run comes through included, without a run becoming another one.
_MEASURES = (
    "one_run.py",
    "forked_prefix.py",
    "simple_detector.py",
    "matrix.py",
    "false_pages.py",
    "cost.py",
    "accounting_run.py",
    "malformed_run.py",
    "straggler_trace.py",
)
#: Of this folder only these count: how runs are asked for, kept and printed decides nothing.
_DECIDES_HERE = frozenset(_MEASURES[:3])


def code_version(detector: Path | None = None) -> str:
    """12 hexadecimal digits that change with the code that a run follows from, and with a foreign detector's file."""
    digest = hashlib.blake2b(digest_size=6)
    for path in sorted(decisive_files()):
        digest.update(str(path.relative_to(_PACKAGE)).encode() + b"\0" + path.read_bytes() + b"\0")
    if detector is not None:
        digest.update(detector.read_bytes())
    return digest.hexdigest()


@functools.cache
def decisive_files() -> frozenset[Path]:
    """The files that a run follows from: modules and their data."""
    closure = code_closure((_HERE.with_name(name) for name in _MEASURES), _PACKAGE)
    return frozenset(path for path in closure if path.parent != _HERE.parent or path.name in _DECIDES_HERE)


class KeptRuns:
    """``read`` and ``write`` what was measured, as text, by a name; None: nothing is kept anywhere."""

    def __init__(self, folder: Path | None, version: str) -> None:
        """Raises OSError where nothing can be written."""
        self.folder = None if folder is None else folder / version
        if self.folder is not None:
            self.folder.mkdir(parents=True, exist_ok=True)

    def read(self, name: str) -> bytes | None:
        """What was written under this name (JSON, if a full disk has not cut it off); None: not there."""
        if self.folder is None:
            return None
        try:
            return (self.folder / f"{name}.json").read_bytes()
        except OSError:
            return None

    def names(self, pattern: str = "*") -> list[str]:
        """Names under which something is kept, sorted; none where nothing is. pattern: as of file names."""
        return [] if self.folder is None else sorted(path.stem for path in self.folder.glob(f"{pattern}.json"))

    def write(self, name: str, content: str) -> None:
        """Keeps ``content`` (JSON) under a name; nothing where there is no folder. Raises OSError."""
        if self.folder is None:
            return
        path = self.folder / f"{name}.json"
        part = path.with_suffix(f".{os.getpid()}.part")
        part.write_text(content)
        part.replace(path)
