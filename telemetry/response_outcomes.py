"""What became of an act of ``whichrank respond``: the closed set of words."""

from __future__ import annotations

from enum import Enum


class Outcome(str, Enum):
    """What became of an act of ``whichrank respond``; the last word of its event's name."""

    #: Without --act: what would have been done.
    WOULD = "would"
    BEGUN = "begun"
    DONE = "done"
    #: It was so already; nothing was done.
    ALREADY = "already"
    FAILED = "failed"
    REFUSED = "refused"
    #: Begun in an earlier life, and nobody knows whether it was done. It is not done again.
    UNFINISHED = "unfinished"
    BREAKER_OPENED = "breaker_opened"
    BREAKER_RESET = "breaker_reset"
