"""Names that occur for two different things."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from tests.house.tree import Module, classes

#: Module names that say what a module is in its package, the same everywhere.
REPEATED = frozenset({"command", "settings", "operator", "rules", "state", "service", "health"})


def repeated_classes(modules: Iterable[Module]) -> dict[str, list[str]]:
    """Public classes of one name, with their places."""
    found: defaultdict[str, list[str]] = defaultdict(list)
    for module in modules:
        for node in classes(module):
            if not node.name.startswith("_"):
                found[node.name].append(module.place(node))
    return {name: places for name, places in sorted(found.items()) if len(places) > 1}


def repeated_modules(modules: Iterable[Module]) -> dict[str, list[str]]:
    """Modules of one name, but for ``REPEATED``."""
    found: defaultdict[str, list[str]] = defaultdict(list)
    for module in modules:
        name = module.name.rpartition(".")[2]
        if not module.is_package and name not in REPEATED:
            found[name].append(module.name)
    return {name: places for name, places in sorted(found.items()) if len(places) > 1}
