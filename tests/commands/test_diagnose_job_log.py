"""``whichrank diagnose job-log`` as people and programs call it."""

from __future__ import annotations

import json
from pathlib import Path

from typer.testing import CliRunner

from whichrank.commands.diagnose import diagnose_app
from whichrank.commands.diagnose.rank_ranges import ranges

LOG = """\
[rank2]: [2026-02-01 10:00:00] iteration 7/100 | lm loss: 2.0
[rank1]: Traceback (most recent call last):
[rank1]:   File "/w/train.py", line 12, in main
[rank1]: OSError: [Errno 28] No space left on device: '/out/[x].pt'
[rank0]: ConnectionResetError: [Errno 104] Connection reset by peer
[rank2]: ConnectionResetError: [Errno 104] Connection reset by peer
"""


def call(*arguments: str | Path, feed: str | None = None) -> tuple[int, str, str]:
    result = CliRunner().invoke(diagnose_app, ["job-log", *map(str, arguments)], input=feed)
    return result.exit_code, result.stdout, result.stderr


def test_people_see_the_line_the_place_and_the_advice(tmp_path: Path) -> None:
    path = tmp_path / "train.log"
    path.write_text(LOG)
    code, shown, _ = call(path)
    assert code == 0
    for part in ("disk_full", "train.log:4", "rank 1", "[x].pt", "/w/train.py:12", "raise_quota", "2 ranks (0,2)"):
        assert part in shown, shown


def test_programs_get_one_document(tmp_path: Path) -> None:
    path = tmp_path / "train.log"
    path.write_text(LOG)
    code, shown, _ = call("--json", path)
    found = json.loads(shown)
    assert code == 0
    assert (found["schema"], found["class"], found["bucket"], found["is_cause"]) == (1, "disk_full", "capacity", True)
    assert (found["primary"]["line"], found["primary"]["rank"], found["primary"]["first_line"]) == (4, 1, 2)
    assert found["advice"]["action"] == "raise_quota"
    assert found["advice"]["restart"] == "no"
    assert [(each["class"], each["role"], each["count"], each["ranks"]) for each in found["consequences"]] == [
        ("peer_lost", "cascade", 2, "0,2")
    ]
    assert found["progress"]["last"]["step"] == 7
    assert [episode["status"] for episode in found["episodes"]] == ["terminal"]


def test_nothing_found_is_no_error() -> None:
    code, shown, _ = call("-", feed="step 1 loss 2.0\n")
    assert code == 0
    assert "nothing in the log tells of a failure" in shown


def test_what_cannot_be_read_is_one_line(tmp_path: Path) -> None:
    for path in (tmp_path / "no.log", tmp_path):
        code, shown, said = call(path)
        assert code == 2
        assert shown == ""
        assert said.count("\n") == 1
        assert str(path) in said


def test_ranks_are_written_as_ranges() -> None:
    assert ranges({5, 0, 1, 2, 9}) == "0-2,5,9"
    assert ranges(set()) == ""
