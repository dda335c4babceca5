"""NIC and InfiniBand series, port states and sysfs readings against ``diagnosis/counters``."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from tests.scoreboard.score import Score, Scorer
from whichrank.diagnosis.counters.enough_ports import judge_ports
from whichrank.diagnosis.counters.growth import Latch, LatchEvent, growth, rate_per
from whichrank.diagnosis.counters.port_conditions import PortCondition
from whichrank.diagnosis.counters.port_watch import PortWatch
from whichrank.diagnosis.counters.rules import (
    UNIT_S,
    CounterRule,
    ExpectedPorts,
    Grade,
    LinkRules,
    RuleKind,
    counter_rules,
    expected_ports,
    link_rules,
)
from whichrank.diagnosis.counters.sample import (
    Layer,
    NodeSample,
    PortSample,
    bytes_of,
    parse_layer,
    parse_physical,
    parse_rate,
    parse_state,
)
from whichrank.diagnosis.counters.sysfs import read_sample

#: Mechanical changes: other names, another beginning of time, looks between that change nothing.
SHIFT_S = 1_700_000_000.0


def score_nic_series(folder: Path) -> Score:
    rows = json_lines(folder / "nvsentinel" / "nic_counter_series.jsonl")
    wrong = [f"{row['name']}: expected {nic_expected(row)}, said {said}" for row in rows
             if (said := nic_said(row, 0.0)) != nic_expected(row)]  # fmt: skip
    changed = sum(nic_said(row, SHIFT_S) == nic_expected(row) for row in rows)
    return Score(right=len(rows) - len(wrong), total=len(rows), wrong=wrong, changed=(changed, len(rows)))


def nic_expected(row: dict[str, Any]) -> object:
    if "expected_delta" in row:
        return row["expected_delta"]
    if "expected_rate" in row:
        return row["expected_rate"]
    return [(event["at"], event["event"]) for event in row["expected"]]


def nic_said(row: dict[str, Any], shift_s: float) -> object:
    if "expected_delta" in row:
        return growth(row["previous"], row["current"]).amount
    if "expected_rate" in row:
        return rate_per(row["delta"], row["elapsed_s"], UNIT_S[row["unit"]])
    kind = RuleKind.RATE if row["type"] == "velocity" else RuleKind.DELTA
    rule = CounterRule(
        name=row["counter"], counters=(row["counter"],), kind=kind, limit=row["threshold"],
        unit_s=UNIT_S[row["unit"]] if kind is RuleKind.RATE else 0.0,
        grade=Grade.CRITICAL if row.get("fatal") else Grade.WARN,
    )  # fmt: skip
    latch = Latch(is_latched="latched before" in row.get("note", ""))
    said = []
    for at, poll in enumerate(row["polls"]):
        # A saved and restored latch must go on as if nothing had been.
        latch = Latch.unpack(json.loads(json.dumps(latch.pack())))
        event = latch.take(rule, poll["t"] + shift_s, poll["value"])
        if event in (LatchEvent.BREACH, LatchEvent.RECOVERY):
            said.append((at, event.value))
    return said


def score_thresholds(folder: Path) -> Score:
    """The table of limits is ours to set; where the source has one too, they must not differ by accident."""
    rules = {rule.name: rule for rule in counter_rules()}
    rows = list(table(folder / "nvsentinel" / "nic_counter_default_thresholds.tsv"))
    wrong = []
    for row in rows:
        rule = rules.get(row["counter"])
        kind = RuleKind.RATE if row["type"] == "velocity" else RuleKind.DELTA
        unit_s = UNIT_S.get(row["unit"], 0.0)
        if rule is None or (rule.kind, rule.limit, rule.unit_s) != (kind, float(row["threshold"]), unit_s):
            wrong.append(f"{row['counter']}: expected {row['type']} {row['threshold']} {row['unit']}, have {rule}")
    return Score(right=len(rows) - len(wrong), total=len(rows), wrong=wrong)


def score_port_series(folder: Path) -> Score:
    rows = json_lines(folder / "gpud" / "infiniband_port_series.jsonl")
    wrong = [f"{row['case']}: expected {port_expected(row)}, said {said}" for row in rows
             if (said := port_said(row, device="mlx5_0", shift_s=0.0)) != port_expected(row)]  # fmt: skip
    changed = sum(port_said(row, device="ibp64s0", shift_s=SHIFT_S) == port_expected(row) for row in rows)
    return Score(right=len(rows) - len(wrong), total=len(rows), wrong=wrong, changed=(changed, len(rows)))


def port_expected(row: dict[str, Any]) -> object:
    if row["kind"] == "ports_and_rate":
        return row["expect_error"], row.get("expected_problem_ports", 0)
    return row["expected_events"]


def port_said(row: dict[str, Any], *, device: str, shift_s: float) -> object:
    if row["kind"] == "ports_and_rate":
        ports = [
            PortSample(
                device=entry["Device"], layer=parse_layer(entry.get("LinkLayer")), state=parse_state(entry["State"]),
                physical=parse_physical(entry["PhysicalState"]), rate=parse_rate(entry["RateGBSec"]),
            )
            for entry in row["ports"]
        ]  # fmt: skip
        verdict = judge_ports(ports, ExpectedPorts(ports=row["at_least_ports"], gbps=row["at_least_rate"]))
        return not verdict.is_enough, len(verdict.bad)
    limits = row["thresholds"]
    standard = link_rules()
    rules = LinkRules(
        drop_s=limits.get("drop_s", standard.drop_s), flap_down_s=limits.get("down_interval_s", standard.flap_down_s),
        flaps=limits.get("back_to_active", standard.flaps), flap_window_s=standard.flap_window_s,
        losses=standard.losses, losses_window_s=standard.losses_window_s, flap_quiet_s=standard.flap_quiet_s,
        missing_looks=standard.missing_looks,
    )  # fmt: skip
    watch = PortWatch(links=rules)
    flaps = drops = 0
    for look in row["snapshots"]:
        sample = PortSample(
            device=device, layer=Layer.INFINIBAND, state=parse_state(look["state"]),
            counters={"link_downed": look["link_downed_total"]},
        )  # fmt: skip
        for change in watch.take(NodeSample(t_s=look["t_s"] + shift_s, ports=(sample,))):
            began = change.condition.until_s is None
            flaps += began and change.condition.name == PortCondition.LINK_FLAPPING.value
            drops += began and change.condition.name == PortCondition.LINK_DOWN.value and change.condition.value > 0
        watch = PortWatch.unpack(json.loads(json.dumps(watch.pack())), links=rules)
    return flaps if row["kind"] == "ib_port_flap" else drops


def score_procfs(folder: Path) -> Score:
    rows = list(table(folder / "procfs" / "expected.tsv"))
    with TemporaryDirectory() as place:
        lay_tree(folder / "procfs" / "sys-class-infiniband.tsv", Path(place), strip="fixtures/")
        ports = {(port.device, str(port.port)): port for port in read_sample(Path(place), 0.0).ports}
    wrong = []
    for row in rows:
        said = procfs_said(row, ports)
        expected = procfs_expected(row)
        if said != expected:
            wrong.append(f"{row['device']}/{row['port']} {row['field']}: expected {expected}, said {said}")
    return Score(right=len(rows) - len(wrong), total=len(rows), wrong=wrong)


def procfs_expected(row: dict[str, str]) -> object:
    word = row["expected"]
    return int(word) if word.isdigit() else word.split("(")[0].strip().lower()


def procfs_said(row: dict[str, str], ports: dict[tuple[str, str], PortSample]) -> object:
    if row["field"].startswith("parse_rate"):
        rate = parse_rate(row["field"].split('"')[1])
        return rate.bytes_per_s if rate else None
    port = ports[row["device"], row["port"]]
    if row["field"] == "state":
        return port.state.value
    if row["field"] == "phys_state":
        return port.physical
    if row["field"] == "rate":
        return port.rate.bytes_per_s if port.rate else None
    value = port.counters.get(row["field"])
    return None if value is None else bytes_of(row["field"], value)


def score_h100_tree(folder: Path) -> Score:
    """A whole node: each file that holds a number, a state or a rate must be read; the node has what an H100 needs."""
    source = folder / "gpud" / "raw" / "infiniband" / "sys-class-infiniband-h100.tsv"
    with TemporaryDirectory() as place:
        lay_tree(source, Path(place) / "infiniband")
        sample = read_sample(Path(place), 0.0)
    ports = {(port.device, port.port): port for port in sample.ports}
    wrong: list[str] = []
    total = 0
    for path, content in tree(source):
        parts = path.split("/")
        if len(parts) < 4 or parts[1] != "ports" or parts[-1] == "lifespan":
            continue
        total += 1
        port = ports.get((parts[0], int(parts[2])))
        if port is None or not is_read(port, parts[3:], content):
            wrong.append(f"{path}: {content}")
    expected = expected_ports("NVIDIA H100 80GB HBM3")
    total += 1
    if expected is None or not judge_ports(sample.ports, expected).is_enough:
        wrong.append(f"the node has not what belongs to an H100: {expected}")
    return Score(right=total - len(wrong), total=total, wrong=wrong)


def is_read(port: PortSample, parts: list[str], content: str) -> bool:
    if len(parts) == 2:
        return port.counters.get(parts[1]) == (int(content) if content.isdigit() else None)
    if parts[0] == "state":
        return port.state.value.upper() == content.split()[-1]
    if parts[0] == "phys_state":
        return port.physical == content.split(":")[-1].strip().lower()
    if parts[0] == "rate":
        return port.rate is not None and port.rate.gbps == float(content.split()[0])
    return parts[0] != "link_layer" or port.layer.value == content.lower()


def tree(source: Path) -> Iterator[tuple[str, str]]:
    for line in source.read_text().splitlines()[1:]:
        path, _, content = line.partition("\t")
        yield path, content.replace("\\n", "\n")


def lay_tree(source: Path, place: Path, strip: str = "") -> None:
    for path, content in tree(source):
        file = place / path.removeprefix(strip)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(content)


def table(path: Path) -> Iterator[dict[str, str]]:
    with open(path, newline="") as file:
        yield from csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE)


def json_lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines() if line.strip()]


SCORERS = [
    Scorer(
        name="nic series",
        files=["nvsentinel/nic_counter_series.jsonl"],
        ask="events >= 95 %",
        bar=0.95,
        score=score_nic_series,
    ),
    Scorer(
        name="nic thresholds",
        files=["nvsentinel/nic_counter_default_thresholds.tsv"],
        ask="the table >= 95 %",
        bar=0.95,
        score=score_thresholds,
    ),
    Scorer(
        name="ib series",
        files=["gpud/infiniband_port_series.jsonl"],
        ask="flap, drop, ports >= 95 %",
        bar=0.95,
        score=score_port_series,
    ),
    Scorer(
        name="h100 tree",
        files=["gpud/raw/infiniband/sys-class-infiniband-h100.tsv"],
        ask="every reading >= 95 %",
        bar=0.95,
        score=score_h100_tree,
    ),
    Scorer(
        name="procfs",
        files=["procfs/expected.tsv", "procfs/sys-class-infiniband.tsv"],
        ask="every reading >= 95 %",
        bar=0.95,
        score=score_procfs,
    ),
]
