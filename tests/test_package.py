"""The wheel holds what the packages hold, by rule, wherever it is built from; and nothing of tests and benchmarks."""

from __future__ import annotations

from pathlib import Path, PurePosixPath

import pytest

from tests.installed.built import (
    NO_COMPILER,
    QUICK_COMPILER,
    ROOT,
    build,
    contents,
    copy_of,
    files_of_the_project,
    seen_by_the_image,
    unpacked,
)

#: Has packages of its own, which are not the program's.
OUTSIDE = ("tests", "benchmarks", "evaluation", "simulator")
#: What people mount and start lies beside the packages.
DEPLOY = "deploy"
OF_THE_ROOT = ("__init__.py", "py.typed", "docker-compose.yml", ".env.example")
#: Needed to build, not to run.
NOT_PACKED = (".c", ".h")


def wanted_files() -> set[str]:
    """Of what git tracks. A package is a folder with an ``__init__.py`` on the whole way to it; its folders are its."""
    names = files_of_the_project()
    packages = {name.split("/")[0] for name in names if name.count("/") == 1 and name.endswith("/__init__.py")}
    packages -= set(OUTSIDE)
    assert {"agents", "commands", "diagnosis", "telemetry"} <= packages
    below = {name for name in names if name.split("/")[0] in packages and not name.endswith(NOT_PACKED)}
    mounted = {name for name in names if name.split("/")[0] == DEPLOY}
    overlays = {name for name in names if PurePosixPath(name).match("compose.*.yaml") and "/" not in name}
    return below | mounted | overlays | set(OF_THE_ROOT)


def wanted_sources() -> set[str]:
    return {name for name in files_of_the_project() if name.endswith(".c") and name.split("/")[0] not in OUTSIDE}


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return copy_of(files_of_the_project(), tmp_path_factory.mktemp("source") / "whichrank")


@pytest.fixture(scope="module")
def wheel(checkout: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """Of the checkout, with its C modules."""
    return contents(build("wheel", checkout, tmp_path_factory.mktemp("wheel"), QUICK_COMPILER))


def packed(wheel: dict[str, bytes]) -> set[str]:
    return {name.removeprefix("whichrank/") for name in wheel if not name.startswith("dist-info/")}


def without_c(wheel: dict[str, bytes]) -> dict[str, bytes]:
    """What does not depend on a compiler: the list of files and the tag do."""
    tagged = ("dist-info/RECORD", "dist-info/WHEEL")
    return {name: content for name, content in wheel.items() if not name.endswith((".so", *tagged))}


def test_what_the_packages_hold_is_in_the_wheel_and_nothing_else(wheel: dict[str, bytes]) -> None:
    files = {name for name in packed(wheel) if not name.endswith(".so")}
    assert (sorted(wanted_files() - files), sorted(files - wanted_files())) == ([], [])


def test_rules_in_a_folder_without_modules_are_in_the_wheel(wheel: dict[str, bytes]) -> None:
    """What was forgotten once, while packages and data were lists."""
    there = {path.name for path in (ROOT / "diagnosis" / "job_log" / "rules").glob("*.toml")}
    assert len(there) > 5
    assert there <= {PurePosixPath(name).name for name in packed(wheel) if "/job_log/rules/" in name}
    assert "instrumentation/bootstrap/sitecustomize.py" in packed(wheel)


def test_all_is_below_one_name(wheel: dict[str, bytes]) -> None:
    assert {name.split("/")[0] for name in wheel} == {"whichrank", "dist-info"}


def test_an_sdist_gives_the_same_wheel(checkout: Path, wheel: dict[str, bytes], tmp_path: Path) -> None:
    source = unpacked(build("sdist", checkout, tmp_path / "sdist"), tmp_path / "unpacked")
    assert not [name for name in OUTSIDE if (source / name).exists()]
    again = contents(build("wheel", source, tmp_path / "again", QUICK_COMPILER))
    assert {name for name in again if name.endswith(".so")} == {name for name in wheel if name.endswith(".so")}
    assert without_c(again) == without_c(wheel)


def test_what_the_image_is_built_from_gives_the_same_wheel(wheel: dict[str, bytes], tmp_path: Path) -> None:
    """COPY . . brings no history, and only what .dockerignore leaves."""
    names = seen_by_the_image(files_of_the_project())
    assert not [name for name in names if name.split("/")[0] in (*OUTSIDE, ".env", "secrets")]
    assert {"requirements/image.txt", "requirements/newest.txt"} <= set(names)
    image = contents(build("wheel", copy_of(names, tmp_path / "image"), tmp_path / "wheel", NO_COMPILER))
    assert without_c(image) == without_c(wheel)


def test_what_was_removed_since_the_last_build_is_not_packed_again(checkout: Path, tmp_path: Path) -> None:
    """Rules are read by the folder: one that is gone must not come back from build/."""
    source = copy_of(files_of_the_project(), tmp_path / "whichrank")
    rule = source / "diagnosis" / "job_log" / "rules" / "99_gone.toml"
    rule.write_text("")
    first = contents(build("wheel", source, tmp_path / "first", NO_COMPILER))
    rule.unlink()
    second = contents(build("wheel", source, tmp_path / "second", NO_COMPILER))
    assert set(first) - set(second) == {"whichrank/diagnosis/job_log/rules/99_gone.toml"}


def test_the_program_the_licence_and_the_c_modules_come_along(wheel: dict[str, bytes]) -> None:
    assert b"whichrank = whichrank.commands.entry:main" in wheel["dist-info/entry_points.txt"]
    assert "dist-info/licenses/LICENSE" in wheel
    compiled = {PurePosixPath(name).name.split(".")[0] for name in wheel if name.endswith(".so")}
    sources = (PurePosixPath(name) for name in files_of_the_project())
    assert compiled == {name.stem for name in sources if name.suffix == ".c" and name.parts[0] != "tests"}
