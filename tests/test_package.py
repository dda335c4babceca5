"""The wheel holds what the source tree holds, and nothing of tests and benchmarks."""

from __future__ import annotations

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FOLDERS = (
    *("telemetry", "instrumentation", "diagnosis", "agents", "transport", "processors", "simulator", "grafana"),
    "commands",
)
#: Code alone would not do: the type marker, the incident's schema.
ALSO = ("py.typed", "telemetry/incident.schema.json")
#: What people mount and start; no code.
DEPLOY = "deploy"
COMPOSE = ("docker-compose.yml", "compose.tls.yaml", "compose.sasl.yaml", "compose.nvidia.yaml", ".env.example")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    """Built from a copy, so that nothing is left behind in the source tree."""
    copy = tmp_path_factory.mktemp("source") / "whichrank"
    copy.mkdir()
    for name in ("pyproject.toml", "README.md", "LICENSE", "__init__.py", "py.typed", "setup.py", *COMPOSE):
        if (ROOT / name).exists():
            shutil.copy(ROOT / name, copy)
    for folder in (*FOLDERS, DEPLOY):
        shutil.copytree(ROOT / folder, copy / folder, ignore=shutil.ignore_patterns("__pycache__", "*.so"))
    build = subprocess.run(
        [sys.executable, "-c", "from setuptools import build_meta as b; print(b.build_wheel('dist'))"],
        cwd=copy,
        capture_output=True,
        text=True,
        check=False,
    )
    assert build.returncode == 0, build.stderr[-3000:]
    return zipfile.ZipFile(next((copy / "dist").glob("*.whl")))


def test_every_module_is_in_the_wheel(wheel: zipfile.ZipFile) -> None:
    sources = {str(path.relative_to(ROOT)) for folder in FOLDERS for path in (ROOT / folder).rglob("*.py")}
    sources |= {"__init__.py", *ALSO, *COMPOSE}
    sources |= {str(path.relative_to(ROOT)) for path in (ROOT / DEPLOY).rglob("*") if path.is_file()}
    packed = {name.removeprefix("whichrank/") for name in wheel.namelist() if name.startswith("whichrank/")}
    assert sorted(sources - packed) == []


def test_nothing_else_is_in_the_wheel(wheel: zipfile.ZipFile) -> None:
    tops = {name.split("/")[0] for name in wheel.namelist()}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"whichrank"}
    strange = [
        name
        for name in wheel.namelist()
        if name.startswith(("whichrank/tests", "whichrank/benchmarks", "whichrank/setup"))
    ]
    assert strange == []


def test_the_program_and_the_licence_come_along(wheel: zipfile.ZipFile) -> None:
    metadata = {name.split("/", 1)[1]: name for name in wheel.namelist() if ".dist-info/" in name}
    assert "whichrank = whichrank.commands.main:main" in wheel.read(metadata["entry_points.txt"]).decode()
    assert "licenses/LICENSE" in metadata
