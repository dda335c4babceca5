"""What a wheel holds, by rule, and the C parts: of the instrumentation, of reading what agents send, and logs.

The repository's root is the package ``whichrank``. A folder below it is a package if all folders on the way to it have
an ``__init__.py``; whatever else lies in a package belongs to it, unless it is made (``MADE``) or what is compiled
(``BUILT_FROM``: in the sdist alone). Nothing is listed by name but what lies in the root itself, where most
files are the repository's. Nothing here asks git: images are built from a copy without it.

The C parts are optional: without a compiler the Python parts do the same, more slowly.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_py import build_py

ROOT = Path(__file__).resolve().parent
#: Has packages of its own, which are not the program's: those of evaluation/setup.py make another distribution.
OUTSIDE = ("tests", "benchmarks", "evaluation", "simulator")
#: In the root, what belongs to the program: the type marker, and what people mount and start.
OF_THE_ROOT = ("py.typed", "deploy/**/*", "docker-compose.yml", "compose.*.yaml", ".env.example")
#: Beside modules, what was made there: bytecode, C modules of an editable installation, what editors leave.
MADE = (".pyc", ".pyo", ".so", "~", ".orig", ".rej")
BUILT_FROM = (".c", ".h")

#: One binary for every CPython from 3.10 on and every torch.
STABLE_ABI = {"define_macros": [("Py_LIMITED_API", "0x030A0000")], "py_limited_api": True, "optional": True}
#: What several of telemetry's read by.
WIRE = {"depends": ["telemetry/wire_fields.h"]}


def package_folders() -> Iterator[Path]:
    """The root, and every package below it."""
    yield ROOT
    waiting = [ROOT / name for name in sorted(os.listdir(ROOT)) if name not in OUTSIDE]
    while waiting:
        folder = waiting.pop()
        if (folder / "__init__.py").is_file():
            yield folder
            waiting += sorted(folder.iterdir())


def data_files(package: Path) -> Iterator[str]:
    """What lies beside a package's modules, and all of its folders that are no packages, as paths from there."""
    waiting = sorted(package.iterdir())
    while waiting:
        path = waiting.pop()
        if path.name.startswith(".") or path.name == "__pycache__":
            continue
        if path.is_dir():
            waiting += [] if (path / "__init__.py").is_file() else sorted(path.iterdir())
        elif not path.name.endswith((*MADE, *BUILT_FROM)) and (path.suffix != ".py" or path.parent != package):
            yield path.relative_to(package).as_posix()


def package_name(folder: Path) -> str:
    return ".".join(("whichrank", *folder.relative_to(ROOT).parts))


class fresh_build_py(build_py):  # a command of setuptools: named as they are
    """Does not take along what an earlier build left, of files that are gone since: rules are read by the folder."""

    def run(self) -> None:
        if not self.editable_mode:
            shutil.rmtree(self.build_lib, ignore_errors=True)
        super().run()


setup(
    script_name="setup.py",  # else it would go into the wheel: the repository's root is the package
    package_dir={"whichrank": "."},
    packages=[package_name(folder) for folder in package_folders()],
    package_data={
        package_name(folder): list(OF_THE_ROOT if folder == ROOT else data_files(folder))
        for folder in package_folders()
    },
    cmdclass={"build_py": fresh_build_py},
    ext_modules=[
        Extension("whichrank.instrumentation._fatal", ["instrumentation/_fatal.c"], **STABLE_ABI),
        Extension("whichrank.instrumentation._recorder", ["instrumentation/_recorder.c"], **STABLE_ABI),
        Extension("whichrank.instrumentation._phases", ["instrumentation/_phases.c"], **STABLE_ABI),
        Extension("whichrank.instrumentation._steps", ["instrumentation/_steps.c"], **STABLE_ABI),
        Extension("whichrank.telemetry._message_texts", ["telemetry/_message_texts.c"], **WIRE, **STABLE_ABI),
        Extension("whichrank.telemetry._otlp_scan", ["telemetry/_otlp_scan.c"], **WIRE, **STABLE_ABI),
        Extension("whichrank.telemetry._packed_rows", ["telemetry/_packed_rows.c"], **WIRE, **STABLE_ABI),
        Extension("whichrank.diagnosis._word_gate", ["diagnosis/_word_gate.c"], **STABLE_ABI),
    ],
    options={"bdist_wheel": {"py_limited_api": "cp310"}},
)
