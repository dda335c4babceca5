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
    clean = [v for s, v in results if s.clean_s >= 90.0]
    quiet = [v for s, v in results if s.truth.bucket in ("", "planned") and s.clean_s < 90.0]
    lines = [
        _share("faults: bucket, kind, suspect, one incident, evidence, ruled out", [v.right for _, v in faults]),
        _share("planned stops and normal ends: right, and nothing else", [v.right for v in quiet]),
        _all("truth is nobody: nobody blamed", [not v.blamed for v in nobody]),
        _delay("onset -> incident: death, stop, exception, mismatch", faults, Pace.INSTANT, "p95 <= 1 s"),
        _delay("onset -> incident: hang in a phase with history", faults, Pace.HANG, "p95 <= max(5 s, 3 steps)"),
        _steps(faults),
        _clean(clean),
    ]
    located = [v.located for _, v in faults if v.located is not None]
    lines.append(
        Line(
            name="where names the true line (no share asked here)",
            asked="-",
            measured=_percent(located),
            k=sum(located),
            n=len(located),
            ok=None,
        )
    )
    return lines


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
    verdicts = [v for s, v in faults if s.truth.pace is pace]
    late = [v for v in verdicts if v.delay_s is None or v.limit_s is None or v.delay_s > v.limit_s]
    shares = [v.delay_s / v.limit_s if v.delay_s is not None and v.limit_s else float("inf") for v in verdicts]
    known = [v.delay_s for v in verdicts if v.delay_s is not None]
    measured = f"p50 {percentile(known, 0.5):.2f} s, p95 {percentile(known, 0.95):.2f} s" if known else "-"
    ok = percentile(shares, 0.95) <= 1.0 if shares else None
    return Line(name=name, asked=asked, measured=measured, k=len(verdicts) - len(late), n=len(verdicts), ok=ok)


def _steps(faults: Iterable[tuple[Scenario, Verdict]]) -> Line:
    verdicts = [v for s, v in faults if s.truth.pace is Pace.STEPS]
    known = [v.steps for v in verdicts if v.steps is not None]
    within = sum(steps <= STEPS_ASKED for steps in known)
    return Line(
        name="straggler of 30 %: slow steps until the incident",
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
        name="clean runs of >= 90 s",
        asked="0 incidents in >= 10",
        measured=f"{incidents} incidents",
        k=k,
        n=len(verdicts),
        ok=None if not verdicts else k == len(verdicts) >= 10,
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
