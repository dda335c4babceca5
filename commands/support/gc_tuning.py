"""How seldom a service lets Python search for cycles of objects.

A judge's state of large jobs is millions of objects that stay, and its records die with their last reference: a
search of all of them, by default after every 700 * 10 * 10 new ones, found nothing and took an eighth of the time
(4,096 ranks); of an agent's time beside ten jobs a twentieth.
"""

from __future__ import annotations

import gc

#: New objects before the youngest are searched, and searches before those that outlived them are, and all.
_YOUNG, _OLDER, _ALL = 50_000, 20, 20


def search_seldom() -> None:
    """Lets Python search for cycles of objects seldom, in the whole process, from here on."""
    gc.set_threshold(_YOUNG, _OLDER, _ALL)
