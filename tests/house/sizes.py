"""What is too large to be read at once: modules, classes, functions."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator

from tests.house.tree import Module, classes, functions

MODULE_LINES, CLASS_ATTRIBUTES, FUNCTION_LINES = 400, 40, 60


def large_modules(modules: Iterable[Module]) -> list[str]:
    return [f"{module.name} {module.lines}" for module in modules if module.lines > MODULE_LINES]


def large_functions(modules: Iterable[Module]) -> list[str]:
    found = []
    for module in modules:
        for each in functions(module):
            lines = (each.node.end_lineno or 0) - each.node.lineno + 1
            if lines > FUNCTION_LINES:
                found.append(f"{each.place} {lines}")
    return found


def wide_classes(modules: Iterable[Module]) -> list[str]:
    found = []
    for module in modules:
        for node in classes(module):
            names = set(public_attributes(node))
            if len(names) > CLASS_ATTRIBUTES:
                found.append(f"{module.place(node)} {node.name} {len(names)}")
    return found


def public_attributes(node: ast.ClassDef) -> Iterator[str]:
    """Fields, methods, properties, and what methods set on ``self``; members of an enumeration are values."""
    if any(isinstance(base, ast.Name) and base.id.endswith("Enum") for base in node.bases):
        return
    for each in ast.walk(node):
        name = ""
        if isinstance(each, ast.AnnAssign | ast.Assign):
            for target in [each.target] if isinstance(each, ast.AnnAssign) else each.targets:
                if (
                    isinstance(target, ast.Attribute)
                    and isinstance(target.value, ast.Name)
                    and target.value.id == "self"
                ):
                    name = target.attr
                elif isinstance(target, ast.Name) and each in node.body:
                    name = target.id
                if name and not name.startswith("_"):
                    yield name
        elif isinstance(each, ast.FunctionDef) and each in node.body and not each.name.startswith("_"):
            yield each.name
