"""How rows about kernel lines are scored: read, held against what we say, and once more after mechanical changes."""

from __future__ import annotations

import csv
import json
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

from tests.diagnosis.kernel_log.cases import READ_S, WRAPPERS
from tests.scoreboard.score import Score, Scorer
from whichrank.diagnosis.kernel_log import KernelEvent, KernelLogReader
from whichrank.diagnosis.kernel_log.stamps import Calendar

Row = Mapping[str, Any]

#: Repair -> action of NVSentinel: it has none for the application, nor for what a person should look at.
NVSENTINEL_ACTIONS = {
    "ignore": "NONE",
    "restart_app": "NONE",
    "follow_xid_154": "NONE",
    "check_mechanicals": "NONE",
    "reset_gpu": "COMPONENT_RESET",
    "reboot_node": "RESTART_BM",
    "replace_node": "REPLACE_VM",
    "contact_support": "CONTACT_SUPPORT",
    "run_diagnostics": "RUN_DCGMEUD",
}

PCI = re.compile(r"(?<!\w)((?:[0-9a-fA-F]{4}){1,2}):([0-9a-fA-F]{2}):([0-9a-fA-F]{2})(?!:\d)")
_HALF_LINE = "00:1f.0: [8086:1d3a] type 00 class 0x060100"
_DOUBTFUL = Path(__file__).with_name("doubtful.toml")


def jsonl(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines() if line]


def tsv(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE))


def moved(text: str) -> str:
    """Every PCI address in it on another bus."""
    return PCI.sub(lambda m: f"{m[1]}:{int(m[2], 16) ^ 0x2A:02x}:{m[3]}", text)


def events_of(lines: Iterable[tuple[float, str]], driver: str | None = None) -> list[tuple[int, KernelEvent]]:
    """(index of the line, event); what comes at the end counts for the last line."""
    reader = KernelLogReader(driver, calendar=Calendar(reference_s=READ_S))
    found: list[tuple[int, KernelEvent]] = []
    index = 0
    for index, (now_s, line) in enumerate(lines):
        found += [(index, event) for event in reader.read(line, now_s=now_s)]
    return found + [(index, event) for event in reader.flush()]


def changes(lines: Sequence[tuple[float, str]]) -> Iterator[list[tuple[float, str]]]:
    """The same lines with other hosts, dates, addresses and wrappers, and after half a line of something else."""
    for wrapper in WRAPPERS.values():
        yield [(lines[0][0], _HALF_LINE), *((at, wrapper.wrap(moved(line))) for at, line in lines)]


def names(event: KernelEvent) -> set[str]:
    return {event.event, *event.also}


def driver_of(row: Row) -> str | None:
    return row.get("driver")


class Tally:
    """Counts right and wrong; a doubtful label stays wrong, and says so."""

    def __init__(self, file: str) -> None:
        self.right = self.total = self.changed_right = self.changed_total = 0
        self.wrong: list[str] = []
        self._doubtful = {row["row"]: row["reason"] for row in _read_doubtful() if row["file"] == file}

    def add(self, name: str, ok: bool, said: object) -> None:
        self.total += 1
        self.right += ok
        if not ok:
            reason = self._doubtful.get(name)
            self.wrong.append(f"{name}: said {said}" + (f" (doubtful label: {reason})" if reason else ""))

    def add_changed(self, ok: bool) -> None:
        self.changed_total += 1
        self.changed_right += ok

    def score(self) -> Score:
        changed = (self.changed_right, self.changed_total) if self.changed_total else None
        return Score(right=self.right, total=self.total, wrong=self.wrong, changed=changed)


def _read_doubtful() -> list[dict[str, str]]:
    rows: list[dict[str, str]] = tomllib.loads(_DOUBTFUL.read_text()).get("doubtful", [])
    return rows


Check = Callable[[Row, list[tuple[int, KernelEvent]], Callable[[str], str]], bool]


def scored(
    file: str, rows: Sequence[Row], name: str, lines: Callable[[Row], list[tuple[float, str]]], check: Check
) -> Score:
    """``check`` gets the row, what we said, and how devices were renamed on the way."""
    tally = Tally(file)
    for number, row in enumerate(rows, 1):
        given = lines(row)
        said = events_of(given, driver_of(row))
        label = str(row.get(name) or f"row {number}")
        tally.add(label, check(row, said, str), [(at, e.event, e.code, e.device, e.severity.value) for at, e in said])
        for changed in changes(given):
            told = [(at - 1, event) for at, event in events_of(changed, driver_of(row)) if at]
            tally.add_changed(check(row, told, moved))
    return tally.score()


def one_line(row: Row) -> list[tuple[float, str]]:
    return [(READ_S, row["line"].replace("\\n", "\n"))]


def lines_of(row: Row) -> list[tuple[float, str]]:
    lines = row["lines"]
    return [(READ_S + line["t"], line["line"]) if isinstance(line, dict) else (READ_S, line) for line in lines]


ASK = ">= 99 % event, code and device"


def scorer(name: str, file: str, score: Callable[[Path], Score], ask: str = ASK, bar: float = 0.99) -> Scorer:
    return Scorer(name=name, files=(file,), ask=ask, bar=bar, score=score)
