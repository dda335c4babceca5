"""Each dashboard and the list of alert rules in headless Chromium: a picture of it, and what panels complain of."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from playwright.sync_api import Page

from tests.commands.report.browser import browser
from tests.real_grafana.program import Grafana
from whichrank.grafana.boards import all_dashboards

_WIDTH_PX, _TALLEST_PX = 1600, 4200
_WAIT_MS = 120_000
#: After the last answer, for drawing.
_DRAWN_MS = 2_500
#: How a panel shows that its query failed: the red corner (before and since Grafana 10).
_FAILED = "[data-testid*='Panel status error'], .panel-info-corner--error, [aria-label='Panel header item error']"


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """failed: panels with the red corner. empty: panels that say that there is nothing. errors: of the console."""

    page: str
    failed: int
    empty: list[str]
    errors: list[str]


def looks(grafana: Grafana, folder: Path, given: dict[str, str]) -> Iterator[Look]:
    """given: variables of dashboards, as in their addresses. A picture of each page goes into ``folder``."""
    folder.mkdir(parents=True, exist_ok=True)
    pages = {board.uid: _address(board.uid, given) for board in all_dashboards()}
    pages["alert-rules"] = "/alerting/list?view=list"
    with _logged_in(grafana) as page:
        for name, address in pages.items():
            errors: list[str] = []
            listener = lambda said, errors=errors: errors.append(said.text) if said.type == "error" else None  # noqa: E731
            page.on("console", listener)
            page.goto(f"{grafana.url}{address}", timeout=_WAIT_MS)
            page.wait_for_load_state("networkidle", timeout=_WAIT_MS)
            page.wait_for_timeout(_DRAWN_MS)
            failed = page.locator(_FAILED).count()
            empty = [text.strip() for text in page.locator("[data-testid='data-testid Panel data error message'], .panel-empty").all_inner_texts()]  # fmt: skip  # noqa: E501
            page.screenshot(path=folder / f"{name}.png")
            page.remove_listener("console", listener)
            yield Look(page=name, failed=failed, empty=empty, errors=errors)


@contextmanager
def _logged_in(grafana: Grafana) -> Iterator[Page]:
    with browser() as chromium:
        # As tall as the longest dashboard: panels below the edge of a window are not drawn.
        context = chromium.new_context(viewport={"width": _WIDTH_PX, "height": _TALLEST_PX}, timezone_id="UTC")
        page = context.new_page()
        page.goto(f"{grafana.url}/login", timeout=_WAIT_MS)
        page.fill("input[name=user]", "admin", timeout=_WAIT_MS)
        page.fill("input[name=password]", grafana.password)
        page.click("button[type=submit]")
        page.wait_for_url(lambda address: "/login" not in address, timeout=_WAIT_MS)
        yield page
        context.close()


def _address(uid: str, given: dict[str, str]) -> str:
    variables = "".join(f"&var-{name}={value}" for name, value in given.items())
    return f"/d/{uid}?kiosk&from=now-1h&to=now{variables}"
