"""Kernel lines: what the labelled lines, sequences, catalogues and rules of other monitors say, and what we say.

Inputs are read from the input columns only. Our words for events and repairs are translated into theirs by the names
that the rules themselves list (``also``) and by the two tables below.
"""

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
from tests.diagnosis.kernel_log.harmless import SHAPES, harmless_lines
from tests.scoreboard.score import Score, Scorer
from whichrank.diagnosis.kernel_log import KernelEvent, KernelLogReader, Severity
from whichrank.diagnosis.kernel_log.recurrence import (
    Conclusion,
    Parameters,
    Sighting,
    cancelled,
    conclusions,
    parameters,
)
from whichrank.diagnosis.kernel_log.stamps import Calendar
from whichrank.diagnosis.kernel_log.xid import sxid_policies, xid_policies

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
#: Repair -> action of gpud.
GPUD_ACTIONS = {
    "ignore": "IGNORE_NO_ACTION_REQUIRED",
    "reset_gpu": "REBOOT_SYSTEM",
    "reboot_node": "REBOOT_SYSTEM",
    "follow_xid_154": "HARDWARE_INSPECTION",
    "contact_support": "HARDWARE_INSPECTION",
}
#: Bucket of NVIDIA's catalogue -> our repair.
BUCKETS = {
    "CONTACT_SUPPORT": "contact_support",
    "RESTART_APP": "restart_app",
    "IGNORE": "ignore",
    "WORKFLOW_XID_45": "ignore",
    "RESET_GPU": "reset_gpu",
    "WORKFLOW_XID_48": "reset_gpu",
    "CHECK_MECHANICALS": "check_mechanicals",
    "WORKFLOW_NVLINK_ERR": "reset_gpu",
    "UPDATE_SWFW": "update_software",
    "RESTART_BM": "reboot_node",
    "WORKFLOW_NVLINK5_ERR": "reset_gpu",
    "RESTART_VM": "restart_vm",
    "XID_154": "follow_xid_154",
    "CHECK_UVM": "reset_gpu",
    "XID_154_EVAL": "follow_xid_154",
}
#: Words of Meta's table of causes -> domains that agree with them.
CAUSES = {
    "User App Error": {"application"},
    "Driver Error": {"software"},
    "HW Error": {"hardware"},
    "Bus Error": {"hardware"},
    "FB Corruption": {"hardware"},
    "Thermal Issue": {"hardware"},
    "System Memory Corruption": {"hardware", "host"},
}
#: Groups of public issues that are kernel lines; the others are lines of jobs.
KERNEL_GROUPS = ("mlx5",)

_PCI = re.compile(r"(?<!\w)((?:[0-9a-fA-F]{4}){1,2}):([0-9a-fA-F]{2}):([0-9a-fA-F]{2})(?!:\d)")
_HALF_LINE = "00:1f.0: [8086:1d3a] type 00 class 0x060100"
_DOUBTFUL = Path(__file__).with_name("doubtful.toml")


def jsonl(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines() if line]


def tsv(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE))


def moved(text: str) -> str:
    """Every PCI address in it on another bus."""
    return _PCI.sub(lambda m: f"{m[1]}:{int(m[2], 16) ^ 0x2A:02x}:{m[3]}", text)


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


# gpud


def gpud_event(row: Row, said: list[tuple[int, KernelEvent]], rename: Callable[[str], str]) -> bool:
    expected, refused = row["expected_event"], row["extra"].removeprefix("not:") if "not:" in row["extra"] else ""
    if row["positive"] != "1":
        return not any(refused in names(event) for _, event in said) if refused else not said
    if len(said) != 1:
        return False
    event = said[0][1]
    device = rename(row["expected_device"].removeprefix("PCI:")).lower()
    facts = {"subcode": "expected_subcode", "unit": "expected_unit", "link": "expected_link"}
    return (
        expected in names(event)
        and row["expected_code"] in ("", event.code)
        and device in ("", event.device)
        and all(not row[column] or event.facts.get(fact) == row[column] for fact, column in facts.items())
        and row["expected_error_status"] in ("", event.facts.get("error_status"))
    )


def gpud_lines(folder: Path) -> Score:
    file = "gpud/kmsg_lines.tsv"
    return scored(file, tsv(folder / file), "id", one_line, gpud_event)


def gpud_policy(folder: Path) -> Score:
    file = "gpud/kmsg_lines.tsv"

    def check(row: Row, said: list[tuple[int, KernelEvent]], rename: Callable[[str], str]) -> bool:
        event = said[0][1] if said else None
        if event is None:
            return False
        severity = "Fatal" if event.severity is Severity.FATAL else "Warning"
        action = GPUD_ACTIONS.get(event.repair.value)
        return row["expected_event_type"] in ("", severity) and row["expected_actions"] in ("", action)

    rows = [row for row in tsv(folder / file) if row["expected_event_type"] or row["expected_actions"]]
    return scored(file, rows, "id", one_line, check)


