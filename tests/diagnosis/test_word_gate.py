"""The gate in C: the same places as by numpy, whatever the bytes are."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from whichrank.diagnosis._word_gate import positions  # built wherever tests run
from whichrank.diagnosis.job_log.taxonomy import gate_words
from whichrank.diagnosis.word_gate import HASH, WordGate

LOGS = Path(__file__).parents[1] / "outside" / "second_set"
GATES = [
    WordGate(gate_words(), folds_case=True),
    WordGate(["Xid (", "panic", "panics", "Out of memory", "\t\t\t\t"], folds_case=False),
]
#: Whole words, their parts, and what is none: words touch each other, and the ends of the block.
PARTS = st.one_of(
    st.sampled_from(gate_words()).map(str.encode),
    st.sampled_from(gate_words()).map(lambda word: word.upper().encode()),
    st.tuples(st.sampled_from(gate_words()), st.integers(0, 6)).map(lambda cut: cut[0][cut[1] :].encode()),
    st.sampled_from([b"Xid (", b"panics", b"Out of memory", b"\t\t\t\t", b"Out"]),
    st.binary(max_size=6),
)


def agree(gate: WordGate, block: bytes) -> bool:
    return bool(np.array_equal(gate.positions(block), np.sort(gate.positions_by_numpy(block))))


@settings(max_examples=400, deadline=None)
@given(st.lists(PARTS, max_size=12).map(b"".join), st.sampled_from(GATES))
def test_both_find_the_same(block: bytes, gate: WordGate) -> None:
    assert agree(gate, block)


def test_both_find_the_same_in_real_logs() -> None:
    block = b"".join(path.read_bytes() for path in sorted(LOGS.rglob("*.log")))
    assert len(block) > 1_000_000  # more than a piece of numpy's
    assert len(GATES[0].positions(block)) > 1000
    assert all(agree(gate, block) for gate in GATES)


def test_a_word_at_each_end_is_found() -> None:
    assert GATES[1].positions(b"Xid (").tolist() == GATES[1].positions_by_numpy(b"Xid (").tolist() != []


@pytest.mark.parametrize(("bits", "words"), [(b"", b""), (b"123", b""), (b"1", b"short")])
def test_tables_that_are_none_are_refused(bits: bytes, words: bytes) -> None:
    with pytest.raises(ValueError, match="no tables"):
        positions(b"panic", 0, bits, int(HASH), words)
