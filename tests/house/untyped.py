"""Dictionaries of anything, where a type belongs: ``dict[str, Any]`` under whatever name."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator

from tests.house.tree import Module

_MAPPINGS = frozenset({"dict", "Mapping", "MutableMapping", "Dict", "OrderedDict", "defaultdict"})
_ANYTHING = frozenset({"Any", "object", "JSONValue", "Json"})


def aliases_of(modules: Iterable[Module]) -> frozenset[str]:
    """Names that modules give to such a dictionary (``Document = dict[str, Any]``), and TypedDicts of optional keys."""
    found = set()
    for module in modules:
        for node in module.tree.body:
            if isinstance(node, ast.Assign) and is_untyped(node.value):
                found |= {target.id for target in node.targets if isinstance(target, ast.Name)}
            elif isinstance(node, ast.AnnAssign) and node.value is not None and is_untyped(node.value):
                found |= {node.target.id} if isinstance(node.target, ast.Name) else set()
            elif isinstance(node, ast.ClassDef) and any(word.arg == "total" for word in node.keywords):
                found.add(node.name)
    return frozenset(found)


def is_untyped(node: ast.expr) -> bool:
    if not isinstance(node, ast.Subscript) or not isinstance(node.value, ast.Name) or node.value.id not in _MAPPINGS:
        return False
    value = node.slice.elts[-1] if isinstance(node.slice, ast.Tuple) else None
    return isinstance(value, ast.Name) and value.id in _ANYTHING


def untyped_places(modules: Iterable[Module], aliases: frozenset[str]) -> Iterator[str]:
    """Each mention in an annotation, of a parameter, a result, a field or a variable."""
    for module in modules:
        for annotation in _annotations(module.tree):
            for node in ast.walk(annotation):
                named = isinstance(node, ast.Name) and node.id in aliases
                if named or (isinstance(node, ast.expr) and is_untyped(node)):
                    yield f"{module.place(annotation)} {ast.unparse(annotation)}"


def _annotations(tree: ast.AST) -> Iterator[ast.expr]:
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.returns is not None:
            yield node.returns
        elif isinstance(node, ast.arg | ast.AnnAssign) and node.annotation is not None:
            yield node.annotation
