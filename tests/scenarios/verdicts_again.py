"""``python -m tests.scenarios.verdicts_again [FOLDER ...]``: what today's judge says of the captures that lie there.

Replays every run below the folders (``build/scenarios``) and compares kind, ranks and state of its incidents with those
in its ``incidents.jsonl``. Hundreds of real runs a minute: what a change of the judge changes is seen before a scenario
is run again. Ends with 1 where a verdict is another one; which of the two is right says the run's ``plan.json``.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from whichrank.commands.embedded.replay import replay_run
from whichrank.commands.run_folder.run_directory import RunDirectory

from .judge import APART, latest_by_id, suspect_ranks

ROOT = Path(__file__).resolve().parents[2]
#: (kind, ranks, state) of each incident.
Said = tuple[tuple[str, tuple[int, ...], str], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Again:
    """One run. trouble: why it could not be replayed."""

    folder: Path
    before: Said = ()
    now: Said = ()
    trouble: str = ""

    @property
    def is_same(self) -> bool:
        return not self.trouble and self.before == self.now


def said(revisions: Iterable[Mapping[str, Any]]) -> Said:
    """What is left in the end, without what is said of the telemetry itself."""
    last = (each for each in latest_by_id(list(revisions)) if each["bucket"] not in APART)
    return tuple(sorted((each["kind"], tuple(sorted(suspect_ranks(each))), each["state"]) for each in last))


def runs_below(folders: Iterable[Path]) -> Iterator[Path]:
    """Folders of whole runs: those whose watcher was killed have no last word to compare with."""
    for folder in folders:
        for capture in sorted(folder.rglob("capture")):
            if capture.is_dir() and "killed" not in capture.parts:
                yield capture.parent


def judge_again(folder: Path) -> Again:
    incidents = folder / "incidents.jsonl"
    try:
        lines = incidents.read_text().splitlines() if incidents.exists() else []
        before = said(json.loads(line) for line in lines)
        return Again(
            folder=folder, before=before, now=said(each.document for each in replay_run(RunDirectory(folder)).revisions)
        )
    except (OSError, ValueError, KeyError) as error:
        return Again(folder=folder, trouble=f"{type(error).__name__}: {error}")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.scenarios.verdicts_again", description=__doc__.splitlines()[0]
    )
    parser.add_argument("folders", nargs="*", type=Path, default=[ROOT / "build" / "scenarios"])
    parser.add_argument("--processes", type=int, default=2)
    options = parser.parse_args(arguments)
    console = Console(width=None if sys.stdout.isatty() else 150)
    folders = list(runs_below(options.folders))
    if not folders:
        console.print(f"no captures below {', '.join(map(str, options.folders))}: run scenarios first", markup=False)
        return 2
    same = 0
    with ProcessPoolExecutor(options.processes) as pool:
        for again in pool.map(judge_again, folders):
            same += again.is_same
            if not again.is_same:
                console.print(f"{again.folder}: {again.trouble or 'another verdict'}", markup=False, soft_wrap=True)
                if not again.trouble:
                    console.print(f"    was {_words(again.before)}\n    is  {_words(again.now)}", markup=False)
    console.print(f"{same} of {len(folders)} verdicts are the same")
    return 0 if same == len(folders) else 1


def _words(verdict: Said) -> str:
    return "; ".join(f"{kind} of {list(ranks)}, {state}" for kind, ranks, state in verdict) or "nothing"


if __name__ == "__main__":
    sys.exit(main())