def gpud_sequences(folder: Path) -> Score:
    def check(row: Row, said: list[tuple[int, KernelEvent]], rename: Callable[[str], str]) -> bool:
        own = [event for _, event in said if names(event) & {"OOM", "kernel_panic"}]
        if len(own) != len(row["expected"]):
            return False
        return all(_is_as_gpud_says(event, expected) for event, expected in zip(own, row["expected"], strict=True))

    file = "gpud/kmsg_sequences.jsonl"
    return scored(file, jsonl(folder / file), "case", _lines_of, check)


def _is_as_gpud_says(event: KernelEvent, expected: Row) -> bool:
    victim = re.search(r"victim process: (.+), pid: (\d+)", expected["message"])
    process, pid = (victim[1], victim[2]) if victim else (expected["process"], expected["pid"])
    cpu = expected.get("cpu")
    is_same = event.process == process and str(event.pid) == pid and cpu in (None, event.facts.get("cpu"))
    return is_same and expected["event"] in names(event)


def _lines_of(row: Row) -> list[tuple[float, str]]:
    lines = row["lines"]
    return [(READ_S + line["t"], line["line"]) if isinstance(line, dict) else (READ_S, line) for line in lines]


# NVSentinel


def nvsentinel_xid(folder: Path) -> Score:
    def check(row: Row, said: list[tuple[int, KernelEvent]], rename: Callable[[str], str]) -> bool:
        own = [event for _, event in said if event.event == "xid"]
        if not row["is_xid"]:
            return not own
        if len(own) != 1:
            return False
        event = own[0]
        unit = row.get("error_code", "").partition(".")[2]
        return (
            event.code == str(row["xid"])
            and ("pci" not in row or event.device == rename(row["pci"]))
            and NVSENTINEL_ACTIONS[event.repair.value] == row["action"]
            and unit in ("", event.facts.get("unit"))
        )

    file = "nvsentinel/xid_lines.jsonl"
    rows = jsonl(folder / file)
    for number, row in enumerate(rows, 1):
        row["driver"] = row.get("driver", "").replace(" (metadata stub)", "") or None
        row["label"] = f"line {number}: {row['name']}"
    return scored(file, rows, "label", one_line, check)


def nvsentinel_sxid(folder: Path) -> Score:
    def check(row: Row, said: list[tuple[int, KernelEvent]], rename: Callable[[str], str]) -> bool:
        if len(said) != 1:
            return False
        event = said[0][1]
        if not row.get("parsed_by_nvsentinel", True):  # we read the bare code too
            return event.event == "sxid" and event.code in row["line"]
        return (
            event.event == "sxid"
            and event.code == row["error_code"]
            and event.device == rename(row["pci"])
            and event.facts.get("link") == str(row["link"])
            and (event.severity is Severity.FATAL) == row["fatal"]
            and NVSENTINEL_ACTIONS[event.repair.value] == row["action"]
        )

    file = "nvsentinel/sxid_lines.jsonl"
    return scored(file, jsonl(folder / file), "line", one_line, check)


def nvsentinel_sequences(folder: Path) -> Score:
    watched = {"mlx5_napi_soft_lockup", "GPU_FALLEN_OFF_BUS"}

    def check(row: Row, said: list[tuple[int, KernelEvent]], rename: Callable[[str], str]) -> bool:
        if row.get("is_soft_lockup_header") and not any(event.event == "soft_lockup" for _, event in said):
            return False
        own = [(at, event) for at, event in said if names(event) & watched]
        if len(own) != len(row["expected_events"]):
            return False
        for (at, event), expected in zip(own, row["expected_events"], strict=True):
            is_same = at == expected["at"] and expected["event"] in names(event)
            is_same &= (event.severity is Severity.FATAL) == expected["fatal"]
            is_same &= "pci" not in expected or event.device == rename(expected["pci"])
            is_same &= event.facts.get("cpu") == str(expected["cpu"]) if "cpu" in expected else True
            is_same &= NVSENTINEL_ACTIONS[event.repair.value] == expected.get(
                "action", NVSENTINEL_ACTIONS[event.repair.value]
            )
            if not is_same:
                return False
        return True

    file = "nvsentinel/kernel_sequences.jsonl"
    return scored(file, jsonl(folder / file), "name", _lines_of, check)


