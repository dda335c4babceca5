"""What NCCL's RAS found, as JSON of a few kilobytes that travels from a node to the judge, and back. Pure.

RAS is a server in the job's own processes, so all of it is what the job's user could have written.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice

from ..telemetry.ring_layout import format_ranks
from ..telemetry.told_ranks import read_ranks
from .nccl_ras import MAX_RANKS, RasFinding, RasProblem, RasProcess

MAX_FACTS_BYTES = 16 << 10
#: Of one answer; a communicator of which more ranks are behind names nobody.
_MOST_FINDINGS, _MOST_PROCESSES, _MOST_RANKS = 16, 16, 256
_MOST_WORDS = 160


def write_ras_facts(findings: Sequence[RasFinding]) -> str:
    """The first findings as JSON, for ``read_ras_facts``: mismatches before what only did not answer."""
    order = [RasProblem.MISMATCH, RasProblem.DEAD, RasProblem.INCOMPLETE, RasProblem.TIMEOUT]
    told = [_told(each) for each in sorted(findings, key=lambda one: order.index(one.problem))[:_MOST_FINDINGS]]
    text = json.dumps(told, separators=(",", ":"))
    while len(text) > MAX_FACTS_BYTES:  # names of nodes as long as they may be
        told.pop()
        text = json.dumps(told, separators=(",", ":"))
    return text


def _told(finding: RasFinding) -> dict[str, object]:
    return {
        "problem": finding.problem.value,
        "communicator": finding.communicator[:_MOST_WORDS],
        "says": finding.says[:_MOST_WORDS],
        "ranks": format_ranks(list(finding.ranks[:_MOST_RANKS])),
        "processes": [[one.pid, one.node[:_MOST_WORDS], one.gpu] for one in finding.processes[:_MOST_PROCESSES]],
        "size": finding.size,
    }


def read_ras_facts(text: str) -> tuple[RasFinding, ...]:
    """The findings that ``write_ras_facts`` wrote. Raises ValueError for what is none; odd parts are left out."""
    if len(text) > MAX_FACTS_BYTES:
        raise ValueError(f"RAS facts of {len(text)} characters, more than {MAX_FACTS_BYTES}")
    try:
        told = json.loads(text)
    except RecursionError:
        raise ValueError("RAS facts that nest too deep") from None
    if not isinstance(told, list):
        raise ValueError("RAS facts that are no list")
    return tuple(_read(each) for each in told[:_MOST_FINDINGS] if isinstance(each, Mapping))


def _read(told: Mapping[str, object]) -> RasFinding:
    size, listed = told.get("size"), told.get("processes")
    return RasFinding(
        problem=RasProblem(told.get("problem")),
        communicator=str(told.get("communicator") or "")[:_MOST_WORDS],
        says=str(told.get("says") or "")[:_MOST_WORDS],
        ranks=tuple(read_ranks(told.get("ranks"))[:_MOST_RANKS]),
        processes=tuple(_processes(listed if isinstance(listed, list) else ())),
        size=size if type(size) is int and 0 <= size <= MAX_RANKS else 0,
    )


def _processes(listed: Iterable[object]) -> Iterable[RasProcess]:
    for row in islice(listed, _MOST_PROCESSES):
        if isinstance(row, list) and len(row) == 3 and type(row[0]) is int and type(row[2]) is int:
            yield RasProcess(row[0], str(row[1])[:_MOST_WORDS], row[2])
