"""The documents hold together: links and their anchors, the list of pages, pictures, the README's length.

What ``make docs`` finds with the site's own program, found here in a second and without it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.newcomer import demo_and_own_job, script
from tests.pictures.made import MOST_BYTES
from tests.pictures.made import PICTURES as MADE
from tests.test_repository import tracked_files

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = sorted(DOCS.rglob("*.md"))
#: Of the repository, which reaches into docs; pages of the site do not reach out of it.
OUTER = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "ARCHITECTURE.md", "CHANGELOG.md")]
PICTURES = sorted((DOCS / "pictures").iterdir())
#: Pages that lead to all others.
INDEXES = [DOCS / name for name in ("index.md", "runbooks/incidents.md", "decisions/README.md", "exporters/index.md")]
README_LINES = 150
_LINK = re.compile(r"\]\(([^)\s]+)\)")
_FENCE = re.compile(r"^ *```.*?^ *```$", re.DOTALL | re.MULTILINE)
_CODE = re.compile(r"(`+)(.+?)\1")


def links(path: Path) -> Iterator[tuple[str, str]]:
    """Target and anchor of each link that stays here; links in code are text."""
    text = _CODE.sub("", _FENCE.sub("", path.read_text(encoding="utf-8")))
    for link in _LINK.findall(text):
        if "://" not in link:
            target, _, anchor = link.partition("#")
            yield target, anchor


def anchors(path: Path) -> set[str]:
    """Of its headings, as both the site's program and code hosts make them; of some that differ, none."""
    text = _FENCE.sub("", path.read_text(encoding="utf-8"))
    found = set()
    for heading in re.findall(r"^#{1,6} +(.+?)\s*$", text, re.MULTILINE):
        plain = re.sub(r"[^\w\s-]", "", re.sub(r"\]\([^)]*\)", "]", heading)).strip().lower()
        if re.sub(r"[\s-]+", "-", plain) == plain.replace(" ", "-") and plain.isascii():
            found.add(plain.replace(" ", "-"))
    return found


@pytest.mark.parametrize("path", [*OUTER, *PAGES], ids=lambda path: str(path.relative_to(ROOT)))
def test_links_and_their_anchors_lead_somewhere(path: Path) -> None:
    wrong = []
    for target, anchor in links(path):
        there = (path.parent / target).resolve() if target else path
        if not there.exists() or (anchor and anchor not in anchors(there)):
            wrong.append(f"{target}#{anchor}" if anchor else target)
        elif path.is_relative_to(DOCS) and not there.is_relative_to(DOCS):
            wrong.append(f"{target}: outside of docs, so not on the site")
    assert wrong == []


def test_each_page_is_in_the_sites_list_and_on_an_index() -> None:
    listed = set(re.findall(r"[\w/-]+\.md", (ROOT / "mkdocs.yml").read_text(encoding="utf-8")))
    names = {path.relative_to(DOCS).as_posix() for path in PAGES}
    assert listed <= names
    by_index = {
        (index.parent / target).resolve().relative_to(DOCS).as_posix()
        for index in INDEXES
        for target, _ in links(index)
    }
    assert names - by_index - {"index.md"} == set()
    assert {name for name in names if "/" not in name} <= listed


def test_documents_that_the_program_and_its_alerts_name_are_there() -> None:
    wrong = {
        f"{path.relative_to(ROOT)}: {name}"
        for path in tracked_files()
        if path.suffix in (".py", ".c", ".toml", ".yml", ".yaml", ".json", ".sh")
        for name in re.findall(r"(?<![\w/.{])docs/[\w/-]+\.md", path.read_text(encoding="utf-8", errors="replace"))
        if not (ROOT / name).is_file()
    }
    assert wrong == set()


def test_the_site_fetches_nothing() -> None:
    site = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))
    assert site["theme"]["font"] is False
    assert set(site["validation"].values()) == {"warn"}
    assert site["plugins"] == ["search"]  # the theme's "offline" brings a script from another site
    assert not {"extra_css", "extra_javascript"} & set(site)


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= README_LINES


def test_the_tutorial_has_the_readmes_script() -> None:
    readme, tutorial = (path.read_text(encoding="utf-8") for path in (ROOT / "README.md", DOCS / "first-incident.md"))
    assert f"```python\n{script(readme)}```" in tutorial
    assert demo_and_own_job(readme)[1] in tutorial


@pytest.mark.parametrize("path", PICTURES, ids=lambda path: path.name)
def test_pictures_are_small_fetch_nothing_and_are_shown(path: Path) -> None:
    content = path.read_bytes()
    assert len(content) < MOST_BYTES
    if path.suffix == ".svg":
        text = content.decode()
        assert "<script" not in text
        assert re.findall(r"(?:href|src)=\"|url\((?!#)|@import|@font-face", text) == []
    shown = "\n".join(page.read_text(encoding="utf-8") for page in [ROOT / "README.md", *PAGES])
    assert f"pictures/{path.name})" in shown


def test_every_picture_is_made_by_the_command() -> None:
    assert {path.name for path in PICTURES} == set(MADE)
