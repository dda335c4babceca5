"""The tables: every rule is sound, reachable through the gate, and says something that a class knows."""

from __future__ import annotations

import io
import random
import time
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.diagnosis.job_log.test_cases import CASES, holdout
from whichrank.diagnosis.job_log.job_log_reader import gate
from whichrank.diagnosis.job_log.log_scan import CHUNK_BYTES, LONGEST_LINE_BYTES, scan
from whichrank.diagnosis.job_log.model import LineRole, Rank, Restart
from whichrank.diagnosis.job_log.taxonomy import (
    MATCHED_CHARS,
    exception_types,
    failure_classes,
    frame_rules,
    gate_words,
    rules,
)
from whichrank.diagnosis.word_gate import WordGate
from whichrank.telemetry.vocabulary import Bucket


class Kept:
    """A sink that keeps what it is handed; wants the next ``follow`` lines after each that holds a traceback."""

    def __init__(self, follow: int = 0) -> None:
        self.lines: list[tuple[int, bytes]] = []
        self.gaps: list[tuple[int, bytes]] = []
        self._follow = follow
        self._left = 0

    def wants_next(self) -> bool:
        return self._left > 0

    def block(self, chunk: bytes, ends: NDArray[np.int64]) -> None:
        pass

    def line(self, number: int, raw: bytes) -> None:
        self._left = self._follow if b"Traceback" in raw else self._left - 1
        self.lines.append((number, raw))

    def gap(self, chunk: bytes, start: int, end: int, first_number: int, last_number: int) -> None:
        self.gaps.append((first_number, chunk[start:end]))


def test_names_are_used_once() -> None:
    names = [rule.name for rule in rules().rules]
    assert len(names) == len(set(names))


def test_every_class_can_be_said() -> None:
    said = {rule.failure.name for rule in rules().rules if rule.failure is not None}
    said |= set(exception_types().values()) | {rule.failure.name for rule in frame_rules()} | {"error_message"}
    assert set(failure_classes()) == said


def test_classes_agree_with_themselves() -> None:
    for failure in failure_classes().values():
        assert failure.says
        assert failure.advice
        if failure.bucket is Bucket.PLANNED and failure.name != "user_cancelled":
            assert failure.restart is Restart.YES, failure.name
    assert {rule.role for rule in rules().rules if rule.failure is None} == {LineRole.CONTEXT}


def test_patterns_take_no_time_on_hostile_text() -> None:
    hostile = [
        "error " * 2000, "a" * 50_000, "nan inf loss grad " * 500, "checkpoint " * 1000, "(" * 5000, "rank 1 " * 2000,
        "Connection " * 1000 + "timeout " * 1000, "0" * 9000, "watchdog caught collective " * 300, "_" * 9000,
    ]  # fmt: skip
    for text in hostile:
        began = time.perf_counter()
        for rule in rules().rules:
            rule.pattern.search(text[:MATCHED_CHARS])
        assert time.perf_counter() - began < 1.0, text[:30]


def test_all_that_must_be_seen_passes_the_gate() -> None:
    lines = [row["line"] for row in holdout() if row["class"] != "-"]
    for case in CASES:
        text = case["log"].lstrip("\n").split("\n")
        lines += [text[number - 1] for number in case.get("line_any", [case["line"]])] if case["class"] else []
    missed = []
    for line in lines:
        kept = Kept()
        scan(io.BytesIO(line.encode() + b"\n"), gate(), kept)
        if not kept.lines:
            missed.append(line)
    # A launcher's table is read from its first line on.
    assert [line for line in missed if not line.startswith("  time ")] == []


def test_ordinary_lines_stay_outside(tmp_path: Path) -> None:
    from benchmarks.job_log_lines import ORDINARY

    draw = random.Random(3)
    lines = [
        draw.choice(ORDINARY).format(r=n % 8, n=n, x=draw.randrange(10**8), y=draw.randrange(100, 999), m=n % 60, s=7)
        for n in range(20_000)
    ]
    kept = Kept()
    count = scan(io.BytesIO("\n".join(lines).encode()), gate(), kept)
    assert count == len(lines)
    assert kept.lines == []


def test_words_are_found_wherever_they_stand() -> None:
    """Against the plain search, over chunk borders, in either case, at every offset."""
    draw = random.Random(11)
    words = gate_words()
    for _ in range(60):
        text = bytearray(draw.choices(b"abcdefghij XYZ.:/0123", k=draw.randrange(10, 4000)))
        for _ in range(draw.randrange(8)):
            word = draw.choice(words).replace("\n", "")
            at = draw.randrange(len(text))
            text[at:at] = draw.choice((word, word.upper(), word.title())).encode()
        for at in range(0, len(text), draw.randrange(20, 200)):
            text[at:at] = b"\n"
        kept = Kept()
        scan(io.BytesIO(bytes(text)), gate(), kept)
        found = {number for number, _ in kept.lines}
        for number, line in enumerate(bytes(text).split(b"\n"), start=1):
            # A word of another alphabet may have been cut in two.
            low = line.decode(errors="replace").lower() + "\n"
            if any(word in low for word in words):
                assert number in found, line


def test_numbers_of_lines_and_gaps_are_exact() -> None:
    lines = [b"x" * 50 if n % 97 else b"some error %d" % n for n in range(1, 60_000)]
    kept = Kept()
    assert scan(io.BytesIO(b"\n".join(lines)), gate(), kept) == len(lines)
    assert [number for number, _ in kept.lines] == [n for n in range(1, 60_000) if n % 97 == 0]
    covered = sum(text.count(b"\n") for _, text in kept.gaps) + len(kept.lines)
    assert covered == len(lines)
    assert sum(map(len, lines)) > 2 * CHUNK_BYTES


def test_lines_that_are_wanted_come_one_after_the_other() -> None:
    kept = Kept(follow=2)
    scan(io.BytesIO(b"a\nTraceback (most\nb\nc\nd\nan error\n"), gate(), kept)
    assert [number for number, _ in kept.lines] == [2, 3, 4, 6]


def test_a_line_without_end_is_cut_and_keeps_its_end() -> None:
    kept = Kept()
    scan(io.BytesIO(b"y" * 5_000_000 + b" RuntimeError: late\nnext error\n"), gate(), kept)
    assert [number for number, _ in kept.lines] == [1, 2]
    assert len(kept.lines[0][1]) <= LONGEST_LINE_BYTES + CHUNK_BYTES
    assert kept.lines[0][1].endswith(b"RuntimeError: late")


def test_a_word_of_three_letters_is_refused() -> None:
    with pytest.raises(ValueError, match="too short"):
        WordGate(["oom"], folds_case=True)


def test_ranks_are_in_use() -> None:
    assert {failure.rank for failure in failure_classes().values()} == set(Rank)
