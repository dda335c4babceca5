"""How long ranks take from one call of a group to their next, by what the two calls are. For jobs without steps.

A loop that no optimizer of torch's drives (an evaluation, a generation, an update by hand) shows no steps, so nothing
says how long its phases take. Its calls come in a sequence that repeats, and between two given calls a rank always does
the same: that is the place, and what it has taken there before is the measure for a wait.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from .....telemetry.vocabulary import EventFlag

#: The first calls of a group set things up.
FIRST_CALLS = 8
#: So often a place must have been passed before what it took is a precedent; a group, where its calls vary.
FEWEST_PASSES, FEWEST_CALLS = 10, 50
#: Places of one job that are told apart: sizes vary without end in some loops.
MOST_PLACES = 4096
_SIGNATURE_BITS = 12
_LAST = np.dtype([("seq", "<i8"), ("done_ns", "<i8"), ("enqueued_ns", "<i8"), ("signature", "<i4")])


class CallGaps:
    """How long ranks took between two calls. Mutable. Members of groups are given as places (``JobGroups.places_of``).

    P2P calls are counted apart.
    """

    def __init__(self) -> None:
        self._last = np.zeros((0, 2), _LAST)  # by place and whether P2P: the newest call; seq 0: none
        self._passed: dict[int, list[int]] = {}  # by two signatures and group: times, longest ns
        self.places_dropped = 0
        self.first_call_ns = 0  # Unix; 0: none yet

    def note(self, rows: np.ndarray, places: np.ndarray, on_device: np.ndarray) -> None:
        """Adds calls, and how long each rank took from its call before. Repeats of a call are updates.

        rows: COLLECTIVES of members, in Unix ns; places: (n,), where each row's member is kept
        (``JobGroups.places_of``); on_device: (n,), whether the operation runs on a GPU.
        """
        p2p = ((rows["flags"] & int(EventFlag.P2P)) != 0).astype(np.intp)
        self._grow(int(places.max(initial=-1)) + 1)
        if not self.first_call_ns and rows.size:
            self.first_call_ns = int(rows["enqueued_ns"].min())
        order = np.lexsort((rows["done_ns"], rows["seq"], p2p, places))
        rows, places, p2p, on_device = rows[order], places[order], p2p[order], on_device[order]
        same_member = (places[1:] == places[:-1]) & (p2p[1:] == p2p[:-1])
        newest = np.append(~(same_member & (rows["seq"][1:] == rows["seq"][:-1])), True)
        rows, places, p2p, on_device = rows[newest], places[newest], p2p[newest], on_device[newest]
        calls = np.zeros(rows.size, _LAST)
        for name in ("seq", "done_ns", "enqueued_ns"):
            calls[name] = rows[name]
        calls["signature"] = signatures(rows["op"], rows["bytes"])
        before = self._last[places, p2p]
        follows = np.append(False, (places[1:] == places[:-1]) & (p2p[1:] == p2p[:-1]))
        before[follows] = calls[np.flatnonzero(follows) - 1]
        self._add(rows["group"], calls, before, on_device)
        last = np.append(~follows[1:], True)
        newer = last & (calls["seq"] >= self._last["seq"][places, p2p])
        self._last[places[newer], p2p[newer]] = calls[newer]

    def _add(self, groups: np.ndarray, calls: np.ndarray, before: np.ndarray, on_device: np.ndarray) -> None:
        next_one = (calls["seq"] == before["seq"] + 1) & (before["seq"] >= FIRST_CALLS)
        # A call that ended before the next was made held its rank up; else the host went on right after making it.
        held = (before["done_ns"] > 0) & (before["done_ns"] <= calls["enqueued_ns"])
        gap_ns = calls["enqueued_ns"] - np.where(held, before["done_ns"], before["enqueued_ns"])
        # Hosts run ahead of their devices: there only ends tell.
        both_ended = (calls["done_ns"] > 0) & (before["done_ns"] > 0)
        gap_ns = np.where(on_device, calls["done_ns"] - before["done_ns"], gap_ns)
        chosen = next_one & (~on_device | both_ended)
        if not chosen.any():
            return
        keys = place_key(groups[chosen].astype(np.int64), before["signature"][chosen], calls["signature"][chosen])
        found, inverse = np.unique(keys, return_inverse=True)
        longest = np.zeros(found.size, np.int64)
        np.maximum.at(longest, inverse, np.maximum(gap_ns[chosen], 0))
        for key, count, ns in zip(found.tolist(), np.bincount(inverse).tolist(), longest.tolist(), strict=True):
            known = self._passed.get(key)
            if known is not None:
                known[0] += count
                known[1] = max(known[1], ns)
            elif len(self._passed) < MOST_PLACES:
                self._passed[key] = [count, ns]
            else:
                self.places_dropped += count

    def longest_ns(self, group: int, before: int, after: int) -> int | None:
        """The longest gap in ns in this group from a call with signature ``before`` to one with ``after``.

        Where this pair is too rare, from any call to the next; None: not known yet.
        """
        known = self._passed.get(int(place_key(group, before, after)))
        if known is not None and known[0] >= FEWEST_PASSES:
            return known[1]
        return self.longest_of_group_ns(group)

    def longest_of_group_ns(self, group: int) -> int | None:
        """The longest gap in ns from any of the group's calls to the rank's next; None with fewer than FEWEST_CALLS."""
        of_group = [passed for key, passed in self._passed.items() if key >> (2 * _SIGNATURE_BITS) == group]
        if sum(count for count, _ in of_group) < FEWEST_CALLS:
            return None
        return max(longest for _, longest in of_group)

    def longest_of_all_ns(self) -> int | None:
        """The longest gap in ns from any call to the rank's next of any group with enough calls; None without one."""
        groups = {key >> (2 * _SIGNATURE_BITS) for key in self._passed}
        known = [ns for group in groups if (ns := self.longest_of_group_ns(group)) is not None]
        return max(known, default=None)

    def as_arrays(self) -> dict[str, np.ndarray]:
        """Rows of state, for ``of_arrays``.

        gaps_last: the newest call by (place, whether P2P); gaps_passed: (n, 3), key, count, longest gap in ns;
        gaps_first: (1,), the first call in Unix ns, 0 for none yet.
        """
        rows = [(key, count, longest) for key, (count, longest) in self._passed.items()]
        passed, first = np.array(rows, np.int64).reshape(-1, 3), np.array([self.first_call_ns], np.int64)
        return {"gaps_last": self._last, "gaps_passed": passed, "gaps_first": first}

    @classmethod
    def of_arrays(cls, arrays: dict[str, np.ndarray]) -> CallGaps:
        """Of a state that has none: nothing known. arrays: by name, as ``as_arrays`` gave them; times in ns."""
        gaps = cls()
        if "gaps_last" in arrays:
            gaps._last, gaps.first_call_ns = arrays["gaps_last"], int(arrays["gaps_first"][0])
            gaps._passed = {key: [count, longest] for key, count, longest in arrays["gaps_passed"].tolist()}
        return gaps

    def _grow(self, size: int) -> None:
        if size > len(self._last):
            grown = np.zeros((max(size, 2 * len(self._last)), 2), _LAST)
            grown[: len(self._last)] = self._last
            self._last = grown


def signatures(op: np.ndarray | int, nbytes: np.ndarray | int) -> np.ndarray:
    """A number per call; equal for calls that count as alike: the same operation, and sizes that round up to one power
    of two.

    op, nbytes: (n,), or one for all rows.
    """
    size = np.ceil(np.log2(np.maximum(np.asarray(nbytes, np.int64), 1))).astype(np.int32)
    return np.asarray(np.minimum(np.asarray(op, np.int32), 63) << 6 | np.minimum(size, 63), np.int32)


def place_key(group: np.ndarray | int, before: np.ndarray | int, after: np.ndarray | int) -> np.ndarray:
    """A number for each place between two calls. group: the group's index; before, after: signatures of the calls; all
    (n,).
    """
    keys: Sequence[np.ndarray] = [np.asarray(each, np.int64) for each in (group, before, after)]
    return np.asarray(keys[0] << (2 * _SIGNATURE_BITS) | keys[1] << _SIGNATURE_BITS | keys[2])
