"""A text as a person sees it: without what is not shown, and where each character of that view stands in the text.

Terminals swallow colours, chats and browsers swallow characters without width, and many letters look like those of
ASCII. So a word may be there for people and for no rule that looks at the text itself. Pure, linear, standard library.
"""

from __future__ import annotations

import re
import unicodedata
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass

#: Sequences of terminals, whole or cut; control characters but tab and line ends; formats and fillers without width.
_UNSEEN = re.compile(
    r"\x1b\[[0-?]{0,64}[ -/]{0,8}[@-~]?|\x9b[0-?]{0,64}[ -/]{0,8}[@-~]?"
    r"|(?:\x1b[\]PX^_]|[\x90\x98\x9d-\x9f])[^\x07\x1b\x9c\n]{0,256}(?:\x07|\x1b\\|\x9c)"
    r"|\x1b[ -/]{0,4}[0-~]?"
    r"|[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\xad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f"
    r"\u202a-\u202e\u2060-\u206f\u2800\u3164\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufffb\U000e0000-\U000e0fff]"
)
#: Look like letters, digits and signs of ASCII: wide ones and those of formulas; and spaces of any width.
_ALIKE = re.compile("[\uff01-\uff5e\U0001d400-\U0001d7ff\ufe55\ufe66]")
_SPACES = re.compile("[\u00a0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000\u0085]")
#: Separates texts in memory and in command lines: a view has a space there as well.
_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")
_ODD = re.compile(f"{_UNSEEN.pattern}|{_ALIKE.pattern}|{_SPACES.pattern}")


@dataclass(frozen=True, slots=True)
class SeenText:
    """begins: where each piece that was kept begins in the view; moved: how far it stood behind that in the text."""

    text: str
    begins: tuple[int, ...] = (0,)
    moved: tuple[int, ...] = (0,)

    def span(self, begin: int, end: int) -> tuple[int, int]:
        """Where in the text the characters from ``begin`` to before ``end`` of the view stand."""
        return self._place(begin), self._place(end - 1) + 1

    def _place(self, at: int) -> int:
        return at + self.moved[bisect_right(self.begins, at) - 1]


def views(text: str) -> Iterator[SeenText]:
    """How else the text can be read; none where all of it is seen as it is."""
    if _ODD.search(text) is None:
        return
    yield _shown(text)
    if _CONTROL.search(text) is not None:
        yield SeenText(_plain(_CONTROL.sub(" ", text)))


def as_seen(text: str) -> str:
    """The text as it is shown; the same object where all of it is seen as it is."""
    return text if _ODD.search(text) is None else _shown(text).text


def _shown(text: str) -> SeenText:
    pieces: list[str] = []
    begins, moved = [0], [0]
    at = length = 0
    for match in _UNSEEN.finditer(text):
        pieces.append(text[at : match.start()])
        length += match.start() - at
        at = match.end()
        if begins[-1] == length:
            moved[-1] = at - length
        else:
            begins.append(length)
            moved.append(at - length)
    pieces.append(text[at:])
    return SeenText(_plain("".join(pieces)), tuple(begins), tuple(moved))


def _plain(text: str) -> str:
    """Letters and spaces that look like those of ASCII are these; as many as before."""
    if text.isascii():
        return text
    return _SPACES.sub(" ", _ALIKE.sub(lambda match: unicodedata.normalize("NFKC", match[0])[:1], text))
