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
#: Of so many bytes at least a word has to be, after that.
LEAST = 3

#: A word as text, and as it stands in the line.
Word = tuple[str, bytes]


class LineScan:
    """Raises ValueError for a word of which too little is left."""

    def __init__(self, words: Sequence[str]) -> None:
        #: By their first bytes, the words and what is left of them.
        self._words: dict[bytes, list[tuple[Word, bytes]]] = {}
        for word in words:
            left = word.encode().translate(None, FOLDED)
            if len(left) < LEAST:
                raise ValueError(f"{word!r} is too short to be looked for without digits and a to f")
            self._words.setdefault(left[:LEAST], []).append(((word, word.encode()), left))
        #: Looks ahead, so that words that overlap are found.
        self._any = re.compile(b"(?=" + _any_of({left for found in self._words.values() for _, left in found}) + b")")
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

    def of_line(self, line: bytes) -> tuple[Word, ...]:
        """As ``candidates``, for a line by itself."""
        kind = line.translate(None, FOLDED)
        words = self._known.get(kind)
        return self._learn(kind) if words is None else words

    def _learn(self, kind: bytes) -> tuple[Word, ...]:
        if (words := self._known.get(kind)) is not None:
            return words
        held: dict[Word, None] = {}
        for found in self._any.finditer(kind):
            at = found.start()
            held |= {word: None for word, left in self._words[kind[at : at + LEAST]] if kind.startswith(left, at)}
        words = tuple(held)
        if len(kind) <= LONG:
            self._bytes += len(kind)
            if len(self._known) >= KINDS or self._bytes > KINDS_BYTES:
                self._known.clear()
                self._bytes = len(kind)
            self._known[kind] = words
        return words


def _any_of(words: set[bytes]) -> bytes:
    """A pattern that matches where one of them is. As a tree of their bytes: hundreds beside each other are slow."""
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
