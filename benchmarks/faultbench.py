"""``make faultbench``: everything that issue 7 asks to be shown, line by line: ok, SHORT or not run.

``python -m benchmarks.faultbench --results DIR [--corpora DIR] [--code VERSION]``. Runs nothing that takes minutes: it
reads what ``whichrank bench --results DIR`` (matrices, ``--sound``, ``--cost``, ``--accounting``) and ``make tie`` have
measured with the code as it is now. Exit status 1 where something is SHORT, or was not run.

``--code``: what was measured with another version of the code, which says nothing of this one.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.simulator.tie.lines import tie_lines
from whichrank.evaluation.bench.acceptance import must_show
from whichrank.evaluation.bench.bench_report import exit_code, in_short, print_lines
from whichrank.evaluation.bench.kept_runs import code_version
from whichrank.evaluation.bench.malformed_run import malformed_lines
from whichrank.evaluation.bench.result_cache import kept_lines
from whichrank.evaluation.bench.straggler_trace import straggler_trace_lines
from whichrank.simulator.scoring.summary import ScoreLine, not_run

from .faultbench_record import RECORD, BadRecord, open_results, record_of, unpack

CORPORA = Path(__file__).resolve().parents[1] / ".." / "shared" / "corpora"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.faultbench", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("--results", type=Path, required=True)
    parser.add_argument("--ranks", type=int, default=64, help="of the small matrix")
    parser.add_argument("--corpora", type=Path, default=CORPORA, help="labelled cases of public projects")
    parser.add_argument("--code", metavar="VERSION", help="what was measured with another version of the code")
    options = parser.parse_args(arguments)
    version = options.code or code_version()
    if options.code:
        _look_for(parser, options.code, options.results)
    kept = open_results(parser, options.results, version)
    if options.code:
        try:
            unpack(kept, record_of(version))
        except BadRecord as error:
            parser.error(str(error))
        print(f"measured with code {version}, and not with this checkout's, which is {code_version()}\n")
    sections = [
        *must_show(kept, small_ranks=options.ranks),
        ("accounting", kept_lines(kept, "accounting") or [_not_accounted()]),
    ]
    if not options.code:
        sections += [
            ("a published trace of a slow job", _trace(options.corpora / "straggler-analysis")),
            ("real jobs and simulated ones", _tie()),
            ("malformed input", malformed_lines()),
        ]
    for heading, lines in sections:
        print_lines(lines, heading)
        print()
    everything = [line for _, lines in sections for line in lines]
    print(f"code {version}: {in_short(everything)}")
    return exit_code(everything, whole=True)


def _look_for(parser: argparse.ArgumentParser, version: str, results: Path) -> None:
    """Ends the program with one line where nothing is known of such code."""
    known = sorted({path.name.partition(".")[0] for path in RECORD.glob("*.jsonl.gz")})
    if version not in known and not (results / version).is_dir():
        parser.error(f"--code {version}: neither recorded nor in {results}; recorded are {', '.join(known)}")


def _trace(folder: Path) -> list[ScoreLine]:
    if not folder.is_dir():
        return [not_run("straggler trace ST", "S = 1.179, M_S = 1.219, last stage, no bad worker", "no such folder")]
    return straggler_trace_lines(folder)


def _tie() -> list[ScoreLine]:
    lines = tie_lines()
    if any(line.share not in ("0 of 0", "") for line in lines):
        return lines
    return [not_run("real and simulated: kinds of faults with the same finding", ">= 10", "make tie")]


def _not_accounted() -> ScoreLine:
    return not_run("accounting over >= 24 h", "unknown < 1 %, ETTR within 0.1 points", "whichrank bench --accounting")


if __name__ == "__main__":
    sys.exit(main())
