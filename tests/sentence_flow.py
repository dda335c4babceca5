"""Where the code of a tree matches against sentences that it has written itself: found in its syntax.

Three looks. ``matches`` follows what is read from fields for people, and what functions that word something return,
through assignments, calls and dataclass fields to whatever takes a text apart. ``readers`` lists who reads such fields
at all. ``shared_literals`` compares the literals and patterns that are looked for with the pieces of all sentences.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib  # type: ignore[import-not-found,unused-ignore]

#: Fields that hold a sentence of ours, wherever they are.
SENTENCES = frozenset({"shows", "because", "looks_guilty", "sentence"})
#: In findings and incidents also these; elsewhere a text is another program's, and a name or source an identifier.
OF_DOCUMENTS = frozenset({"text", "who", "source", "name"})
DOCUMENTS = ("processors/cluster",)
#: Every sentence made here is for a document; in ``diagnosis`` one may repair what a program wrote, and is that text.
MAKERS = ("processors/",)
_TAKES_APART = frozenset(
    {"startswith", "endswith", "removeprefix", "removesuffix", "partition", "rpartition", "split", "rsplit", "find"}
    | {"rfind", "index", "rindex", "count", "replace"}
)
_PATTERN_METHODS = frozenset({"search", "match", "fullmatch", "findall", "finditer", "sub", "subn"})
_SEARCHES = _TAKES_APART | _PATTERN_METHODS | {"compile"}
#: A sentence as their argument is looked at, or looked for.
_ASKS_WITH = _PATTERN_METHODS | {"startswith", "endswith", "removeprefix", "removesuffix"}
#: Of a text, which give a text or its parts.
_KEEPS = frozenset(
    {
        "strip",
        "lstrip",
        "rstrip",
        "lower",
        "upper",
        "casefold",
        "capitalize",
        "title",
        "splitlines",
        "format",
        "encode",
        "decode",
    }
)
#: What a scope is read for.
_READ = (
    ast.Assign,
    ast.AnnAssign,
    ast.AugAssign,
    ast.NamedExpr,
    ast.For,
    ast.comprehension,
    ast.Return,
    ast.Call,
    ast.Compare,
)
#: Of what a pattern has found.
_PARTS_OF_MATCH = frozenset({"group", "groups", "groupdict"})
_TWO_WORDS = re.compile(r"[A-Za-z]{2,}[^A-Za-z0-9]? [a-z]{2,}")


@dataclass(frozen=True, slots=True, order=True)
class Place:
    file: str
    line: int
    code: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.code}"


@dataclass(slots=True)
class Module:
    file: str
    tree: ast.Module
    functions: dict[str, ast.FunctionDef] = field(default_factory=dict)
    imported: dict[str, tuple[str, str]] = field(default_factory=dict)  # local name -> module's file, name there


def python_files(root: Path, folders: tuple[str, ...]) -> Iterator[tuple[str, ast.Module]]:
    for folder in folders:
        for path in sorted((root / folder).rglob("*.py")):
            yield path.relative_to(root).as_posix(), ast.parse(path.read_text(encoding="utf-8"))


def _module(file: str, tree: ast.Module) -> Module:
    module = Module(file, tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef):
            module.functions.setdefault(node.name, node)
        elif isinstance(node, ast.ImportFrom) and node.level:
            base = Path(file).parents[node.level - 1].joinpath(*(node.module or "").split("."))
            for alias in node.names:
                module.imported[alias.asname or alias.name] = (f"{base.as_posix()}.py", alias.name)
    return module


class Flow:
    """Which functions return sentences, and which parameters and fields get them: grown until nothing is added."""

    def __init__(self, modules: list[Module]) -> None:
        self.modules = {module.file: module for module in modules}
        self.returns: set[tuple[str, str]] = set()
        self.parameters: set[tuple[str, str, str]] = set()
        self.fields: set[tuple[str, str]] = set()  # package, name of a dataclass's field
        self.found: set[Place] = set()
        self._nodes: dict[int, list[ast.AST]] = {}
        size = -1
        while size != (size := len(self.returns) + len(self.parameters) + len(self.fields)):
            for module in modules:
                _Scope(self, module, module.tree.body, {}, "").run()
                for function in module.functions.values():
                    names = [
                        arg.arg for arg in [*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs]
                    ]
                    known = {name for name in names if (module.file, function.name, name) in self.parameters}
                    _Scope(self, module, function.body, dict.fromkeys(known, True), function.name).run()

    def nodes_of(self, body: list[ast.stmt]) -> list[ast.AST]:
        """What names, results and arguments depend on, in order. Trees do not change, and are read many times."""
        if id(body) not in self._nodes:
            nodes = (node for statement in body for node in _walk(statement))
            self._nodes[id(body)] = [node for node in nodes if isinstance(node, _READ)]
        return self._nodes[id(body)]

    def resolve(self, module: Module, call: ast.Call) -> tuple[str, ast.FunctionDef] | None:
        target = call.func
        if isinstance(target, ast.Attribute) and isinstance(target.value, ast.Name):
            if target.value.id == "self" and target.attr in module.functions:
                return module.file, module.functions[target.attr]
            where = module.imported.get(target.value.id)
            there = self.modules.get(f"{where[0].removesuffix('.py')}/{where[1]}.py") if where else None
            return (there.file, there.functions[target.attr]) if there and target.attr in there.functions else None
        if not isinstance(target, ast.Name):
            return None
        if target.id in module.functions:
            return module.file, module.functions[target.id]
        file, name = module.imported.get(target.id, ("", ""))
        there = self.modules.get(file)
        return (file, there.functions[name]) if there and name in there.functions else None


@cache
def _package(file: str) -> str:
    return "/".join(file.split("/")[:2])


class _Scope:
    """One function's body, or a module's, read over and over until no more of its names hold sentences."""

    def __init__(self, flow: Flow, module: Module, body: list[ast.stmt], tainted: dict[str, bool], name: str) -> None:
        self.flow, self.module, self.body, self.names, self.name = flow, module, body, set(tainted), name
        self.matched: set[str] = set()
        self.makes_documents = module.file.startswith(MAKERS)
        self.of_documents = module.file.startswith(DOCUMENTS)

    def run(self) -> None:
        nodes = self.flow.nodes_of(self.body)
        size = -1
        while size != (size := len(self.names)):
            for node in nodes:
                self._learn(node)
        for node in nodes:
            self._look(node)

    def _learn(self, node: ast.AST) -> None:
        if isinstance(node, ast.Assign | ast.AnnAssign | ast.AugAssign | ast.NamedExpr) and node.value is not None:
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            if self.holds(node.value) or (self.makes_documents and _is_wording(node.value)):
                names = {name.id for target in targets for name in ast.walk(target) if isinstance(name, ast.Name)}
                self.names |= names
                self.matched |= names if self._is_match(node.value) else set()
        elif isinstance(node, ast.For | ast.comprehension) and self.holds(node.iter):
            self.names.update(name.id for name in ast.walk(node.target) if isinstance(name, ast.Name))
        elif isinstance(node, ast.Return) and node.value is not None and self.name:
            if self.holds(node.value) or _is_wording(node.value):
                self.flow.returns.add((self.module.file, self.name))
        elif isinstance(node, ast.Call):
            self._pass_on(node)

    def _pass_on(self, call: ast.Call) -> None:
        """To parameters of functions and fields of dataclasses."""
        resolved = self.flow.resolve(self.module, call)
        if resolved is not None:
            file, function = resolved
            names = [
                arg.arg for arg in [*function.args.posonlyargs, *function.args.args] if arg.arg not in ("self", "cls")
            ]
            pairs = [*zip(names, call.args, strict=False), *((k.arg, k.value) for k in call.keywords)]
            for name, value in pairs:
                if name and self.holds(value):
                    self.flow.parameters.add((file, function.name, name))
        elif isinstance(call.func, ast.Name) and call.func.id[:1].isupper():
            for keyword in call.keywords:
                if keyword.arg not in (None, "name") and self.holds(keyword.value):
                    self.flow.fields.add((_package(self.module.file), str(keyword.arg)))

    def holds(self, node: ast.AST) -> bool:
        """Whether the expression is, or is made of, a sentence."""
        if isinstance(node, ast.Name):
            return node.id in self.names
        if isinstance(node, ast.Attribute):
            return node.attr in SENTENCES or (_package(self.module.file), node.attr) in self.flow.fields
        if isinstance(node, ast.Subscript):
            if self._is_field(node.slice):
                return True
            is_key = isinstance(node.slice, ast.Constant) and isinstance(node.slice.value, str)
            return self.holds(node.value) and (not is_key or self._is_match(node.value))
        if isinstance(node, ast.Call):
            if isinstance(node.func, ast.Attribute):
                method, value = node.func.attr, node.func.value
                if method == "get" and node.args and self._is_field(node.args[0]):
                    return True
                if method in _PATTERN_METHODS or method == "join":
                    return any(map(self.holds, node.args))
                if method in _KEEPS | _TAKES_APART | _PARTS_OF_MATCH:
                    return self.holds(value)
            resolved = self.flow.resolve(self.module, node)
            if resolved is not None:
                return (resolved[0], resolved[1].name) in self.flow.returns
            plain = isinstance(node.func, ast.Name) and node.func.id in (
                "str",
                "sorted",
                "list",
                "set",
                "next",
                "map",
                "tuple",
            )
            return plain and any(map(self.holds, node.args))
        if isinstance(node, ast.IfExp):
            return self.holds(node.body) or self.holds(node.orelse)
        if isinstance(node, ast.BoolOp | ast.BinOp | ast.JoinedStr | ast.FormattedValue | ast.Starred):
            return any(map(self.holds, ast.iter_child_nodes(node)))
        if isinstance(node, ast.List | ast.Tuple | ast.Set):
            return any(map(self.holds, node.elts))
        if isinstance(node, ast.ListComp | ast.SetComp | ast.GeneratorExp):
            return self.holds(node.elt)
        return isinstance(node, ast.NamedExpr) and self.holds(node.value)

    def _is_match(self, node: ast.expr) -> bool:
        """Of what a pattern has found in a sentence the parts are one as well; of a document they are fields."""
        if isinstance(node, ast.Name):
            return node.id in self.matched
        return (
            isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _PATTERN_METHODS
        )

    def _is_field(self, key: ast.expr) -> bool:
        if not isinstance(key, ast.Constant) or not isinstance(key.value, str):
            return False
        return key.value in SENTENCES or (self.of_documents and key.value in OF_DOCUMENTS)

    def _look(self, node: ast.AST) -> None:
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            taken = node.func.attr in _TAKES_APART and self.holds(node.func.value)
            if taken or (node.func.attr in _ASKS_WITH and any(map(self.holds, node.args))):
                self._note(node)
        elif isinstance(node, ast.Compare):
            for operator, side in zip(node.ops, node.comparators, strict=True):
                literal = isinstance(node.left, ast.Constant) and isinstance(node.left.value, str)
                if isinstance(operator, ast.In | ast.NotIn) and literal and self.holds(side):
                    self._note(node)

    def _note(self, node: ast.expr) -> None:
        self.flow.found.add(Place(self.module.file, node.lineno, ast.unparse(node)[:110]))


def _walk(node: ast.AST) -> Iterator[ast.AST]:
    """Without functions inside, which are scopes of their own."""
    yield node
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, ast.FunctionDef):
            yield from _walk(child)


def _is_wording(node: ast.expr) -> bool:
    """A sentence is made here: a text with values in it, and two words side by side."""
    if isinstance(node, ast.IfExp):
        return _is_wording(node.body) or _is_wording(node.orelse)
    if isinstance(node, ast.BinOp):
        return _is_wording(node.left) or _is_wording(node.right)
    return isinstance(node, ast.JoinedStr) and any(_TWO_WORDS.search(piece) for piece in _pieces(node))


def _pieces(text: ast.JoinedStr) -> Iterator[str]:
    return (part.value for part in text.values if isinstance(part, ast.Constant) and isinstance(part.value, str))


def matches(root: Path, folders: tuple[str, ...]) -> list[Place]:
    """Where a sentence of ours is taken apart or searched."""
    return sorted(Flow([_module(*each) for each in python_files(root, folders)]).found)


def readers(root: Path, folders: tuple[str, ...]) -> list[Place]:
    """Who reads a field that holds one."""
    found = []
    for file, tree in python_files(root, folders):
        for node in ast.walk(tree):
            key: object = None
            if (
                isinstance(node, ast.Subscript)
                and isinstance(node.ctx, ast.Load)
                and isinstance(node.slice, ast.Constant)
            ):
                key = node.slice.value
            elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
                key = node.attr
            elif (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Attribute)
                and node.func.attr == "get"
                and node.args
            ):
                key = getattr(node.args[0], "value", None)
            if key in SENTENCES:
                assert isinstance(node, ast.expr)
                found.append(Place(file, node.lineno, ast.unparse(node)))
    return sorted(found)


# --- words that both are looked for and written -----------------------------------------------------------------------
def sentences(root: Path, folders: tuple[str, ...]) -> set[str]:
    """Pieces of two words and more of all texts that our modules put together."""
    found: set[str] = set()
    for file, tree in python_files(root, folders):
        for node in ast.walk(tree):
            if isinstance(node, ast.JoinedStr):
                found.update(_pieces(node))
            elif file.startswith(MAKERS):
                found.update(each.value for each in _constants(node) if isinstance(each.value, str))
    return {piece for piece in found if _TWO_WORDS.search(piece)}


def _constants(node: ast.AST) -> Iterator[ast.Constant]:
    """Plain texts that are put somewhere: in a document, behind another text, into a call that takes nothing apart."""
    children: list[ast.expr | None] = []
    if isinstance(node, ast.BinOp):
        children = [node.left, node.right]
    elif isinstance(node, ast.AugAssign | ast.Return | ast.keyword):
        children = [node.value]
    elif isinstance(node, ast.IfExp):
        children = [node.body, node.orelse]
    elif isinstance(node, ast.Dict):
        children = [*node.values]
    elif isinstance(node, ast.Call) and not (isinstance(node.func, ast.Attribute) and node.func.attr in _SEARCHES):
        children = [*node.args]
    return (each for each in children if isinstance(each, ast.Constant))


def looked_for(root: Path, folders: tuple[str, ...]) -> Iterator[tuple[Place, str]]:
    """Literals and patterns of two words and more that texts are searched for: in code, and in TOML rules."""
    for file, tree in python_files(root, folders):
        constants = {
            target.id: node.value
            for node in tree.body
            if isinstance(node, ast.Assign)
            for target in node.targets
            if isinstance(target, ast.Name)
        }
        for node in ast.walk(tree):
            searched: list[ast.expr] = []
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                if node.func.attr in _SEARCHES:
                    searched = node.args[:1]
            elif isinstance(node, ast.Compare) and isinstance(node.ops[0], ast.In | ast.NotIn):
                searched = [node.left]
            for each in searched:
                each = constants.get(each.id, each) if isinstance(each, ast.Name) else each
                if isinstance(each, ast.Constant) and isinstance(each.value, str) and " " in each.value.strip():
                    yield Place(file, each.lineno, each.value), each.value
    for folder in folders:
        for path in sorted((root / folder).rglob("*.toml")):
            for key, text in _texts(tomllib.loads(path.read_text(encoding="utf-8"))):
                if " " in text.strip() and key not in _OUTPUT:
                    yield Place(path.relative_to(root).as_posix(), 0, f"{key}: {text}"), text


#: Keys of TOML files whose values are sentences themselves.
_OUTPUT = frozenset({"text", "says", "shows", "advice", "meaning", "words"})


def _texts(value: object, key: str = "") -> Iterator[tuple[str, str]]:
    if isinstance(value, str):
        yield key, value
    elif isinstance(value, dict):
        for name, item in value.items():
            yield from _texts(item, name)
    elif isinstance(value, list):
        for item in value:
            yield from _texts(item, key)


def shared_literals(root: Path, searching: tuple[str, ...], writing: tuple[str, ...]) -> list[Place]:
    """What is looked for and stands in a sentence of ours as well."""
    pieces = sorted(sentences(root, writing))
    return sorted(
        place for place, text in looked_for(root, searching) if any(_stands_in(text, each) for each in pieces)
    )


def _stands_in(text: str, piece: str) -> bool:
    """As it is, or as a pattern that finds two words there; one word is anybody's."""
    if text.lower() in piece.lower():
        return True
    try:
        found = re.search(text, piece, re.IGNORECASE)
    except re.error:
        return False
    return found is not None and _TWO_WORDS.search(found[0]) is not None
