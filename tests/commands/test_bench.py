"""``whichrank bench``: real simulations, judged for real; what is late, broken or foreign counts as it should."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from whichrank.commands.bench.command import bench
from whichrank.commands.bench.one_run import Asked, run_apart, truth_before

#: The same words as the operators', by their own replay of what was kept: incidents.jsonl of a foreign detector.
REPLAYS = """#!{python}
import sys
from pathlib import Path
from whichrank.commands.replay import replay_run
from whichrank.commands.run_directory import RunDirectory
from whichrank.telemetry.incident import canonical_line
folder, out = map(Path, sys.argv[1:])
assert sorted(each.name for each in folder.iterdir()) == ["capture", "run.json"]
assert "exception" not in (folder / "run.json").read_text()
out.write_bytes(b"".join(canonical_line(each) for each in replay_run(RunDirectory(folder)).revisions))
"""


def program(folder: Path, text: str) -> Path:
    path = folder / "detector.py"
    path.write_text(text.format(python=sys.executable))
    path.chmod(0o755)
    return path


def run(capsys: pytest.CaptureFixture[str], *only: str, **more: Any) -> tuple[int, dict[str, Any]]:
    given = {"ranks": 16, "runs": 1, "seed": 1, "detector": None, "limit_s": 300.0, "as_json": True, **more}
    code = bench(only=only, **given)
    return code, json.loads(capsys.readouterr().out)


def measured(told: dict[str, Any], name: str) -> dict[str, Any]:
    return next(line for line in told["lines"] if line["name"] == name)


def test_ours_and_a_foreign_detector_are_scored_alike(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, ours = run(capsys, "exception", "healthy")
    assert code in (0, 1)
    assert measured(ours, "crash: top-1")["share"].startswith("1 of 1 ")
    assert measured(ours, "pages without a fault") == {
        "name": "pages without a fault", "asked": "0", "measured": "0", "share": "1 of 1", "ok": True,
    }  # fmt: skip
    assert [each["faults"][0]["said"] for each in ours["simple"][:1]] != [""]
    _, theirs = run(capsys, "exception", "healthy", detector=program(tmp_path, REPLAYS))
    assert theirs["problems"] == []
    assert theirs["runs"] == ours["runs"]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("#!{python}\nimport time\ntime.sleep(60)", "not done after 20 s"),
        ("#!{python}\nraise SystemExit('no such thing')", "ended with 1: no such thing"),
        ("#!{python}", "incidents.jsonl: No such file"),
        ("#!{python}\nimport sys\nopen(sys.argv[2], 'w').write('nonsense')", "incidents.jsonl, line 1"),
    ],
)
def test_a_detector_that_fails_is_wrong_and_says_why(
    text: str, why: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, told = run(capsys, "exception", detector=program(tmp_path, text), limit_s=20.0)
    assert code == 1
    assert why in told["problems"][0]
    assert not told["runs"][0]["faults"][0]["top_1"]
    assert measured(told, "runs out of time")["ok"] == ("not done" not in why)


def test_a_run_that_takes_too_long_is_wrong() -> None:
    result = run_apart(Asked(scenario="exception", ranks=16, seed=1), limit_s=0.01)
    assert result.out_of_time
    assert [fault["fault"] for fault in result.truth["faults"]] == ["exception"]


def test_what_cannot_be_laid_out_counts_as_not_run(capsys: pytest.CaptureFixture[str]) -> None:
    code, told = run(capsys, "metadata_storm")
    assert code == 1
    assert "16 ranks do not make 4 jobs" in told["problems"][0]
    with pytest.raises(ValueError, match="4 jobs"):
        truth_before(Asked(scenario="metadata_storm", ranks=16, seed=1))


def test_what_cannot_be_run_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given: dict[str, Any] = {"ranks": 16, "runs": 1, "seed": 1, "limit_s": 10.0, "as_json": False}
    assert bench(only=["nothing"], detector=None, **given) == 2
    assert bench(only=[], detector=tmp_path / "absent", **given) == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 2
    assert "there is no scenario 'nothing'" in lines[0]
    assert "absent: no such file" in lines[1]
