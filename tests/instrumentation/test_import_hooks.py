"""Callbacks after imports leave the imported module and its loader as they would be without us."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from whichrank.instrumentation.support.import_hooks import PostImportFinder

NAME = "whichrank_test_imported_module"


@pytest.fixture
def module_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    file = tmp_path / f"{NAME}.py"
    file.write_text("value = 1\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    yield file
    sys.modules.pop(NAME, None)


def test_called_once_when_the_module_is_complete(module_file: Path) -> None:
    finder = PostImportFinder()
    seen: list[int] = []
    finder.when_imported(NAME, lambda module: seen.append(module.value))
    before = list(sys.meta_path)
    module = __import__(NAME)
    assert seen == [1]
    assert finder in before
    assert finder not in sys.meta_path  # nothing left to wait for
    assert "exec_module" not in vars(module.__loader__)
    assert module.__spec__ is not None
    assert module.__spec__.loader is module.__loader__


def test_called_at_once_for_a_module_that_is_there(module_file: Path) -> None:
    __import__(NAME)
    seen: list[ModuleType] = []
    PostImportFinder().when_imported(NAME, seen.append)
    assert seen == [sys.modules[NAME]]


def test_a_callback_that_raises_is_reported_and_the_import_works(module_file: Path) -> None:
    errors: list[str] = []
    finder = PostImportFinder(lambda name, error: errors.append(f"{name}: {error}"))

    def broken(module: ModuleType) -> None:
        raise RuntimeError("bad")

    finder.when_imported(NAME, broken)
    assert __import__(NAME).value == 1
    assert errors == [f"import of {NAME}: bad"]


def test_a_module_that_fails_to_import_fails_as_always(module_file: Path) -> None:
    module_file.write_text("raise KeyError('mine')\n")
    finder = PostImportFinder()
    finder.when_imported(NAME, lambda module: pytest.fail("not complete"))
    with pytest.raises(KeyError, match="mine"):
        __import__(NAME)
    finder.remove()


def test_a_module_that_does_not_exist(module_file: Path) -> None:
    finder = PostImportFinder()
    finder.when_imported("whichrank_no_such_module", lambda module: None)
    with pytest.raises(ModuleNotFoundError):
        __import__("whichrank_no_such_module")
    finder.remove()
    assert finder not in sys.meta_path


def test_an_import_that_was_under_way_is_seen_at_the_next_one(
    module_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A framework that imports torch starts the recording, which then waits for the framework itself."""
    finder = PostImportFinder()
    seen: list[int] = []
    monkeypatch.setattr(
        sys, "whichrank_test_hook", lambda: finder.when_imported(NAME, lambda m: seen.append(m.value)), raising=False
    )
    module_file.write_text("import sys\nsys.whichrank_test_hook()\nvalue = 7\n")
    other = f"{NAME}_other"
    (tmp_path / f"{other}.py").write_text("")
    try:
        __import__(NAME)
        assert seen == []
        __import__(other)
        assert seen == [7]
        assert finder not in sys.meta_path
    finally:
        finder.remove()
        sys.modules.pop(other, None)
