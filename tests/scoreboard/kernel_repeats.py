"""What repeats of kernel events say, and what ends them: NVSentinel's rules and cases, and what we conclude."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tests.scoreboard.kernel_tally import NVSENTINEL_ACTIONS, Row, Tally, jsonl, scorer, tsv
from tests.scoreboard.score import Score, Scorer
from whichrank.diagnosis.kernel_log.recurrence import (
    Conclusion,
    Parameters,
    Sighting,
    cancelled,
    conclusions,
    parameters,
)


def analyzer_rules(folder: Path) -> Score:
    file = "nvsentinel/analyzer_rules.tsv"
    tally = Tally(file)
    ours = {rule.also: rule for rule in parameters().rules}
    for row in tsv(folder / file):
        rule = ours.get(row["rule"])
        said = NVSENTINEL_ACTIONS[rule.repair.value] if rule else None
        tally.add(row["rule"], said == row["recommended_action"], said)
    return tally.score()


def sighting(event: Row) -> Sighting:
    registers = [0] * 7
    bits = dict(event.get("regs_set_bits", {}))
    if "reg4_bit" in event:
        bits["reg4"] = [event["reg4_bit"]]
    for register, numbers in bits.items():
        for bit in numbers:
            registers[int(register.removeprefix("reg"))] |= 1 << bit
    code = str(event["xid"]) if "xid" in event else f"nic_{event['nic_event']}"
    return Sighting(
        time_s=event["t"],
        node=event.get("node", ""),
        code=code,
        device=event.get("gpu") or event.get("port", ""),
        place=f"{event['gpc']}/{event['tpc']}" if "gpc" in event else "",
        link=str(event.get("nvlink", "")),
        registers=tuple(registers) if bits else (),
        is_fatal=event.get("fatal", False),
        was_repaired=event.get("remediated", False),
    )


def recurrence(folder: Path) -> Score:
    file = "nvsentinel/recurrence_rules.jsonl"
    tally = Tally(file)
    for row in jsonl(folder / file):
        history = [sighting(event) for event in row["events"]]
        for shift_s in (0.0, 1.7e9):  # another date changes nothing
            moved_history = [
                Sighting(**{name: getattr(s, name) for name in Sighting.__slots__} | {"time_s": s.time_s + shift_s})
                for s in history
            ]
            told = [c for end in range(1, len(history) + 1) for c in conclusions(moved_history[:end])]
            if shift_s:
                tally.add_changed(_is_concluded(row["expected"], told))
            else:
                tally.add(row["name"], _is_concluded(row["expected"], told), [(c.also, c.device) for c in told])
    return tally.score()


def _is_concluded(expected: Row, told: Sequence[Conclusion]) -> bool:
    by_rule = {conclusion.also: conclusion for conclusion in told}
    if "trigger" in expected:
        found = by_rule.get("RepeatedXIDErrorOnSameGPU")
        return (found is not None) == expected["trigger"] and (found is None or found.count == expected["bursts"])
    refused = expected.get("not_rule", [])
    if set([refused] if isinstance(refused, str) else refused) & set(by_rule):
        return False
    if "rule" not in expected:
        return True
    found = by_rule.get(expected["rule"])
    return (
        found is not None
        and expected.get("category", found.domain.value) == found.domain.value
        and NVSENTINEL_ACTIONS[found.repair.value] == expected.get("action", NVSENTINEL_ACTIONS[found.repair.value])
        and expected.get("port", found.device) == found.device
    )


def supplement(folder: Path) -> Score:
    """Cancellation with the rules each case gives, and one more rule of repeats."""
    file = "nvsentinel/supplement.jsonl"
    tally = Tally(file)
    for row in jsonl(folder / file):
        events = [sighting(event) for event in row["events"]]
        if "rule" in row:
            told = {c.also: c for end in range(1, len(events) + 1) for c in conclusions(events[:end])}
            rule = told.get(row["rule"])
            tally.add(row["id"], rule is not None and NVSENTINEL_ACTIONS[rule.repair.value] == row["action"], told)
            continue
        known = parameters()
        given = Parameters(
            **{name: getattr(known, name) for name in Parameters.__slots__}
            | {"cancels": {code: frozenset(ended) for code, ended in row["config"].items()}}
        )
        listed = row.get("active") or [entry["xid"] for entry in row.get("emitted", []) if entry["healthy"]]
        active = [Sighting(time_s=-1, node="", code=str(code)) for code in listed]
        ended = {int(s.code) for s in cancelled(events[-1], active, given)}
        if "emitted" in row:
            ok = ended == {entry["xid"] for entry in row["emitted"] if entry["healthy"]}
        else:
            ok = set(row["still_active"]) == set(listed) - ended
        tally.add(row["id"], ok, ended)
    return tally.score()


SCORERS: list[Scorer] = [
    scorer("rules of repeats", "nvsentinel/analyzer_rules.tsv", analyzer_rules, "each rule, same action"),
    scorer("repeats", "nvsentinel/recurrence_rules.jsonl", recurrence, "each case"),
    scorer("repeats and recoveries", "nvsentinel/supplement.jsonl", supplement, "each case"),
]
