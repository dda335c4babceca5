"""What docs/faultbench.md and the README publish is what the record holds, figure by figure."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.faultbench_record import record_of, unpack
from whichrank.evaluation.bench.acceptance import must_show
from whichrank.evaluation.bench.kept_runs import KeptRuns

ROOT = Path(__file__).parents[2]
SHARE = re.compile(r"(\d[\d,]*) of (\d[\d,]*)")


@pytest.fixture(scope="module")
def published() -> tuple[str, str]:
    """The section's text, and the code whose figures it holds."""
    text = (
        (ROOT / "docs" / "faultbench.md").read_text().partition("## How often it is right\n")[2].partition("\n## ")[0]
    )
    code = re.search(r"--code ([0-9a-f]{12})\n", text)
    assert code is not None
    return text, code[1]


@pytest.fixture(scope="module")
def shares(published: tuple[str, str], tmp_path_factory: pytest.TempPathFactory) -> set[tuple[str, str]]:
    """k and n of all lines that are made from the record."""
    kept = KeptRuns(tmp_path_factory.mktemp("recorded"), published[1])
    unpack(kept, record_of(published[1]))
    lines = [line for _, section in must_show(kept) for line in section]
    found = {pair for line in lines for pair in SHARE.findall(line.share)}
    clean = [pair for line in lines if line.name == "wrong nodes blamed" for pair in SHARE.findall(line.share)]
    assert len(clean) == 2
    whole = tuple(str(sum(int(pair[place]) for pair in clean)) for place in (0, 1))
    return {*found, (whole[0], whole[1])}  # the innocent are counted over both sizes together


def rows(text: str) -> Iterator[str]:
    return (line for line in text.splitlines() if line.startswith("|"))


def test_every_share_of_the_table_is_in_the_record(published: tuple[str, str], shares: set[tuple[str, str]]) -> None:
    told = {pair for row in rows(published[0]) for pair in SHARE.findall(row)}
    assert len(told) > 10
    assert told <= shares


def test_the_readme_says_the_same(shares: set[tuple[str, str]]) -> None:
    """Those rows of its table that lead to docs/faultbench.md."""
    readme = (ROOT / "README.md").read_text()
    told = {pair for row in rows(readme) if "](docs/faultbench.md" in row for pair in SHARE.findall(row)}
    assert len(told) > 3
    # Of the innocent it tells the runs in which one was named.
    assert told <= shares | {(str(int(n) - int(k)), n) for k, n in shares}
