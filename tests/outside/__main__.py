"""``make outside``: what is right on what people really have; asked | measured | k of n | ok or SHORT, line by line.

Logs that nobody here wrote (``../shared/corpora/public-reports``) or that were labelled before the rules changed
(``second_set``, ``third_set``), real loops with faults, sound jobs that are uneven, ranks that become slow. What runs
for hours is resumable: its results stay in RESULTS, and lines that were not run say so. Exit status 1 on a line that
falls short, and where a corpus is missing.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from tests.outside import loop_lines, loops, slow, sound
from tests.outside.log_cases import Case, Result, cases_in, judge_all
from tests.outside.table import Line, print_table

HERE = Path(__file__).parent
#: Of each set how many were right before anybody who changes rules had seen it: the others, the harmless ones.
FIRST_SIGHT = {
    ("second_set", "job_logs"): (132, 40),
    ("second_set", "kernel_logs"): (133, 34),
    ("third_set", "job_logs"): (89, 30),
    ("third_set", "kernel_logs"): (56, 18),
}
PUBLIC = HERE.parents[2] / "shared" / "corpora" / "public-reports"


def log_lines() -> list[Line]:
    found = []
    if PUBLIC.is_dir():
        judged = _judged(PUBLIC)
        tiny = [each for each in judged if each[0].name.startswith("mini/")]
        whole = [each for each in judged if not each[0].name.startswith("mini/")]
        found.append(Line.of("public reports, cases", _right(whole), len(whole), 1.0))
        found.append(Line.of("public reports, tiny ones", _right(tiny), len(tiny), 64 / 66))
    else:
        found.append(Line.skipped("public reports", f"{PUBLIC} is not there"))
    for (folder, name), (first, first_harmless) in FIRST_SIGHT.items():
        judged = _judged(HERE / folder / name)
        harmless = [each for each in judged if "harmless" in each[0].classes]
        others = [each for each in judged if "harmless" not in each[0].classes]
        words = f"{folder}, {name}".replace("_", " ")
        found.append(_since(words, others, first, 0.95))
        found.append(_since(f"{words}, harmless: nothing said", harmless, first_harmless, 1.0))
    return found


def _since(asked: str, judged: list[tuple[Case, Result]], first: int, share: float) -> Line:
    return Line.of(asked, _right(judged), len(judged), share, f"at first sight {first} of {len(judged)}")


def _judged(folder: Path) -> list[tuple[Case, Result]]:
    cases = cases_in(folder)
    return list(zip(cases, judge_all(cases), strict=True))


def _right(judged: list[tuple[Case, Result]]) -> int:
    return sum(not result.problems for _, result in judged)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, required=True, help="where what was run stays")
    parser.add_argument(
        "--minutes", type=float, default=0.0, help="of each of the four that run jobs; 0: only what is kept"
    )
    parser.add_argument("--seed", type=int, default=1)
    loops.add_options(parser)
    chosen = parser.parse_args()
    lines = log_lines()
    setup = loops.setup_of(chosen, chosen.results / "loops")
    lines += loop_lines.lines(loops.gather(setup, chosen.seed, chosen.minutes))
    lines += sound.lines(sound.gather(chosen.results / "sound", chosen.seed, chosen.minutes))
    for is_real in (False, True):
        lines += slow.measure(chosen.results / "slow", chosen.seed, chosen.minutes, is_real=is_real, jobs=chosen.jobs)
    short = print_table(lines, "outside")
    return max(short, int(not PUBLIC.is_dir()))


if __name__ == "__main__":
    sys.exit(main())
