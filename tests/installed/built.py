"""What a checkout becomes: an sdist, and wheels of it, of the checkout and of what the image's build gets to see.

Always from a copy, so that nothing is left behind in the source tree, and without the repository's history.
"""

from __future__ import annotations

import fnmatch
import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).parents[2]
BUILD = "import sys; from setuptools import build_meta as b; print(getattr(b, sys.argv[1])(sys.argv[2]))"
#: For what a wheel holds beside the C modules: they are optional, and take most of the time.
NO_COMPILER = {"CC": "false"}
#: The compiler's work is most of a build; what it makes is only counted here.
QUICK_COMPILER = {"CFLAGS": "-O0 -g0"}


def files_of_the_project() -> list[str]:
    """What is tracked, or would be if it were added now."""
    words = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listing = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True)
    return sorted(name for name in listing.stdout.split("\0") if name and (ROOT / name).is_file())


def copy_of(names: Iterable[str], folder: Path) -> Path:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, folder / name)
    return folder


def seen_by_the_image(names: Iterable[str]) -> list[str]:
    """What .dockerignore leaves: the last pattern that fits a file, or a folder that it is in, decides."""
    lines = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    patterns = [line for line in lines if line and not line.startswith("#")]
    return [name for name in names if not _is_ignored(name, patterns)]


def _is_ignored(name: str, patterns: list[str]) -> bool:
    ignored = False
    parts = name.split("/")
    for pattern in patterns:
        text = pattern.removeprefix("!")
        depth = text.count("/") + 1
        if text.startswith("**/"):
            fits = any(fnmatch.fnmatch(part, text[3:]) for part in parts)
        else:  # a star does not go over a slash
            fits = len(parts) >= depth and all(
                fnmatch.fnmatch(part, wanted) for part, wanted in zip(parts, text.split("/"), strict=False)
            )
        if fits:
            ignored = not pattern.startswith("!")
    return ignored


def build(what: str, source: Path, target: Path, environ: dict[str, str] | None = None) -> Path:
    """what: "sdist" or "wheel"."""
    target.mkdir(parents=True, exist_ok=True)
    done = subprocess.run(
        [sys.executable, "-c", BUILD, f"build_{what}", str(target)],
        cwd=source,
        env={**os.environ, **(environ or {})},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return target / done.stdout.split()[-1]


def unpacked(sdist: Path, folder: Path) -> Path:
    with tarfile.open(sdist) as archive:
        archive.extractall(folder, filter="data")
    (inside,) = folder.iterdir()
    return inside


def contents(wheel: Path) -> dict[str, bytes]:
    """By the path below ``whichrank``, or below its metadata as ``dist-info/NAME``."""
    with zipfile.ZipFile(wheel) as archive:
        return {
            ("dist-info/" + name.split("/", 1)[1] if ".dist-info/" in name else name): archive.read(name)
            for name in archive.namelist()
        }
