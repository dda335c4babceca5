"""Sums verdicts into the must-show table: asked | measured | k of n | ok or SHORT. Pure, but for printing."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from rich import box
from rich.console import Console
from rich.table import Table

from .judge import Verdict
from .plan import Blame, Pace, Scenario

SHARE_RIGHT = 0.98
STEPS_ASKED = 10
CLEAN_S = 90.0
CLEAN_RUNS = 24


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One demand. ``ok`` None: nothing of it was run, which is neither."""

    name: str
    asked: str
    measured: str
    k: int
    n: int
    ok: bool | None

    @property
    def word(self) -> str:
        return {True: "ok", False: "SHORT", None: "-" if self.n else "not run"}[self.ok]


def percentile(values: Sequence[float], share: float) -> float:
    """Nearest rank, so that every figure printed was really measured."""
    ordered = sorted(values)
    return ordered[max(0, -(-len(ordered) * round(share * 100) // 100) - 1)]


def must_show(results: Sequence[tuple[Scenario, Verdict]]) -> list[Line]:
    faults = [(s, v) for s, v in results if s.truth.bucket not in ("", "planned")]
    nobody = [v for s, v in results if s.truth.blame is Blame.NOBODY]
    clean = [v for s, v in results if s.clean_s >= CLEAN_S]
    quiet = [v for s, v in results if s.truth.bucket in ("", "planned") and s.clean_s < CLEAN_S]
    ended = [v for _, v in faults if v.resolved_s is not None]
    return [
        _share("faults: bucket, kind, suspect, one incident, resolved, evidence, ruled out", _rights(faults)),
        _share("planned stops, normal ends and what only looks odd: right, and nothing else", [v.right for v in quiet]),
        _all("truth is nobody: nobody blamed", [not v.blamed for v in nobody]),
        *_twins(faults),
        _delay("onset -> incident: death, stop, exception, mismatch", faults, Pace.INSTANT, "p95 <= 1 s"),
        _delay("onset -> incident: hang in a phase with history", faults, Pace.HANG, "p95 <= max(5 s, 3 steps)"),
        *_within(faults),
        _steps(faults),
        _share("onset told: within 1 s, of slow ranks within a step", _known(v.onset_right for _, v in faults)),
        Line(
            name="end of a fault in mid-run -> resolved (counted above)",
            asked="-",
            measured=_p50_p95([v.resolved_s for v in ended if v.resolved_s is not None]),
            k=sum(v.right for v in ended),
            n=len(ended),
            ok=None,
        ),
        _clean(clean),
        _located([v.located for _, v in faults]),
    ]


def skipped(reasons: Sequence[str]) -> Line:
    """Scenarios that this machine cannot run: each is a demand that was not shown."""
    known = ", ".join(dict.fromkeys(reasons)) or "none"
    return Line(name="runs left out", asked="none", measured=known, k=0, n=len(reasons), ok=False if reasons else None)


def _rights(results: Sequence[tuple[Scenario, Verdict]]) -> list[bool]:
    return [verdict.right for _, verdict in results]


def _known(flags: Iterable[bool | None]) -> list[bool]:
    return [flag for flag in flags if flag is not None]


def _located(flags: Sequence[bool | None]) -> Line:
    known = _known(flags)
    return Line(
        name="where names the true line (no share asked here)",
        asked="-",
        measured=_percent(known),
        k=sum(known),
        n=len(known),
        ok=None,
    )


def _twins(faults: Sequence[tuple[Scenario, Verdict]]) -> list[Line]:
    """The test process group against the same faults on gloo."""
    ours = [v.right for s, v in faults if s.twin]
    if not ours:
        return []
    names = {s.twin for s, _ in faults}
    theirs = [v.right for s, v in faults if s.name in names]
    share = sum(theirs) / len(theirs) if theirs else 1.0
    return [
        Line(
            name="test process group: as often right as the same faults on gloo",
            asked=f">= {share:.1%}",
            measured=_percent(ours),
            k=sum(ours),
            n=len(ours),
            ok=sum(ours) >= share * len(ours) if theirs else None,
        )
    ]


def _within(faults: Sequence[tuple[Scenario, Verdict]]) -> list[Line]:
    """A line for each scenario with a time of its own."""
    timed = [(s, v) for s, v in faults if s.truth.pace is Pace.WITHIN]
    return [
        _delay(
            f"onset -> incident: {name}",
            [(s, v) for s, v in timed if s.name == name],
            Pace.WITHIN,
            f"p95 <= {next(s.truth.within_s for s, _ in timed if s.name == name):g} s",
        )
        for name in dict.fromkeys(s.name for s, _ in timed)
    ]


def _percent(flags: Sequence[bool]) -> str:
    return f"{100.0 * sum(flags) / len(flags):.1f} %" if flags else "-"


def _share(name: str, flags: Sequence[bool]) -> Line:
    k, n = sum(flags), len(flags)
    return Line(
        name=name,
        asked=f">= {SHARE_RIGHT:.0%}",
        measured=_percent(flags),
        k=k,
        n=n,
        ok=k >= SHARE_RIGHT * n if n else None,
    )


def _all(name: str, flags: Sequence[bool]) -> Line:
    return Line(
        name=name, asked="100 %", measured=_percent(flags), k=sum(flags), n=len(flags), ok=all(flags) if flags else None
    )


def all_right(name: str, problems: Sequence[Sequence[str]]) -> Line:
    """A line over checks of which each either found problems or did not."""
    return _all(name, [not found for found in problems])


def _delay(name: str, faults: Iterable[tuple[Scenario, Verdict]], pace: Pace, asked: str) -> Line:
    """A run without a verdict counts as infinitely late."""
    verdicts = [v for s, v in faults if s.truth.pace is pace and not v.excused]
    late = [v for v in verdicts if v.delay_s is None or v.limit_s is None or v.delay_s > v.limit_s]
    shares = [v.delay_s / v.limit_s if v.delay_s is not None and v.limit_s else float("inf") for v in verdicts]
    known = [v.delay_s for v in verdicts if v.delay_s is not None]
    ok = percentile(shares, 0.95) <= 1.0 if shares else None
    return Line(name=name, asked=asked, measured=_p50_p95(known), k=len(verdicts) - len(late), n=len(verdicts), ok=ok)


def _p50_p95(seconds: Sequence[float]) -> str:
    return f"p50 {percentile(seconds, 0.5):.2f} s, p95 {percentile(seconds, 0.95):.2f} s" if seconds else "-"


def _steps(faults: Iterable[tuple[Scenario, Verdict]]) -> Line:
    verdicts = [v for s, v in faults if s.truth.pace is Pace.STEPS and not v.excused]
    known = [v.steps for v in verdicts if v.steps is not None]
    within = sum(steps <= STEPS_ASKED for steps in known)
    return Line(
        name="straggler of >= 10 %, all slower: slow steps until the incident",
        asked=f"<= {STEPS_ASKED}",
        measured=f"p50 {statistics.median(known):g}, longest {max(known)}" if known else "-",
        k=within,
        n=len(verdicts),
        ok=within >= SHARE_RIGHT * len(verdicts) if verdicts else None,
    )


def _clean(verdicts: Sequence[Verdict]) -> Line:
    incidents = sum(v.incidents + v.apart for v in verdicts)
    k = sum(v.right for v in verdicts)
    return Line(
        name=f"clean runs of >= {CLEAN_S:g} s",
        asked=f"0 incidents in >= {CLEAN_RUNS}",
        measured=f"{incidents} incidents",
        k=k,
        n=len(verdicts),
        ok=None if not verdicts else k == len(verdicts) >= CLEAN_RUNS,
    )


def print_lines(console: Console, title: str, lines: Sequence[Line]) -> bool:
    """The table and one summary line; False when anything is SHORT."""
    table = Table(title=title, box=box.ASCII, title_justify="left")
    table.add_column("what", overflow="fold")
    for column in ("asked", "measured", "k of n", ""):
        table.add_column(column, no_wrap=column != "measured")
    for line in lines:
        table.add_row(line.name, line.asked, line.measured, f"{line.k} of {line.n}", line.word)
    console.print(table)
    short = [line.name for line in lines if line.ok is False]
    run = [line for line in lines if line.ok is not None]
    console.print(
        f"{len(run) - len(short)} of {len(run)} demands ok" + (f"; SHORT: {'; '.join(short)}" if short else ""),
        soft_wrap=True,
    )
    return not short


def print_scenarios(console: Console, results: Sequence[tuple[Scenario, Verdict]]) -> None:
    table = Table(title="per scenario", box=box.ASCII, title_justify="left")
    for column in ("scenario", "right", "delays (s)", "steps", "line", "problems"):
        table.add_column(column, overflow="fold")
    names = dict.fromkeys(scenario.name for scenario, _ in results)
    for name in names:
        verdicts = [v for s, v in results if s.name == name]
        problems = dict.fromkeys(problem for v in verdicts for problem in v.problems)
        located = [v.located for v in verdicts if v.located is not None]
        table.add_row(
            name,
            f"{sum(v.right for v in verdicts)} of {len(verdicts)}",
            " ".join("-" if v.delay_s is None else f"{v.delay_s:.2f}" for v in verdicts),
            " ".join(str(v.steps) for v in verdicts if v.steps is not None),
            f"{sum(located)} of {len(located)}" if located else "",
            "; ".join(problems),
        )
    console.print(table)
