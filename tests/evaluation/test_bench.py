"""``whichrank bench``: real simulations, judged for real; what is late, broken or foreign counts as it should."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from whichrank.evaluation.bench.command import Wanted, bench
from whichrank.evaluation.bench.one_run import AskedRun, run_apart, truth_before
from whichrank.simulator.scenarios.grounds import HELD_OUT, HELD_OUT_SEED, ground_of
from whichrank.simulator.scenarios.scenarios import SCENARIOS

#: The same words as the operators', by their own replay of what was kept: incidents.jsonl of a foreign detector.
REPLAYS = """#!{python}
import sys
from dataclasses import replace
from pathlib import Path
from whichrank.commands.embedded.replay import replay_run
from whichrank.commands.run_folder.run_directory import RunDirectory
from whichrank.telemetry.incident import canonical_line
folder, out = map(Path, sys.argv[1:])
assert sorted(each.name for each in folder.iterdir()) == ["capture", "run.json"]
assert "exception" not in (folder / "run.json").read_text()
out.write_bytes(b"".join(canonical_line(each.document) for each in replay_run(RunDirectory(folder)).revisions))
"""


def program(folder: Path, text: str) -> Path:
    path = folder / "detector.py"
    path.write_text(text.format(python=sys.executable))
    path.chmod(0o755)
    return path


def run(capsys: pytest.CaptureFixture[str], *only: str, **more: Any) -> tuple[int, dict[str, Any]]:
    given = {"ranks": 16, "runs": 1, "seed": 1, "limit_s": 300.0, **more}
    code = bench(Wanted(only=only, **given), as_json=True)
    return code, json.loads(capsys.readouterr().out)


def measured(told: dict[str, Any], name: str) -> dict[str, Any]:
    return next(line for line in told["lines"] if line["name"] == name)


def test_ours_and_a_foreign_detector_are_scored_alike(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, ours = run(capsys, "exception", "healthy")
    assert code in (0, 1)
    assert measured(ours, "crash: top-1")["share"].startswith("1 of 1 ")
    assert measured(ours, "pages without a fault") == {
        "name": "pages without a fault", "asked": "0", "measured": "0", "share": "1 of 1", "ok": True, "is_run": True,
    }  # fmt: skip
    assert [each["faults"][0]["said"] for each in ours["simple"][:1]] != [""]
    _, theirs = run(capsys, "exception", "healthy", detector=program(tmp_path, REPLAYS))
    assert theirs["problems"] == []
    assert theirs["runs"] == ours["runs"]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("#!{python}\nimport time\ntime.sleep(600)", "not done after 12 s"),
        ("#!{python}\nraise SystemExit('no such thing')", "ended with 1: no such thing"),
        ("#!{python}", "incidents.jsonl: No such file"),
        ("#!{python}\nimport sys\nopen(sys.argv[2], 'w').write('nonsense')", "incidents.jsonl, line 1"),
    ],
)
def test_a_detector_that_fails_is_wrong_and_says_why(
    text: str, why: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    limit_s = 12.0 if "not done" in why else 300.0
    code, told = run(capsys, "exception", detector=program(tmp_path, text), limit_s=limit_s)
    assert code == 1
    assert why in told["problems"][0]
    assert not told["runs"][0]["faults"][0]["top_1"]
    assert measured(told, "runs out of time")["ok"] == ("not done" not in why)


def test_a_run_that_takes_too_long_is_wrong() -> None:
    result = run_apart(AskedRun(scenario="exception", ranks=16, seed=1), limit_s=0.01)
    assert result.out_of_time
    assert [fault.fault for fault in (result.truth.faults if result.truth else ()) if fault.kinds] == ["exception"]


def test_what_cannot_be_laid_out_counts_as_not_run(capsys: pytest.CaptureFixture[str]) -> None:
    code, told = run(capsys, "metadata_storm")
    assert code == 1
    assert "16 ranks do not make 4 jobs" in told["problems"][0]
    with pytest.raises(ValueError, match="4 jobs"):
        truth_before(AskedRun(scenario="metadata_storm", ranks=16, seed=1))


def test_what_cannot_be_run_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given: dict[str, Any] = {"ranks": 16, "runs": 1, "seed": 1, "limit_s": 10.0}
    assert bench(Wanted(only=["nothing"], **given)) == 2
    assert bench(Wanted(detector=tmp_path / "absent", **given)) == 2
    assert bench(Wanted(part="3/2", **given)) == 2
    assert bench(Wanted(**given | {"seed": HELD_OUT_SEED})) == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 4
    assert "there is no scenario 'nothing'" in lines[0]
    assert "absent: no such file" in lines[1]
    assert "--part 3/2" in lines[2]
    assert "seeds are below" in lines[3]


def test_what_was_run_is_not_run_again_nor_left_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    wanted = Wanted(ranks=16, runs=2, seed=1, only=("exception", "process_killed"), jobs=2, results=tmp_path)
    parts = []
    for part in ("1/3", "2/3", "3/3"):
        bench(replace(wanted, part=part), as_json=True)
        parts += json.loads(capsys.readouterr().out)["runs"]
    kept = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.json")}
    assert len(kept) == 4
    torn = next(path for path in kept if path.stem == "exception-16-2")
    torn.write_text(torn.read_text()[:100])  # as a full disk leaves it
    bench(wanted, as_json=True)
    said = capsys.readouterr()
    whole = json.loads(said.out)["runs"]
    assert [(each["scenario"], each["seed"]) for each in whole] == [
        ("exception", 1), ("process_killed", 1), ("exception", 2), ("process_killed", 2),
    ]  # fmt: skip
    assert sorted(map(str, whole)) == sorted(map(str, parts))
    assert said.err.count("(kept)") == 3
    assert all(path.stat().st_mtime_ns == at for path, at in kept.items() if path != torn)


def test_other_code_counts_for_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    wanted = Wanted(ranks=16, runs=1, seed=1, only=("exception",), results=tmp_path)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("whichrank.evaluation.bench.command.code_version", lambda detector: "another")
        bench(wanted)
    bench(wanted)
    assert "(kept)" not in capsys.readouterr().err
    assert len(list(tmp_path.iterdir())) == 2


def test_held_out_runs_stand_on_other_grounds(capsys: pytest.CaptureFixture[str]) -> None:
    """Every scenario can be laid out on each of them, and none of them is the one that was tuned on."""
    matrix = Wanted(ranks=64, runs=len(HELD_OUT), seed=0, held_out=True).matrix()
    met: dict[str, set[str]] = {}
    for asked in matrix:
        met.setdefault(asked.scenario, set()).add(ground_of(asked.scenario, asked.seed).name)
    assert all(grounds == {ground.name for ground in HELD_OUT} for grounds in met.values())
    usual = SCENARIOS["process_killed"].build(64, 1)
    for ground in HELD_OUT:
        world = SCENARIOS["process_killed"].build(64, 1, ground=ground)
        job, other = world.jobs[0].spec, usual.jobs[0].spec
        assert job.mesh.world_size == 64
        assert (job.mesh, job.nodes, job.ranks_per_node) != (other.mesh, other.nodes, other.ranks_per_node)
