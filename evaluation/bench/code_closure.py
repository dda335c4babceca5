"""Which files a program follows from: its modules, all that they import, and what lies beside those and is no Python.

Read from the sources without running them, imports inside functions included, so that no branch is missed. Imports for
type checkers alone are none. The package's own ``__init__`` is left out: it loads what training scripts ask it for.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from pathlib import Path

#: What Python and compilers leave behind.
_BUILT = (".pyc", ".so", ".pyd")


def code_closure(roots: Iterable[Path], package: Path) -> set[Path]:
    """The modules in ``roots``, what they import below ``package`` at any remove, packages above, and data beside them.

    roots: must lie below ``package``. Left out: data in ``package``'s own folder, and what only type checkers import.
    Raises OSError, SyntaxError for a module that cannot be read.
    """
    found: set[Path] = set()
    waiting = set(roots)
    while waiting:
        module = waiting.pop()
        found.add(module)
        waiting |= {*_packages_above(module, package), *_imported(module, package)} - found
    folders = {module.parent for module in found} - {package}
    return found.union(*map(_data_of, folders))


def _packages_above(module: Path, package: Path) -> Iterator[Path]:
    folder = module.parent
    while folder != package:
        if (init := folder / "__init__.py").exists():
            yield init
        folder = folder.parent


def _imported(module: Path, package: Path) -> Iterator[Path]:
    for node in _statements(ast.parse(module.read_bytes())):
        if isinstance(node, ast.Import):
            for alias in node.names:
                first, *rest = alias.name.split(".")
                if first == package.name:
                    yield from _module(package.joinpath(*rest), package)
        elif isinstance(node, ast.ImportFrom):
            if node.level:
                folder = module.parents[node.level - 1]
                parts = (node.module or "").split(".") if node.module else []
            else:
                first, *parts = (node.module or "").split(".")
                if first != package.name:
                    continue
                folder = package
            source = folder.joinpath(*parts)
            yield from _module(source, package)
            for alias in node.names:
                yield from _module(source / alias.name, package)


def _statements(tree: ast.AST) -> Iterator[ast.AST]:
    """All of them at any depth, but for those of ``if TYPE_CHECKING``."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            for other in node.orelse:
                yield other
                yield from _statements(other)
            continue
        yield node
        yield from _statements(node)


def _module(path: Path, package: Path) -> Iterator[Path]:
    """The file that this dotted name is, where it is one of the package and not the package itself."""
    for file in (path / "__init__.py", path.with_name(f"{path.name}.py")):
        if path != package and file.exists():
            yield file


def _data_of(folder: Path) -> Iterator[Path]:
    """Of a package: tables, sources in other languages; those in folders below that hold no Python, too."""
    for entry in folder.iterdir():
        if entry.is_dir():
            if entry.name != "__pycache__" and not any(entry.rglob("*.py")):
                yield from (each for each in entry.rglob("*") if each.is_file())
        elif entry.suffix not in (".py", *_BUILT):
            yield entry
