"""What was measured, as lines of JSON that are committed: figures outlive the machine that they were measured on."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, Protocol, TypeVar

RECORD = Path(__file__).parent / "record"


class Named(Protocol):
    """Facts of one run. key: of its plan."""

    @property
    def name(self) -> str: ...
    @property
    def key(self) -> str: ...


Facts = TypeVar("Facts", bound=Named)


def write_record(path: Path, facts: Iterable[Any]) -> None:
    """facts: dataclasses, as ``Named``; in the order of their names."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(asdict(each)) + "\n" for each in sorted(facts, key=lambda each: each.name)))


def read_record(path: Path, make: Callable[[Mapping[str, Any]], Facts]) -> dict[tuple[str, str], Facts]:
    """By name and key of the plan; a line of a harness that knew other fields says nothing."""
    found: dict[tuple[str, str], Facts] = {}
    for line in path.read_text().splitlines() if path.exists() else ():
        try:
            facts = make(json.loads(line))
        except TypeError:
            continue
        found[facts.name, facts.key] = facts
    return found
