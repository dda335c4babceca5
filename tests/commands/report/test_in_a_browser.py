"""``whichrank report`` in headless Chromium: the guilty row stands out; no request, no error, not too large."""

from __future__ import annotations

import re

import numpy as np
import pytest
from playwright.sync_api import Browser

from tests.commands.report.browser import distances, opened
from tests.commands.report.conftest import Report
from whichrank.commands.report.heat_map import MOST_ROWS

MOST_BYTES = 10_000_000
#: Of 441, between two colours: anybody sees it.
SEEN = 60.0


@pytest.fixture(params=["small", "large", "large_hang"])
def report(request: pytest.FixtureRequest) -> Report:
    made: Report = request.getfixturevalue(request.param)
    return made


def rows_of(report: Report) -> int:
    return min(report.ranks, MOST_ROWS)


def row_of(report: Report) -> int:
    return report.guilty * rows_of(report) // report.ranks


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_guilty_row_is_not_like_the_others(browser: Browser, report: Report, scheme: str) -> None:
    with opened(browser, report.page, scheme=scheme) as page:
        away = distances(page.cells(), rows_of(report))
    assert int(away.argmax()) == row_of(report)
    assert away[row_of(report)] > SEEN


def test_nothing_is_asked_of_anybody_and_nothing_goes_wrong(browser: Browser, report: Report) -> None:
    assert report.page.stat().st_size <= MOST_BYTES
    with opened(browser, report.page) as page:
        for view in ("steady", "apart", "own", "waited"):
            page.choose(view)
        page.told_at(5, 5)
        assert page.requests == []
        assert page.errors == []


def test_the_policy_stops_a_script_that_is_not_ours_and_every_request(browser: Browser, small: Report) -> None:
    with opened(browser, small.page) as page:
        page.page.evaluate("document.body.insertAdjacentHTML('beforeend', '<img src=x onerror=\"window.ran = 1\">')")
        page.page.wait_for_timeout(200)
        assert page.page.evaluate("window.ran") is None
        assert any("Content Security Policy" in line for line in page.errors)


def test_what_is_under_the_pointer_is_told_with_rank_step_and_value(browser: Browser, large: Report) -> None:
    with opened(browser, large.page) as page:
        cells = page.cells()
        y = int((row_of(large) + 0.5) * cells.shape[0] / rows_of(large))
        told = page.told_at(cells.shape[1] - 3, y)
    assert f"most apart: rank {large.guilty}" in told
    assert "step 39" in told
    apart = re.search(r"self against the others (\d+) ms", told)
    assert apart is not None
    assert 150 < float(apart[1]) < 350


def test_the_suspect_stands_among_its_neighbours_where_ranks_share_rows(browser: Browser, large: Report) -> None:
    with opened(browser, large.page) as page:
        assert page.maps() == 2
        away = distances(page.cells(1), 17)
    assert int(away.argmax()) == 8
    assert away[8] > SEEN


def test_views_show_other_things(browser: Browser, small: Report) -> None:
    with opened(browser, small.page) as page:
        seen = []
        for view in ("steady", "own", "waited"):
            page.choose(view)
            seen.append(page.cells().copy())
    assert not np.array_equal(seen[0], seen[1])
    assert not np.array_equal(seen[1], seen[2])


def test_paper_is_white_even_where_the_screen_is_dark(browser: Browser, small: Report) -> None:
    with opened(browser, small.page, scheme="dark") as page:
        page.page.emulate_media(media="print")
        page.page.evaluate("dispatchEvent(new Event('beforeprint'))")
        paper = page.page.evaluate("getComputedStyle(document.body).backgroundColor")
        median = np.median(page.cells(), axis=(0, 1))
    assert paper == "rgb(255, 255, 255)"
    assert median.min() > 200