def nvsentinel_nic(folder: Path) -> Score:
    def check(row: Row, said: list[tuple[int, KernelEvent]], rename: Callable[[str], str]) -> bool:
        if row["event"] is None:
            return not said
        if len(said) != 1:
            return False
        event = said[0][1]
        address = _PCI.search(rename(row["line"]))
        return (
            row["event"] in names(event)
            and (event.severity is Severity.FATAL) == row["fatal"]
            and NVSENTINEL_ACTIONS[event.repair.value] == row["action"]
            and (address is None or event.device.startswith(address[0].lower()))
        )

    file = "nvsentinel/nic_driver_lines.jsonl"
    return scored(file, jsonl(folder / file), "line", one_line, check)


# Other projects


def others(folder: Path) -> Score:
    tally = Tally("imbue/lines.jsonl")
    for row in jsonl(folder / "imbue/lines.jsonl"):
        said = events_of(one_line(row))
        tally.add(row["line"], [e.event for _, e in said] == ([row["event"]] if row["event"] else []), said)
        for changed in changes(one_line(row)):
            tally.add_changed([e.event for _, e in events_of(changed)] == ([row["event"]] if row["event"] else []))
    for row in jsonl(folder / "issues/format_variants.jsonl"):
        if row["group"] not in KERNEL_GROUPS:
            continue
        for lines in ([*one_line(row)], *changes(one_line(row))):
            events = [event for _, event in events_of(lines)]
            ok = len(events) == 1 and row["expect"]["event"] in names(events[0])
            ok = ok and (events[0].severity is Severity.FATAL) == row["expect"].get("fatal", False)
            if len(lines) == 1:
                tally.add(row["line"], ok, [event.event for event in events])
            else:
                tally.add_changed(ok)
    return tally.score()


HARMLESS_LINES = 12_000


