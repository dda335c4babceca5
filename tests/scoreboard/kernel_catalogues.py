"""Catalogues of faults, ours against those of NVIDIA and others: the same repair, cause and severity for each code."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from tests.diagnosis.kernel_log.cases import READ_S
from tests.scoreboard.kernel_tally import Tally, events_of, scorer, tsv
from tests.scoreboard.score import Score, Scorer
from whichrank.diagnosis.kernel_log import EventSeverity
from whichrank.diagnosis.kernel_log.xid import sxid_policies, xid_policies

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
        ok = policy is not None and (policy.severity is EventSeverity.FATAL) == (row["event_type"] == "Fatal")
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
                ok = ok and (said[0].severity is EventSeverity.FATAL) == (word == "Fatal")
                tally.add(f"line {number} {column}", ok, [(e.repair.value, e.facts) for e in said])
        return tally.score()

    return score


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

SCORERS: list[Scorer] = [
    scorer("Xid catalogue", "nvsentinel/nvidia_xid_catalog.tsv", xid_catalogue, "same repair"),
    scorer("Xid causes", "gcm/xid_causes_meta.tsv", xid_causes, "a cause it lists", 0.95),
    scorer("SXid catalogue", "gpud/sxid_catalog.tsv", sxid_catalogue, "same severity"),
    scorer(
        "NVLink 5 decode",
        "nvsentinel/nvidia_xid_144_150_decode.tsv",
        nvlink5_catalogue("nvsentinel/nvidia_xid_144_150_decode.tsv", _NVIDIA_COLUMNS),
        "same repair, severity",
    ),
    scorer(
        "NVLink 5 rules",
        "gpud/nvlink5_decode_rules.tsv",
        nvlink5_catalogue("gpud/nvlink5_decode_rules.tsv", _GPUD_COLUMNS),
        "same repair, severity",
    ),
]
