"""Text that came from outside, as it may be written where people read: one line, nothing that a terminal obeys."""

from __future__ import annotations


def printable(text: str) -> str:
    """The text with everything that is not printed (control and format characters, line ends, lone surrogates) escaped.

    ``"a\\nb"`` becomes ``"a\\\\nb"``; what is printed stays as it is, whatever its script.
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)
