"""Which trace and which span something is: ids that follow from what it is, so that repeats coincide.

One trace per step, over all ranks of an attempt: agents on other nodes and the trace writer beside the processors
arrive at the same ids without a word between them. Pure functions.
"""

from __future__ import annotations

import hashlib
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

#: First word of a span's id: what sort of thing the others count. 0 is no sort, so that no id is all zeros by design.
STEP, PHASE, COLLECTIVE, POINT_TO_POINT, INCIDENT = range(1, 6)

_UINT64_MASK = (1 << 64) - 1
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX_1, _MIX_2 = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
_S27, _S30, _S31 = np.uint64(27), np.uint64(30), np.uint64(31)


def attempt_word(*, launch: str, token: str, restart_count: int) -> str:
    """How an attempt is known in traces: a launch is of one node, the store in which its ranks met is everybody's.

    token: of ``launch.met``, "" unknown: then the launch must do. torch's launcher may keep its store over a restart,
    so the restart counts, too. (Where the counters of two nodes differ in one attempt, each has traces of its own:
    better than steps of two attempts in one.)
    """
    return f"{token}/{restart_count}" if token else launch


@lru_cache(maxsize=4096)
def step_trace_id(job: str, attempt: str, step: int) -> bytes:
    """16 bytes. attempt: as ``attempt_word`` has it."""
    return _digest(16, "step", job, attempt, step)


def incident_trace_id(incident: str) -> bytes:
    """16 bytes."""
    return _digest(16, "incident", incident)


@lru_cache(maxsize=4096)
def group_word(uid: str) -> int:
    """A process group as a word of a span's id."""
    return int.from_bytes(_digest(8, "group", uid), "little")


def trace_word(trace_id: bytes) -> int:
    """A trace as the word with which the ids of its spans begin."""
    return int.from_bytes(trace_id[:8], "little")


def span_ids(*words: int | NDArray[np.int64] | NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Ids of the spans that these words tell apart: trace, sort, rank, group, sequence. Each a column or one number.

    splitmix64 over the words: the ids need no secrecy, and a hundred thousand of them a second must cost nothing.
    """
    state: NDArray[np.uint64] = np.zeros(1, np.uint64)
    with np.errstate(over="ignore"):
        for word in words:
            column = np.asarray(word & _UINT64_MASK if isinstance(word, int) else word).astype(np.uint64)
            state = _mix(state + _GOLDEN + _mix(column))
    return np.asarray(np.maximum(state, np.uint64(1)))  # an id of zeros is no id


@lru_cache(maxsize=65_536)
def step_span_id(trace_id: bytes, rank: int) -> int:
    """Of a rank's step, the parent of its phases and collectives."""
    return int(span_ids(trace_word(trace_id), STEP, rank)[0])


def _mix(value: NDArray[np.uint64]) -> NDArray[np.uint64]:
    value = (value ^ (value >> _S30)) * _MIX_1
    value = (value ^ (value >> _S27)) * _MIX_2
    return np.asarray(value ^ (value >> _S31))


def _digest(size: int, *parts: object) -> bytes:
    text = "\0".join(str(part) for part in parts)
    return hashlib.blake2b(text.encode("utf-8", "replace"), digest_size=size).digest()
