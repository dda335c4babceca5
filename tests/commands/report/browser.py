"""A report in headless Chromium: what it draws, says and asks for. Not a test module."""

from __future__ import annotations

import io
import math
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from PIL import Image
from playwright.sync_api import Browser, Locator, Page, sync_playwright

NAMES = ("chromium", "chromium-browser", "google-chrome")
#: Of a heat map's picture, what stands beside and below the cells.
LEFT_PX, RIGHT_PX, BELOW_PX = 74, 96, 34
#: Of the cells, the last ones: an unfinished step, or what a rank steadily does in the end.
LAST_PX = 20
_DRAWN = "html[data-drawn=yes]"
_WAIT_MS = 60_000


def chromium() -> str | None:
    return next((path for name in NAMES if (path := shutil.which(name))), None)


@contextmanager
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        # Its sandbox needs rights that a container has not; what it opens is ours.
        started = playwright.chromium.launch(executable_path=chromium(), args=["--no-sandbox"])
        try:
            yield started
        finally:
            started.close()


@dataclass
class Opened:
    """errors: of the console, warnings as well; requests: all but that for the page itself."""

    page: Page
    errors: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)

    def maps(self) -> int:
        return self.page.locator("figure.heat-map").count()

    def choose(self, view: str) -> None:
        self.page.check(f"input[value={view}]")

    def cells(self, index: int = 0) -> np.ndarray:
        """(height, width, 3): the pixels of a heat map's cells, as they stand on the screen."""
        canvas = self._canvas(index)
        canvas.scroll_into_view_if_needed()
        box = canvas.bounding_box()
        assert box is not None
        left, top = (
            round(box["x"]),
            round(box["y"]),
        )  # as the browser does, so that a row of a pixel is one on the screen
        right, bottom = left + round(box["width"]) - RIGHT_PX, top + round(box["height"]) - BELOW_PX
        picture = Image.open(io.BytesIO(self.page.screenshot())).convert("RGB")
        return np.asarray(picture, np.int64)[top:bottom, left + LEFT_PX : right]

    def told_at(self, x: float, y: float, index: int = 0) -> str:
        """What it says of the cell at (x, y), counted from the first one's corner."""
        canvas = self._canvas(index)
        canvas.scroll_into_view_if_needed()
        box = canvas.bounding_box()
        assert box is not None
        self.page.mouse.move(math.ceil(box["x"]) + LEFT_PX + x, math.ceil(box["y"]) + y)  # a pointer's place is whole
        return self.page.locator("figure.heat-map output").nth(index).inner_text()

    def _canvas(self, index: int) -> Locator:
        return self.page.locator("figure.heat-map canvas").nth(index)


@contextmanager
def opened(within: Browser, path: Path, *, scheme: str = "light", is_touch: bool = False) -> Iterator[Opened]:
    context = within.new_context(
        viewport={"width": 1400, "height": 1000},
        color_scheme="dark" if scheme == "dark" else "light",
        offline=True,
        has_touch=is_touch,
    )
    try:
        page = context.new_page()
        told = Opened(page)
        page.on("console", lambda said: told.errors.append(said.text) if said.type in ("error", "warning") else None)
        page.on("pageerror", lambda error: told.errors.append(str(error)))
        page.on("request", lambda asked: told.requests.append(asked.url))
        page.goto(path.as_uri())
        page.locator(_DRAWN).wait_for(state="attached", timeout=_WAIT_MS)
        told.requests.remove(path.as_uri())
        yield told
    finally:
        context.close()


def distances(cells: np.ndarray, rows: int) -> np.ndarray:
    """By row of the map: how far its last pixels are from those of the median row, 0 to 441."""
    high = cells.shape[0] / rows
    lines = cells[[int((row + 0.5) * high) for row in range(rows)], -LAST_PX:]
    return np.asarray(np.linalg.norm(lines - np.median(lines, axis=0), axis=2).mean(axis=1))
