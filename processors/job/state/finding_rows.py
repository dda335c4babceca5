"""Open findings as JSON, with their bodies and what their detectors remember, and back.

A memory is saved under its name. Findings of releases that wrote no name are known by what they remember.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, fields, replace
from typing import Any

from ...finding_document import read_body, write_body
from ..detectors.numeric.bad_numbers import BadNumber
from ..detectors.slow.straggler_memory import StragglerMemory
from .finding_memory import (
    AllSilentMemory,
    AskedCall,
    DriftMemory,
    FindingDetail,
    FindingMemory,
    LateMemory,
    NumberMemory,
    PaceMemory,
    SilentNodeMemory,
    SlowWriterMemory,
    StallMemory,
)
from .rank_state import OpenFinding

#: Each type of ``FindingMemory`` has one: a test holds it.
_NAMES: Mapping[str, type[FindingMemory]] = {
    "straggler": StragglerMemory,
    "late": LateMemory,
    "slow_writer": SlowWriterMemory,
    "drift": DriftMemory,
    "pace": PaceMemory,
    "stall": StallMemory,
    "numbers": NumberMemory,
    "silent_node": SilentNodeMemory,
    "all_silent": AllSilentMemory,
}
_NAMES_OF = {kind: name for name, kind in _NAMES.items()}


def write_finding(finding: OpenFinding) -> dict[str, Any]:
    """An open finding as JSON values, for ``read_finding``."""
    shown = write_body(finding.shown) if finding.shown is not None else {}
    names = (each.name for each in fields(finding) if each.name not in ("body", "shown", "detail"))
    said = {"body": write_body(finding.body), "shown": shown, "detail": write_detail(finding.detail)}
    return {**{name: getattr(finding, name) for name in names}, **said}


def read_finding(values: dict[str, Any]) -> OpenFinding:
    """A finding that this release or an earlier one wrote. Raises KeyError, TypeError or ValueError for
    what is none.
    """
    detail = read_detail(values["detail"])
    body, shown = read_body(values["body"]), read_body(values["shown"]) if values["shown"] else None
    # An earlier release did not say it in the body.
    if isinstance(detail.memory, StragglerMemory) and not detail.memory.based:
        body, shown = replace(body, always=True), replace(shown, always=True) if shown is not None else None
    return OpenFinding(**{**values, "body": body, "shown": shown, "detail": detail})


def write_detail(detail: FindingDetail) -> dict[str, Any]:
    """A finding's detail as JSON values, for ``read_detail``."""
    return {
        "memory": write_memory(detail.memory),
        "calls": [list(each) for each in detail.calls],
        "by_device": detail.by_device,
        "crash": detail.is_crash,
    }


def read_detail(written: Mapping[str, Any]) -> FindingDetail:
    """A detail that this release or an earlier one wrote. Raises KeyError, TypeError or ValueError for what is none."""
    memory = read_memory(written["memory"]) if "memory" in written else memory_of_older(written)
    calls = (
        AskedCall(int(rank), int(group), bool(p2p), int(seq)) for rank, group, p2p, seq in written.get("calls", ())
    )
    is_crash = bool(written.get("crash"))
    return FindingDetail(memory=memory, calls=tuple(calls), by_device=bool(written.get("by_device")), is_crash=is_crash)


def write_memory(memory: FindingMemory | None) -> dict[str, Any] | None:
    """What a detector remembers, as JSON values under its name; None for None."""
    return None if memory is None else {_NAMES_OF[type(memory)]: asdict(memory)}


def read_memory(written: Mapping[str, Any] | None) -> FindingMemory | None:
    """What ``write_memory`` wrote; None for None or {}. Raises KeyError, TypeError or ValueError for what is none."""
    if not written:
        return None
    ((name, values),) = written.items()
    if name == "numbers" and (bad := values["bad"]) is not None:
        values = {**values, "bad": _read_bad(bad)}
    if name == "straggler":
        values = {**values, "company": tuple(values["company"])}
    return _NAMES[name](**values)


def memory_of_older(detail: Mapping[str, Any]) -> FindingMemory | None:
    """What a release that wrote no names has remembered, known by its fields; None where these are of no detector."""
    rank = int(detail.get("rank", -1))
    if "excess" in detail:
        return StragglerMemory(**{**detail, "company": tuple(detail.get("company", ()))})
    if "rise" in detail:
        return DriftMemory(rank=rank, rise=detail["rise"], usual=detail["usual"])
    if "late_step_ns" in detail:
        return LateMemory(rank=rank, usual_step_ns=detail["usual_step_ns"], late_step_ns=detail["late_step_ns"])
    if "now_ns" in detail:
        return SlowWriterMemory(rank=rank, before_ns=detail["before_ns"], now_ns=detail["now_ns"])
    if "after_ns" in detail:
        wanders = bool(detail.get("wanders"))
        return PaceMemory(before_ns=detail["before_ns"], after_ns=detail["after_ns"], wanders=wanders)
    if "pause_steps" in detail:
        return StallMemory(pause_steps=detail["pause_steps"])
    if "bad" in detail or "good" in detail:
        bad = _read_bad(detail["bad"]) if "bad" in detail else None
        return NumberMemory(bad=bad, usual=detail.get("usual"), good=int(detail.get("good", 0)))
    if "node" in detail:
        return SilentNodeMemory(node=str(detail["node"]))
    if "since_ns" in detail:
        return AllSilentMemory(since_ns=int(detail["since_ns"]))
    return None


def _read_bad(values: Mapping[str, Any]) -> BadNumber:
    return BadNumber(**{**values, "ranks": tuple(values["ranks"]), "all_ranks": tuple(values["all_ranks"])})
