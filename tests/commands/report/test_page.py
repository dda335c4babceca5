"""The page as text: what a job says is text in it, whatever it says; nothing comes from outside; it stays small."""

from __future__ import annotations

import html
import re
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from tests.commands.incidents.documents import document
from tests.commands.report.conftest import write_report
from tests.commands.report.large_run import make_large_run
from tests.long_runs import LONG
from whichrank.commands.main import app
from whichrank.commands.report.grid import FEWEST_COLUMNS, MOST_CELLS, MOST_COLUMNS, Column, Grid
from whichrank.commands.report.heat_map import MOST_ROWS, heat_maps
from whichrank.commands.report.page import render
from whichrank.commands.report.reading import JobReading
from whichrank.telemetry.incident_reading import read_incident

OURS = {"script": 2, "style": 1, "canvas": 0, "img": 0, "iframe": 0, "link": 0, "base": 0, "form": 0, "object": 0}
HOSTILE = st.one_of(
    st.text(max_size=60),
    st.sampled_from(
        [
            "</script><script>window.ran = 1</script>",
            "<img src=x onerror=alert(1)>",
            "\" onload='alert(1)",
            "{{ 7 * 7 }}{% raw %}",
            "<!-- -->",
            "&lt;b&gt;",
            "\x1b[31mred\x00",
            "</style><style>*{display:none}",
        ]
    ),
)


class Tags(HTMLParser):
    """How many of each, and every attribute that would run or load something."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.count: dict[str, int] = {}
        self.active: list[str] = []
        self.text: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.count[tag] = self.count.get(tag, 0) + 1
        for name, value in attrs:
            leads_out = name == "href" and not (value or "").startswith("#")
            if leads_out or name.startswith("on") or name in ("src", "srcset", "data", "action"):
                self.active.append(f"{tag} {name}={value}")

    def handle_data(self, data: str) -> None:
        self.text.append(data)


@settings(max_examples=60)
@given(name=HOSTILE, message=HOSTILE, place=HOSTILE, where=HOSTILE, problem=HOSTILE)
def test_what_a_job_says_stays_text(name: str, message: str, place: str, where: str, problem: str) -> None:
    reading = JobReading(job="job-1", name=name, where=where)
    reading.report(problem)
    reading.happenings.append((1.0, message))
    said = document(
        job={"id": "job-1", "name": name, "attempt": "a" * 16, "run": "run-1"},
        evidence=[{"signal": "log", "source": place, "time": 1.0, "shows": message}],
        advice={"action": "restart_without_node", "by": "human", "text": message},
        label={"cause": message, "wrong": True, "by": name, "time": 1.0, "closed": {"by": name, "because": message}},
    )
    tags = Tags(render(reading, [read_incident(said)]))
    assert {tag: tags.count.get(tag, 0) for tag in OURS} == OURS
    assert tags.active == []


def test_what_a_job_says_is_there_to_be_read() -> None:
    said = document(evidence=[{"signal": "log", "source": "rank 1", "time": 1.0, "shows": "<b>bold</b> & {{ x }}"}])
    page = render(JobReading(job="job-1", name="<i>"), [read_incident(said)])
    assert html.escape("<b>bold</b> & {{ x }}") in page
    assert "<b>bold</b>" not in page


def test_the_page_refers_to_nothing_outside(tmp_path: Path) -> None:
    run = make_large_run(tmp_path, ranks=16, guilty=3)
    page = write_report(run, tmp_path / "report.html").read_text()
    assert re.findall(r"https?://|url\(|@import|//cdn", page) == []
    assert "default-src 'none'" in page


@LONG
def test_the_largest_report_is_small_enough() -> None:
    """As many cells as there may be, each of them noise, which packs worst; three suspects beside it."""
    ranks, columns = 16_384, min(MOST_COLUMNS, MOST_CELLS // 16_384)
    draws, grid = np.random.default_rng(1), Grid()
    everybody = np.arange(ranks)
    for step in range(columns):
        column = Column(attempt=0, first_step=step, last_step=step, begin_s=float(step))
        grid.add(column, everybody, draws.lognormal(0, 1, ranks), draws.lognormal(0, 1, ranks))
    assert len(grid.columns) == columns > FEWEST_COLUMNS
    maps = heat_maps(grid, [5, 9_001, 16_383])
    assert [len(each.head.firsts) for each in maps] == [MOST_ROWS, 14, 17, 9]
    assert sum(len(each.body) + len(str(each.head)) for each in maps) < 9_500_000


def test_no_map_is_drawn_of_a_job_of_which_no_step_was_seen_to_end() -> None:
    """A loop without steps is "in step 0" from its begin to its end; what it did meanwhile is not known."""
    grid, everybody = Grid(), np.arange(4)
    grid.add(Column(attempt=0, first_step=0, last_step=0, begin_s=1.0, unfinished=True), everybody, *np.ones((2, 4)))
    assert heat_maps(grid, [1]) == []
    grid.add(Column(attempt=1, first_step=0, last_step=0, begin_s=9.0), everybody, *np.ones((2, 4)))
    assert len(heat_maps(grid, [1])) == 1


def test_a_run_without_incidents_says_so(tmp_path: Path) -> None:
    run = make_large_run(tmp_path, ranks=16, guilty=3)
    (run / "incidents.jsonl").write_bytes(b"")
    page = write_report(run, tmp_path / "report.html").read_text()
    assert "nothing was found wrong" in page


def test_a_folder_that_is_no_run_is_refused_in_a_line(tmp_path: Path) -> None:
    told = CliRunner().invoke(app, ["report", str(tmp_path), "-o", str(tmp_path / "report.html")])
    assert told.exit_code == 2
    assert not (tmp_path / "report.html").exists()


def test_what_is_missing_is_told(tmp_path: Path) -> None:
    run = make_large_run(tmp_path, ranks=16, guilty=3)
    segment = max((run / "capture").iterdir(), key=lambda path: path.stat().st_size)
    content = bytearray(segment.read_bytes())
    content[len(content) // 2] ^= 0xFF
    segment.write_bytes(content)
    page = write_report(run, tmp_path / "report.html").read_text()
    missing = page[page.index('id="missing"') :]
    assert "Nothing is known to be missing" not in missing
    assert segment.name in missing
