"""An incident in the few words by which it is compared with others."""

from __future__ import annotations

from typing import Any

from whichrank.processors.cluster.shared.troubles import Trouble, trouble_of


def raised(*shows: str) -> Trouble:
    rows = [{"signal": "rank.exception", "source": "rank", "time": 1.0, "shows": text} for text in shows]
    single: dict[str, Any] = {
        "id": "i", "kind": "rank_raised", "bucket": "immediate_crash", "severity": "page", "scope": "rank",
        "job": {"id": "j", "attempt": "a", "run": "r"}, "times": {"onset": 1.0}, "suspects": [], "evidence": rows,
    }  # fmt: skip
    return trouble_of(single, {}, 1.0, None)


def test_the_words_are_those_of_the_error_in_whatever_order_its_rows_come() -> None:
    first = "rank 15 raised socket.gaierror: temporary failure in name resolution at /workspace/train.py:22"
    count = "ranks 3-12 raised socket.gaierror as well: one cause, seen on 11 ranks"
    assert raised(first, count).words == raised(count, first).words
    assert "temporary failure" in raised(count, first).words[1]


def test_other_ranks_and_numbers_are_the_same_error() -> None:
    assert (
        raised("rank 3 raised OSError: [Errno 5] at a.py:1").words
        == raised("rank 4 raised OSError: [Errno 7] at b.py:9").words
    )
