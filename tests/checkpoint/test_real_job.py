"""Two ranks on two nodes (folders), gloo: the node that is lost goes on with the bits that its partner held."""

from __future__ import annotations

import shutil
from pathlib import Path

from benchmarks.near_checkpoints import Attempt, words


def test_a_lost_node_goes_on_from_its_partner(tmp_path: Path) -> None:
    first = Attempt(tmp_path, 1, 2, 0.1, ranks=2)
    assert first.wait(90.0) == 0, (tmp_path / "launch.log").read_text()
    first.kill()
    saved = [words(tmp_path, rank)[-1] for rank in range(2)]
    assert [(each["at"], each["copied"]) for each in saved] == [(2, 2)] * 2
    shutil.rmtree(tmp_path / "node-1")
    second = Attempt(tmp_path, 1, 0, 0.0, ranks=2)
    assert second.wait(90.0) == 0, (tmp_path / "launch.log").read_text()
    second.kill()
    restored = [next(word for word in reversed(words(tmp_path, rank)) if "restored" in word) for rank in range(2)]
    assert [(each["restored"], each["source"], each["is_right"]) for each in restored] == [
        (2, "local", True), (2, "partner", True),
    ]  # fmt: skip
    assert [each["digest"] for each in restored] == [each["digest"] for each in saved]
