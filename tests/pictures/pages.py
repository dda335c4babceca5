"""Pictures of a report's page in headless Chromium."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from PIL import Image

from tests.commands.report.browser import browser, opened

if TYPE_CHECKING:
    from tests.pictures.made import Runs

#: Of a window, so that the verdict and the heat map are on it.
WIDTH_PX, HEIGHT_PX = 1200, 1000
#: A page has few colours: as many as a palette holds.
COLOURS = 128


def shorten(page: Path, run: Path) -> None:
    """The run's folder, by the name that it has in the documents."""
    page.write_text(page.read_text(encoding="utf-8").replace(str(run), "whichrank-out/RUN"), encoding="utf-8")


def picture(page: Path, path: Path) -> None:
    """The upper part of the page, as somebody sees it who opens it."""
    with browser() as started, opened(started, page) as shown:
        shown.page.set_viewport_size({"width": WIDTH_PX, "height": HEIGHT_PX})
        shown.page.wait_for_timeout(500)
        shown.page.screenshot(path=path)
    shrink(path)


def heat_map(train: str, runs: Runs, path: Path) -> None:
    """The heat map alone."""
    _, run = runs.job("slows", train)
    page = path.parent / "heat-map.html"
    try:
        runs.command("report", str(run), "-o", str(page))
        with browser() as started, opened(started, page) as shown:
            shown.page.set_viewport_size({"width": WIDTH_PX, "height": HEIGHT_PX})
            shown.page.wait_for_timeout(500)
            shown.page.locator("figure.heat-map").first.screenshot(path=path)
    finally:
        page.unlink(missing_ok=True)
    shrink(path)


def shrink(path: Path) -> None:
    """A PNG with a palette: a third of the bytes, nothing to be seen of it."""
    with Image.open(path) as full:
        full.convert("RGB").quantize(COLOURS).save(path, optimize=True)
