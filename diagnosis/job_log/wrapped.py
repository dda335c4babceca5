"""Lines that a terminal has cut at its width, put together again: a log that somebody copied from a screen.

The width shows in the log itself: no line is longer, and more than one is exactly so long. A line of that width goes on
in the next one if nothing there says that another line begins.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from .log_prefix import read_lines
from .ways import BOX, NOBODY_KNOWN, TRACEBACK

NARROWEST, WIDEST = 60, 400
MOST_PARTS = 12
#: A line that ends so was drawn to that width.
RULED = (*(edge.encode() for edge in BOX), b"=", b"-", b"*", b"#", b"_")
#: Beginnings of lines of their own, which have no carrier.
OWN = (b" ", b"\t", b"File ", b"Traceback", b"During handling", b"The above", b"frame #", b"[", b"=", b"-", b"#")


#: The same behind a prefix: one blank is where a word ended at the width.
OWN_BEHIND = (b"  ", *(own for own in OWN if own.strip()), *(b" " + own for own in OWN if own.strip()))


def wrap_width(ends: NDArray[np.int64]) -> int:
    """The width at which a terminal cut this block's lines; 0 where none did.

    ends: (lines,), index of each line's end.
    """
    if len(ends) < 2:
        return 0
    lengths = np.diff(ends, prepend=-1) - 1
    widest = int(lengths.max())
    return widest if NARROWEST <= widest <= WIDEST and int((lengths == widest).sum()) > 1 else 0


class Unwrapper:
    """``width`` of the block at hand; ``feed`` lines with their numbers, take whole ones; ``flush`` at a gap."""

    def __init__(self) -> None:
        self.width = 0
        self._number = 0
        self._parts: list[bytes] = []

    def wants_next(self) -> bool:
        """Whether a line is held that was cut at the width."""
        return bool(self._parts)

    def feed(self, number: int, raw: bytes) -> Iterator[tuple[int, bytes]]:
        """Lines that are complete by now, joined from their parts, each with the number of its first part."""
        if self._parts:
            rest = _continuation(self._parts[0], raw)
            if rest is not None and len(self._parts) < MOST_PARTS:
                self._parts.append(rest)
                if len(raw) != self.width:
                    yield from self.flush()
                return
            yield from self.flush()
        if self.width and len(raw) == self.width and not raw.endswith(RULED) and TRACEBACK.encode() not in raw:
            self._number, self._parts = number, [raw]
            return
        yield number, raw

    def flush(self) -> Iterator[tuple[int, bytes]]:
        """The held line as it is, if there is one."""
        if self._parts:
            parts, self._parts = self._parts, []
            yield self._number, b"".join(part.rstrip(b"\r") for part in parts)


def _continuation(first: bytes, raw: bytes) -> bytes | None:
    """What of a line goes on with the one before: all of it, or what stands behind the same prefix; None: it begins."""
    if not raw.strip():
        return None
    if not raw.startswith(OWN):
        text = raw.decode("utf-8", "replace").rstrip()
        if all(line.text == text for line in read_lines(NOBODY_KNOWN, 0, raw)):
            return raw
    prefix, body = _behind(raw)
    if not prefix or not first.startswith(prefix) or body.startswith(OWN_BEHIND):
        return None
    # Two lines of one writer that begin alike are two: only what is of another kind goes on.
    if first[len(prefix) :].startswith(b" ") and body.startswith(b" "):
        body = body[1:]
    begun = first[len(prefix) :].split(maxsplit=1)
    return None if not begun or body.split(maxsplit=1)[:1] == begun[:1] else body


def _behind(raw: bytes) -> tuple[bytes, bytes]:
    """Prefix and the rest, as far as carriers are known."""
    lines = list(read_lines(NOBODY_KNOWN, 0, raw))
    if len(lines) != 1 or not lines[0].text:
        return b"", raw
    at = raw.rfind(lines[0].text.encode())
    prefix = raw[:at].rstrip() if at > 0 else b""
    return prefix, raw[len(prefix) :]
