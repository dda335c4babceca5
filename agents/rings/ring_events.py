"""The 64-byte events of a ring as columns: decoding, checking, salvaging. Pure; numpy only.

A reader and a writer share the slots without a lock, so every event carries its own index at both ends; what does not
carry the expected one is not an event (yet, or any more).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ...telemetry.ring_layout import EVENT_BYTES

#: One slot; the head word is split into its packed fields.
EVENT = np.dtype(
    [
        ("begin", "<u8"),
        ("kind", "u1"),
        ("op", "u1"),
        ("phase", "u1"),
        ("flags", "u1"),
        ("group", "<u2"),
        ("dtype", "<u2"),
        ("seq", "<i8"),
        ("time_ns", "<i8"),
        ("value", "<u8"),
        ("step", "<i8"),
        ("extra", "<u8"),
        ("end", "<u8"),
    ]
)
assert EVENT.itemsize == EVENT_BYTES


def decode_slots(raw: bytes) -> NDArray[np.void]:
    """Slots as a structured array of EVENT (a view; a trailing partial slot is ignored)."""
    return np.frombuffer(raw, dtype=EVENT, count=len(raw) // EVENT_BYTES)


def valid_events(events: NDArray[np.void], first_index: int) -> NDArray[np.bool_]:
    """Flags, one per slot: whether it holds event ``first_index``, ``first_index + 1``, … complete."""
    expected = np.arange(first_index + 1, first_index + 1 + len(events), dtype=np.uint64)
    ok: NDArray[np.bool_] = (events["begin"] == expected) & (events["end"] == expected)
    return ok


def overwritten(events: NDArray[np.void], first_index: int) -> NDArray[np.bool_]:
    """Flags, one per slot: whether it already holds (the beginning of) a later lap than expected."""
    expected = np.arange(first_index + 1, first_index + 1 + len(events), dtype=np.uint64)
    return np.asarray(events["begin"] > expected)


def salvage_events(raw: bytes, slots: int, after_index: int) -> tuple[NDArray[np.void], int]:
    """All complete events found in a whole ring area whose head word cannot be believed.

    raw: the area, ``slots`` slots from slot 0. Takes events with index >= ``after_index`` that lie in the slot of
    their index, oldest first. Returns (events, index after the newest one).
    """
    events = decode_slots(raw)[:slots]
    position = np.arange(len(events), dtype=np.uint64)
    index = events["begin"] - np.uint64(1)  # wraps for empty slots; those fail the next test
    ok = (
        (events["begin"] == events["end"])
        & (events["begin"] > 0)
        & ((index & np.uint64(slots - 1)) == position)
        & (index >= np.uint64(after_index))
    )
    found = events[ok]
    found = found[np.argsort(found["begin"], kind="stable")]
    # A ring holds one lap; an index further back is debris of damage.
    if len(found):
        found = found[found["begin"] > found["begin"][-1] - np.uint64(min(slots, int(found["begin"][-1])))]
    return found, int(found["begin"][-1]) if len(found) else after_index
