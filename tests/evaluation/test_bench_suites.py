"""What the bench tells of days without a fault, of cost, and of what nobody has measured."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from whichrank.evaluation.bench import acceptance
from whichrank.evaluation.bench import cost as cost_module
from whichrank.evaluation.bench.acceptance import must_show
from whichrank.evaluation.bench.cost import Cost, cost_lines, exponent, kept_cost, measure_cost
from whichrank.evaluation.bench.false_pages import LOADS, kept_sound_days, sound_lines, watch_sound_days
from whichrank.evaluation.bench.hang_cost import hang_line
from whichrank.evaluation.bench.kept_runs import KeptRuns
from whichrank.evaluation.bench.one_run import AskedRun
from whichrank.evaluation.bench.result_cache import kept_lines, measured_lines
from whichrank.evaluation.bench.scored_run import Scored, Sound
from whichrank.simulator.scenarios.grounds import HELD_OUT_SEED
from whichrank.simulator.scoring.run_score import RunScore
from whichrank.simulator.scoring.summary import ScoreLine

GIB = 1 << 30


def named(lines: Sequence[ScoreLine], words: str) -> ScoreLine:
    return next(line for line in lines if words in line.name)


def days(count: int, *, pages: int = 0, problem: str = "") -> list[Sound]:
    return [Sound(gpu_days=100.0, pages=pages, rank_steps=432_000, wall_s=10.0, problem=problem) for _ in range(count)]


def test_pages_are_told_with_their_bound_and_too_few_days_are_short() -> None:
    load = LOADS["reference"]
    line = named(sound_lines(load, days(5)), "pages without a fault")
    assert (line.verdict, line.share) == ("ok", "5 of 5 chunks silent")
    assert "0 in 500.0 GPU-days; at most 5.99 per 1,000" in line.measured  # 2.996 / 0.5
    assert named(sound_lines(load, days(4)), "pages").verdict == "SHORT"
    assert named(sound_lines(load, [*days(9), *days(1, pages=1)]), "pages").verdict == "SHORT"
    assert named(sound_lines(load, []), "pages").verdict == "not run"
    failed = sound_lines(load, [*days(5), *days(1, problem="not done after 1 s")])
    assert named(failed, "chunks that failed").verdict == "SHORT"


def test_a_sound_chunk_is_run_judged_and_kept(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    load = replace(LOADS["reduced"], ranks=16, hours=0.5)
    kept = KeptRuns(tmp_path, "code")
    first = watch_sound_days(load, kept, gpu_days=0.4)
    again = watch_sound_days(load, kept, gpu_days=0.4)
    assert first == again == kept_sound_days(load, kept)
    assert len(first) == 2
    assert capsys.readouterr().err.count("pages in") == 2
    assert [sound.problem for sound in first] == ["", ""]
    assert sum(sound.gpu_days for sound in first) == pytest.approx(2 * 16 * 0.5 / 24)
    assert all(sound.rank_steps > 16 * 40 for sound in first)


def of(ranks: int, cores: float, *, gibibytes: float = 1.0) -> Cost:
    memory = int(gibibytes * GIB)
    return Cost(ranks=ranks, load_s=10.0, cpu_s=10.0 * cores, memory_bytes=memory, messages=1, pages=0)


def test_cost_is_held_against_what_is_asked() -> None:
    linear = {ranks: of(ranks, 9e-6 * ranks) for ranks in cost_module.RANKS}
    assert exponent({ranks: cost.rank_us for ranks, cost in linear.items()}) == pytest.approx(0.0, abs=1e-9)
    assert {line.verdict for line in cost_lines(linear)} == {"ok"}
    steep = {ranks: of(ranks, 9e-6 * ranks**1.2) for ranks in cost_module.RANKS}
    assert named(cost_lines(steep), "flat").verdict == "SHORT"
    part = {ranks: cost for ranks, cost in linear.items() if ranks <= 4096}
    assert named(cost_lines(part), "flat").verdict == "SHORT"  # the curve does not reach far enough
    late = replace(of(16_384, 0.3, gibibytes=1.1), first_cpu_s=5.1)
    heavy = {16_384: late, 131_072: of(131_072, 1.4, gibibytes=4.1)}
    assert [line.verdict for line in cost_lines(heavy)[:5]] == ["SHORT"] * 5
    assert {line.verdict for line in cost_lines({})} == {"not run"}


def test_cost_is_measured_in_another_process_and_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cost_module, "MEASURED_S", 6.0)
    kept = KeptRuns(tmp_path, "code")
    cost = measure_cost(64, kept)
    assert cost.cpu_s > 0.0
    assert cost.messages > 8 * 6
    assert cost.pages == 0
    assert kept_cost(64, kept) == cost
    assert kept_cost(128, kept) is None


def test_a_hang_is_measured_beside_the_seconds_before_it() -> None:
    line = hang_line(64)
    assert line.measured.endswith("1 incidents")
    assert float(line.measured.partition(":")[0]) > 0.2


def test_lines_are_measured_once(tmp_path: Path) -> None:
    kept, line = KeptRuns(tmp_path, "code"), ScoreLine(name="a", asked="1", measured="2", share="1 of 1", ok=False)
    assert kept_lines(kept, "some") == []
    assert measured_lines(kept, "some", lambda: [line]) == measured_lines(kept, "some", list) == [line]


def test_what_was_not_measured_is_told_as_not_run(tmp_path: Path) -> None:
    sections = dict(must_show(KeptRuns(tmp_path, "code")))
    assert {line.verdict for heading in ("cost", "days without a fault") for line in sections[heading]} == {"not run"}
    for ranks in ("1,024", "16,384"):
        assert {line.verdict for line in sections[f"held out, {ranks} ranks"]} == {"not run"}
        assert named(sections["what was run, held out from tuning"], f"at {ranks} ranks").verdict == "not run"
    assert named(sections["what is simulated"], "within a job").asked == "38"
    assert named(sections["held out, all sizes together"], "calibration").verdict == "not run"


def test_calibration_is_asked_over_the_incidents_of_all_sizes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told = {64: 200, 1024: 300}

    def some(kept: KeptRuns, ranks: int) -> list[Scored]:
        asked = AskedRun(scenario="sound", ranks=ranks, seed=HELD_OUT_SEED)
        score = RunScore(scenario="sound", seed=asked.seed, faults=(), told=((1.0, True),) * told.get(ranks, 0))
        return [Scored(asked=asked, score=score, simple=None)] if ranks in told else []

    monkeypatch.setattr(acceptance, "held_out_runs", some)
    judged = named(dict(must_show(KeptRuns(tmp_path, "code")))["held out, all sizes together"], "calibration")
    assert (judged.asked, judged.share, judged.verdict) == ("<= 0.05", "500 incidents", "ok")
    told[64] = 199
    few = dict(must_show(KeptRuns(tmp_path, "code")))["held out, all sizes together"]
    assert [line.verdict for line in few if line.name == "calibration error"] == ["", "not run"]
