"""The one failure mechanism of all hooks: count the error, switch the hook off, go on training.

A hook body runs between somebody's line of training code and torch, so an exception that escapes it kills a job.
Every hook owns a Guard and looks like ``if guard.enabled: try: ... except Exception as error: guard.fail(error)``.
``Exception`` and not ``BaseException``: a KeyboardInterrupt that lands inside a hook belongs to the user.
Runs in any thread; the heartbeat thread carries the notes to the ring. Standard library only.
"""

from __future__ import annotations

import itertools
from collections import deque

from ...telemetry.ring_layout import cut_text

#: Notes kept for the ring; more than this many different failures tell nothing new.
MAX_NOTES = 64


class HookHealth:
    """Errors of all hooks of this process, and the notes that still have to be written to the ring."""

    __slots__ = ("_count", "disabled", "errors", "notes")

    def __init__(self) -> None:
        self._count = itertools.count(1)
        self.errors = 0
        #: Names of the hooks that switched themselves off, and why.
        self.disabled: dict[str, str] = {}
        self.notes: deque[str] = deque(maxlen=MAX_NOTES)

    def report(self, name: str, error: BaseException) -> None:
        """Count an error of the hook ``name`` and note it once. Never raises."""
        self.errors = next(self._count)  # atomic under the GIL, which ``+= 1`` is not
        if name in self.disabled:
            return
        try:
            reason = cut_text(f"{type(error).__name__}: {error}", 400)
        except Exception:  # __str__ of a foreign exception may raise
            reason = type(error).__name__
        self.disabled[name] = reason
        self.notes.append(f"hook {name} switched itself off: {reason}")

    def note(self, text: str) -> None:
        """Keeps a text that is to be written once into the ring's definitions."""
        self.notes.append(cut_text(text, 400))


class Guard:
    """Switch of one hook: on until its first error, then off for ever."""

    __slots__ = ("enabled", "health", "name")

    def __init__(self, name: str, health: HookHealth) -> None:
        self.name = name
        self.health = health
        self.enabled = True

    def fail(self, error: BaseException) -> None:
        """Switches the hook off for good, and reports the error. Never raises."""
        self.enabled = False
        self.health.report(self.name, error)
