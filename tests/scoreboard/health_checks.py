"""gcm's health-check cases and trees of good and bad nodes against ``diagnosis/health_checks``.

Only cases whose input is in the row or in the folder of trees; the others (an empty machine, a measured bandwidth,
trees that are not there) are left out of n; so are plain values against a limit, which ``whichrank check`` reads from
the kernel and the driver, not out of a tool's words.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.scoreboard.counters import json_lines
from tests.scoreboard.score import Score, Scorer
from whichrank.diagnosis.health_checks import host_checks
from whichrank.diagnosis.health_checks.inventory import ethernet_links, infiniband_links, pci_links
from whichrank.diagnosis.health_checks.outcome import CheckOutcome, CheckStatus

Row = dict[str, Any]


def score_cases(folder: Path) -> Score:
    trees = folder / "gcm" / "sysfs_manifests"
    right, wrong = 0, []
    for row in json_lines(folder / "gcm" / "health_check_cases.jsonl"):
        try:
            said = judged(row, trees)
        except FileNotFoundError:
            continue
        if said is None:
            continue
        if said.value == row["expected_exit"]:
            right += 1
        else:
            wrong.append(f"{row['test']} {row['index']}: expected {row['expected_exit']}, said {said.value}")
    return Score(right=right, total=right + len(wrong), wrong=wrong)


def score_trees(folder: Path) -> Score:
    """Which tree is good and which interface of a bad one is wrong: the file's name says what was done to it."""
    trees = folder / "gcm" / "sysfs_manifests"
    inventory = read(trees, "DGX_A100.json")
    wrong = []
    paths = sorted(path for path in trees.iterdir() if path.name not in ("DGX_A100.json", "empty.json"))
    # Nodes of other makes, whose list of hardware is not there.
    paths = [path for path in paths if not path.name.startswith("cache_")]
    for path in paths:
        tree = read(trees, path.name)
        if path.name.startswith("eth_"):
            checks = [ethernet_links(inventory, tree)]
        else:
            checks = [infiniband_links(inventory, tree)]
            checks += [pci_links(inventory, tree)] if any("pci_bus" in name for name in tree) else []
        said = [reason for check in checks if check.status is not CheckStatus.OK for reason in check.reasons]
        expected = TREES.get(path.stem, ())
        missing = [word for word in expected if not any(word in reason for reason in said)]
        if missing or bool(expected) is not bool(said):
            wrong.append(f"{path.name}: expected {expected or 'OK'}, said {said}")
    return Score(right=len(paths) - len(wrong), total=len(paths), wrong=wrong)


#: Words that the reasons must hold, by what the tree's name says; absent: a good tree, or one whose firmware field was
#: blanked out by whoever published it.
TREES: dict[str, tuple[str, ...]] = {
    "eth_learn_down_intf": ("enp225s0f0",),
    "eth_learn_mtu_bad": ("MTU of 1500",),
    "eth_learn_nic_swap": ("swapped",),
    "eth_learn_degraded_intf": ("front0", "200000"),
    "learn_ib_intf_bad_rate": ("100 Gb/sec",),
    "learn_ib_intf_bad_version": ("firmware",),
    "learn_ib_misbound_if": ("bound",),
    "learn_ib_intf_operstate_down": ("down",),
    "compute_samsung980pro": ("firmware fw_ver",),
    "compute_samsung980pro-downgraded": ("8 GT/s",),
}


def read(trees: Path, name: str) -> Any:
    return json.loads((trees / name).read_text())


def judged(row: Row, trees: Path) -> CheckStatus | None:
    """None: the row has no input."""
    check = CASES.get(row["test"])
    if row["test"] == "test_check_pci" and "blockdev" in row["source"]:
        return None
    return check(row, trees) if check else None


def text_of(row: Row) -> str | None:
    """What the command wrote; None: it failed. The source keeps the text in "returncode" where there is one pipe."""
    tester = next((value for value in row["params"].values() if isinstance(value, dict) and "stdout" in value), {})
    code, out = tester.get("returncode"), tester.get("stdout")
    if isinstance(code, int):
        return out if code == 0 else None
    return None if str(code).lower().startswith("error") else str(code)


def option(row: Row, name: str, default: str = "") -> str:
    found = re.search(rf"--{name}[= ]'?([^ ']+)", row["cli"])
    return found.group(1) if found else default


def wanted(row: Row, name: str) -> float:
    return float(option(row, name))


def outcome_of(check: Callable[[str | None], CheckOutcome]) -> Callable[[Row, Path], CheckStatus]:
    return lambda row, trees: check(text_of(row)).status


def _nvlink_errors(row: Row, trees: Path) -> CheckStatus:
    limits = {
        "CRC Data Error": int(wanted(row, "data_error_threshold")),
        "CRC FLIT Error": int(wanted(row, "flit_error_threshold")),
        "Recovery Error": int(wanted(row, "recovery_error_threshold")),
        "Replay Error": int(wanted(row, "replay_error_threshold")),
    }
    return host_checks.nvlink_has_no_errors(text_of(row), limits).status


def _from_tree(check: Callable[[Any, Any], CheckOutcome], key: str) -> Callable[[Row, Path], CheckStatus]:
    def run(row: Row, trees: Path) -> CheckStatus:
        return check(read(trees, row["params"]["manifest_file"]), read(trees, row["params"][key])).status

    return run


def _exists(row: Row, trees: Path) -> CheckStatus:
    is_wanted = "--should-not-exist" not in row["cli"]
    return host_checks.exists("it", row["params"]["existance_tester"], wanted=is_wanted).status


def _mountpoint(row: Row, trees: Path) -> CheckStatus:
    fstab, now = (
        each["stdout"].split() if each["returncode"] == 0 else None for each in row["params"]["mountpoint_tester"]
    )
    return host_checks.mounts(fstab, now).status


CASES: dict[str, Callable[[Row, Path], CheckStatus]] = {
    "test_process_dcgmi_nvlink_error_output": _nvlink_errors,
    "test_process_dcgmi_nvlink_status_output": outcome_of(host_checks.nvlink_is_up),
    "test_check_ethlink": _from_tree(ethernet_links, "ethlink_tester"),
    "test_check_iblink": _from_tree(infiniband_links, "iblink_tester"),
    "test_check_pci": _from_tree(pci_links, "pci_tester"),
    "test_ibstat_physical_state": outcome_of(lambda text: host_checks.ports_are(text, "Physical state", "LinkUp")),
    "test_ibstat_state": outcome_of(lambda text: host_checks.ports_are(text, "State", "Active")),
    "test_check_sel": outcome_of(host_checks.event_log),
    "test_check_sensors": outcome_of(host_checks.sensors),
    "test_node_slurm_state": outcome_of(host_checks.slurm_node),
    "test_file_existance": _exists,
    "test_file_existance_should_not_exist": _exists,
    "test_dir_existance": _exists,
    "test_check_mountpoint": _mountpoint,
    "test_link_flaps": outcome_of(host_checks.lost_carriers),
    "test_io_errors": outcome_of(host_checks.io_errors),
}

SCORERS = [
    Scorer(
        name="health checks",
        files=["gcm/health_check_cases.jsonl"],
        ask="k of n",
        bar=0.95,
        score=score_cases,
    ),
    Scorer(
        name="hardware trees",
        files=["gcm/sysfs_manifests/*"],
        ask="k of n",
        bar=0.95,
        score=score_trees,
    ),
]
