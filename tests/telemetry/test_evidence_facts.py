"""The machine part of a row: through JSON and back, and whatever somebody else has written there is no error."""

from __future__ import annotations

import json
from dataclasses import fields
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from whichrank.telemetry.evidence_facts import FACT, EvidenceFact, How, SignalSender, read_fact, write_fact

_COUNT = st.none() | st.integers(0, 1 << 40)
_PLAIN = {
    "how": st.none() | st.sampled_from(How),
    "sender": st.none() | st.sampled_from(SignalSender),
    "in_thread": st.booleans(),
    **{name: _COUNT for name in ("rank", "exit_code", "line", "step")},
    **{name: st.integers(0, 1 << 22) for name in ("signal", "sender_pid")},
    **{name: st.text(max_size=9) for name in ("ranks", "node", "type", "message", "file", "function", "phase")},
}
_ENDING = st.builds(EvidenceFact, **_PLAIN)
FACTS = st.builds(EvidenceFact, endings=st.lists(_ENDING, max_size=3).map(tuple), **_PLAIN)


def test_the_strategy_draws_every_field() -> None:
    assert {field.name for field in fields(EvidenceFact)} == {*_PLAIN, "endings"}


@given(FACTS)
def test_it_comes_back_from_json(fact: EvidenceFact) -> None:
    assert read_fact(json.loads(json.dumps({FACT: write_fact(fact)}))) == fact


_ANY = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5) | st.sampled_from(["raised", "endings", "rank"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from([*_PLAIN, "endings", "x"]), inner),
)


@given(_ANY)
def test_what_is_none_is_unknown_and_no_error(written: Any) -> None:
    assert (read_fact({FACT: written}) is None) == (not isinstance(written, dict))


def test_only_what_is_known_is_written() -> None:
    fact = EvidenceFact(how=How.EXIT, rank=0, exit_code=0)
    assert write_fact(fact) == {"how": "exit", "rank": 0, "exit_code": 0}
    assert read_fact({"shows": "rank 0 ended"}) is None


@pytest.mark.parametrize(
    ("fact", "said"),
    [
        (EvidenceFact(type="KeyError", message="3"), "KeyError: 3"),
        (EvidenceFact(type="KeyError"), "KeyError"),
        (EvidenceFact(how=How.EXIT, exit_code=1), ""),
        (EvidenceFact(endings=(EvidenceFact(type="A"), EvidenceFact(type="B"))), "A\nB"),
    ],
)
def test_what_it_said(fact: EvidenceFact, said: str) -> None:
    assert fact.said == said
