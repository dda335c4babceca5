"""What single events said of ranks as JSON for a row of state, made anew only of ranks of which something changed.

While a large job starts its row is written with every conclusion, and most of it stays as it was.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from operator import attrgetter

from .rank_state import RankFacts, RankStack

_LISTS = ("calls", "bad_inputs")  # changed in place: of ranks that have some the text is never kept
_NAMES = tuple(name for name in RankFacts.__slots__ if name not in _LISTS)
_values_of = attrgetter(*_NAMES)
_USUAL = _values_of(RankFacts())
_encode = json.JSONEncoder(separators=(",", ":")).encode


class RankTexts:
    """Of one job's ranks."""

    __slots__ = ("_kept",)

    def __init__(self) -> None:
        #: By rank: what its text was made of, and the text.
        self._kept: dict[int, tuple[tuple[object, ...], str]] = {}

    def text(self, ranks: Mapping[int, RankFacts]) -> str:
        """The JSON object of all ranks' facts; what is as in ``RankFacts()`` is left out."""
        before, self._kept = self._kept, {}
        texts = []
        for rank, facts in ranks.items():
            values, known = _values_of(facts), before.get(rank)
            if facts.calls or facts.bad_inputs:
                lists = {name: list(getattr(facts, name)) for name in _LISTS}
                texts.append(f'"{rank}":{_encode(_told(values) | lists)}')
                continue
            if known is None or known[0] != values:
                known = values, f'"{rank}":{_encode(_told(values))}'
            self._kept[rank] = known
            texts.append(known[1])
        return f"{{{','.join(texts)}}}"


def _told(values: tuple[object, ...]) -> dict[str, object]:
    told = {name: value for name, value, usual in zip(_NAMES, values, _USUAL, strict=True) if value != usual}
    stack = told.get("stack")
    if isinstance(stack, RankStack):
        told["stack"] = {name: getattr(stack, name) for name in RankStack.__slots__}
    return told
