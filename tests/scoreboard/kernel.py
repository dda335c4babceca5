"""Kernel lines: what the labelled lines and sequences of other monitors say, and what we say.

Inputs are read from the input columns only. Our words for events and repairs are translated into theirs by the names
that the rules themselves list (``also``) and by two tables (``kernel_tally.NVSENTINEL_ACTIONS``, ``GPUD_ACTIONS``).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

from tests.diagnosis.kernel_log.cases import READ_S, WRAPPERS
from tests.diagnosis.kernel_log.harmless import SHAPES, harmless_lines
from tests.scoreboard.kernel_tally import (
    ASK,
    NVSENTINEL_ACTIONS,
    PCI,
    Row,
    Tally,
    changes,
    events_of,
    jsonl,
    lines_of,
    names,
    one_line,
    scored,
    scorer,
    tsv,
)
from tests.scoreboard.score import Score, Scorer
from whichrank.diagnosis.kernel_log import EventSeverity, KernelEvent, KernelLogReader
from whichrank.diagnosis.kernel_log.stamps import Calendar

#: Repair -> action of gpud.
GPUD_ACTIONS = {
    "ignore": "IGNORE_NO_ACTION_REQUIRED",
    "reset_gpu": "REBOOT_SYSTEM",
    "reboot_node": "REBOOT_SYSTEM",
    "follow_xid_154": "HARDWARE_INSPECTION",
    "contact_support": "HARDWARE_INSPECTION",
}
#: Groups of public issues that are kernel lines; the others are lines of jobs.
KERNEL_GROUPS = ("mlx5",)


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
        severity = "Fatal" if event.severity is EventSeverity.FATAL else "Warning"
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
    return scored(file, jsonl(folder / file), "case", lines_of, check)


def _is_as_gpud_says(event: KernelEvent, expected: Row) -> bool:
    victim = re.search(r"victim process: (.+), pid: (\d+)", expected["message"])
    process, pid = (victim[1], victim[2]) if victim else (expected["process"], expected["pid"])
    cpu = expected.get("cpu")
    is_same = event.process == process and str(event.pid) == pid and cpu in (None, event.facts.get("cpu"))
    return is_same and expected["event"] in names(event)


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
            and (event.severity is EventSeverity.FATAL) == row["fatal"]
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
            is_same &= (event.severity is EventSeverity.FATAL) == expected["fatal"]
            is_same &= "pci" not in expected or event.device == rename(expected["pci"])
            is_same &= event.facts.get("cpu") == str(expected["cpu"]) if "cpu" in expected else True
            is_same &= NVSENTINEL_ACTIONS[event.repair.value] == expected.get(
                "action", NVSENTINEL_ACTIONS[event.repair.value]
            )
            if not is_same:
                return False
        return True

    file = "nvsentinel/kernel_sequences.jsonl"
    return scored(file, jsonl(folder / file), "name", lines_of, check)


def nvsentinel_nic(folder: Path) -> Score:
    def check(row: Row, said: list[tuple[int, KernelEvent]], rename: Callable[[str], str]) -> bool:
        if row["event"] is None:
            return not said
        if len(said) != 1:
            return False
        event = said[0][1]
        address = PCI.search(rename(row["line"]))
        return (
            row["event"] in names(event)
            and (event.severity is EventSeverity.FATAL) == row["fatal"]
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
            ok = ok and (events[0].severity is EventSeverity.FATAL) == row["expect"].get("fatal", False)
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


SCORERS: list[Scorer] = [
    scorer("kernel lines", "gpud/kmsg_lines.tsv", gpud_lines),
    scorer("kernel severities and repairs", "gpud/kmsg_lines.tsv", gpud_policy, "agreement", 0.8),
    scorer("kernel sequences", "gpud/kmsg_sequences.jsonl", gpud_sequences),
    scorer("kernel lines: Xid", "nvsentinel/xid_lines.jsonl", nvsentinel_xid),
    scorer("kernel lines: SXid", "nvsentinel/sxid_lines.jsonl", nvsentinel_sxid),
    scorer("kernel sequences: NIC, bus", "nvsentinel/kernel_sequences.jsonl", nvsentinel_sequences),
    scorer("kernel lines: NIC drivers", "nvsentinel/nic_driver_lines.jsonl", nvsentinel_nic),
    Scorer(
        name="kernel lines: others",
        files=("imbue/lines.jsonl", "issues/format_variants.jsonl"),
        ask=ASK,
        bar=0.99,
        score=others,
    ),
    Scorer(name="kernel lines: harmless", files=(), ask="0 positives", bar=0.0, score=harmless, at_most=True),
]

UNSCORED: dict[str, str] = {
    "nvsentinel/dcgm_error_actions.csv": "DCGM's own error codes, which nothing here reads (values come by NVML)",
    "nvsentinel/nvidia_resolution_buckets.tsv": "what NVIDIA's words mean; the catalogue's line uses them",
    "nvsentinel/nvidia_xid_columns_guide.tsv": "what the catalogue's columns mean",
    "npd/labels.jsonl": "names its input files, which are not there",
    "azurehpc/verdicts.jsonl": "names its input files, which are not there",
}
