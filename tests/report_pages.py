"""Reports opened in a browser: ``python -m tests.report_pages``. Needs Chromium.

Real jobs of 4 ranks, each with a fault of the demo; runs of 16,384 ranks as agents would have told them, one rank slow
or staying away. ``whichrank report`` writes each as a page, headless Chromium opens it without a network in light and
in dark, and its pixels, console and requests are counted.
"""

from __future__ import annotations

import argparse
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from playwright.sync_api import Browser

from tests.commands.report.browser import browser, chromium, distances, opened
from tests.commands.report.conftest import real_run
from tests.commands.report.large_run import make_large_run
from tests.commands.report.test_in_a_browser import MOST_BYTES, SEEN
from whichrank.commands.report.heat_map import MOST_ROWS
from whichrank.evaluation.bench.bench_report import exit_code, print_lines
from whichrank.simulator.scoring.summary import ScoreLine

SMALL, LARGE = 4, 16_384
#: Faults of the demo after which one rank is where the others are not.
SCENARIOS = ("busy_loop", "sleep_in_forward", "loader_blocked", "gil_held", "sigstop")
SCHEMES = ("light", "dark")


@dataclass
class Count:
    """Of reports of one size; colours: of the guilty row from the median one, by page and scheme."""

    ranks: int
    sizes: list[int] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    colours: list[float] = field(default_factory=list)
    found: list[bool] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)
    missed: list[str] = field(default_factory=list)

    def lines(self) -> Sequence[ScoreLine]:
        of, opened_count = f"{self.ranks} ranks: ", len(self.found)
        return [
            ScoreLine(
                name=f"{of}the guilty row is the one that differs",
                asked=f"all, by {SEEN:.0f} of 441",
                measured=f"least {min(self.colours):.0f}" + "".join(f"; missed {each}" for each in self.missed),
                share=f"{sum(self.found)} of {opened_count}",
                ok=all(self.found),
            ),
            ScoreLine(
                name=f"{of}errors on the console",
                asked="none",
                measured=f"{len(self.errors)}" + "".join(f"; {line}" for line in self.errors[:3]),
                share=f"{opened_count} opened",
                ok=not self.errors,
            ),
            ScoreLine(
                name=f"{of}requests",
                asked="none",
                measured=f"{len(self.requests)}" + "".join(f"; {line}" for line in self.requests[:3]),
                share=f"{opened_count} opened",
                ok=not self.requests,
            ),
            ScoreLine(
                name=f"{of}size of the page",
                asked=f"<= {MOST_BYTES / 1e6:.0f} MB",
                measured=f"largest {max(self.sizes) / 1e6:.2f} MB",
                share=f"{sum(size <= MOST_BYTES for size in self.sizes)} of {len(self.sizes)}",
                ok=max(self.sizes) <= MOST_BYTES,
            ),
            ScoreLine(
                name=f"{of}whichrank report takes",
                asked="",
                measured=f"longest {max(self.seconds):.1f} s",
                share=f"{len(self.seconds)} runs",
            ),
        ]


def measure(count: Count, within: Browser, name: str, make: Callable[[Path], int], keep: Path | None) -> None:
    """make: fills a folder with a run, and says who is guilty."""
    with tempfile.TemporaryDirectory(prefix="whichrank-report-") as folder:
        run, page = Path(folder) / "run", (keep or Path(folder)) / f"{count.ranks}-{name}.html"
        guilty = make(run)
        began_s = time.monotonic()
        report = [sys.executable, "-m", "whichrank.commands.main", "report", str(run), "-o", str(page)]
        subprocess.run(report, check=True, capture_output=True)
        count.seconds.append(time.monotonic() - began_s)
        count.sizes.append(page.stat().st_size)
        rows = min(count.ranks, MOST_ROWS)
        for scheme in SCHEMES:
            with opened(within, page, scheme=scheme) as told:
                away = distances(told.cells(), rows)
                row = guilty * rows // count.ranks
                is_found = int(away.argmax()) == row and away[row] >= SEEN
                if keep is not None:
                    told.page.screenshot(path=keep / f"{count.ranks}-{name}-{scheme}.png", full_page=True)
                count.colours.append(float(away[row]))
                count.found.append(is_found)
                count.missed += [] if is_found else [f"{name} ({scheme})"]
                count.errors += told.errors
                count.requests += told.requests


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--large", type=int, default=6, metavar="N", help="runs of 16,384 ranks")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="leave pages and screenshots there")
    given = parser.parse_args()
    if chromium() is None:
        parser.error("no Chromium: install it (Debian and Ubuntu: the package chromium)")
    if given.keep is not None:
        given.keep.mkdir(parents=True, exist_ok=True)
    draws = random.Random(given.seed)
    small, large = Count(SMALL), Count(LARGE)
    with browser() as within:
        for scenario in SCENARIOS:
            seed = draws.randrange(1000)
            measure(small, within, scenario, lambda run: real_run(run, scenario, seed), given.keep)  # noqa: B023
        for number in range(given.large):
            guilty, stays = draws.randrange(LARGE), bool(number % 2)

            def make(run: Path) -> int:
                run.mkdir()
                make_large_run(run, ranks=LARGE, guilty=guilty, stays=stays, seed=number)  # noqa: B023
                return guilty  # noqa: B023

            measure(large, within, f"{'stays' if stays else 'slow'}-{guilty}", make, given.keep)
    lines = [line for count in (small, large) if count.sizes for line in count.lines()]
    print_lines(lines, "whichrank report in headless Chromium, without a network")
    return exit_code(lines)


if __name__ == "__main__":
    sys.exit(main())
