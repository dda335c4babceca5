"""``whichrank goodput --kafka`` on a real broker: a job dies and goes on, and its seconds are read from findings."""

from __future__ import annotations

from concurrent.futures import Future

import pytest

from tests.stack.job_that_went_on import SECONDS, WAIT_S, Seen


@pytest.mark.beside("job_that_went_on")
def test_the_seconds_of_a_job_that_died_and_went_on_are_read_from_the_findings(job_that_went_on: Future[Seen]) -> None:
    seen = job_that_went_on.result(SECONDS + 3 * WAIT_S)
    assert seen.nothing_yet
    run = seen.run
    (down,) = run["interruptions"]
    assert down["kind"] == "rank_died"
    assert down["incident"]
    assert down["node"]
    assert sum(run["ns"].values()) == run["wall_ns"]
    assert run["unknown_share"] < 0.01
    for bucket in ("starting", "shutdown", "restarting", "checkpoint_save"):
        assert run["ns"][bucket] / 1e9 == pytest.approx(seen.truth.get(bucket, 0.0), abs=3.0), bucket
    productive_s = run["ns"]["productive"] / 1e9
    assert seen.truth["productive"] - 60.0 <= productive_s <= seen.truth["productive"] + 3.0, "but for what is to come"
    assert run["mttf"]["failures"] == 1
    assert "rank_died" in seen.table
