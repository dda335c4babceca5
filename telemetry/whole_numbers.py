"""Numbers in texts that came from outside. Standard library only."""

from __future__ import annotations

_MOST_DIGITS = 18


def whole_number(text: str) -> int | None:
    """The number; None where the text is anything but a few ASCII digits.

    ``str.isdigit`` alone also takes ``²`` and five thousand digits, on both of which ``int`` raises.
    """
    return int(text) if text.isascii() and text.isdecimal() and len(text) <= _MOST_DIGITS else None
