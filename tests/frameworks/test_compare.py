"""The comparison behind ``make frameworks`` can fail: less seen than there was is short, and so is more."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.frameworks import compare as comparison_module
from tests.frameworks.compare import Comparison, compare
from tests.frameworks.seen import SeenRank, SeenStep
from whichrank.telemetry.vocabulary import Phase

SPENT = {"data": 0.01, "forward": 0.02, "backward": 0.03}


def seen_step(**changes: float) -> SeenStep:
    seconds = {phase.name.lower(): 0.0 for phase in Phase} | SPENT | {"optimizer": 0.001} | changes
    return SeenStep(seconds=seconds, loss=2.0, grad_norm=0.5, skipped=False)


def compared(
    folder: Path, patch: pytest.MonkeyPatch, steps: list[SeenStep], calls: int = 3, **truth: Any
) -> Comparison:
    document = {
        "framework": "some",
        "versions": "some 1.0",
        "collectives": {"1": 5, "2": 3},
        "monotonic_ns": 100,
        "steps": [{"loss": 4.0, "grad_norm": 0.5, "skipped": False, "seconds": SPENT}] * 2,
        "loss_divided_by": 2,
        **truth,
    }
    (folder / "truth-0.json").write_text(json.dumps(document))
    seen = SeenRank(steps=dict(enumerate(steps)), collectives={("0", "0-1", n): n for n in range(calls)})
    patch.setattr(comparison_module, "read_capture", lambda run: {0: seen})
    return compare(folder, folder, 1)


def test_all_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    result = compared(tmp_path, monkeypatch, [seen_step(), seen_step()])
    assert result.ok
    assert str(result.counts["forward"]) == "2 of 2"
    assert str(result.counts["collectives"]) == "3 of 3"
    assert result.alone == 5


@pytest.mark.parametrize(
    ("column", "steps", "calls"),
    [
        ("steps", [seen_step()], 3),
        ("steps", [seen_step()] * 3, 3),
        ("forward", [seen_step(), seen_step(forward=0.017)], 3),
        ("optimizer", [seen_step(), seen_step(optimizer=0.0)], 3),
        ("collectives", [seen_step()] * 2, 2),
        ("collectives", [seen_step()] * 2, 4),
    ],
)
def test_less_or_more_is_short(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, column: str, steps: list[SeenStep], calls: int
) -> None:
    result = compared(tmp_path, monkeypatch, steps, calls)
    assert not result.ok
    assert not result.counts[column].ok


def test_a_wrong_loss_and_a_skip_that_was_none_are_short(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = SeenStep(seconds=seen_step().seconds, loss=4.0, grad_norm=None, skipped=True)
    result = compared(tmp_path, monkeypatch, [seen_step(), wrong])
    assert [column for column, count in result.counts.items() if not count.ok] == ["loss", "gradient norm", "skipped"]


def test_a_rank_that_did_not_end_is_short(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(comparison_module, "read_capture", lambda run: {})
    assert not compare(tmp_path, tmp_path, 1).ok
