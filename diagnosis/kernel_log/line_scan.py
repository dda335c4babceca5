"""Which lines of a block may hold one of some hundred words: lines that differ in numbers only are looked at once.

A log says the same few hundred things again and again, with other numbers, addresses and names of containers. Without
digits and the letters of hexadecimal numbers its lines are few, and each of these is searched once. A word that stands
in a line stands, without those, in what is left of the line: none is missed. Of lines that hold words and say nothing
all the same it is asked once whether they ever can: first without those letters, then without digits only.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from .line_folding import Fold, folded

#: Kinds of lines remembered, and their bytes; then all are forgotten: a log of nothing but new ones costs no memory.
KINDS = 16_384
KINDS_BYTES = 4 << 20
#: Longer lines are kinds of their own.
LONG = 1024
#: So many lines of a kind say nothing before it is asked whether they can: the patterns for it take a while to make.
OFTEN = 8
#: Of so many bytes at least a word has to be, after that.
LEAST = 3

#: A word as text, and as it stands in the line.
Word = tuple[str, bytes]
_T = TypeVar("_T")


@dataclass(slots=True)
class LineKind:
    """Lines that are the same when folded. words: that they may hold; candidates: of these, what may mean something.

    silent: how many of the lines said nothing, up to ``OFTEN``.
    """

    words: tuple[Word, ...]
    candidates: tuple[Word, ...]
    silent: int = 0


class LineScan:
    """may_match: whether a word may mean something in ASCII lines that are this when folded.

    Raises ValueError for a word of which too little is left.
    """

    def __init__(self, words: Sequence[str], may_match: Callable[[str, str, Fold], bool]) -> None:
        self._may_match = may_match
        #: By their first bytes, the words and what is left of them.
        self._words: dict[bytes, list[tuple[Word, bytes]]] = {}
        for word in words:
            left = folded(word.encode(), Fold.COARSE)
            if len(left) < LEAST:
                raise ValueError(f"{word!r} is too short to be looked for without digits and a to f")
            self._words.setdefault(left[:LEAST], []).append(((word, word.encode()), left))
        #: Looks ahead, so that words that overlap are found.
        self._any = re.compile(b"(?=" + _any_of({left for found in self._words.values() for _, left in found}) + b")")
        self._known: _Remembered[LineKind] = _Remembered()
        #: By finely folded lines.
        self._candidates: _Remembered[tuple[Word, ...]] = _Remembered()

    def kinds(self, block: bytes) -> list[LineKind]:
        """The kind of each line of the block, in order."""
        known = self._known
        lines = folded(block, Fold.COARSE).split(b"\n")
        found = list(map(known.get, lines))
        if None in found:
            learn = self._learn
            return [learn(line) if kind is None else kind for line, kind in zip(lines, found, strict=True)]
        return found  # type: ignore[return-value]  # there is no None in it

    def kind_of(self, line: bytes) -> LineKind:
        """The kind of one line, as ``kinds`` gives them."""
        left = folded(line, Fold.COARSE)
        kind = self._known.get(left)
        return self._learn(left) if kind is None else kind

    def candidates_in(self, line: bytes, kind: LineKind) -> tuple[Word, ...]:
        """The words that may mean something in the line, which is of this kind."""
        if kind.silent < OFTEN or not kind.candidates:
            return kind.candidates
        fine = folded(line.rstrip(b"\r"), Fold.FINE)  # patterns ask where a line ends
        candidates = self._candidates.get(fine)
        if candidates is None:
            candidates = self._asked(fine, Fold.FINE, kind.candidates)
            self._candidates.add(fine, candidates)
        return candidates

    def said_nothing(self, line: bytes, kind: LineKind) -> None:
        """Counts that nothing came of a line of this kind; at ``OFTEN`` its candidates are looked at more closely."""
        if kind.silent >= OFTEN:
            return
        kind.silent += 1
        if kind.silent == OFTEN:
            kind.candidates = self._asked(folded(line, Fold.COARSE), Fold.COARSE, kind.candidates)

    def _asked(self, line: bytes, fold: Fold, words: tuple[Word, ...]) -> tuple[Word, ...]:
        # Of other than ASCII characters nobody knows here how many bytes are one.
        if len(line) > LONG or not line.isascii():
            return words
        text = line.decode("ascii")
        return tuple(word for word in words if self._may_match(word[0], text, fold))

    def _learn(self, line: bytes) -> LineKind:
        if (kind := self._known.get(line)) is not None:
            return kind
        held: dict[Word, None] = {}
        for found in self._any.finditer(line):
            at = found.start()
            held |= {word: None for word, left in self._words[line[at : at + LEAST]] if line.startswith(left, at)}
        words = tuple(held)
        kind = LineKind(words, words)
        self._known.add(line, kind)
        return kind


class _Remembered(dict[bytes, _T]):
    """Of kinds of lines, but for long ones."""

    def __init__(self) -> None:
        super().__init__()
        self._bytes = 0

    def add(self, line: bytes, value: _T) -> None:
        if len(line) > LONG:
            return
        self._bytes += len(line)
        if len(self) >= KINDS or self._bytes > KINDS_BYTES:
            self.clear()
            self._bytes = len(line)
        self[line] = value


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
