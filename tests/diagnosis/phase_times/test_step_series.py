"""Files of step times, and ``whichrank diagnose steps`` over them."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
from typer.testing import CliRunner

from whichrank.commands.main import app
from whichrank.diagnosis.phase_times.self_time import judge_self
from whichrank.diagnosis.phase_times.step_phases import StepPhase, StepTimeCause
from whichrank.diagnosis.phase_times.step_series import StepSeries


def rows(slow: int = 2, *, wait: bool = True) -> list[dict[str, float]]:
    """30 steps of 4 ranks; ``slow`` takes 100 ms more for its input, for which the others wait."""
    found = []
    for step in range(30):
        for rank in range(4):
            late = 100.0 if rank == slow else 0.0
            row = {"rank": rank, "step": step, "input_ms": 10 + late, "forward_ms": 50.0, "step_time_ms": 260.0}
            row["backward_ms"] = 100.0 if wait else 200.0 - late
            found.append({**row, "wait_ms": 100.0 - late} if wait else row)
    return found


def diagnose(path: Path, *words: str) -> tuple[int, str]:
    done = CliRunner().invoke(app, ["diagnose", "steps", str(path), *words])
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    return done.exit_code, done.output


def written(tmp_path: Path, suffix: str, wait: bool) -> Path:
    path = tmp_path / f"steps{suffix}"
    content = rows(wait=wait)
    if suffix == ".jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in content))
    else:
        mark = "\t" if suffix == ".tsv" else ","
        lines = [mark.join(content[0]), *(mark.join(str(value) for value in row.values()) for row in content)]
        path.write_text("\n".join(lines) + "\n")
    return path


@pytest.mark.parametrize("suffix", [".jsonl", ".csv", ".tsv"])
@pytest.mark.parametrize("wait", [True, False])
def test_the_culprit_and_its_phase(tmp_path: Path, suffix: str, wait: bool) -> None:
    code, output = diagnose(written(tmp_path, suffix, wait), "--json")
    said = json.loads(output)
    assert code == 0
    assert (said["schema"], said["kind"], said["ranks"], said["steps"]) == (1, "steps", 4, 30)
    assert (said["cause"], said["culprit"], said["phase"], said["severity"]) == ("input_straggler", 2, "input", "crit")
    assert said["victim"] != 2


def test_words_for_people(tmp_path: Path) -> None:
    code, output = diagnose(written(tmp_path, ".csv", True))
    assert code == 0
    assert "rank 2" in output
    assert "input" in output


def test_units() -> None:
    series = StepSeries()
    series.take(1, {"rank": 0, "forward_s": 1, "backward_us": 5e5, "data": 20, "optimizer_ns": "1e9"})
    (times,) = series.rank_times()
    assert times.phases_s == {
        StepPhase.FORWARD: 1.0,
        StepPhase.BACKWARD: 0.5,
        StepPhase.INPUT: pytest.approx(0.02),
        StepPhase.OPTIMIZER: pytest.approx(1.0),
    }


def test_scattered_rows_do_not_fill_the_memory() -> None:
    series = StepSeries()
    for at in range(3000):
        series.take(1, {"rank": at, "step": at * 7, "forward": 1, "wait": 1})
    table = series.step_table()
    assert table.step_s.shape == (0, 3000)
    assert judge_self(table).cause is StepTimeCause.WARM_UP


def test_means_per_rank_in_one_line(tmp_path: Path) -> None:
    path = tmp_path / "means.json"
    ranks = {"0": {"forward": 20, "h2d": 90, "backward": 20}, "1": {"forward": 20, "h2d": 0, "backward": 110}}
    path.write_text(json.dumps({"steps": 64, "rank_ms": ranks}) + "\n")
    said = json.loads(diagnose(path, "--json")[1])
    assert (said["cause"], said["culprit"], said["victim"], said["steps"]) == ("h2d_straggler", 0, 1, 64)


def test_a_trace_is_replayed(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    head = "rank,dp_rank,stage,step,optype,start_ts,duration,seq_id\n"
    lines = [
        f"{rank},{rank},0,{step},{name},{start},{long if rank == 3 else short},0\n"
        for step in range(3)
        for rank in range(8)
        for name, start, short, long in (("forward-compute", 0.0, 0.1, 0.3),)
    ]
    path.write_text(head + "".join(lines))
    said = json.loads(diagnose(path, "--json")[1])
    assert (said["kind"], said["verdict"], said["worst_workers"]) == ("trace", "worker", [3])


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("a.csv", b"", "no row in it"),
        ("a.csv", b"rank,step\n1,2\n", "line 2: no phase"),
        ("a.jsonl", b"nothing\n", "line 1: no JSON"),
        ("a.jsonl", b'{"step": 1}\n', "line 1: no rank"),
        ("a.parquet", b"PAR1 it is not", "a.parquet"),
    ],
)
def test_bad_input_is_one_line(tmp_path: Path, name: str, content: bytes, said: str) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    code, output = diagnose(path)
    assert code == 2
    assert said in output
    assert output.count("\n") == 1


def test_rows_that_cannot_be_read_are_told_beside_the_verdict(tmp_path: Path) -> None:
    path = written(tmp_path, ".jsonl", True)
    path.write_text(path.read_text() + "{\n")
    said = json.loads(diagnose(path, "--json")[1])
    assert (said["culprit"], said["bad_rows"]) == (2, 1)


def test_any_text_is_survived() -> None:
    draw = random.Random(2)
    good = [json.dumps(row) for row in rows()[:8]]
    values = [0, -1, 1e308, "nan", "inf", None, True, [], {}, "9" * 500, 2**70, "٣", "\0"]
    for _ in range(300):
        series = StepSeries()
        line = draw.choice(good)
        junk = draw.randbytes(20).decode("utf-8", "replace")
        entry = {**json.loads(line), draw.choice(list(rows()[0])): draw.choice(values)}
        lines = [*good, line[: draw.randrange(len(line))], junk, "[" * 9999, json.dumps(entry)]
        series.json_lines(lines)
        series.table(["rank,step,forward,\0", *lines], ",")
        series.rank_times()
        series.step_table()
