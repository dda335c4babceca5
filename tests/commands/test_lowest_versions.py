"""The program starts with the lowest version of everything that pyproject.toml allows."""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.stack.parts.cache import digest_of, made_once

ROOT = Path(__file__).parents[2]
PROJECT = ROOT / "pyproject.toml"


@functools.cache
def lowest() -> Path | None:
    """Python of an environment with them; None: no builds of them for this Python can be had here."""
    installer = Path(sys.executable).with_name("uv")
    uv = str(installer) if installer.exists() else shutil.which("uv")
    if uv is None:
        return None
    digest = digest_of([PROJECT.read_bytes(), sys.version.encode(), sys.prefix.encode()])

    def make(target: Path) -> None:
        def run(*command: str) -> bytes:
            return subprocess.run([uv, *command], check=True, capture_output=True, timeout=300).stdout

        run("venv", "--relocatable", "--python", sys.executable, str(target))
        python = ("--python", str(target))
        rules = ("--resolution", "lowest-direct", "--only-binary", ":all:", "--extra", "all")
        wanted = run("pip", "compile", *rules, "--no-header", *python, str(PROJECT))
        (target / "requirements.txt").write_bytes(wanted)
        run("pip", "install", *python, "-r", str(target / "requirements.txt"))

    try:
        return made_once("lowest-versions", digest, make) / "bin/python"
    except (subprocess.CalledProcessError, subprocess.TimeoutExpired):
        return None


@pytest.mark.parametrize("words", ["--help", "check --help", "diagnose --help", "run --help", "agent --help"])
def test_the_program_starts(words: str, tmp_path: Path) -> None:
    python = lowest()
    if python is None:
        pytest.skip("the lowest versions cannot be installed for this Python")
    (tmp_path / "whichrank").symlink_to(ROOT)
    done = subprocess.run(
        [python, "-m", "whichrank.commands.main", *words.split()],
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout
