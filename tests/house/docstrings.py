"""What public functions say of themselves: purpose, shapes and units of arrays, errors, and a detector's method."""

from __future__ import annotations

import ast
import random
import re
from collections.abc import Iterable, Iterator

from tests.house.tree import Module, Owned, functions, is_public

#: A shape: ``[ranks, steps]``, ``(n, 2)``, "one per rank", "by rank" ...
_SHAPE = re.compile(
    r"\[[a-z0-9_][\w ,*+]*\]|\(\w+, ?\w*\)|\bshape|\bper [a-z]+|\bby [a-z]+|\beach [a-z]+|\bone (?:a|for)\b"
)
#: A unit, in a name or in words; a table names its own, and an index or a count has none.
_UNIT = re.compile(
    r"_(?:ns|us|ms|s|bytes|hz|w|c|count|share|ratio)\b|\b(?:nanoseconds|seconds|ms|ns|bytes|shares?|counts?|ratios?|"
    r"indices|index|ranks?|rows?|steps?|flags?|true|no unit|without unit|units?)\b",
    re.IGNORECASE,
)
_METHOD = re.compile(r"\bMethod:|\bSource:")


def public_functions(modules: Iterable[Module]) -> list[Owned]:
    return [each for module in modules for each in functions(module) if is_public(each)]


def takes_arrays(function: Owned) -> bool:
    return any(
        isinstance(node, ast.Name | ast.Attribute) and (getattr(node, "id", "") or getattr(node, "attr", "")) in _ARRAYS
        for annotation in _annotations(function)
        for node in ast.walk(annotation)
    )


_ARRAYS = frozenset({"ndarray", "NDArray", "FloatArray", "IntArray", "BoolArray"})


def _annotations(function: Owned) -> Iterator[ast.expr]:
    arguments = function.node.args
    for each in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs):
        if each.annotation is not None:
            yield each.annotation


def says_shape_and_unit(function: Owned) -> bool:
    names = " ".join(each.arg for each in (*function.node.args.args, *function.node.args.kwonlyargs))
    return bool(_SHAPE.search(function.doc) and _UNIT.search(f"{names} {function.doc}"))


def raised_by(function: Owned) -> set[str]:
    """Names of the errors that its own body raises and does not catch.

    A failed assertion is a mistake of the author's, and a method that is to be written by subclasses raises for none.
    """
    found: set[str] = set()
    todo: list[tuple[ast.AST, frozenset[str]]] = [(node, frozenset()) for node in function.node.body]
    while todo:
        node, caught = todo.pop()
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda | ast.ClassDef):
            continue
        if isinstance(node, ast.Try):
            names = {name for handler in node.handlers for name in _caught_by(handler)}
            todo += [(each, caught | names) for each in node.body]
            todo += [(each, caught) for each in (*node.handlers, *node.orelse, *node.finalbody)]
            continue
        if isinstance(node, ast.Raise) and node.exc is not None:
            error = node.exc.func if isinstance(node.exc, ast.Call) else node.exc
            name = error.id if isinstance(error, ast.Name) else error.attr if isinstance(error, ast.Attribute) else ""
            if name[:1].isupper() and name not in caught | _NOT_TOLD:
                found.add(name)
        todo.extend((each, caught) for each in ast.iter_child_nodes(node))
    return found


_NOT_TOLD = frozenset({"AssertionError", "NotImplementedError"})


def _caught_by(handler: ast.ExceptHandler) -> set[str]:
    types = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]
    return {each.id for each in types if isinstance(each, ast.Name)}


def says_errors(function: Owned) -> bool:
    return all(name in function.doc for name in raised_by(function))


def detectors(modules: Iterable[Module]) -> list[Module]:
    """Modules that find something by statistics or rules of their own: those of ``processors/job/detectors``."""
    return [
        module
        for module in modules
        if module.name.startswith("processors.job.detectors.") and not module.is_package and "def find_" in module.text
    ]


def says_method(module: Module) -> bool:
    return bool(_METHOD.search(ast.get_docstring(module.tree) or ""))


def drawn(functions: list[Owned], seed: int, number: int = 40) -> list[Owned]:
    """For a reader, who says of each from name and docstring what it does."""
    return random.Random(seed).sample(functions, min(number, len(functions)))
