"""What a wheel of whichrank-evaluation holds: the packages ``evaluation`` and ``simulator`` of this tree, whole.

They lie beside whichrank's own packages when they are installed. There is no sdist: the sources are the repository's.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from setuptools import setup  # type: ignore[import-untyped]
from setuptools.command.build_py import build_py  # type: ignore[import-untyped]

HERE = Path(__file__).resolve().parent
PACKAGES = ("evaluation", "simulator")
#: Of this folder, what makes the distribution and is no part of it.
NOT_PACKED = ("setup.py", "pyproject.toml")


def folders() -> Iterator[Path]:
    """Every package, the two first ones included."""
    for name in PACKAGES:
        for folder, below, _ in os.walk(HERE.parent / name):
            below[:] = [each for each in below if (Path(folder) / each / "__init__.py").is_file()]
            yield Path(folder)


def package_name(folder: Path) -> str:
    """The dotted name of a folder's package: ``whichrank.simulator.faults``."""
    return ".".join(("whichrank", *folder.relative_to(HERE.parent).parts))


def data_files(folder: Path) -> list[str]:
    """Names of the files beside a folder's modules that are packed with them, sorted."""
    return sorted(
        path.name
        for path in folder.iterdir()
        if path.is_file() and path.suffix not in (".py", ".pyc") and path.name not in NOT_PACKED
    )


#: What is made on the way lies where the rest is made, and not among the sources.
MADE = HERE.parent / "build" / "evaluation"
MADE.mkdir(parents=True, exist_ok=True)


class fresh_build_py(build_py):  # type: ignore[misc]  # a command of setuptools: named as they are
    """Does not take along what an earlier build left, of files that are gone since."""

    def run(self) -> None:
        shutil.rmtree(self.build_lib, ignore_errors=True)
        super().run()


setup(
    cmdclass={"build_py": fresh_build_py},
    options={"build": {"build_base": str(MADE)}, "egg_info": {"egg_base": str(MADE)}},
    packages=[package_name(folder) for folder in folders()],
    package_dir={package_name(folder): os.path.relpath(folder, HERE) for folder in folders()},
    package_data={package_name(folder): data_files(folder) for folder in folders()},
    script_name="setup.py",
)
