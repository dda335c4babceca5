"""One wheel for all tests here, and each environment once; both outside of the checkout, and gone afterwards."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.installed.built import build, copy_of, files_of_the_project, unpacked
from tests.installed.environments import Environment, make_environment, pythons
from tests.stack.parts.cache import cache_folder


@pytest.fixture(scope="session")
def place() -> Iterator[Path]:
    """On the disk of the user's caches: there uv can link what it has, and torch is 5 GB."""
    folder = Path(tempfile.mkdtemp(prefix="installed-", dir=cache_folder()))
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="session")
def wheel(place: Path) -> Path:
    """From the sdist, which is made from the checkout: the longest way there is."""
    sdist = build("sdist", copy_of(files_of_the_project(), place / "checkout"), place / "sdist")
    return build("wheel", unpacked(sdist, place / "unpacked"), place / "wheel")


@pytest.fixture(scope="session")
def evaluation_wheel(place: Path) -> Path:
    """Of the second distribution, which is made from the whole tree."""
    tree = copy_of(files_of_the_project(), place / "tree")
    return build("wheel", tree / "evaluation", place / "evaluation")


@pytest.fixture(scope="session")
def with_extra(place: Path, wheel: Path, evaluation_wheel: Path) -> Callable[[str], Environment]:
    """An environment with one extra alone ("": none), on the oldest Python that is here: it needs the most packages."""
    made: dict[str, Environment] = {}

    def of(extra: str) -> Environment:
        if extra not in made:
            made[extra] = make_environment(
                place / f"extra-{extra or 'none'}",
                python=next(iter(pythons().values())),
                wheel=wheel,
                extras=[extra] if extra else [],
                pins="newest",
                beside=evaluation_wheel.parent,
            )
        return made[extra]

    return of
