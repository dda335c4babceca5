"""What was measured outlives the machine, and can be measured again."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import faultbench
from benchmarks.faultbench_record import RECORD, main
from whichrank.evaluation.bench.kept_runs import KeptRuns, code_version
from whichrank.evaluation.bench.matrix import Matrix, run_all


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Results of two runs."""
    folder = tmp_path_factory.mktemp("here")
    matrix = Matrix(names=("exception", "process_killed"), ranks=16, runs=1, seed=3)
    run_all(matrix, KeptRuns(folder, code_version()))
    return folder


def test_what_is_recorded_fills_an_empty_folder_and_comes_out_the_same(
    here: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kept, record = KeptRuns(here, code_version()), ["--record", str(tmp_path / "record")]
    assert main(["pack", str(here), *record]) == 0
    before = (tmp_path / "record" / f"{code_version()}.jsonl.gz").read_bytes()

    assert main(["unpack", str(tmp_path / "there"), *record]) == 0
    there = KeptRuns(tmp_path / "there", code_version())
    assert there.names() == kept.names() == ["exception-16-3", "process_killed-16-3"]
    assert [there.read(name) for name in there.names()] == [kept.read(name) for name in kept.names()]
    assert main(["pack", str(tmp_path / "there"), *record]) == 0
    assert (tmp_path / "record" / f"{code_version()}.jsonl.gz").read_bytes() == before

    assert main(["check", str(tmp_path / "there"), "--ranks", "16", "--runs", "1"]) == 0
    assert "1 of 1 runs of 2 at 16 ranks come out the same" in capsys.readouterr().out


def test_a_result_that_was_changed_is_told(here: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    kept = KeptRuns(tmp_path, code_version())
    kept.write("exception-16-3", (KeptRuns(here, code_version()).read("exception-16-3") or b"").decode())
    path = next(tmp_path.rglob("exception-16-3.json"))
    content = json.loads(path.read_text())
    content["score"]["wrong_nodes"] = ["node-00001"]
    path.write_text(json.dumps(content))
    assert main(["check", str(tmp_path), "--ranks", "16"]) == 1
    assert "comes out otherwise: score" in capsys.readouterr().out


def test_a_record_of_other_code_fills_nothing_and_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "record").mkdir()
    (tmp_path / "record" / "0123456789ab.jsonl.gz").write_bytes(b"")
    assert main(["unpack", str(tmp_path / "there"), "--record", str(tmp_path / "record")]) == 0
    assert "0123456789ab" in capsys.readouterr().err
    assert main(["check", str(tmp_path / "there"), "--record", str(tmp_path / "record")]) == 1  # nothing to run again


def test_what_is_no_record_or_no_folder_is_told_in_one_line(
    here: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / f"{code_version()}.jsonl.gz").write_bytes(b"no gzip")
    with pytest.raises(SystemExit, match="2"):
        main(["pack", str(here), "--record", str(tmp_path)])
    assert "is no record (Not a gzipped file" in capsys.readouterr().err
    with pytest.raises(SystemExit, match="2"):
        main(["pack", str(tmp_path / "nowhere")])
    assert "is no folder of results" in capsys.readouterr().err
    assert not (tmp_path / "nowhere").exists()


def test_what_was_measured_with_other_code_is_told_as_such(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = next(path for path in sorted(RECORD.glob("*.jsonl.gz")) if code_version() not in path.name)
    version = other.name.partition(".")[0]
    assert faultbench.main(["--results", str(tmp_path), "--code", version]) == 1
    said = capsys.readouterr().out
    assert said.startswith(f"measured with code {version}, and not with this checkout's, which is {code_version()}")
    assert "malformed" not in said  # that is of this checkout
    with pytest.raises(SystemExit, match="2"):
        faultbench.main(["--results", str(tmp_path), "--code", "0123456789ab"])
    assert f"recorded are {sorted(RECORD.glob('*.gz'))[0].name.partition('.')[0]}" in capsys.readouterr().err
    assert not (tmp_path / "0123456789ab").exists()
