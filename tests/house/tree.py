"""The product's Python as trees: what is a module, a public function, an import."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

ROOT = Path(__file__).parents[2]
#: Top folders of what people install. ``benchmarks`` and ``tests`` judge it.
PRODUCT = ("agents", "checkpoint", "commands", "diagnosis", "evaluation", "grafana", "instrumentation", "processors",
           "simulator", "telemetry", "transport")  # fmt: skip

Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class Module:
    """name: dotted, from the root of the tree: ``processors.job.operator``; of an ``__init__`` the package's."""

    path: Path
    name: str

    @cached_property
    def text(self) -> str:
        return self.path.read_text()

    @cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.text)

    @property
    def lines(self) -> int:
        return len(self.text.splitlines())

    @property
    def is_package(self) -> bool:
        return self.path.name == "__init__.py"

    @property
    def package(self) -> str:
        """The folder it lies in, dotted."""
        return self.name if self.is_package else self.name.rpartition(".")[0]

    def place(self, node: ast.stmt | ast.expr) -> str:
        path = self.path.relative_to(ROOT) if self.path.is_relative_to(ROOT) else self.path
        return f"{path}:{node.lineno}"


def modules(*folders: str) -> list[Module]:
    """Of these top folders, in the order of their paths; default: of the product."""
    found = []
    for folder in folders or PRODUCT:
        for path in sorted((ROOT / folder).rglob("*.py")):
            parts = path.relative_to(ROOT).with_suffix("").parts
            found.append(Module(path, ".".join(parts[:-1] if parts[-1] == "__init__" else parts)))
    return found


@dataclass(frozen=True)
class Owned:
    """A function and the class it stands in, "" none."""

    module: Module
    node: Function
    owner: str

    @property
    def name(self) -> str:
        return f"{self.owner}.{self.node.name}" if self.owner else self.node.name

    @property
    def place(self) -> str:
        return f"{self.module.place(self.node)} {self.name}"

    @property
    def doc(self) -> str:
        return ast.get_docstring(self.node) or ""


def functions(module: Module) -> Iterator[Owned]:
    """All functions of a module but those inside of functions."""

    def of(body: list[ast.stmt], owner: str) -> Iterator[Owned]:
        for node in body:
            if isinstance(node, Function):
                yield Owned(module, node, owner)
            elif isinstance(node, ast.ClassDef):
                yield from of(node.body, node.name)
            elif isinstance(node, ast.If | ast.Try):
                yield from of(node.body, owner)

    return of(module.tree.body, "")


def is_public(function: Owned) -> bool:
    """Of a public class and not written by a decorator's protocol; ``__init__`` and its like are their class's."""
    return not function.node.name.startswith("_") and not function.owner.startswith("_")


def classes(module: Module) -> Iterator[ast.ClassDef]:
    return (node for node in ast.walk(module.tree) if isinstance(node, ast.ClassDef))
