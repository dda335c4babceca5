"""Files of lines in which people say something, in a run's folder: commands append, a run that goes on reads."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .run_directory import Unusable

#: Bytes; more is nobody's word.
MAX_FILE_BYTES = 4 << 20


def append_line(path: Path, said: Mapping[str, Any]) -> None:
    """One line more. Raises Unusable."""
    line = json.dumps(dict(said), ensure_ascii=False).encode() + b"\n"
    try:
        file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            os.write(file, line)
        finally:
            os.close(file)
    except OSError as error:
        raise Unusable(f"{path}: {error.strerror or error}") from error


def read_objects(path: Path, after: int = 0) -> tuple[list[dict[str, Any]], int]:
    """Whole lines beyond byte ``after``, and how far that is. What is no JSON object is left out. Raises OSError."""
    try:
        with path.open("rb") as file:
            file.seek(after)
            content = file.read(MAX_FILE_BYTES)
    except FileNotFoundError:
        return [], after
    whole = content[: content.rfind(b"\n") + 1]
    found = []
    for line in whole.splitlines():
        try:
            said = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(said, dict):
            found.append(said)
    return found, after + len(whole)
