"""gcm's health-check cases and trees of good and bad nodes against ``diagnosis/health_checks``.

Only cases whose input is in the row or in the folder of trees; the others (an empty machine, a measured bandwidth,
trees that are not there) are left out of n.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.scoreboard.counters import json_lines
from tests.scoreboard.score import Score, Scorer
from whichrank.diagnosis.health_checks import host_checks, readings
from whichrank.diagnosis.health_checks.expectations import expecting, judge
from whichrank.diagnosis.health_checks.inventory import ethernet_links, infiniband_links, pci_links
from whichrank.diagnosis.health_checks.outcome import CheckOutcome, CheckStatus, worst

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


def numeric(check: str, name: str, reading: Callable[[str | None], float | None]) -> Callable[[Row, Path], CheckStatus]:
    def run(row: Row, trees: Path) -> CheckStatus:
        return judge(expecting(check, wanted(row, name)), reading(text_of(row))).status

    return run


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


def _hca(row: Row, trees: Path) -> CheckStatus:
    expected, text = row["params"]["expected_count"]
    return judge(expecting("hca_count", expected), readings.hca_count(text)).status


def _interfaces(row: Row, trees: Path) -> CheckStatus:
    text = text_of(row)
    if text is None:
        return CheckStatus.WARN
    return judge(expecting("ib_interfaces", wanted(row, "interface-num")), readings.number(text)).status


def _governor(row: Row, trees: Path) -> CheckStatus:
    return judge(expecting("frequency_governor", option(row, "governor")), text_of(row)).status


def _memory(row: Row, trees: Path) -> CheckStatus:
    found = readings.numbers(text_of(row), 2)
    modules, size = found or (None, None)
    total = modules * size if modules is not None and size is not None else None
    return worst(
        [
            judge(expecting("memory_modules", wanted(row, "dimms")), modules).status,
            judge(expecting("memory_size", wanted(row, "total-size")), total).status,
        ]
    )


def _process(row: Row, trees: Path) -> CheckStatus:
    text = text_of(row)
    name = row["cli"].split("-p ")[1].rstrip("'\"")
    count = None if text is None else float(sum(name in line for line in text.splitlines()))
    return judge(expecting("processes"), count).status


def _clock(row: Row, trees: Path) -> CheckStatus:
    return judge(expecting("clock_source", row["params"]["expected_source"]), row["params"]["actual_source"]).status


def _availability(row: Row, trees: Path) -> CheckStatus:
    warn, critical = wanted(row, "warning_threshold"), wanted(row, "critical_threshold")
    return judge(
        expecting("nodes_unfit", warn=warn, critical=critical),
        host_checks.unfit_percent(readings.nodes_by_state(text_of(row))),
    ).status


def _disk(at: int) -> Callable[[Row, Path], CheckStatus]:
    def run(row: Row, trees: Path) -> CheckStatus:
        warn, critical = wanted(row, "usage-warning-threshold"), wanted(row, "usage-critical-threshold")
        found = readings.percents(text_of(row))
        return judge(
            expecting("disk_usage", warn=warn, critical=critical),
            float(found[at]) if len(found) > abs(at) - 1 else None,
        ).status

    return run


def _mounted(row: Row, trees: Path) -> CheckStatus:
    """The text is what was found for the folder; nothing found: not mounted."""
    text = text_of(row)
    return host_checks.mounts(["x"], None if text is None else ["x"] if readings.mounted(text) else []).status


def _exists(row: Row, trees: Path) -> CheckStatus:
    is_wanted = "--should-not-exist" not in row["cli"]
    return host_checks.exists("it", row["params"]["existance_tester"], wanted=is_wanted).status


def _mountpoint(row: Row, trees: Path) -> CheckStatus:
    fstab, now = (
        each["stdout"].split() if each["returncode"] == 0 else None for each in row["params"]["mountpoint_tester"]
    )
    return host_checks.mounts(fstab, now).status


def _disk_size(row: Row, trees: Path) -> CheckStatus:
    params = row["params"]
    operator = params.get("operator") or option(row, "operator", ">")
    value = params.get("expected_value", params.get("value"))
    reading = readings.size_bytes(params.get("output") or params.get("actual_value"))
    return judge(expecting("disk_size", value * 2**40, operator=operator), reading).status


def _retired(row: Row, trees: Path) -> CheckStatus:
    single, double, pending = row["params"]["retired_pg_info"]
    limit = wanted(row, "gpu_retired_pages_threshold")
    return worst(
        [
            judge(expecting("retired_pages", limit), single + double).status,
            judge(expecting("pending_pages"), pending).status,
        ]
    )


def _corrected(row: Row, trees: Path) -> CheckStatus:
    limit = wanted(row, "ecc_corrected_volatile_threshold")
    return judge(expecting("ecc_corrected", limit), row["params"]["ecc_corrected_total"]).status


def _vbios(row: Row, trees: Path) -> CheckStatus:
    found = row["params"]["vbios_list"]
    return worst(judge(expecting("vbios", row["params"]["vbios"]), each).status for each in found)


CASES: dict[str, Callable[[Row, Path], CheckStatus]] = {
    "test_process_dcgmi_nvlink_error_output": _nvlink_errors,
    "test_process_dcgmi_nvlink_status_output": outcome_of(host_checks.nvlink_is_up),
    "test_check_ethlink": _from_tree(ethernet_links, "ethlink_tester"),
    "test_check_iblink": _from_tree(infiniband_links, "iblink_tester"),
    "test_check_pci": _from_tree(pci_links, "pci_tester"),
    "test_check_hca": _hca,
    "test_ibstat_physical_state": outcome_of(lambda text: host_checks.ports_are(text, "Physical state", "LinkUp")),
    "test_ibstat_state": outcome_of(lambda text: host_checks.ports_are(text, "State", "Active")),
    "test_ib_interfaces_state": _interfaces,
    "test_check_sel": outcome_of(host_checks.event_log),
    "test_uptime": numeric("uptime", "uptime-threshold", readings.first_number),
    "test_check_module": numeric("kernel_module", "mod_count", readings.number),
    "test_processor_freq": numeric("processor_frequency", "proc_freq", readings.number),
    "test_cpufreq_governor": _governor,
    "test_check_mem_size": _memory,
    "test_check_clocksource": _clock,
    "test_service_status": _process,
    "test_check_sensors": outcome_of(host_checks.sensors),
    "test_slurmctld_count": numeric("slurm_controllers", "slurmctld-count", readings.number),
    "test_node_slurm_state": outcome_of(host_checks.slurm_node),
    "test_cluster_availability": _availability,
    "test_disk_usage": _disk(0),
    "test_inode_usage": _disk(-1),
    "test_mounted_directory": _mounted,
    "test_file_existance": _exists,
    "test_file_existance_should_not_exist": _exists,
    "test_dir_existance": _exists,
    "test_check_mountpoint": _mountpoint,
    "test_disk_size": _disk_size,
    "test_disk_size_permutations": _disk_size,
    "test_link_flaps": outcome_of(host_checks.lost_carriers),
    "test_io_errors": outcome_of(host_checks.io_errors),
    "test_check_gpu_num": lambda row, trees: judge(expecting("gpu_count", 8), row["params"]["gpu_num"]).status,
    "test_check_gpu_retired_pages": _retired,
    "test_check_ecc_corrected_volatile_total": _corrected,
    "test_vbios_mismatch": _vbios,
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
