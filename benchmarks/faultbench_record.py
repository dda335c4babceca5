"""What ``whichrank bench`` has measured, kept in the repository: a machine is soon gone, a matrix takes many nights.

``python -m benchmarks.faultbench_record pack DIR``: what DIR holds of the code as it is joins the record.
``... unpack DIR``: what is recorded of this code goes into DIR, for ``bench --results DIR``, which runs only the rest.
``... check DIR [--runs N]``: N of the recorded runs are run again; whatever came out otherwise is told, exit status 1.

A run follows from code, scenario, ranks and seed alone, so that anybody can repeat any of them. A record is of one
version of the code, and says nothing of another one.
"""

from __future__ import annotations

import argparse
import gzip
import json
import random
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from whichrank.evaluation.bench.kept_documents import finite, write_scored
from whichrank.evaluation.bench.kept_runs import KeptRuns, code_version
from whichrank.evaluation.bench.matrix import score_one
from whichrank.evaluation.bench.one_run import AskedRun

RECORD = Path(__file__).with_name("faultbench_record")
#: What the machine decides, and not the code.
_OF_MACHINE = ("cpu_s", "wall_s", "memory_bytes")
_LIMIT_S = 3000.0


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.faultbench_record", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("what", choices=("pack", "unpack", "check"))
    parser.add_argument("results", type=Path, help="folder of results, as for whichrank bench")
    parser.add_argument("--runs", type=int, default=3, help="to be run again")
    parser.add_argument("--ranks", type=int, default=64, help="of the runs that may be chosen")
    parser.add_argument("--seed", type=int, default=0, help="of the choice")
    parser.add_argument("--record", type=Path, default=RECORD)
    options = parser.parse_args(arguments)
    if options.what != "unpack" and not options.results.is_dir():
        parser.error(f"{options.results} is no folder of results: what whichrank bench --results has filled")
    version = code_version()
    kept = open_results(parser, options.results, version)
    if options.what == "check":
        return _check(kept, runs=options.runs, ranks=options.ranks, seed=options.seed)
    path = record_of(version, options.record)
    try:
        recorded = unpack(kept, path) if options.what == "unpack" else read_record(path)
    except BadRecord as error:
        parser.error(str(error))
    if options.what == "pack":
        found = {name: content for name in kept.names() if (content := read_kept(kept, name)) is not None}
        write_record(path, {**recorded, **found})
    words = f"{len(recorded)} results recorded before, {len(kept.names())} in {options.results}"
    print(f"code {version}: {words}")
    if not recorded and (others := sorted(each.name for each in options.record.glob("*.jsonl.gz") if each != path)):
        print(f"recorded of other code: {', '.join(others)}", file=sys.stderr)
    return 0


def open_results(parser: argparse.ArgumentParser, folder: Path, version: str) -> KeptRuns:
    """Ends the program with one line where nothing can be kept."""
    try:
        return KeptRuns(folder, version)
    except OSError as error:
        parser.error(f"{folder}: {error.strerror or error}; a folder is needed in which results can be kept")


class BadRecord(Exception):
    """One line: which file, and what to do."""


def record_of(version: str, folder: Path = RECORD) -> Path:
    """Where the results of this version of the code are recorded."""
    return folder / f"{version}.jsonl.gz"


def read_record(path: Path) -> dict[str, Mapping[str, Any]]:
    """By name; empty where there is no such file. Raises BadRecord."""
    if not path.exists():
        return {}
    try:
        with gzip.open(path, "rt", encoding="utf-8") as lines:
            rows = [json.loads(line) for line in lines]
        return {str(row["name"]): row["content"] for row in rows}
    except (OSError, EOFError, ValueError, KeyError) as error:
        raise BadRecord(f"{path} is no record ({error}): take it from the repository again, or remove it") from error


def read_kept(kept: KeptRuns, name: str) -> Mapping[str, Any] | None:
    """None: not there, or cut off as a full disk leaves it."""
    content = kept.read(name)
    try:
        found = None if content is None else json.loads(content)
    except ValueError:
        return None
    return found if isinstance(found, dict) else None


def unpack(kept: KeptRuns, path: Path) -> dict[str, Mapping[str, Any]]:
    """What is recorded goes into the results, but for what is there. Raises BadRecord, or OSError: nothing can be
    written."""
    recorded = read_record(path)
    for name in recorded.keys() - set(kept.names()):
        kept.write(name, json.dumps(finite(recorded[name]), ensure_ascii=False))
    return recorded


def write_record(path: Path, results: Mapping[str, Mapping[str, Any]]) -> None:
    """The same results make the same bytes. Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    rows = (
        json.dumps({"name": name, "content": finite(results[name])}, ensure_ascii=False, separators=(",", ":"))
        for name in sorted(results)
    )
    part = path.with_suffix(".part")
    part.write_bytes(gzip.compress("".join(f"{row}\n" for row in rows).encode(), mtime=0))
    part.replace(path)


def _check(kept: KeptRuns, *, runs: int, ranks: int, seed: int) -> int:
    known = [(name, found) for name in kept.names() if (found := read_kept(kept, name)) and found.get("ranks") == ranks]
    chosen = random.Random(seed).sample(known, min(runs, len(known)))
    differs = 0
    for name, before in chosen:
        asked = AskedRun(
            scenario=before["scenario"], ranks=before["ranks"], seed=before["seed"], is_plain=before["is_plain"]
        )
        other = differences(before, json.loads(write_scored(score_one(asked, None, _LIMIT_S))))
        differs += bool(other)
        print(f"  {name}: {'comes out otherwise: ' + ', '.join(other) if other else 'the same'}", flush=True)
    print(f"{len(chosen) - differs} of {len(chosen)} runs of {len(known)} at {ranks:,} ranks come out the same")
    return 1 if differs or not chosen else 0


def differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Names of what is not the same in two results of one run, but for what the machine decides."""
    old, new = (json.loads(json.dumps(finite(each))) for each in (before, now))
    return sorted(key for key in {*old, *new} - set(_OF_MACHINE) if old.get(key) != new.get(key))


if __name__ == "__main__":
    sys.exit(main())
