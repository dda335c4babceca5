"""``whichrank diagnose kernel-log``: files, stdin, gz; a line each; JSON; what cannot be read."""

from __future__ import annotations

import gzip
import json
import os
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.diagnosis.kernel_log.cases import READ_S
from whichrank.commands.main import app

LOG = """\
Mar  4 05:06:07 n1 kernel: NVRM: Xid (PCI:0000:1b:00): 31, pid=1, name=x, MMU Fault
Mar  4 05:06:17 n1 kernel: NVRM: Xid (PCI:0000:1b:00): 31, pid=1, name=x, MMU Fault
Mar  4 05:30:00 n1 kernel: NVRM: Xid (PCI:0000:1b:00): 31, pid=1, name=x, MMU Fault
Mar  4 05:30:01 n1 kernel: NVRM: Xid (PCI:0000:1b:00): 45, pid=1, name=x, Ch 00000008
Mar  4 05:31:00 n1 kernel: an ordinary line
"""


def run(*arguments: str, given: str | bytes | None = None) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, ["diagnose", "kernel-log", *arguments], input=given)
    return result.exit_code, result.stdout, result.stderr


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "kern.log"
    path.write_text(LOG)
    os.utime(path, (READ_S, READ_S))
    return path


def test_a_line_for_each_fault_with_a_count_of_repeats(log: Path) -> None:
    status, out, _ = run(str(log))
    assert status == 0
    lines = out.splitlines()
    assert [line.split()[:7] for line in lines[1:4]] == [
        ["2025-03-04", "05:06:07", "n1", "xid", "31", "0000:1b:00", "error"],
        ["2025-03-04", "05:30:00", "n1", "xid", "31", "0000:1b:00", "error"],
        ["2025-03-04", "05:30:01", "n1", "xid", "45", "0000:1b:00", "warning"],
    ]
    assert [line.split()[-1] for line in lines[1:4]] == ["2", "1", "1"]
    assert "cascade" in lines[3]
    assert any("repeated_mmu_fault_on_gpu (2): hardware" in line for line in lines[4:])


def test_json_is_one_document_with_a_schema(log: Path) -> None:
    status, out, _ = run(str(log), "--json")
    document = json.loads(out)
    assert (status, document["schema"], document["events_read"]) == (0, 1, 4)
    first = document["events"][0]
    assert (first["event"], first["code"], first["device"], first["count"], first["host"]) == (
        "xid",
        "31",
        "0000:1b:00",
        2,
        "n1",
    )
    assert {c["rule"] for c in document["conclusions"]} >= {"repeated_mmu_fault_on_gpu"}


def test_gz_and_stdin_say_the_same(log: Path, tmp_path: Path) -> None:
    packed = tmp_path / "kern.log.1.gz"
    packed.write_bytes(gzip.compress(LOG.encode()))
    os.utime(packed, (READ_S, READ_S))
    assert run(str(packed))[1] == run(str(log))[1]
    plain, piped = json.loads(run("--json", str(log))[1]), json.loads(run("--json", "-", given=LOG)[1])
    assert [e["event"] for e in plain["events"]] == [e["event"] for e in piped["events"]]


def test_the_driver_can_be_told(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_text("NVRM: Xid (PCI:0009:01:00): 145, RLW_REMAP Nonfatal XC1 i0 Link 10 (0x00000004 0x00000040)\n")
    repairs = [
        json.loads(run("--json", "--driver", driver, str(path))[1])["events"][0]["repair"]
        for driver in ("570.148.08", "580.65")
    ]
    assert repairs == ["ignore", "reset_gpu"]


def test_no_fault_is_said(tmp_path: Path) -> None:
    path = tmp_path / "quiet"
    path.write_text("an ordinary line\n")
    assert run(str(path))[:2] == (0, "no fault found\n")


def test_what_cannot_be_read_is_one_line_and_the_rest_is_shown(log: Path, tmp_path: Path) -> None:
    cut = tmp_path / "cut.gz"
    cut.write_bytes(gzip.compress(LOG.encode() * 50)[:-20])
    for bad in (str(tmp_path / "absent"), str(tmp_path), str(cut)):
        status, out, err = run(bad, str(log))
        assert status == 2
        assert err.startswith(f"whichrank: {bad}: ")
        assert err.count("\n") == 1
        assert "0000:1b:00" in out


def test_nothing_in_a_log_reaches_the_terminal_as_a_command(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_bytes(b"nfs: server \x1b]0;x\x07[red]evil[/red] not responding, still trying\n")
    _, out, _ = run(str(path))
    assert "\x1b" not in out
    assert "[red]evil[/red]" in out
