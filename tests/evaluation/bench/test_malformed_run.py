"""What is told wrongly of nodes and jobs: reported where people look, and the rest works."""

from __future__ import annotations

from whichrank.evaluation.bench.malformed_run import ASKED, STRANGER, UNPLACED, malformed_lines, run


def test_each_is_reported_in_words_and_the_killed_rank_is_found() -> None:
    result = run()
    assert result.reported.keys() == ASKED.keys()
    assert "leaf, rack" in result.reported["malformed topology"]
    assert UNPLACED in result.reported["unknown node"] or STRANGER in result.reported["unknown node"]
    assert "job-b" in result.reported["job without an end"]
    assert STRANGER in result.reported["contradictory placement"]
    assert (result.is_found, result.pages, result.broken) == (True, ["job-a"], 0)


def test_the_lines_of_the_bench_say_so() -> None:
    lines = malformed_lines()
    assert [line.ok for line in lines] == [True] * (len(ASKED) + 1)