def harmless(folder: Path) -> Score:
    """Ordinary lines in everything that wraps lines: how many are taken for a fault."""
    wrappers = list(WRAPPERS.values())
    reader = KernelLogReader(calendar=Calendar(reference_s=READ_S))
    wrong = []
    for number, line in enumerate(harmless_lines(HARMLESS_LINES)):
        wrapper = wrappers[(number + number // len(SHAPES)) % len(wrappers)]
        wrong += [f"{line}: said {event.event}" for event in reader.read(wrapper.wrap(line))]
    right = HARMLESS_LINES - len(wrong)
    return Score(right=right, total=HARMLESS_LINES, wrong=wrong, measure=float(len(wrong)))


# Catalogues


def xid_catalogue(folder: Path) -> Score:
    file = "nvsentinel/nvidia_xid_catalog.tsv"
    tally = Tally(file)
    for row in tsv(folder / file):
        policy = xid_policies().get(row["Code"])
        bucket = row["Resolution Bucket (Immediate Action)"]
        ok = policy is not None and bucket in ("", *(b for b, r in BUCKETS.items() if r == policy.repair.value))
        ok = ok and policy is not None and policy.mnemonic in row["Mnemonic"]
        tally.add(row["Code"], ok, policy and policy.repair.value)
    return tally.score()


def xid_causes(folder: Path) -> Score:
    file = "gcm/xid_causes_meta.tsv"
    tally = Tally(file)
    for row in tsv(folder / file):
        policy = xid_policies().get(row["xid"])
        domains = set().union(*(CAUSES[cause] for cause in row["causes"].split("|"))) if row["causes"] else set()
        tally.add(row["xid"], policy is not None and policy.domain.value in (domains or {policy.domain.value}), policy)
    return tally.score()


def sxid_catalogue(folder: Path) -> Score:
    file = "gpud/sxid_catalog.tsv"
    tally = Tally(file)
    for row in tsv(folder / file):
        policy = sxid_policies().get(row["sxid"])
        ok = policy is not None and (policy.severity is Severity.FATAL) == (row["event_type"] == "Fatal")
        tally.add(row["sxid"], ok, policy and policy.severity.value)
    return tally.score()


def nvlink5_catalogue(file: str, columns: Mapping[str, str]) -> Callable[[Path], Score]:
    """Every row of the table as a line of either kind of driver: does it come out as that row?"""

    def score(folder: Path) -> Score:
        tally = Tally(file)
        for number, row in enumerate(tsv(folder / file), 2):
            unit_v1, _, unit_v2 = row[columns["unit"]].partition("/")
            for driver, unit, column in (("550.54", unit_v1, "v1"), ("580.65", unit_v2 or unit_v1, "v2")):
                intrinfo = int(row[columns[column]].replace("-", "0"), 2)
                status = row[columns["status"]].split("/")[0] or "0x00000000"
                severity = row[columns["severity"]]
                word = "Nonfatal" if severity.startswith("Non") else "Fatal"
                line = (
                    f"NVRM: Xid (PCI:0000:01:00): {row['Xid']}, {unit} {word} XC0 i0 Link 00 "
                    f"(0x{intrinfo:08x} {status} 0x00000000 0x00000000)"
                )
                said = [event for _, event in events_of([(READ_S, line)], driver)]
                repair = BUCKETS[row[columns["repair"]]]
                ok = len(said) == 1 and said[0].repair.value == repair
                ok = ok and (said[0].severity is Severity.FATAL) == (word == "Fatal")
                tally.add(f"line {number} {column}", ok, [(e.repair.value, e.facts) for e in said])
        return tally.score()

    return score


# Rules


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


_NVIDIA_COLUMNS = {
    "unit": "Subcode V1(<R575)/V2(>=R575) V1(<R575): IntrInfo[9:5] V2(>=R575):IntrInfo[6:0]",
    "v1": '(V1(<R575)) IntrInfo decode for Data Center Recovery Action IntrInfo (binary; "-" user decode)',
    "v2": '(V2(>=R575)) IntrInfo decode for Data Center Recovery Action IntrInfo (binary; "-" user decode)',
    "status": "Error Status (hex)",
    "severity": "Severity (for items with '*' please see Customer User Guide tab)",
    "repair": "Resolution Bucket (Data Center Recovery Action)",
}
_GPUD_COLUMNS = {
    "unit": "Unit",
    "v1": "IntrinfoPatternV1",
    "v2": "IntrinfoPatternV2",
    "status": "ErrorStatus",
    "severity": "Severity",
    "repair": "Resolution",
}

_ASK = ">= 99 % event, code and device"


def _scorer(name: str, file: str, score: Callable[[Path], Score], ask: str = _ASK, bar: float = 0.99) -> Scorer:
    return Scorer(name=name, files=(file,), ask=ask, bar=bar, score=score)


SCORERS: list[Scorer] = [
    _scorer("kernel lines", "gpud/kmsg_lines.tsv", gpud_lines),
    _scorer("kernel severities and repairs", "gpud/kmsg_lines.tsv", gpud_policy, "agreement", 0.8),
    _scorer("kernel sequences", "gpud/kmsg_sequences.jsonl", gpud_sequences),
    _scorer("kernel lines: Xid", "nvsentinel/xid_lines.jsonl", nvsentinel_xid),
    _scorer("kernel lines: SXid", "nvsentinel/sxid_lines.jsonl", nvsentinel_sxid),
    _scorer("kernel sequences: NIC, bus", "nvsentinel/kernel_sequences.jsonl", nvsentinel_sequences),
    _scorer("kernel lines: NIC drivers", "nvsentinel/nic_driver_lines.jsonl", nvsentinel_nic),
    Scorer(
        name="kernel lines: others",
        files=("imbue/lines.jsonl", "issues/format_variants.jsonl"),
        ask=_ASK,
        bar=0.99,
        score=others,
    ),
    Scorer(name="kernel lines: harmless", files=(), ask="0 positives", bar=0.0, score=harmless, at_most=True),
    _scorer("Xid catalogue", "nvsentinel/nvidia_xid_catalog.tsv", xid_catalogue, "same repair"),
    _scorer("Xid causes", "gcm/xid_causes_meta.tsv", xid_causes, "a cause it lists", 0.95),
    _scorer("SXid catalogue", "gpud/sxid_catalog.tsv", sxid_catalogue, "same severity"),
    _scorer(
        "NVLink 5 decode",
        "nvsentinel/nvidia_xid_144_150_decode.tsv",
        nvlink5_catalogue("nvsentinel/nvidia_xid_144_150_decode.tsv", _NVIDIA_COLUMNS),
        "same repair, severity",
    ),
    _scorer(
        "NVLink 5 rules",
        "gpud/nvlink5_decode_rules.tsv",
        nvlink5_catalogue("gpud/nvlink5_decode_rules.tsv", _GPUD_COLUMNS),
        "same repair, severity",
    ),
    _scorer("rules of repeats", "nvsentinel/analyzer_rules.tsv", analyzer_rules, "each rule, same action"),
    _scorer("repeats", "nvsentinel/recurrence_rules.jsonl", recurrence, "each case"),
    _scorer("repeats and recoveries", "nvsentinel/supplement.jsonl", supplement, "each case"),
]

UNSCORED: dict[str, str] = {
    "nvsentinel/dcgm_error_actions.csv": "DCGM's own error codes, which nothing here reads (values come by NVML)",
    "nvsentinel/nvidia_resolution_buckets.tsv": "what NVIDIA's words mean; the catalogue's line uses them",
    "nvsentinel/nvidia_xid_columns_guide.tsv": "what the catalogue's columns mean",
    "npd/labels.jsonl": "names its input files, which are not there",
    "azurehpc/verdicts.jsonl": "names its input files, which are not there",
}
