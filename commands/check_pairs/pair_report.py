"""What a check of pairs says: findings in the words of ``whichrank check``, as lines or as one JSON document."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from ...diagnosis.health_checks.outcome import CheckStatus, worst
from ...diagnosis.pair_checks.judging import Named, SlowPart
from ...diagnosis.pair_checks.measured import Quantity
from .pair_session import PairOutcome

SCHEMA = 1
FAMILY = "pairs"
_NAMED = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class PairFinding:
    """As findings of ``whichrank check``; nodes: whom it concerns. value: bytes a second, or seconds."""

    check: str
    status: CheckStatus
    device: str
    nodes: tuple[str, ...]
    reason: str
    remedy: str
    value: float
    family: str = FAMILY


def findings_of(
    outcome: PairOutcome, nodes: Sequence[str], groups: Sequence[str] | None, size_bytes: int
) -> list[PairFinding]:
    """The findings, the worst first. nodes: their names. groups: of each node, "" none. size_bytes: of an exchange."""
    found = [_finding(each, nodes, groups, size_bytes) for each in outcome.named]
    order = (CheckStatus.CRITICAL, CheckStatus.WARN)
    return sorted(found, key=lambda each: (order.index(each.status), each.device))


def _finding(each: Named, nodes: Sequence[str], groups: Sequence[str] | None, size_bytes: int) -> PairFinding:
    names = tuple(nodes[node] for node in each.nodes)
    rail = f" rail {each.rail}" if each.rail >= 0 else ""
    if each.part is SlowPart.LINK:
        device = f"{names[0]} - {names[1]}{rail}"
        remedy = "look at the ports, cables and switches between the two (whichrank check --only network at both ends)"
    elif each.part is SlowPart.GROUP:
        device = f"ways out of {groups[each.nodes[0]] if groups else 'a group'}{rail}"
        remedy = "look at the switch's uplinks: one of several that is ill slows a part of all flows"
    else:
        device = names[0] + rail
        remedy = "leave the node out; look at its network (whichrank check --only network) and clocks"
    many, value = "", each.value
    if each.worst is Quantity.SECONDS:
        value = size_bytes / each.value if each.value else 0.0
        what = f"{_rate(value)} each way, where others have {_rate(size_bytes / each.usual) if each.usual else '?'}"
    elif each.worst is Quantity.LATENCY:
        what = f"an answer takes {_time(each.value)}, of others {_time(each.usual)}"
    elif each.worst is Quantity.STALL:
        what = f"exchanges are held up for {_time(each.value)}: what is sent is lost on the way"
    else:
        what = "no answer"
    if each.part is not SlowPart.LINK:
        many = f" with {each.bad} of {each.met} that it met"
    else:
        many = f" {each.bad} of {each.met} times, and both ends are well with others"
    # A node can be left out; to leave a link out takes a scheduler that knows of links.
    status = CheckStatus.CRITICAL if each.part in (SlowPart.NODE, SlowPart.RAIL) else CheckStatus.WARN
    return PairFinding(
        check=each.part.value,
        status=status,
        device=device,
        nodes=names,
        reason=what + many,
        remedy=remedy,
        value=value,
    )


def status_of(findings: Sequence[PairFinding], outcome: PairOutcome) -> CheckStatus:
    """OK where nothing is named; UNKNOWN where too few nodes met to say anything."""
    if findings:
        return worst(each.status for each in findings)
    return CheckStatus.OK if outcome.rounds else CheckStatus.UNKNOWN


def print_pairs(
    outcome: PairOutcome,
    findings: Sequence[PairFinding],
    nodes: Sequence[str],
    *,
    rails: int,
    size_bytes: int,
    exit_code: int,
    as_json: bool,
) -> None:
    """Prints a line per finding and one about all; or one JSON document."""
    status = status_of(findings, outcome)
    usual_s = outcome.usual.get(Quantity.SECONDS.value, 0.0)
    latency_s = outcome.usual.get(Quantity.LATENCY.value, 0.0)
    if as_json:
        document = {
            "schema": SCHEMA,
            "status": status.value,
            "exit_code": exit_code,
            "took_s": round(outcome.took_s, 3),
            "nodes": len(nodes),
            "rails": rails,
            "rounds": outcome.rounds,
            "exchanges": outcome.exchanges,
            "left_out": outcome.left_out,
            "usual": {"bytes_per_s": size_bytes / usual_s if usual_s else None, "latency_s": latency_s or None},
            "ring": {
                "all_bytes_per_s": _bus(size_bytes, outcome.ring_s, len(nodes)),
                "without_named_bytes_per_s": _bus(size_bytes, outcome.ring_without_s, len(nodes)),
            },
            "findings": [{**asdict(each), "nodes": list(each.nodes)[:1024]} for each in findings],
        }
        sys.stdout.write(json.dumps(document) + "\n")
        return
    for each in findings:
        print(f"{each.status.value:<8} {FAMILY}.{each.check} {each.device}: {each.reason} -> {each.remedy}")
    words = [f"{len(nodes)} nodes, {outcome.rounds} rounds, {outcome.exchanges} exchanges a node"]
    if usual_s:
        words.append(f"usual {_rate(size_bytes / usual_s)} each way, {_time(latency_s)}")
    if outcome.ring_s:
        ring = f"all-reduce of all {_rate(_bus(size_bytes, outcome.ring_s, len(nodes)) or 0.0)}"
        if outcome.ring_without_s:
            rest = _bus(size_bytes, outcome.ring_without_s, len(nodes)) or 0.0
            ring += f", without who is named {_rate(rest)}"
        words.append(ring)
    if outcome.left_out:
        words.append(f"{outcome.left_out} suspects were not asked again")
    print(f"{status.value}: {len(findings)} findings ({outcome.took_s:.1f} s): {'; '.join(words)}")


def _bus(size_bytes: int, seconds: float, nodes: int) -> float | None:
    """What each link of the ring carries a second."""
    return 2 * (nodes - 1) / nodes * size_bytes / seconds if seconds else None


def _rate(bytes_per_s: float) -> str:
    return f"{bytes_per_s / 1e9:.3g} GB/s" if bytes_per_s >= 1e8 else f"{bytes_per_s / 1e6:.3g} MB/s"


def _time(seconds: float) -> str:
    return f"{seconds * 1e6:.3g} us" if seconds < 1e-3 else f"{seconds * 1e3:.3g} ms"
