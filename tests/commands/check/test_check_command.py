"""The command itself: flags, exit status, output, limits, and this machine as it is."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.commands.check.checking import check, families, tree
from whichrank.commands.check.finding import CheckFinding, Family, exit_status, verdict
from whichrank.diagnosis.health_checks.outcome import CheckStatus


def finding(status: CheckStatus) -> CheckFinding:
    return CheckFinding(family=Family.HOST, check="x", status=status, reason="y")


@pytest.mark.parametrize(
    ("statuses", "plain", "strict"),
    [
        ((CheckStatus.OK,), 0, 0),
        ((CheckStatus.OK, CheckStatus.WARN), 0, 1),
        ((CheckStatus.OK, CheckStatus.UNKNOWN), 3, 3),
        ((CheckStatus.WARN, CheckStatus.UNKNOWN), 0, 1),
        ((CheckStatus.CRITICAL, CheckStatus.WARN, CheckStatus.UNKNOWN), 1, 1),
    ],
)
def test_exit_status(statuses: tuple[CheckStatus, ...], plain: int, strict: int) -> None:
    overall = verdict(map(finding, statuses))
    assert exit_status(overall, strict=False) == plain
    assert exit_status(overall, strict=True) == strict


def test_this_machine_as_it_is() -> None:
    checked = check("--mode", "prolog")
    assert checked.document["schema"] == 1
    assert checked.document["took_s"] <= 10.0
    assert set(checked.document["families"]) == {family.value for family in Family} - {"compute", "site"}
    assert checked.document["exit_code"] == checked.exit_status
    # What of this machine may be WARN or worse is its own affair; that a check fails by itself is not.
    assert [each for each in checked.document["findings"] if "the check itself failed" in each["reason"]] == []
    assert [
        each for each in checked.document["findings"] if each["check"] == "answer" and "process" in each["reason"]
    ] == []


def test_lines_for_people_name_status_check_reason_and_remedy(tmp_path: Path) -> None:
    expect = tmp_path / "e.toml"
    expect.write_text('[services]\nunits = ["nobody-has-this"]\n')
    root = tree(tmp_path / "node")
    checked = check(*families("services"), "--root", str(root), "--expect", str(expect), as_json=False)
    first, last = checked.text.strip().splitlines()
    assert first.startswith("CRITICAL services.service nobody-has-this: it is not running -> systemctl status")
    assert last.startswith("CRITICAL: 1 of 1 findings are not OK")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--expect", "{dir}/none.toml"), "No such file"),
        (("--expect", "{dir}/bad.toml"), "bad.toml"),
        (("--expect", "{dir}/section.toml"), "[gpus] is no section; there are gpu"),
        (("--expect", "{dir}/key.toml"), "gpu.cont: no such key; there are count"),
        (("--expect", "{dir}/value.toml"), "gpu.count = 'eight': must be a whole number"),
        (("--expect", "{dir}/binary.toml"), "binary.toml"),
        (("--write", "relative"), "must be an absolute path"),
        (("--timeout", "0"), "must be 1 to 3600 seconds"),
        (("--mode", "prolog", "--only", "compute"), "nothing is left to check in mode prolog"),
        (("--root", "{dir}"), "there is no folder proc in it"),
    ],
)
def test_bad_usage_is_one_line_and_exit_status_two(tmp_path: Path, arguments: tuple[str, ...], says: str) -> None:
    for name, text in (
        ("bad", "[gpu\n"),
        ("section", "[gpus]\ncount = 1\n"),
        ("key", "[gpu]\ncont = 1\n"),
        ("value", '[gpu]\ncount = "eight"\n'),
    ):
        (tmp_path / f"{name}.toml").write_text(text)
    (tmp_path / "binary.toml").write_bytes(bytes(range(256)))
    checked = check(*(each.format(dir=tmp_path) for each in arguments), as_json=False)
    assert checked.exit_status == 2
    (line,) = checked.errors.strip().splitlines()
    assert line.startswith("whichrank: ")
    assert says in line


def test_skipped_families_are_not_run(tmp_path: Path) -> None:
    root = tree(tmp_path)
    checked = check("--mode", "prolog", "--skip", "network", "--skip", "kernel_log", "--root", str(root))
    assert {"network", "kernel_log", "compute"}.isdisjoint(checked.document["families"])


def test_a_tree_of_garbage_is_survived(tmp_path: Path) -> None:
    root = tree(tmp_path / "node")
    garbage = bytes(range(256)) * 64
    for name in ("proc/uptime", "proc/self/mountinfo", "proc/meminfo", "proc/stat", "proc/vmstat", "etc/os-release"):
        (root / name).write_bytes(garbage)
    port = root / "sys/class/infiniband/mlx5_0/ports/1"
    (port / "counters").mkdir(parents=True)
    for name in ("state", "phys_state", "rate", "link_layer", "counters/symbol_error"):
        (port / name).write_bytes(garbage)
    log = tmp_path / "log"
    log.write_bytes(garbage + b"NVRM: Xid (PCI:" + b"9" * 1_000_000 + b"\n" + garbage)
    checked = check("--mode", "prolog", "--root", str(root), "--kernel-log", str(log))
    assert checked.exit_status in (0, 1, 3)
    assert [each for each in checked.document["findings"] if "failed" in each["reason"]] == []
    assert all("\n" not in each["reason"] and "\0" not in each["reason"] for each in checked.document["findings"])
