"""Readings out of tools' words."""

from __future__ import annotations

import random

from whichrank.diagnosis.health_checks import readings


def test_readings() -> None:
    assert readings.link_words("  State: Active\n  Physical state: LinkUp\n", "State") == ("active",)
    assert readings.nvlink_states("gpuId 0:\n  U U D\n") == {"0": "UUD"}
    assert readings.fields("a | b\n\n c |d", "|") == [["a", "b"], ["c", "d"]]


def test_any_text_is_survived() -> None:
    draw = random.Random(12)
    pieces = [
        "gpuId 0:\n",
        "U U D",
        "State: ",
        "12 IDLE\n",
        "{}",
        '{"body": {"a": 1}}',
        "40%",
        "\0",
        "\xff" * 50,
        "[" * 3000,
    ]
    texts = ["".join(draw.choice(pieces) for _ in range(draw.randrange(9))) for _ in range(300)] + ["9" * 10**6]
    readers = [readings.nvlink_states, readings.nvlink_errors]
    for text in texts:
        for read in readers:
            read(text)
            read(None)
        readings.link_words(text, "State")
