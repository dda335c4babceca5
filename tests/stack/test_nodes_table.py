"""What ``python -m tests.stack.nodes`` concludes of stored runs: a wrong, missing or late one is SHORT."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from tests.stack.nodes.kinds import KINDS
from tests.stack.nodes.table import percentile, report, stored_name

HANG = next(kind for kind in KINDS if kind.name == "hang")
RUNS = 30


def run(**more: Any) -> dict[str, Any]:
    return {"problems": [], "delay_s": 3.0, "limit_s": 5.0, "gaps": [], **more}


def concluded(folder: Path, runs: list[dict[str, Any]], twins: list[dict[str, Any]]) -> tuple[int, str]:
    for embedded, stored in ((False, runs), (True, twins)):
        for repeat, result in enumerate(stored):
            (folder / f"{stored_name(HANG.name, repeat, embedded=embedded)}.json").write_text(json.dumps(result))
    said = io.StringIO()
    status = report(Console(file=said, width=150), folder, [HANG], {HANG.name: RUNS}, twins=True)
    return status, said.getvalue()


def test_all_right_is_no_failure(tmp_path: Path) -> None:
    status, said = concluded(tmp_path, [run()] * RUNS, [run(delay_s=2.5, gaps=None)] * RUNS)
    assert (status, "SHORT" in said) == (0, False), said


@pytest.mark.parametrize(
    ("runs", "twins"),
    [
        ([run()] * (RUNS - 1) + [run(problems=["names [1] instead of [2]"])], [run()] * RUNS),
        ([run()] * (RUNS - 1), [run()] * RUNS),
        ([run()] * (RUNS - 1) + [run(gaps=["no span"])], [run()] * RUNS),
        ([run()] * (RUNS - 1) + [run(late_s=0.1)], [run()] * RUNS),
        ([run()] * RUNS, [run(delay_s=1.9)] * RUNS),
        ([run()] * RUNS, [run()] * 19),
        ([run()] * RUNS, []),
    ],
    ids=["a wrong one", "a missing one", "a gap", "a late one", "later than embedded", "few twins", "no twins"],
)
def test_one_that_is_not_is_a_failure(tmp_path: Path, runs: list[dict[str, Any]], twins: list[dict[str, Any]]) -> None:
    status, said = concluded(tmp_path, runs, twins)
    assert (status, "SHORT" in said) == (1, True), said


def test_a_percentile_is_one_of_the_values() -> None:
    assert percentile([float(n) for n in range(1, 21)], 0.95) == 19.0
    assert percentile([4.0], 0.95) == 4.0
