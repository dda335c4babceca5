"""Which step a state holds that was copied some steps ago, and is written by a thread of the script's own.

Nobody sees the copy being made. But optimizers of Adam's kind count their steps in their own state, which is saved with
it: how far that count is from the attempt's steps is learned while training goes on. Without such a count, or with more
than one optimizer, it is not known. Method: ours. Numbers on a device are never read: that would wait for it.

``see`` in the main thread, ``step_of`` in any. Never raises but for a state that changes meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

#: After so many of its steps the count is looked at again: skipped steps shift it.
_EVERY = 16
#: So deep, and so many entries of a state, are looked at.
_DEEPEST, _MOST_ENTRIES = 5, 20_000


class CopiedStates:
    """steps_held: steps of the attempt that the weights hold now."""

    def __init__(self, steps_held: Callable[[], int]) -> None:
        self._steps_held = steps_held
        self._known_id = 0
        self._calls = 0
        self._is_one = True
        #: The optimizer's count at the attempt's first step; None: not known.
        self._before: int | None = None

    def see(self, optimizer: Any) -> None:
        """An optimizer has made a step, which counts already."""
        self._calls += 1
        if id(optimizer) != self._known_id:
            if self._known_id:
                self._is_one, self._before = False, None
            self._known_id = id(optimizer)
        elif self._calls % _EVERY != 2:
            return
        if self._is_one:
            count = _count_in(getattr(optimizer, "state", None))
            self._before = None if count is None else count - self._steps_held()

    def step_of(self, state: Any) -> int | None:
        """Steps of the attempt that this state holds; None: not known, or none of this attempt."""
        before = self._before
        if before is None:
            return None
        found: set[int] = set()
        _find_counts(state, found, [_MOST_ENTRIES], 0)
        if len(found) != 1:
            return None
        step = found.pop() - before
        return step if 0 <= step <= self._steps_held() else None


def _find_counts(node: Any, found: set[int], left: list[int], depth: int) -> None:
    """The count of each optimizer's state in a state: what has ``state`` and ``param_groups`` is one."""
    if not isinstance(node, Mapping) or depth > _DEEPEST:
        return
    if "state" in node and "param_groups" in node:
        count = _count_in(node["state"])
        if count is not None:
            found.add(count)
        return
    for each in node.values():
        left[0] -= 1
        if left[0] < 0:
            return
        _find_counts(each, found, left, depth + 1)


def _count_in(state: Any) -> int | None:
    """The count of the first parameter that has one."""
    if not isinstance(state, Mapping):
        return None
    for of_parameter in state.values():
        step = of_parameter.get("step") if isinstance(of_parameter, Mapping) else None
        if step is None:
            return None
        device = getattr(step, "device", None)
        return int(step) if device is None or device.type == "cpu" else None
    return None
