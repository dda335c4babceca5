"""Elements of a shard in the order of the bus, those that hold flushes of many nodes taken apart. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import astuple

from .joined_flushes import CameFlush, read_joined
from .known_groups import KnownGroups
from .stage_elements import PHASE_MESSAGE, Element, ElementSort


def in_order(
    elements: Sequence[Element], known: KnownGroups, set_aside: Callable[[Element, str], None]
) -> Iterator[Element | CameFlush]:
    """What the elements hold, which are in order. set_aside: takes an element that cannot be read, and why."""
    found: list[tuple[tuple[object, ...], Element | CameFlush]] = []
    for element in elements:
        if element.sort is not ElementSort.JOINED:
            found.append((astuple(element.place), element))
            continue
        try:
            came = read_joined(element.value, known)
        except Exception as error:  # what an earlier release has written, or memory: it ends one record
            set_aside(element, f"decoding failed: {type(error).__name__}: {error}"[:300])
            continue
        # Where the message that each of them was alone in would stand (``Intake``).
        found += [
            ((each.stamp_ns, PHASE_MESSAGE, each.topic, each.partition, each.offset, "", 1), each) for each in came
        ]
    found.sort(key=lambda each: each[0])
    return (each for _, each in found)
