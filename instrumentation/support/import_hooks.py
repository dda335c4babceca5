"""Callbacks after a module has been imported, for modules that are dear to import or not there yet.

Used to arm the instrumentation when torch appears (bootstrap) and to patch torch.compile, FSDP and checkpointing only
in jobs that use them. One finder at the head of ``sys.meta_path``; it changes neither the module nor its
loader for longer than the import takes. A callback that raises is reported and never disturbs the import.
Standard library only.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

Callback = Callable[[ModuleType], None]


class PostImportFinder:
    """Meta-path finder that finds nothing itself; it borrows the spec of the finder that does."""

    def __init__(self, on_error: Callable[[str, BaseException], None] | None = None) -> None:
        self._callbacks: dict[str, list[Callback]] = {}
        #: Modules whose import was under way when somebody asked: frameworks that import torch, and so start us.
        self._under_way: set[str] = set()
        self._on_error = on_error

    def when_imported(self, name: str, callback: Callback) -> None:
        """Call back with the module: now if it is already complete, else right after its import."""
        module = sys.modules.get(name)
        if module is not None:
            if not _is_initializing(module):
                self._call(name, callback, module)
                return
            self._under_way.add(name)
        self._callbacks.setdefault(name, []).append(callback)
        if self not in sys.meta_path:
            sys.meta_path.insert(0, self)

    def remove(self) -> None:
        """Forget all callbacks and leave the meta path."""
        self._callbacks.clear()
        self._under_way.clear()
        if self in sys.meta_path:
            sys.meta_path.remove(self)

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        """The spec that the other finders give, its loader wrapped where callbacks wait; None for others."""
        if self._under_way:
            self.look_at_those_under_way()
        if name not in self._callbacks:
            return None
        for finder in sys.meta_path:
            if finder is self or not hasattr(finder, "find_spec"):
                continue
            spec = finder.find_spec(name, path, target)
            if spec is not None:
                self._watch(name, spec)
                return spec
        return None

    def look_at_those_under_way(self) -> None:
        """Calls back for modules that are complete by now, of those whose import had begun before us.

        Such imports have no hook at their end: this is asked at every other import, and now and then.
        """
        for name in list(self._under_way):
            module = sys.modules.get(name)
            if module is None:
                self._under_way.discard(name)  # it failed; another attempt is found as any import is
            elif not _is_initializing(module):
                self._under_way.discard(name)
                for callback in self._callbacks.pop(name, ()):
                    self._call(name, callback, module)
        if not self._callbacks:
            self.remove()

    def _watch(self, name: str, spec: ModuleSpec) -> None:
        loader: Any = spec.loader
        execute = getattr(loader, "exec_module", None)
        if execute is None:
            return

        def exec_module(module: ModuleType) -> None:
            del loader.exec_module  # the loader is as it was before user code can look at it
            execute(module)
            for callback in self._callbacks.pop(name, ()):
                self._call(name, callback, module)
            if not self._callbacks:
                self.remove()

        try:
            loader.exec_module = exec_module
        except AttributeError:  # a loader with slots or a frozen one: no callback, the import goes on
            return

    def _call(self, name: str, callback: Callback, module: ModuleType) -> None:
        try:
            callback(module)
        except Exception as error:  # edge: this runs inside somebody's import statement
            if self._on_error is not None:
                self._on_error(f"import of {name}", error)


def _is_initializing(module: ModuleType) -> bool:
    return bool(getattr(getattr(module, "__spec__", None), "_initializing", False))
