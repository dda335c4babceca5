"""What pictures there are, and how each is made of a job that really ran."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

from tests.docs_commands.room import environment
from tests.newcomer import script
from tests.pictures import jobs, pages, road
from tests.pictures.terminal import Shown, run_on_terminal, svg_of

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "docs" / "pictures"
MOST_BYTES = 150_000
_TORCHRUN = Path(sys.executable).with_name("torchrun")
_WHICHRANK = Path(sys.executable).with_name("whichrank")


class Runs:
    """Jobs that were run for the pictures, each once, in a folder of its own."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._shown: dict[str, Shown] = {}
        home = folder / "home"
        home.mkdir()
        self.environ: Mapping[str, str] = {
            **environment(home),
            "WHICHRANK_NODE_ID": "node-01",
            "TERM": "xterm-256color",
            "OMP_NUM_THREADS": "1",
        }

    def job(self, name: str, train: str) -> tuple[Shown, Path]:
        """What its terminal has shown, and the run's folder."""
        folder = self._folder / name
        if name not in self._shown:
            folder.mkdir()
            (folder / "train.py").write_text(train, encoding="utf-8")
            words = [_WHICHRANK, "run", "--out", "run", "--", _TORCHRUN, "--nproc-per-node=4", "train.py"]
            self._shown[name] = run_on_terminal([str(word) for word in words], folder, self.environ)
        return self._shown[name], folder / "run"

    def command(self, *words: str) -> Shown:
        return run_on_terminal([str(_WHICHRANK), *words], self._folder, self.environ)


def terminal_view(runs: Runs, path: Path) -> None:
    """The last of the fullest states of the foot of the terminal: ranks that wait, and the incident."""
    shown, _ = runs.job("hangs", jobs.HANGS)
    waiting = [lines for lines in shown.drawings() if any("waits for" in line for line in lines)]
    lines = max(reversed(waiting), key=len)
    path.write_text(svg_of(lines, "whichrank run -- torchrun --nproc-per-node=4 train.py"), encoding="utf-8")


def incident(runs: Runs, path: Path) -> None:
    """The README's own job, as ``whichrank incidents show`` has it; files are named without their folder."""
    _, run = runs.job("raises", script((ROOT / "README.md").read_text(encoding="utf-8")))
    told = run / "incidents.jsonl"
    told.write_text(told.read_text(encoding="utf-8").replace(f"{run.parent}/", ""), encoding="utf-8")
    documents = [json.loads(line) for line in told.read_text(encoding="utf-8").splitlines()]
    if {document["kind"] for document in documents} != {"rank_raised"}:
        raise ValueError("the README's job was not told as an exception")
    shown = runs.command("incidents", "show", documents[0]["id"], "--from", str(run))
    path.write_text(svg_of(shown.panel(), "whichrank incidents show"), encoding="utf-8")


def goodput(runs: Runs, path: Path) -> None:
    _, run = runs.job("hangs", jobs.HANGS)
    lines = runs.command("goodput", str(run)).text.replace("\r", "").rstrip("\n").split("\n")
    shortened = [line.replace(str(run), "whichrank-out/RUN") for line in lines]
    path.write_text(svg_of(shortened, "whichrank goodput whichrank-out/RUN"), encoding="utf-8")


def report(runs: Runs, path: Path) -> None:
    _, run = runs.job("slows", jobs.SLOWS)
    page = path.parent / "report.html"
    try:
        runs.command("report", str(run), "-o", str(page))
        pages.shorten(page, run)
        pages.picture(page, path)
    finally:
        page.unlink(missing_ok=True)


def draw_road(runs: Runs, path: Path) -> None:
    path.write_text(road.svg(), encoding="utf-8")


PICTURES: Mapping[str, Callable[[Runs, Path], None]] = {
    "terminal-view.svg": terminal_view,
    "incident.svg": incident,
    "goodput.svg": goodput,
    "report.png": report,
    "heat-map.png": partial(pages.heat_map, jobs.SLOWS),
    "road.svg": draw_road,
}
