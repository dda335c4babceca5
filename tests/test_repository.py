"""What the repository says about itself is true: documents, pins, version, and nothing of anybody's own machine."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.slow_files import SLOW_FILES

ROOT = Path(__file__).parents[1]
DOCUMENTS = (
    "README.md",
    "ARCHITECTURE.md",
    "CONTRIBUTING.md",
    "CHANGELOG.md",
    *sorted(str(path.relative_to(ROOT)) for path in (ROOT / "docs").rglob("*.md")),
)
REQUIREMENTS = ("newest", "oldest", "image", "bootstrap", "docs", "flink")

#: In pieces, so that this file may be searched too.
UNWANTED = {
    "a package registry's host": [
        r"py" + r"pi\.org",
        r"python" + r"hosted\.org",
        r"download\.py" + r"torch\.org",
        r"proxy\.go" + r"lang\.org",
        r"sum\.go" + r"lang\.org",
        r"registry\.np" + r"mjs\.org",
        r"crates" + r"\.io",
        r"repo1?\.mav" + r"en",
        r"deb\." + r"debian\.org",
    ],
    "a document that is not in the repository": [r"\bdesign" + r" §", r"\bfacts" + r"(?:/| §)"],
    "a path of one machine": [r"(?<![\w./-])/(?:work|root)/", r"/tmp/" + r"(?:brief|env|project)/"],
}


def tracked_files() -> Iterator[Path]:
    """Text files of the project: what git tracks, or without git everything outside of hidden and built folders."""
    listing = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=False)
    if listing.returncode == 0:
        names = [name for name in listing.stdout.split("\0") if name]
    else:
        names = [
            str(path.relative_to(ROOT))
            for path in ROOT.rglob("*")
            if path.is_file() and not any(part.startswith(".venv") for part in path.parts)
        ]
    for name in names:
        path = ROOT / name
        if path.is_file() and b"\0" not in path.read_bytes()[:4096]:
            yield path


def shell_commands(text: str) -> Iterator[str]:
    """Lines of fenced shell blocks, without prompts and continuation; and `code` in running text."""
    for block in re.findall(r"```(?:sh|bash|console)\n(.*?)```", text, re.DOTALL):
        for line in block.replace("\\\n", " ").splitlines():
            yield line.strip().removeprefix("$ ")
    yield from re.findall(r"`([^`\n]+)`", re.sub(r"```.*?```", "", text, flags=re.DOTALL))


@pytest.mark.parametrize("what", UNWANTED)
def test_nothing_of_anybodys_machine(what: str) -> None:
    pattern = re.compile("|".join(UNWANTED[what]))
    found = [
        f"{path.relative_to(ROOT)}:{number}: {match[0]}"
        for path in tracked_files()
        for number, line in enumerate(path.read_text(errors="replace").splitlines(), 1)
        if (match := pattern.search(line))
    ]
    assert found == []


@pytest.mark.parametrize("document", DOCUMENTS)
def test_make_targets_in_documents_exist(document: str) -> None:
    targets = set(re.findall(r"^([a-z][a-z-]*):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    used = {
        match[1]
        for command in shell_commands((ROOT / document).read_text())
        if (match := re.match(r"make ([a-z][a-z-]*)", command))
    }
    assert used - targets == set()


@pytest.mark.parametrize("document", DOCUMENTS)
def test_links_between_documents_lead_somewhere(document: str) -> None:
    text = re.sub(r"```.*?```", "", (ROOT / document).read_text(), flags=re.DOTALL)
    links = re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", text)
    here = (ROOT / document).parent
    assert [link for link in links if "://" not in link and not (here / link).exists()] == []


@pytest.mark.parametrize("document", DOCUMENTS)
def test_files_named_in_documents_exist(document: str) -> None:
    """`processors/runner.py` in a document is a promise."""
    folders = "telemetry|instrumentation|agents|transport|processors|simulator|commands|deploy|tests|benchmarks"
    folders += "|requirements|docs"
    named = set(re.findall(rf"`((?:{folders})/[\w./-]*)`", (ROOT / document).read_text()))
    assert sorted(name for name in named if not (ROOT / name).exists()) == []


@pytest.mark.parametrize("name", REQUIREMENTS)
def test_every_requirement_is_pinned_with_hashes(name: str) -> None:
    text = (ROOT / "requirements" / f"{name}.txt").read_text().replace("\\\n", " ")
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    assert lines
    assert [line[:60] for line in lines if not re.match(r"[\w.-]+==\S+ .*--hash=sha256:[0-9a-f]{64}", line)] == []


def test_pins_cover_what_the_project_asks_for() -> None:
    declared = (ROOT / "pyproject.toml").read_text()
    wanted = {match.lower() for match in re.findall(r'^    "([a-z][\w.-]*)(?:\[.*\])?[><=;"]', declared, re.MULTILINE)}
    wanted -= {"whichrank"}
    texts = [(ROOT / "requirements" / f"{name}.txt").read_text() for name in ("newest", "flink")]
    pinned = {name for text in texts for name in re.findall(r"^([\w.-]+)==", text, re.MULTILINE)}
    assert "torch" in pinned
    assert "numpy" in wanted
    assert wanted - pinned == {name for name in wanted if name.startswith("whichrank")}


def test_the_changelog_begins_with_this_version() -> None:
    version = re.search(r'^version = "(.+)"', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    headings = re.findall(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert version is not None
    assert version[1] in headings[:2]
    assert headings[0] in (version[1], "Unreleased")


def test_continuous_integration_runs_what_people_run() -> None:
    script = (ROOT / ".ci" / "run").read_text()
    assert re.search(r"^start build/lint\.log nice -n 19 make lint house$", script, re.MULTILINE)
    assert 'wait "$lint" || { cat build/lint.log; exit 1; }' in script
    assert re.search(r'^make test 2>&1 \| tee "\$times/test\.log"$', script, re.MULTILINE)  # pipefail: fails as it does
    assert re.search(r'^start "\$times/wheel\.log" make wheel-test$', script, re.MULTILINE)
    assert 'wait "$wheel" || { cat "$times/wheel.log"; exit 1; }' in script
    assert "set -euo pipefail" in script


def test_the_slow_files_that_are_begun_first_are_there() -> None:
    """One that was renamed would be begun last again, and nobody would see why it takes longer."""
    assert [name for name in SLOW_FILES if not (ROOT / name).is_file()] == []
