"""A forked child writes nothing to its parent's ring: every writer forgets it there, whatever it is written in."""

from __future__ import annotations

import os
import weakref
from typing import Any

_writers: list[weakref.ref[Any]] = []


def register_for_fork(writer: weakref.ref[Any]) -> None:
    """Lets ``forget_in_child`` be called on this writer in every forked child, as long as it lives."""
    _writers[:] = [known for known in _writers if known() is not None]
    _writers.append(writer)


def _forget_all_in_child() -> None:
    for reference in _writers:
        writer = reference()
        if writer is not None:
            writer.forget_in_child()


os.register_at_fork(after_in_child=_forget_all_in_child)
