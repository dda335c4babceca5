"""Empty environments with the wheel in them, as somebody has it who has no checkout.

Every version is that of the pins, every file's hash is checked: uv takes both from requirements/*.txt, given as
constraints, so that an extra brings what it asks for and nothing else. uv links what it has fetched before, so an
environment with torch takes seconds.
"""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.installed.built import ROOT

INSTALL_LIMIT_S, RUN_LIMIT_S = 1200.0, 120.0
OLDEST, NEWEST = (3, 10), (3, 14)


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    status: int
    output: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Environment:
    """folder: of the environment. home: where commands of it are begun from, and find nothing of anybody's."""

    folder: Path
    home: Path

    @property
    def python(self) -> Path:
        return self.folder / "bin" / "python"

    def add(self, extra: str, *, pins: str) -> None:
        """As a refusal says: the wheel that is there stays."""
        _install(self.folder, pins, f"whichrank[{extra}]")

    def remove(self) -> None:
        """With torch it is gigabytes, where nothing could be linked."""
        shutil.rmtree(self.folder, ignore_errors=True)

    def run(self, text: str, cwd: Path, **more: str) -> Said:
        """By a shell, with the environment's programs first, and hardly a variable."""
        done = subprocess.run(
            ["bash", "-c", text],
            cwd=cwd,
            env={**self._environ(), **more},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=RUN_LIMIT_S,
            check=False,
        )
        return Said(status=done.returncode, output=done.stdout)

    def _environ(self) -> Mapping[str, str]:
        path = os.pathsep.join((str(self.folder / "bin"), "/usr/local/bin", "/usr/bin", "/bin"))
        return {"PATH": path, "HOME": str(self.home), "LANG": "C.UTF-8", "OMP_NUM_THREADS": "1"}


@functools.cache
def pythons() -> Mapping[tuple[int, int], Path]:
    """Interpreters of this machine that whichrank supports, the oldest first. None is fetched."""
    homes = sorted((Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv") / "versions").glob("*/bin"))
    found: dict[tuple[int, int], Path] = {}
    for minor in range(OLDEST[1], NEWEST[1] + 1):
        name = f"python3.{minor}"
        on_path = shutil.which(name)
        places = [*([Path(on_path)] if on_path else []), *(home / name for home in homes)]
        if sys.version_info[:2] == (3, minor):
            places.insert(0, Path(sys.executable))
        working = next((place for place in places if _works(place)), None)
        if working is not None:
            found[3, minor] = working
    return found


def _works(python: Path) -> bool:
    """A wrapper may be there without the interpreter that it stands for."""
    if not python.exists():
        return False
    words = [str(python), "-c", "import ctypes, ssl, sqlite3, venv"]
    return subprocess.run(words, capture_output=True, check=False).returncode == 0


def make_environment(
    folder: Path, *, python: Path, wheel: Path, extras: Sequence[str], pins: str, beside: Path | None = None
) -> Environment:
    """extras: of the wheel; pins: a file of requirements/. beside: folder of wheels that are on no index."""
    _uv("venv", "--no-python-downloads", "--python", str(python), str(folder))
    named = f"[{','.join(extras)}]" if extras else ""
    found = ["--find-links", str(beside)] if beside is not None else []
    _install(folder, pins, f"whichrank{named} @ {wheel.as_uri()}", *found)
    home = folder.with_name(f"{folder.name}-home")
    home.mkdir()
    return Environment(folder=folder, home=home)


def _install(folder: Path, pins: str, wanted: str, *more: str) -> None:
    constraints = ROOT / "requirements" / f"{pins}.txt"
    _uv("pip", "install", "--python", str(folder / "bin" / "python"), "--constraints", str(constraints), *more, wanted)


def _uv(*words: str) -> None:
    uv = Path(sys.executable).with_name("uv")
    assert uv.exists(), "make setup puts uv into the environment of the tests"
    done = subprocess.run([uv, *words], capture_output=True, text=True, timeout=INSTALL_LIMIT_S, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
