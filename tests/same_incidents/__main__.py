"""Does the code of today conclude what it concluded before? Simulated runs and captures of real ones, judged again.

    python -m tests.same_incidents [--runs DIR ...] [--texts FILE] [--jobs 2]
    python -m tests.same_incidents --write [--runs DIR ... [--keep 40] [--hide PATH=STAND-IN ...]]

Compares ids, kinds, suspects, times, severities of every revision with the golden lines. Sentences may differ: each
that does goes to FILE, to be read. ``--write`` makes the golden lines from the code of today, before a change that is
to change nothing; ``--keep`` also packs so many of the runs, the smallest of each kind of name. DIR holds folders of
``tests.outside``, each with a run's folder ``run`` in it. Exit status 1 where an incident differs or a run is missing.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from tests.outside.table import Line, print_table
from tests.same_incidents.facts import first_difference, line_of, texts_of
from tests.same_incidents.judged import Captured, Simulated, simulated_runs
from tests.same_incidents.kept import (
    CAPTURES,
    Texts,
    captures,
    name_of,
    read_lines,
    read_texts,
    unpack,
    write_set,
)
from tests.same_incidents.packing import pack
from whichrank.commands.run_folder.run_directory import CAPTURE_FOLDER, RUN_FILE, Unusable

Run = Simulated | Captured
#: A larger one is not kept, in bytes as it lies in the run's folder.
_LARGEST = 12 << 20


def judge(run: Run) -> tuple[str, str, list[str]]:
    """Name, golden line, sentences; the line is empty where the run holds nothing to judge."""
    try:
        documents = run.judge()
    except Unusable:
        return run.name, "", []
    return run.name, line_of(run.name, documents), [text for each in documents for text in texts_of(each)]


def judge_all(runs: Sequence[Run], jobs: int) -> tuple[dict[str, str], Texts]:
    lines: dict[str, str] = {}
    texts: Texts = {}
    with ProcessPoolExecutor(jobs) as pool:
        for name, line, told in pool.map(judge, runs):
            if line:
                lines[name], texts[name] = line, told
    return lines, texts


def real_runs(results: Sequence[Path]) -> Iterator[Captured]:
    for folder in sorted(path for each in results for path in each.iterdir()):
        if (folder / "run" / RUN_FILE).is_file():
            yield Captured(name=folder.name, folder=folder / "run")


def choose(runs: Sequence[Captured], keep: int) -> list[Captured]:
    """The smallest of each kind, then the second smallest of each, and so on. keep: so many."""

    def size(run: Captured) -> int:
        return sum(path.stat().st_size for path in (run.folder / CAPTURE_FOLDER).glob("*"))

    turns: Counter[str] = Counter()
    ordered = []
    for run in sorted((run for run in runs if 0 < size(run) <= _LARGEST), key=size):
        turns[_kind(run.name)] += 1
        ordered.append((turns[_kind(run.name)], run))
    return [run for _, run in sorted(ordered, key=lambda pair: pair[0])][:keep]


def _kind(name: str) -> str:
    """``hang`` of ``3-nanogpt-hang``, ``save`` of ``8-017-save-30s-after-4s``."""
    parts = name.split("-")
    return parts[2] if parts[1].isdigit() else parts[-1]


def compare(name: str, lines: dict[str, str], texts: Texts) -> tuple[list[str], list[str]]:
    """What differs from the golden lines of a set, in facts and in sentences."""
    before, said = read_lines(name), read_texts(name)
    facts, sentences = [], []
    for run, line in before.items():
        now = lines.get(run)
        if now is None:
            facts.append(f"{run}: not judged")
        elif now != line:
            facts.append(f"{run}: {first_difference(json.loads(line), json.loads(now))}")
        elif texts[run] != said.get(run):
            sentences += _changed(run, said.get(run, []), texts[run])
    return facts, sentences


def _changed(run: str, before: Sequence[str], now: Sequence[str]) -> list[str]:
    gone = [text for text in dict.fromkeys(before) if text not in set(now)]
    new = [text for text in dict.fromkeys(now) if text not in set(before)]
    return [run, *(f"  - {text}" for text in gone), *(f"  + {text}" for text in new)]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.same_incidents", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)  # fmt: skip
    parser.add_argument("--runs", nargs="*", type=Path, default=[], help="folders with results of tests.outside")
    parser.add_argument("--texts", type=Path, help="write the sentences that differ to this file")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--write", action="store_true", help="make the golden lines")
    parser.add_argument("--keep", type=int, default=0, help="so many real runs, with their captures")
    parser.add_argument("--hide", nargs="*", default=[], help="paths of this machine and what stands for them")
    parser.add_argument("--only", nargs="*", choices=("simulated", "captures", "runs"), help="judge only these")
    asked = parser.parse_args()
    if missing := [str(folder) for folder in asked.runs if not folder.is_dir()]:
        parser.error(f"--runs: {', '.join(missing)}: no such folder; give one with results of tests.outside")
    runs = list(real_runs(asked.runs))
    if asked.write and asked.keep:
        hidden = [(path, stand_in) for path, _, stand_in in (each.partition("=") for each in asked.hide)]
        for run in choose(runs, asked.keep):
            pack(run.folder, CAPTURES / f"{run.name}.tar.xz", hidden)
    with tempfile.TemporaryDirectory() as made:
        kept = [Captured(name=name_of(path), folder=unpack(path, Path(made))) for path in captures()]
        sets: dict[str, Sequence[Run]] = {"simulated": list(simulated_runs()), "captures": kept, "runs": runs}
        sets = {name: each for name, each in sets.items() if each and (not asked.only or name in asked.only)}
        judged = {name: judge_all(each, asked.jobs) for name, each in sets.items()}
    if not judged:
        parser.error("nothing to judge: --only runs needs --runs DIR")
    if asked.write:
        for name, (lines, texts) in judged.items():
            write_set(name, lines, texts)
            print(f"{name}: {len(lines)} runs, {sum(map(len, texts.values()))} sentences")
        return 0
    table, sentences = [], []
    for name, (lines, texts) in judged.items():
        facts, other = compare(name, lines, texts)
        print("\n".join(facts))
        sentences += other
        total = len(read_lines(name))
        table.append(Line.of(f"{name}: same incidents", total - len(facts), total, 1.0))
    if asked.texts is not None:
        asked.texts.parent.mkdir(parents=True, exist_ok=True)
        asked.texts.write_text("".join(f"{line}\n" for line in sentences))
        changed = sum(not line.startswith(" ") for line in sentences)
        table.append(Line(asked="other sentences", measured=str(asked.texts), k_of_n=f"{changed} runs", state="no bar"))
    return print_table(table, "The same incidents as before")


if __name__ == "__main__":
    raise SystemExit(main())
