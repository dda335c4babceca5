"""Replacement of attributes of torch, undone exactly: what was there before is there again, the same object.

A patch may cover several places that hold the same function (``torch.save`` is also ``torch.serialization.save``).
Uninstalling leaves alone a place that somebody else has patched since: their wrapper still calls ours, which then only
passes through. Runs in the thread that calls ``init``. Standard library only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

_MISSING = object()


class Patch:
    """One function replaced in one or more places (an owner is a module or a class)."""

    __slots__ = ("_places", "_saved", "make", "name")

    def __init__(
        self, name: str, places: Iterable[tuple[Any, str]], make: Callable[[Callable[..., Any]], Callable[..., Any]]
    ) -> None:
        self.name = name
        self.make = make
        self._places = tuple(places)
        self._saved: list[tuple[Any, str, Any, Any]] = []

    def install(self) -> None:
        """Replaces the function found in the first place that has it; other places only if they hold that same
        function.

        Raises AttributeError where there is nothing to patch.
        """
        original: Any = _MISSING
        replacement: Any = None
        for owner, attribute in self._places:
            # The class's own attribute, not an inherited or bound one: only that can be put back as it was.
            held = vars(owner).get(attribute, _MISSING)
            if held is _MISSING:
                continue
            if original is _MISSING:
                original = held
                replacement = self.make(held)
            if held is original:
                setattr(owner, attribute, replacement)
                self._saved.append((owner, attribute, held, replacement))
        if original is _MISSING:
            raise AttributeError(f"nothing to patch for {self.name}")

    def uninstall(self) -> None:
        """Put back what was there, except where somebody patched on top of us."""
        while self._saved:
            owner, attribute, original, replacement = self._saved.pop()
            if vars(owner).get(attribute) is replacement:
                setattr(owner, attribute, original)


class PatchSet:
    """Patches that are installed one by one, so that one which does not fit this torch costs only itself."""

    __slots__ = ("_installed", "on_error")

    def __init__(self, on_error: Callable[[str, BaseException], None]) -> None:
        self._installed: list[Patch] = []
        self.on_error = on_error

    def install(self, patch: Patch) -> bool:
        """Installs a patch. False: it does not fit, which is told to ``on_error``."""
        try:
            patch.install()
        except Exception as error:  # edge: torch's internals differ between releases
            self.on_error(patch.name, error)
            return False
        self._installed.append(patch)
        return True

    def uninstall(self) -> None:
        """Takes out all patches, the newest first, so that what was patched twice comes back as it was."""
        while self._installed:
            self._installed.pop().uninstall()
