"""A metrics request with its metrics in the order of their names, and without those that nobody wants.

The Collector's Prometheus receiver tells the metrics of a page in another order at each scrape (a Go map's); in one
order, pages of one target are alike but for their numbers, which ``metric_layouts`` reads by place. Pure but for what
is remembered of names. Used by one thread.
"""

from __future__ import annotations

from collections.abc import Callable

from .metric_walk import Strange, fields_of
from .otlp_wire import bytes_field

_BYTES = 2
_RESOURCE_METRICS, _SCOPE_METRICS, _METRICS, _NAME = 1, 2, 2, 1
#: Names that were asked about.
_REMEMBERED = 16_384


class MetricOrder:
    """is_wanted: which metrics, told by their names, are read. is_ours: which come in one order anyway."""

    def __init__(self, is_wanted: Callable[[str], bool], is_ours: Callable[[str], bool]) -> None:
        self._is_wanted, self._is_ours = is_wanted, is_ours
        #: By name, whether it is wanted, and whether it comes in one order.
        self._known: dict[bytes, tuple[bool, bool]] = {}

    def sorted(self, value: bytes) -> bytes | None:
        """The request in the order of names; None where it is as it should be, or no such request."""
        came: list[bytes] = []
        try:
            parts = [self._part(value, span, came) for span in _messages(value, (0, len(value)), _RESOURCE_METRICS)]
        except Strange:
            return None
        return b"".join(parts) if not all(self._about(name)[1] for name in came) else None

    def _part(self, value: bytes, span: tuple[int, int], came: list[bytes]) -> bytes:
        kept: list[bytes] = []
        at = span[0]
        for number, wire, begin, end in fields_of(value, *span):
            is_scope = number == _SCOPE_METRICS and wire == _BYTES
            kept.append(self._scope(value, (begin, end), came) if is_scope else value[at:end])
            at = end
        return bytes_field(_RESOURCE_METRICS, b"".join(kept))

    def _scope(self, value: bytes, span: tuple[int, int], came: list[bytes]) -> bytes:
        kept: list[bytes] = []
        metrics: list[tuple[bytes, bytes]] = []
        at = span[0]
        for number, wire, begin, end in fields_of(value, *span):
            if number == _METRICS and wire == _BYTES:
                name = _name_of(value, begin, end)
                if self._about(name)[0]:
                    metrics.append((name, value[at:end]))
                    came.append(name)
            else:
                kept.append(value[at:end])
            at = end
        metrics.sort(key=_first)
        return bytes_field(_SCOPE_METRICS, b"".join([*kept, *(raw for _, raw in metrics)]))

    def _about(self, name: bytes) -> tuple[bool, bool]:
        known = self._known.get(name)
        if known is None:
            if len(self._known) >= _REMEMBERED:
                self._known.clear()
            text = name.decode("utf-8", "replace")
            known = self._known[name] = self._is_wanted(text), self._is_ours(text)
        return known


def _first(pair: tuple[bytes, bytes]) -> bytes:
    return pair[0]


def _messages(value: bytes, span: tuple[int, int], wanted: int) -> list[tuple[int, int]]:
    """Raises ``Strange`` where there is anything else."""
    found = []
    for number, wire, begin, end in fields_of(value, *span):
        if number != wanted or wire != _BYTES:
            raise Strange
        found.append((begin, end))
    return found


def _name_of(value: bytes, begin: int, end: int) -> bytes:
    """Of a metric: its first field, as all write it."""
    if begin + 2 > end or value[begin] != _NAME << 3 | _BYTES or value[begin + 1] >= 0x80:
        return next(
            (value[b:e] for number, wire, b, e in fields_of(value, begin, end) if (number, wire) == (_NAME, _BYTES)),
            b"",
        )
    return value[begin + 2 : begin + 2 + value[begin + 1]]
