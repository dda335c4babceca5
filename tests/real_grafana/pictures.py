"""Each dashboard and the list of alert rules in headless Chromium: a picture of it, and what panels complain of."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from playwright.sync_api import Page

from tests.commands.report.browser import browser
from tests.real_grafana.program import Grafana
from whichrank.grafana.boards import all_dashboards

#: Of a window; of a row of a dashboard's grid, and what stands around them.
_WIDTH_PX, _ROW_PX, _AROUND_PX = 1600, 38, 60
_LIST_PX = 2400
_WAIT_MS = 120_000
#: After the last answer, for drawing.
_DRAWN_MS = 5_000
#: A page has been laid out; one of its panels still asks (of Grafana 9, and since 10).
_SHOWN = ".react-grid-item, [data-testid='rule-group']"
_CLOSED = "[data-testid='group-collapse-toggle']"
_ASKS = ".panel-loading, [aria-label='Panel loading bar'], [data-testid='data-testid Panel loading bar']"
#: How a panel shows that its query failed: the red corner (before and since Grafana 10).
_FAILED = "[data-testid*='Panel status error'], .panel-info-corner--error, [aria-label='Panel header item error']"


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """failed: panels with the red corner. empty: titles of panels that say "No data". errors: of the console.

    links: from values to our other pages.
    """

    page: str
    failed: int
    empty: list[str]
    errors: list[str]
    links: list[str]


def looks(grafana: Grafana, folder: Path, given: dict[str, str]) -> Iterator[Look]:
    """given: variables of dashboards, as in their addresses. A picture of each page goes into ``folder``."""
    folder.mkdir(parents=True, exist_ok=True)
    # As tall as a dashboard is: panels below the edge of a window are not drawn.
    pages = {board.uid: (_address(board.uid, given), _height_px(board.build())) for board in all_dashboards()}
    pages["alert-rules"] = "/alerting/list?view=list", _LIST_PX
    with _logged_in(grafana) as page:
        for name, (address, height_px) in pages.items():
            page.set_viewport_size({"width": _WIDTH_PX, "height": height_px})
            errors: list[str] = []
            listener = lambda said, errors=errors: errors.append(said.text) if said.type == "error" else None  # noqa: E731
            page.on("console", listener)
            page.goto(f"{grafana.url}{address}", timeout=_WAIT_MS)
            page.wait_for_selector(_SHOWN, timeout=_WAIT_MS)
            page.wait_for_function("asks => !document.querySelector(asks)", arg=_ASKS, timeout=_WAIT_MS)
            for toggle in page.locator(_CLOSED).all():
                toggle.click()
            page.wait_for_timeout(_DRAWN_MS)
            failed = page.locator(_FAILED).count()
            said_empty = page.locator(".react-grid-item", has_text="No data").all_inner_texts()
            empty = [text.strip().splitlines()[0] for text in said_empty]
            found = [
                each.get_attribute("href") for each in page.locator(".react-grid-item a[href*='/d/whichrank-']").all()
            ]
            links = sorted({link for link in found if link})
            page.screenshot(path=folder / f"{name}.png")
            page.remove_listener("console", listener)
            yield Look(page=name, failed=failed, empty=empty, errors=errors, links=links)


@contextmanager
def _logged_in(grafana: Grafana) -> Iterator[Page]:
    with browser() as chromium:
        context = chromium.new_context(timezone_id="UTC")
        # Grafana's pages may ask others (news, pictures of people): nothing leaves this machine.
        context.route(lambda address: not address.startswith(grafana.url), lambda route: route.abort())
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
    return f"/d/{uid}?kiosk&refresh=1d&from=now-1h&to=now{variables}"


def _height_px(board: dict[str, Any]) -> int:
    rows = max(panel["gridPos"]["y"] + panel["gridPos"]["h"] for panel in board["panels"])
    return int(rows) * _ROW_PX + _AROUND_PX
