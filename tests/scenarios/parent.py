"""The parent dies, and replay: kill -9 of ``whichrank run`` in mid-fault must not lose the incident."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console

from .report import Line


def parent_lines(results: Path, seed: int, repeats: int, console: Console) -> list[Line]:
    return []
