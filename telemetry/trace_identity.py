"""Which trace and which span something is: ids that follow from what it is, so that repeats coincide.

One trace per step, over all ranks of an attempt: agents on other nodes and the trace writer beside the processors
arrive at the same ids without a word between them. Pure functions.
"""

from __future__ import annotations

import hashlib
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

#: Sorts of spans within the trace of a step.
STEP, PHASE, COLLECTIVE, POINT_TO_POINT = range(4)

#: A span's id: sort 2 bits, rank 22 (``block.MAX_RANK``), group 20, sequence number 20.
_SORT_SHIFT, _RANK_SHIFT, _GROUP_SHIFT = np.uint64(62), np.uint64(40), np.uint64(20)
_RANK_MASK, _PLACE_MASK, _20_BITS = np.uint64((1 << 22) - 1), np.uint64((1 << 40) - 1), np.uint64((1 << 20) - 1)

_Column = int | NDArray[np.int64] | NDArray[np.uint64]


def attempt_word(*, launch: str, token: str, restart_count: int) -> str:
    """How an attempt is known in traces: a launch is of one node, the store in which its ranks met is everybody's.

    token: of ``launch.met``, "" unknown: then the launch must do. torch's launcher may keep its store over a restart,
    so the restart counts, too. (Where the counters of two nodes differ in one attempt, each has traces of its own:
    better than steps of two attempts in one.)
    """
    return f"{token}/{restart_count}" if token else launch


@lru_cache(maxsize=4096)
def step_trace_id(job: str, attempt: str, step: int) -> bytes:
    """The trace id (16 bytes) of one step of all ranks. attempt: as ``attempt_word`` has it."""
    return _digest(16, "step", job, attempt, step)


def incident_trace_id(incident: str) -> bytes:
    """The trace id (16 bytes) of an incident, by its id."""
    return _digest(16, "incident", incident)


@lru_cache(maxsize=4096)
def group_word(uid: str) -> int:
    """A number of 64 bits that stands for a process group's uid in trace ids: a hash, the same on all ranks."""
    return int.from_bytes(_digest(8, "group", uid), "little")


def trace_word(trace_id: bytes) -> int:
    """The first 64 bits of a trace's id as a number."""
    return int.from_bytes(trace_id[:8], "little")


def operation_place(group_words: NDArray[np.uint64], seq: NDArray[np.int64]) -> NDArray[np.uint64]:
    """Numbers that tell operations of a rank and step apart, for ``span_ids``: 40 bits of group and sequence number.

    group_words (``group_word``), seq: (operations,).
    """
    place: NDArray[np.uint64] = (group_words & _20_BITS) << _GROUP_SHIFT | seq.astype(np.uint64) & _20_BITS
    return place


def span_ids(trace_words: _Column, sort: _Column, rank: _Column, place: _Column) -> NDArray[np.uint64]:
    """Ids of spans; each argument a column or one number. place: of 40 bits, what the sort makes of it.

    The parts side by side, and the trace over them: within a trace no two are equal, and neighbours have ids that
    differ in a byte or two. Hashes of the same parts made a compressed span 40 % larger (23 bytes instead of 16).
    """
    parts = (
        _as_words(sort) << _SORT_SHIFT | (_as_words(rank) & _RANK_MASK) << _RANK_SHIFT | _as_words(place) & _PLACE_MASK
    )
    return np.asarray(np.maximum(parts ^ _as_words(trace_words), np.uint64(1)))  # an id of zeros is no id


@lru_cache(maxsize=65_536)
def step_span_id(trace_id: bytes, rank: int) -> int:
    """Id of the span of a rank's step, the parent of its phases and collectives."""
    # As ``span_ids`` does it, for one span without an array.
    return max((rank & int(_RANK_MASK)) << int(_RANK_SHIFT) ^ trace_word(trace_id), 1)


def _as_words(column: _Column) -> NDArray[np.uint64]:
    return np.atleast_1d(np.asarray(column)).astype(np.uint64)


def _digest(size: int, *parts: object) -> bytes:
    text = "\0".join(str(part) for part in parts)
    return hashlib.blake2b(text.encode("utf-8", "replace"), digest_size=size).digest()
