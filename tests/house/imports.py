"""Who imports whom: circles of files and of folders, and the arrows and floors of one package."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Mapping
from functools import cache

from tests.house.tree import Module

Graph = Mapping[str, frozenset[str]]


def imports_of(module: Module, known: frozenset[str]) -> set[str]:
    """Modules of ``known`` that it imports, anywhere in it; a name out of a package's face counts as that package."""
    found = set()
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Import):
            found |= {alias.name.removeprefix("whichrank.") for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = _base_of(module, node)
            found |= {f"{base}.{alias.name}" if f"{base}.{alias.name}" in known else base for alias in node.names}
    return (found & known) - {module.name}


def _base_of(module: Module, node: ast.ImportFrom) -> str:
    if not node.level:
        return (node.module or "").removeprefix("whichrank.")
    parts = module.package.split(".")
    parts = parts[: len(parts) - (node.level - 1)]
    return ".".join([*parts, *((node.module or "").split(".") if node.module else [])])


def files_graph(modules: Iterable[Module]) -> Graph:
    found = {module.name: module for module in modules}
    known = frozenset(found)
    return {name: frozenset(imports_of(module, known)) for name, module in found.items()}


def folders_graph(modules: Iterable[Module]) -> Graph:
    """Folders that hold modules, each a room of its own; what a package's face hands on is the folder's."""
    modules = list(modules)
    folder = {module.name: module.package for module in modules}
    graph: dict[str, set[str]] = {package: set() for package in folder.values()}
    for name, targets in files_graph(modules).items():
        graph[folder[name]] |= {folder[target] for target in targets} - {folder[name]}
    return {name: frozenset(targets) for name, targets in graph.items()}


def circles(graph: Graph) -> list[list[str]]:
    """Sets of two and more that import each other, by Tarjan's strongly connected components."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []

    def visit(name: str) -> None:
        index[name] = low[name] = len(index)
        stack.append(name)
        for target in graph.get(name, ()):
            if target not in index:
                visit(target)
                low[name] = min(low[name], low[target])
            elif target in stack:
                low[name] = min(low[name], index[target])
        if low[name] == index[name]:
            at = stack.index(name)
            circle = stack[at:]
            del stack[at:]
            if len(circle) > 1:
                found.append(sorted(circle))

    for name in graph:
        if name not in index:
            visit(name)
    return sorted(found)


def rooms_within(package: str, graph: Graph) -> Graph:
    """Files below ``package`` gathered into its direct folders and files: the ladder that a reader climbs."""

    def room(name: str) -> str:
        return name.removeprefix(f"{package}.").split(".")[0]

    inside = {name: targets for name, targets in graph.items() if name.startswith(f"{package}.")}
    rooms: dict[str, set[str]] = {room(name): set() for name in inside}
    for name, targets in inside.items():
        rooms[room(name)] |= {room(target) for target in targets if target in inside} - {room(name)}
    return {name: frozenset(targets) for name, targets in rooms.items()}


def arrows(graph: Graph) -> int:
    return sum(map(len, graph.values()))


def floors(graph: Graph) -> int:
    """Length of the longest way down, in rooms; 0 where there is a circle: then there are no floors."""
    if circles(graph):
        return 0

    @cache
    def height(name: str) -> int:
        return 1 + max((height(target) for target in graph.get(name, ())), default=0)

    return max((height(name) for name in graph), default=0)
