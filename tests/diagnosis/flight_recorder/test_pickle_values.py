"""No pickle runs anything, and none makes this process grow past what its file is worth."""

from __future__ import annotations

import datetime
import os
import pickle
import struct
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from whichrank.diagnosis.flight_recorder.pickle_values import MAX_TUPLES, BadPickle, load_pickle

PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.text(max_size=300) | st.floats(allow_nan=False),
    lambda inner: (
        st.lists(inner, max_size=5) | st.tuples(inner, inner) | st.dictionaries(st.text(max_size=5), inner, max_size=5)
    ),
    max_leaves=30,
)


@given(PLAIN, st.sampled_from([2, 3, 4, 5]))
@settings(max_examples=200, deadline=None)
def test_plain_values_come_back_as_they_were(value: object, protocol: int) -> None:
    assert load_pickle(pickle.dumps(value, protocol)) == value


class _Runs:
    def __init__(self, call: Callable[..., object], *arguments: object) -> None:
        self._made_by = (call, arguments)

    def __reduce__(self) -> tuple[Any, ...]:
        return self._made_by


@pytest.mark.parametrize("protocol", [0, 1, 2, 3, 4, 5])
def test_a_pickle_that_runs_a_command_runs_nothing(tmp_path: Path, protocol: int) -> None:
    proof = tmp_path / "ran"
    for call in (_Runs(os.system, f"touch {proof}"), _Runs(eval, f"open({str(proof)!r}, 'w')")):
        data = pickle.dumps({"entries": [call], "version": "2.10"}, protocol)
        with pytest.raises(BadPickle):
            load_pickle(data)
    assert not proof.exists()


@pytest.mark.parametrize(
    "data",
    [
        pickle.dumps(datetime.timedelta(1)),
        b"cos\nsystem\n(S'true'\ntR.",
        b"\x80\x04\x8c\x02os\x8c\x06system\x93.",
        b"\x80\x02\x82\x01.",  # an extension code
        b"\x80\x02}b.",  # BUILD on a dictionary
        b"\x80\x02Pthing\n.",
        b"\x80\x02U\x02osU\x06systemi.",
    ],
)
def test_whatever_names_or_builds_an_object_is_refused(data: bytes) -> None:
    with pytest.raises(BadPickle):
        load_pickle(data)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x80\x02",
        b"\x80\x02(",
        b"\x80\x02e.",
        b"\x80\x02]K\x01u.",
        b"\x80\x02h\x07.",
        b"\x80\x02.",
        b"\x80\x02X" + struct.pack("<I", 2**31) + b"a.",
        b"\x80\x04\x8d" + struct.pack("<Q", 2**62) + b"a.",
        b"\x80\x02\x8b" + struct.pack("<i", 2**30) + b"1.",
        b"\x80\x02}r\xff\xff\xff\x7f.",  # a memo of two thousand million places
        b"\x80\x04\x95" + b"\xff" * 8 + b"}.",
        b"\x80\x02}(]K\x01u.",  # a list as a key
        b"\x80\x02" + b"]" * 5_000_000 + b".",
        b"\x80\x02}(" + b")" + b"\x85" * (MAX_TUPLES + 1) + b"K\x01u.",
    ],
)
def test_damage_and_lies_about_size_are_one_line(data: bytes) -> None:
    began = time.monotonic()
    with pytest.raises(BadPickle) as refused:
        load_pickle(data)
    assert "\n" not in str(refused.value)
    assert time.monotonic() - began < 2


def test_the_deepest_key_that_is_let_through_can_be_hashed() -> None:
    """Tuples hash on the C stack: this would end the process, not raise."""
    data = b"\x80\x02}(" + b")" + b"\x85" * (MAX_TUPLES - 1) + b"K\x01u."
    assert len(load_pickle(data)) == 1  # type: ignore[arg-type]


@given(st.binary(max_size=200), st.integers(0, 500), st.integers(1, 8))
@settings(max_examples=300, deadline=None)
def test_cut_and_overwritten_dumps_never_raise_anything_else(noise: bytes, at: int, times: int) -> None:
    data = bytearray(
        pickle.dumps({"version": "2.10", "entries": [{"record_id": n, "state": "scheduled"} for n in range(9)]}, 2)
    )
    for _ in range(times):
        data[at % len(data) : at % len(data) + len(noise)] = noise
        at = at * 31 + 7
    for cut in (bytes(data), bytes(data[: at % len(data)])):
        with suppress(BadPickle):
            load_pickle(cut)
