"""``python -m tests.outside.log_cases FOLDER [--classes] [--only WORD]``: labelled logs against ``whichrank diagnose``.

Each ``expect.json`` below FOLDER is read: one with ``command`` is a case of its own, one without is a table of them.
Every log is given to the command under a neutral name, since names of files and folders tell ranks and nodes. One line
per wrong case, then ``K of N right``; exit status 1 if any is wrong.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import multiprocessing
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.outside.assertions import CHECKS

WORKERS = 2
LIMIT_S = 60
DUMPS = "flight-recorder"


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """classes: of mistakes that it shows; none: it was right before and has to stay so."""

    name: str
    command: str
    source: Path
    must: dict[str, Any]
    wishes: list[dict[str, Any]]
    classes: tuple[int | str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    problems: tuple[str, ...]
    wishes_met: int = 0


def cases_in(folder: Path) -> list[Case]:
    return sorted(_cases(folder), key=lambda case: case.name)


def _cases(folder: Path) -> Iterator[Case]:
    for table in folder.rglob("expect.json"):
        expected = json.loads(table.read_text(encoding="utf-8"))
        here = table.parent.relative_to(folder).as_posix()
        if "command" in expected:
            name = "dumps" if expected["command"] == DUMPS else "log.txt"
            yield _case(here, expected, table.parent / name)
            continue
        for key, one in expected.items():
            yield _case(key if here == "." else f"{here}/{key}", one, table.parent / key)


def _case(name: str, expected: dict[str, Any], source: Path) -> Case:
    return Case(
        name=name,
        command=expected["command"],
        source=source,
        must=expected.get("must", {}),
        wishes=expected.get("wish", []),
        classes=tuple(expected.get("classes") or ()),
    )


def document_of(command: str, source: Path) -> tuple[dict[str, Any], str]:
    """What the command prints about one log, and "", or why there is nothing. Works in a directory of its own."""
    from whichrank.commands.main import app

    before = Path.cwd()
    with tempfile.TemporaryDirectory() as folder:
        name = "dumps" if source.is_dir() else "log.txt"
        if source.is_dir():
            shutil.copytree(source, Path(folder) / name)
        else:
            shutil.copyfile(source, Path(folder) / name)
        out = io.StringIO()
        try:
            os.chdir(folder)
            with contextlib.redirect_stdout(out):
                app(["diagnose", command, name, "--json"])
            status: Any = 0
        except SystemExit as ended:
            status = ended.code or 0
        finally:
            os.chdir(before)
    if status:
        return {}, f"exit status {status}"
    try:
        found = json.loads(out.getvalue())
    except ValueError:
        return {}, f"no JSON: {out.getvalue()[:60]!r}"
    return (found, "") if isinstance(found, dict) else ({}, "JSON, but no object")


def judge(case: Case) -> Result:
    try:
        document, problem = document_of(case.command, case.source)
    except Exception as error:  # another world begins: whatever the command does with a hostile log is a result
        return Result(problems=(f"{type(error).__name__}: {error}",))
    if problem:
        return Result(problems=(problem,))
    check = CHECKS[case.command]
    met = sum(not check(document, wish) for wish in case.wishes)
    return Result(problems=tuple(check(document, case.must)), wishes_met=met)


def judge_all(cases: Sequence[Case], workers: int = WORKERS) -> list[Result]:
    """In the order of the cases, in processes of their own: a crash or a time-out is of one case."""
    with ProcessPoolExecutor(workers, mp_context=multiprocessing.get_context("spawn")) as pool:
        waiting = [pool.submit(judge, case) for case in cases]
        results = []
        for future in waiting:
            try:
                results.append(future.result(timeout=LIMIT_S))
            except TimeoutError:
                results.append(Result(problems=(f"no answer within {LIMIT_S} s",)))
            except BrokenProcessPool as error:
                results.append(Result(problems=(f"the process ended: {error}",)))
        return results


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.outside.log_cases", description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--classes", action="store_true", help="count right ones by class, and wishes")
    parser.add_argument("--only", default="", help="cases whose name contains this")
    options = parser.parse_args(arguments)
    cases = [case for case in cases_in(options.folder) if options.only in case.name]
    if not cases:
        parser.error(f"no expect.json below {options.folder}")
    results = judge_all(cases)
    by_class: dict[str, list[bool]] = {}
    for case, result in zip(cases, results, strict=True):
        if result.problems:
            print(f"WRONG {case.name}  {'; '.join(result.problems)}")
        for number in case.classes or ("guard",):
            by_class.setdefault(str(number), []).append(not result.problems)
    if options.classes:
        for number in sorted(by_class, key=lambda word: (not word.isdigit(), word.zfill(3))):
            print(f"class {number}: {sum(by_class[number])} of {len(by_class[number])}")
        wishes = sum(len(case.wishes) for case in cases)
        print(f"wishes: {sum(result.wishes_met for result in results)} of {wishes}")
    right = sum(not result.problems for result in results)
    print(f"{right} of {len(cases)} right")
    return 0 if right == len(cases) else 1


if __name__ == "__main__":
    sys.exit(main())
