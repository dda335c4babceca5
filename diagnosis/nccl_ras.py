"""NCCL's RAS status (``ncclras``, from NCCL 2.24 on) -> which ranks it finds odd. Text or JSON in, facts out. Pure.

RAS asks every process of a job over its own network how many operations each communicator has launched, so it sees
ranks that write no dump. DEAD: unreachable for 60 s. INCOMPLETE: a communicator's ranks did not answer. MISMATCH: ranks
of one communicator differ in their number of operations; those that are behind are listed if they are few.

The JSON's keys changed between releases, so ranks and counters are recognised by what their keys end in.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from enum import Enum

MAX_TEXT_BYTES = 64 << 20
MAX_LINE = 400
MAX_RANKS = 1 << 20
MAX_DEPTH = 8


class RasProblem(str, Enum):
    DEAD = "DEAD"
    INCOMPLETE = "INCOMPLETE"
    MISMATCH = "MISMATCH"
    TIMEOUT = "TIMEOUT"


@dataclass(frozen=True, slots=True)
class RasProcess:
    pid: int
    node: str
    gpu: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RasFinding:
    """ranks: of the communicator, that RAS lists as odd: dead, missing, or behind the others.

    communicator: "" where the finding is about a process. says: its own words. size: ranks of the communicator, where
    the status says how many there are; 0 unknown.
    """

    problem: RasProblem
    communicator: str
    says: str
    ranks: tuple[int, ...]
    processes: tuple[RasProcess, ...]
    size: int = 0


class BadRas(ValueError):
    """No RAS status; the text is one line that says why."""


_HEAD = re.compile(
    r"^(?:#(?P<group>\d+(?:-\d+)?) \((?P<hash>[0-9a-fA-F]+)\) )?(?P<problem>DEAD|INCOMPLETE|MISMATCH|TIMEOUT)\s*$"
)
_RANK = re.compile(
    r"^\s+Ranks? (?P<ranks>[\d, \-]+) -- GPU (?P<gpu>\d+) managed by process (?P<pid>\d+) on node (?P<node>\S+)"
)
_PROCESS = re.compile(r"^\s+Process (?P<pid>\d+) on node (?P<node>\S+) managing GPUs? (?P<gpu>\d+)")
_MISSING = re.compile(r"^\s+The missing ranks?: (?P<ranks>[\d, \-]+)")
_COUNT = re.compile(r"^\s+(?P<many>\d+) ranks? (?:have|has) launched up to operation (?P<count>\d+)")
_SPAN = re.compile(r"(\d{1,7})(?:-(\d{1,7}))?")


def is_ras(data: bytes) -> bool:
    """Whether a file looks like a RAS status rather than a flight-recorder dump."""
    start = data[:4096].lstrip()
    return start.startswith(b"NCCL version") or (
        start.startswith(b"{") and b'"communicators"' in data and b'"entries"' not in data
    )


def parse_ras(data: bytes) -> tuple[RasFinding, ...]:
    """Every problem that the status reports, none if all is well. Raises BadRas."""
    text = data[:MAX_TEXT_BYTES].decode("utf-8", "replace")
    if text.lstrip().startswith("{"):
        try:
            return tuple(_of_json(json.loads(text)))
        except (ValueError, RecursionError) as wrong:
            raise BadRas(f"is cut or no JSON of NCCL's RAS: {str(wrong)[:80]}") from None
    if "NCCL version" not in text[:4096]:
        raise BadRas('is no status of NCCL\'s RAS: it has no line "NCCL version"')
    return tuple(_of_text(text))


def _of_text(text: str) -> Iterator[RasFinding]:
    finding: RasFinding | None = None
    counts: list[tuple[int, int]] = []
    behind: dict[int, list[tuple[int, RasProcess]]] = {}
    for line in text.splitlines():
        line = line[:MAX_LINE]
        if head := _HEAD.match(line):
            if finding is not None:
                yield _closed(finding, counts, behind)
            finding = RasFinding(
                problem=RasProblem(head["problem"]), communicator=head["hash"] or "", says="", ranks=(), processes=()
            )
            counts, behind = [], {}
        elif finding is None:
            continue
        elif not line.startswith(" ") and line.strip():
            yield _closed(finding, counts, behind)
            finding = None
        elif found := _RANK.match(line):
            process = RasProcess(int(found["pid"][:9]), found["node"], int(found["gpu"][:6]))
            place = counts[-1][1] if counts else -1
            behind.setdefault(place, []).extend((rank, process) for rank in _spans(found["ranks"]))
        elif found := _PROCESS.match(line):
            process = RasProcess(int(found["pid"][:9]), found["node"], int(found["gpu"][:6]))
            finding = replace(finding, processes=(*finding.processes, process))
        elif found := _MISSING.match(line):
            finding = replace(finding, ranks=tuple(sorted({*finding.ranks, *_spans(found["ranks"])})))
        elif found := _COUNT.match(line):
            counts.append((int(found["many"][:9]), int(found["count"][:18])))
        if finding is not None and not finding.says and line.startswith(" "):
            finding = replace(finding, says=line.strip())
    if finding is not None:
        yield _closed(finding, counts, behind)


def _closed(
    finding: RasFinding, counts: list[tuple[int, int]], behind: Mapping[int, list[tuple[int, RasProcess]]]
) -> RasFinding:
    """With the ranks that are behind: those listed under the lowest count, if fewer than half are there."""
    odd = behind.get(-1, [])
    if counts:
        many, lowest = min(counts, key=lambda row: row[1])
        odd = [*odd, *(behind.get(lowest, []) if many * 2 < sum(row[0] for row in counts) else [])]
    return replace(
        finding,
        ranks=tuple(sorted({*finding.ranks, *(rank for rank, _ in odd)})),
        processes=tuple(dict.fromkeys((*finding.processes, *(process for _, process in odd)))),
        size=sum(row[0] for row in counts),
    )


def _spans(text: str) -> list[int]:
    """Ranks of "3, 8-11"."""
    ranks: list[int] = []
    for low, high in _SPAN.findall(text):
        room = MAX_RANKS - len(ranks)
        ranks.extend(range(int(low), int(low) + max(0, min(int(high or low) - int(low) + 1, room))))
    return ranks


def _of_json(value: object) -> Iterator[RasFinding]:
    for communicator in _communicators(value, 0):
        name = str(
            next((communicator[key] for key in ("hash", "comm_hash", "commHash", "id") if key in communicator), "")
        )
        ranks = _rows(communicator.get("ranks"))
        missing = _rows(next((one for key, one in communicator.items() if str(key).endswith("missing_ranks")), []))
        for problem, rows in ((RasProblem.INCOMPLETE, missing), (RasProblem.DEAD, [r for r in missing if _is_dead(r)])):
            if rows:
                yield _json_finding(problem, name, rows, f"{len(rows)} ranks did not answer", len(ranks) + len(missing))
        counts = {number: count for number, row in enumerate(ranks) if (count := _launched(row)) is not None}
        votes = Counter(counts.values())
        if len(votes) > 1:
            lowest = min(votes)
            odd = [ranks[number] for number, count in counts.items() if count == lowest] if (
                votes[lowest] * 2 < len(counts)
            ) else []  # fmt: skip
            words = ", ".join(f"{votes[count]} ranks at operation {count}" for count in sorted(votes, reverse=True)[:8])
            yield _json_finding(RasProblem.MISMATCH, name, odd, words, len(ranks) + len(missing))


def _communicators(value: object, depth: int) -> Iterator[Mapping[str, object]]:
    if depth > MAX_DEPTH:
        return
    if isinstance(value, Mapping):
        if isinstance(value.get("ranks"), list):
            yield value
            return
        for one in value.values():
            yield from _communicators(one, depth + 1)
    elif isinstance(value, list):
        for one in value:
            yield from _communicators(one, depth + 1)


def _rows(value: object) -> list[Mapping[str, object]]:
    rows = value if isinstance(value, list) else []
    return [row if isinstance(row, Mapping) else {"rank": row} for row in rows[:MAX_RANKS]]


def _is_dead(row: Mapping[str, object]) -> bool:
    return any(str(key).lower().endswith("dead") and bool(one) for key, one in row.items())


def _launched(row: Mapping[str, object]) -> int | None:
    """Operations that a rank has launched: one counter, or one for each kind of operation."""
    for key, value in row.items():
        word = str(key).lower().replace("_", "")
        if "opcount" in word or "collops" in word:
            if isinstance(value, int) and not isinstance(value, bool):
                return value
            numbers = [one for one in value.values() if isinstance(one, int)] if isinstance(value, Mapping) else []
            if numbers:
                return sum(numbers)
    return None


def _json_finding(
    problem: RasProblem, communicator: str, rows: list[Mapping[str, object]], says: str, size: int
) -> RasFinding:
    ranks = (rank for row in rows if isinstance(rank := row.get("rank"), int) and 0 <= rank < MAX_RANKS)
    processes = (
        RasProcess(
            next((one for key in ("pid", "process") if isinstance(one := row.get(key), int)), 0),
            str(next((row[key] for key in ("node", "host", "addr", "hostname") if key in row), ""))[:MAX_LINE],
            next((one for key in ("nvml_dev", "cuda_dev", "gpu") if isinstance(one := row.get(key), int)), -1),
        )
        for row in rows
    )
    return RasFinding(
        problem=problem,
        communicator=communicator[:64],
        says=says,
        ranks=tuple(sorted(set(ranks))),
        processes=tuple(dict.fromkeys(process for process in processes if process.pid or process.node)),
        size=size,
    )
