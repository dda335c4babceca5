"""One command measures what is missing, and nothing twice."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from benchmarks import faultbench, faultbench_record
from benchmarks.faultbench_fill import FIRST_SEED, Part, fill, main, matrix_part, missing_runs, parts_of
from benchmarks.faultbench_record import write_record
from whichrank.evaluation.bench.acceptance import held_out_runs, must_show
from whichrank.evaluation.bench.kept_runs import KeptRuns, code_version
from whichrank.evaluation.bench.one_run import AskedRun

SCENARIOS = ("exception", "process_killed")
RANKS, RUNS = 16, 2


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> KeptRuns:
    kept = KeptRuns(tmp_path_factory.mktemp("filled"), code_version())
    fill(matrix_part("small", kept, SCENARIOS, RANKS, RUNS), most_jobs=2)
    return kept


def test_what_is_missing_is_run_and_nothing_twice(filled: KeptRuns, tmp_path: Path) -> None:
    runs = [f"{name}-{RANKS}-{seed}" for name in SCENARIOS for seed in (FIRST_SEED, FIRST_SEED + 1)]
    assert filled.names() == sorted(runs)
    assert matrix_part("small", filled, SCENARIOS, RANKS, RUNS).missing == 0

    again = KeptRuns(tmp_path, code_version())
    assert filled.folder is not None
    assert again.folder is not None
    shutil.copytree(filled.folder, again.folder, dirs_exist_ok=True)
    gone = again.folder / f"{runs[1]}.json"
    gone.unlink()
    before = {path.name: path.stat().st_mtime_ns for path in again.folder.iterdir()}
    part = matrix_part("small", again, SCENARIOS, RANKS, RUNS)
    assert (part.asked, part.there, part.missing, part.took_s > 0.0) == (4, 3, 1, True)
    fill(part, most_jobs=2)
    after = {path.name: path.stat().st_mtime_ns for path in again.folder.iterdir()}
    assert after.keys() - before.keys() == {gone.name}
    assert {name: after[name] for name in before} == before


def test_seeds_go_on_from_the_first_that_was_used(filled: KeptRuns) -> None:
    before = held_out_runs(filled, RANKS)
    wanted = list(missing_runs(before, (*SCENARIOS, "healthy"), RANKS, RUNS + 1))
    seeds = {name: [run.seed - FIRST_SEED for run in wanted if run.scenario == name] for name in SCENARIOS}
    assert seeds == {"exception": [2], "process_killed": [2]}
    assert [run.seed - FIRST_SEED for run in wanted if run.scenario == "healthy"] == [0, 1, 2]
    assert [run.seed for run in wanted] == sorted(run.seed for run in wanted)
    assert not set(wanted) & {run.asked for run in before}
    assert list(missing_runs([], ("healthy",), RANKS, 1)) == [
        AskedRun(scenario="healthy", ranks=RANKS, seed=FIRST_SEED)
    ]


def test_the_plan_asks_for_all_that_the_issue_does(tmp_path: Path) -> None:
    """Where nothing is missing from the plan, no line of what must be shown is short of runs or was not run."""
    kept = KeptRuns(tmp_path, code_version())
    assert {part.name: (part.asked, part.there) for part in parts_of(kept)} == {
        "cost": (5, 0),
        "accounting": (1, 0),
        "between-jobs": (150, 0),
        "1024-ranks": (430, 0),
        "16384-ranks": (86, 0),
        "days-reference": (188, 0),
        "days-reduced": (293, 0),
    }
    lines = {line.name: line for _, lines in must_show(kept) for line in lines}
    assert lines["runs of each scenario between jobs"].asked == ">= 10"
    assert lines["runs of each scenario at 1,024 ranks"].asked == ">= 5"
    assert lines["runs of each scenario at 16,384 ranks"].asked == ">= 1"


def test_the_plan_is_shown_and_nothing_is_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(tmp_path), "--plan", "--jobs", "4"]) == 1
    shown = capsys.readouterr().out
    assert "86 scenarios x 5 at 1,024 ranks" in shown
    assert f"code {code_version()}: missing: " in shown


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--jobs", "0"], "--jobs 0: at least one is needed"),
        (["--only", "nothing"], "there is no part 'nothing'; there are cost, accounting"),
    ],
)
def test_bad_arguments_are_one_line(
    arguments: list[str], says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main([str(tmp_path), *arguments])
    assert ended.value.code == 2
    assert says in capsys.readouterr().err


def test_what_is_recorded_is_there_and_a_damaged_record_is_one_line(
    filled: KeptRuns, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    record = tmp_path / "record.jsonl.gz"
    monkeypatch.setattr("benchmarks.faultbench_fill.record_of", lambda version: record)
    write_record(record, {name: json.loads(filled.read(name) or b"{}") for name in filled.names()})
    assert main([str(tmp_path / "there"), "--plan"]) == 1
    assert KeptRuns(tmp_path / "there", code_version()).names() == filled.names()
    record.write_bytes(record.read_bytes()[:-40])
    with pytest.raises(SystemExit) as ended:
        main([str(tmp_path / "there"), "--plan"])
    assert ended.value.code == 2
    assert f"{record} is no record" in capsys.readouterr().err


@pytest.mark.parametrize(
    "command",
    [
        lambda file: main([file, "--plan"]),
        lambda file: faultbench_record.main(["unpack", file]),
        lambda file: faultbench.main(["--results", file]),
    ],
)
def test_a_folder_that_is_a_file_is_one_line(
    command: Callable[[str], int], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(SystemExit) as ended:
        command(str(tmp_path / "file"))
    assert ended.value.code == 2
    assert f"{tmp_path / 'file'}: Not a directory; a folder is needed" in capsys.readouterr().err


def test_memory_bounds_how_many_run_at_a_time() -> None:
    def part(memory_bytes: int) -> Part:
        return Part(name="", what="", asked=9, there=0, took_s=1.0, memory_bytes=memory_bytes, run=lambda jobs: None)

    total = psutil.virtual_memory().total
    assert part(1).jobs(4) == 4
    assert part(1).jobs(40) == 9  # no more than there are
    assert part(total // 4).jobs(8) == 3
    assert part(2 * total).jobs(8) == 1
    assert part(0).jobs(8) == 1  # alone


def test_what_fails_is_told_and_stays_missing(capsys: pytest.CaptureFixture[str]) -> None:
    def fails(jobs: int) -> None:
        raise RuntimeError("the judging process ended")

    fill(Part(name="cost", what="", asked=1, there=0, took_s=0.0, memory_bytes=0, run=fails), 2)
    assert "cost: the judging process ended" in capsys.readouterr().err
