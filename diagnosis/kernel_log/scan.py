"""Which lines of a block may hold one of some hundred words: lines that differ in numbers only are looked at once.

A log says the same few hundred things again and again, with other numbers, addresses and names of containers. Without
digits and the letters of hexadecimal numbers its lines are few, and each of these is searched once. A word that stands
in a line stands, without those, in what is left of the line: none is missed.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

#: What addresses, counters and generated names are made of.
FOLDED = b"0123456789abcdef"
#: Kinds of lines remembered, and their bytes; then all are forgotten: a log of nothing but new ones costs no memory.
KINDS = 16_384
KINDS_BYTES = 4 << 20
#: Longer lines are kinds of their own.
LONG = 1024

#: A word as text, and as it stands in the line.
Word = tuple[str, bytes]
_NONE: tuple[Word, ...] = ()


class LineScan:
    """Raises ValueError for a word of which too little is left."""

    LEAST = 3

    def __init__(self, words: Sequence[str]) -> None:
        self._words = [(word, raw, raw.translate(None, FOLDED)) for word in words for raw in (word.encode(),)]
        if short := [word for word, _, left in self._words if len(left) < self.LEAST]:
            raise ValueError(f"too short to be looked for without digits and a to f: {', '.join(short)}")
        self._any = re.compile(_any_of({left for _, _, left in self._words}))
        self._known: dict[bytes, tuple[Word, ...]] = {}
        self._bytes = 0

    def candidates(self, block: bytes) -> list[tuple[Word, ...]]:
        """For each line of the block the words that it may hold."""
        known = self._known
        kinds = block.translate(None, FOLDED).split(b"\n")
        found = list(map(known.get, kinds))
        if None in found:
            learn = self._learn
            return [learn(kind) if words is None else words for kind, words in zip(kinds, found, strict=True)]
        return found  # type: ignore[return-value]  # there is no None in it

    def _learn(self, kind: bytes) -> tuple[Word, ...]:
        if (words := self._known.get(kind)) is not None:
            return words
        words = _NONE
        if self._any.search(kind) is not None:
            words = tuple((word, raw) for word, raw, left in self._words if left in kind)
        if len(kind) <= LONG:
            self._bytes += len(kind)
            if len(self._known) >= KINDS or self._bytes > KINDS_BYTES:
                self._known.clear()
                self._bytes = len(kind)
            self._known[kind] = words
        return words


def _any_of(words: set[bytes]) -> bytes:
    """A pattern that matches where one of them begins. As a tree of their bytes: hundreds beside each other are slow."""
    tree: dict[int, dict[int, object]] = {}
    for word in sorted(words):
        node: dict = tree  # type: ignore[type-arg]
        for byte in word:
            node = node.setdefault(byte, {})
        node[-1] = {}
    return _pattern(tree)


def _pattern(node: dict) -> bytes:  # type: ignore[type-arg]
    if -1 in node:
        return b""
    ends = b"".join(re.escape(bytes([byte])) for byte, after in node.items() if -1 in after)
    parts = [re.escape(bytes([byte])) + _pattern(after) for byte, after in node.items() if -1 not in after]
    if ends:
        parts.append(b"[" + ends + b"]")
    return parts[0] if len(parts) == 1 else b"(?:" + b"|".join(parts) + b")"
