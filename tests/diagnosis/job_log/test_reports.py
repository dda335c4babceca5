"""Logs of every class and stack in the words of real programs (``reports.toml``), and look-alikes of failures.

What is demanded of each is judged as the labelled logs of ``tests/outside`` are.
"""

from __future__ import annotations

import io
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.outside.assertions import job_log
from whichrank.commands.diagnose.job_log_document import write_job_log
from whichrank.diagnosis.job_log.job_log_reader import LogSource, read_job_logs

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib  # type: ignore[import-not-found,unused-ignore]

HERE = Path(__file__).parent
REPORTS: list[dict[str, Any]] = tomllib.loads((HERE / "reports.toml").read_text())["case"]
HARMLESS: list[dict[str, Any]] = tomllib.loads((HERE / "harmless.toml").read_text())["case"]
LINES = (HERE / "harmless_lines.txt").read_text().splitlines()


def read(text: str) -> dict[str, Any]:
    return write_job_log(read_job_logs([LogSource(name="log.txt", file=io.BytesIO(text.encode()))]))


@pytest.mark.parametrize("case", REPORTS, ids=lambda case: case["name"])
def test_a_report_is_read_as_an_engineer_would(case: dict[str, Any]) -> None:
    assert job_log(read(case["log"].lstrip("\n")), case["must"]) == []


@pytest.mark.parametrize("case", HARMLESS, ids=lambda case: case["name"])
def test_nothing_failed(case: dict[str, Any]) -> None:
    assert job_log(read(case["log"].lstrip("\n")), {"silent": True}) == []


@pytest.mark.parametrize("line", LINES)
def test_a_line_alone_tells_of_no_failure(line: str) -> None:
    assert read(line + "\n")["class"] is None


def test_names_are_used_once() -> None:
    names = [case["name"] for case in (*REPORTS, *HARMLESS)]
    assert len(names) == len(set(names))
