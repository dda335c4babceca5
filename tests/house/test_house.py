"""Nothing that ``make house`` counts becomes worse; what has become better is written down, and stays."""

from __future__ import annotations

import ast
import json
from pathlib import Path

import pytest

from tests.house import docstrings, imports, sizes, untyped
from tests.house.measure import RECORD, Count, measure
from tests.house.tree import Module, functions


@pytest.fixture(scope="module")
def counts() -> dict[str, Count]:
    return {count.name: count for count in measure()}


def test_nothing_is_worse_than_it_was(counts: dict[str, Count]) -> None:
    before = json.loads(RECORD.read_text())
    now = {name: len(count.places) for name, count in counts.items()}
    worse = {
        name: (before[name], number) for name, number in now.items() if number > max(before[name], counts[name].most)
    }
    assert not worse, "\n".join(place for name in worse for place in (f"{name}: {worse[name]}", *counts[name].places))
    better = {name: number for name, number in now.items() if number < before[name]}
    assert not better, f"better than {RECORD.name} has it; write it there: {better}"


def written(tmp_path: Path, text: str, name: str = "a.b") -> Module:
    path = tmp_path / f"{name.rpartition('.')[2]}.py"
    path.write_text(text)
    return Module(path, name)


def test_a_circle_is_found_also_where_an_import_stands_in_a_function(tmp_path: Path) -> None:
    one = written(tmp_path, "from .two import f\n", "a.one")
    two = written(tmp_path, "def f():\n    from .one import g\n    return g\n", "a.two")
    assert imports.circles(imports.files_graph([one, two])) == [["a.one", "a.two"]]
    assert imports.circles(imports.folders_graph([one, two])) == []


def test_arrows_and_floors_of_a_ladder(tmp_path: Path) -> None:
    low = written(tmp_path, "", "p.low.x")
    middle = written(tmp_path, "from ..low.x import f\n", "p.middle.y")
    top = written(tmp_path, "from .low.x import f\nfrom .middle import y\n", "p.top")
    rooms = imports.rooms_within("p", imports.files_graph([low, middle, top]))
    assert rooms == {"low": frozenset(), "middle": frozenset({"low"}), "top": frozenset({"low", "middle"})}
    assert (imports.arrows(rooms), imports.floors(rooms)) == (3, 3)


def test_a_dictionary_of_anything_is_found_under_another_name(tmp_path: Path) -> None:
    text = "Doc = dict[str, Any]\ndef f(a: Doc | None, b: dict[str, int]): ...\nx: list[dict[str, object]] = []\n"
    module = written(tmp_path, text)
    aliases = untyped.aliases_of([module])
    assert aliases == {"Doc"}
    assert len(list(untyped.untyped_places([module], aliases))) == 2


def test_attributes_are_counted_wherever_they_are_set(tmp_path: Path) -> None:
    module = written(tmp_path, "class C:\n    a: int\n    _b = 1\n    def f(self):\n        self.c = self._d = 1\n")
    (node,) = [each for each in module.tree.body if isinstance(each, ast.ClassDef)]
    assert set(sizes.public_attributes(node)) == {"a", "f", "c"}


def test_what_a_docstring_says(tmp_path: Path) -> None:
    module = written(
        tmp_path,
        "def f(self_ns: np.ndarray):\n"
        '    """Lag of each rank. self_ns: [ranks, steps]."""\n'
        "    raise ValueError\n"
        "def g(x: np.ndarray):\n"
        '    """Something. Raises KeyError."""\n'
        "    raise KeyError('x')\n"
        "def h():\n"
        '    """Raises LookupError."""\n'
        "    try:\n        raise OSError\n    except OSError:\n        raise ValueError from None\n",
    )
    f, g, h = functions(module)
    assert docstrings.says_shape_and_unit(f)
    assert not docstrings.says_shape_and_unit(g)
    assert not docstrings.says_errors(f)
    assert docstrings.says_errors(g)
    assert docstrings.raised_by(h) == {"ValueError"}
    assert not docstrings.says_errors(h)
