"""Patches are undone exactly, and never undo what somebody else did since."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from whichrank.instrumentation.support.patch import Patch, PatchSet


def wrap(original: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *args: ("wrapped", original(*args))


def test_all_places_of_one_function_are_replaced_and_put_back() -> None:
    def function() -> str:
        return "original"

    def another() -> str:
        return "another"

    first, second, third = SimpleNamespace(f=function), SimpleNamespace(f=function), SimpleNamespace(f=another)
    patch = Patch("f", [(first, "f"), (second, "f"), (third, "f")], wrap)
    patch.install()
    assert first.f() == second.f() == ("wrapped", "original")
    assert third.f is another
    patch.uninstall()
    assert first.f is function
    assert second.f is function


def test_a_patch_on_top_of_ours_stays() -> None:
    owner = SimpleNamespace(f=lambda: "original")
    patch = Patch("f", [(owner, "f")], wrap)
    patch.install()
    theirs = wrap(owner.f)
    owner.f = theirs
    patch.uninstall()
    assert owner.f is theirs


def test_what_does_not_fit_costs_only_itself() -> None:
    errors: list[str] = []
    patches = PatchSet(lambda name, error: errors.append(name))
    owner = SimpleNamespace(f=lambda: 1)
    original = owner.f
    assert not patches.install(Patch("missing", [(owner, "g")], wrap))
    assert patches.install(Patch("there", [(owner, "f")], wrap))
    assert errors == ["missing"]
    patches.uninstall()
    assert owner.f is original


def test_an_inherited_method_is_not_patched_on_the_subclass() -> None:
    class Base:
        def f(self) -> int:
            return 1

    class Derived(Base):
        pass

    with pytest.raises(AttributeError):
        Patch("f", [(Derived, "f")], wrap).install()
    assert "f" not in vars(Derived)
