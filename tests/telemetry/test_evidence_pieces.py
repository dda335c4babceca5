"""Files of evidence in pieces: what arrives whole is whole, what does not is told apart."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from whichrank.telemetry.evidence_pieces import (
    PIECE_BYTES,
    EvidencePiece,
    decode_evidence,
    encode_evidence,
    join_pieces,
    split_evidence,
)
from whichrank.telemetry.otlp import decode_logs, encode_payloads
from whichrank.telemetry.records import Event, Identity
from whichrank.telemetry.topics import TOPIC_LOGS
from whichrank.telemetry.vocabulary import EventName


def evidence(content: bytes, name: str = "a.ring.gz") -> EvidencePiece:
    return EvidencePiece(
        identity=Identity(cluster="c", run="r", job="j", attempt="a", node="n", rank=3),
        request_id="incident/history/3",
        action="history",
        name=name,
        format="ring.gz",
        time_ns=17,
        content=content,
    )


@given(content=st.binary(max_size=5000), piece_bytes=st.integers(1, 6000), seed=st.integers(0, 99))
def test_pieces_in_any_order_and_more_than_once_make_the_file(content: bytes, piece_bytes: int, seed: int) -> None:
    messages = [encode_evidence(piece) for piece in split_evidence(evidence(content), max(piece_bytes, 2))]
    messages += messages[::3]
    random.Random(seed).shuffle(messages)
    assert join_pieces(p for m in messages for p in decode_evidence(m)) == [evidence(content)]


def test_a_file_of_which_a_piece_is_missing_is_none() -> None:
    pieces = list(split_evidence(evidence(b"x" * 100), 10))
    whole = evidence(b"other", "b")
    assert join_pieces([*pieces[:4], *pieces[5:], whole]) == [whole]


def test_pieces_fit_a_broker_and_a_log_store() -> None:
    pieces = list(split_evidence(evidence(random.Random(1).randbytes(3 * PIECE_BYTES + 1))))
    assert len(pieces) == 4
    assert max(len(encode_evidence(piece)) for piece in pieces) * 4 / 3 < 256 << 10


@pytest.mark.parametrize("value", [b"", b"nonsense", encode_payloads([])])
def test_what_is_no_evidence_is_passed_over(value: bytes) -> None:
    assert decode_evidence(value) == []


def test_operators_see_that_there_is_a_piece_and_not_what_is_in_it() -> None:
    (payload,) = decode_logs(TOPIC_LOGS, encode_evidence(evidence(b"\xff" * 1000)))
    assert isinstance(payload, Event)
    assert (payload.name, payload.identity.rank) == (EventName.EVIDENCE, 3)
    assert not any(isinstance(value, bytes) for value in payload.attributes.values())
