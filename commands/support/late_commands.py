"""Commands that are imported when they are asked for: what one of them reads or draws with would delay all others."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command


def late_group(modules: Mapping[str, str], package: str) -> type[TyperGroup]:
    """A class of groups (``typer.Typer(cls=...)``) that have these commands as well, after what they have anyway.

    modules: by the command's name, where it is, as ".check.command" in the package; it is imported when it is asked
    for. Such a module has ``register(app)``, which adds one command or one group to an app of typer.
    """

    class LateGroup(TyperGroup):
        def __init__(self, **attributes: Any) -> None:
            super().__init__(**attributes)
            self.commands: Any = _Commands(self.commands, modules, package)

    return LateGroup


class _Commands(Mapping[str, TyperCommand | TyperGroup]):
    """By name; imported when they are looked up, not when they are listed."""

    def __init__(
        self, known: Mapping[str, TyperCommand | TyperGroup], modules: Mapping[str, str], package: str
    ) -> None:
        self._known, self._modules, self._package = dict(known), modules, package

    def __getitem__(self, name: str) -> TyperCommand | TyperGroup:
        if name not in self._known:
            self._known[name] = self._imported(name)
        return self._known[name]

    def __iter__(self) -> Iterator[str]:
        yield from (name for name in self._known if name not in self._modules)
        yield from self._modules

    def __len__(self) -> int:
        return len(self._known.keys() | self._modules.keys())

    def get(self, name: str, default: Any = None) -> Any:
        # Mapping's own would take a KeyError of a module that is imported for a command that is not there.
        if name not in self:
            return default
        return self[name]

    def __contains__(self, name: object) -> bool:
        return name in self._known or name in self._modules

    def _imported(self, name: str) -> TyperCommand | TyperGroup:
        """Raises KeyError for what is none of them."""
        app = typer.Typer(add_completion=False)
        import_module(self._modules[name], self._package).register(app)
        command = get_command(app)
        found = command.commands[name] if isinstance(command, TyperGroup) else command
        assert isinstance(found, TyperCommand | TyperGroup)
        return found
