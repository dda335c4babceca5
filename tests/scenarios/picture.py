"""The distribution of delays as a picture: every run a dot, by family and scenario, with the bars that were asked.

Left, seconds from onset to the incident's line; right, slow steps of the guilty rank until then. A run without a
verdict is drawn at the right edge: it took longer than anybody waited.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import matplotlib

matplotlib.use("Agg")  # files only, on machines without a screen

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, NullFormatter

from .judge import Verdict
from .plan import Pace, Scenario
from .report import STEPS_ASKED

RIGHT, WRONG, BAR, FAINT = "#1f5fa8", "#c8321e", "#444444", "#e4e4e4"
SECONDS = (0.01, 100.0)
STEPS = (0.9, 40.0)
ROW_INCH = 0.23


@dataclass(frozen=True, slots=True, kw_only=True)
class Dot:
    """One run on one row. value None: no verdict came. bar: what was asked of it."""

    value: float | None
    bar: float | None
    right: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    family: str
    scenario: str
    dots: tuple[Dot, ...]


def rows_of(
    results: Sequence[tuple[Scenario, Verdict]], families: Mapping[str, Sequence[Scenario]], *, steps: bool
) -> list[Row]:
    """Rows in the catalogue's order, of those scenarios of which a time (or a number of steps) is asked. Pure."""
    asked = (Pace.STEPS,) if steps else (Pace.INSTANT, Pace.HANG, Pace.WITHIN)
    rows = []
    for family, scenarios in families.items():
        for scenario in scenarios:
            if scenario.truth.pace not in asked:
                continue
            verdicts = [verdict for other, verdict in results if other.name == scenario.name and not verdict.excused]
            dots = tuple(
                Dot(
                    value=verdict.steps if steps else verdict.delay_s,
                    bar=STEPS_ASKED if steps else verdict.limit_s,
                    right=verdict.right,
                )
                for verdict in verdicts
            )
            if dots:
                rows.append(Row(family=family, scenario=scenario.name, dots=dots))
    return rows


def draw(
    results: Sequence[tuple[Scenario, Verdict]], families: Mapping[str, Sequence[Scenario]], title: str, path: Path
) -> bool:
    """Writes the picture (PNG). False: nothing to draw."""
    panels = [(rows, limits) for rows, limits in _panels(results, families) if rows]
    if not panels:
        return False
    tallest = max(len(rows) + len({row.family for row in rows}) for rows, _ in panels)
    figure = Figure(figsize=(8.2 * len(panels), 2.0 + ROW_INCH * tallest), layout="constrained")
    axes = figure.subplots(1, len(panels), squeeze=False)[0]
    for axis, (rows, limits) in zip(axes, panels, strict=True):
        _draw_panel(axis, rows, limits, tallest, in_steps=limits is STEPS)
    figure.suptitle(title, fontsize=11)
    figure.savefig(path, dpi=110)
    return True


def _panels(
    results: Sequence[tuple[Scenario, Verdict]], families: Mapping[str, Sequence[Scenario]]
) -> list[tuple[list[Row], tuple[float, float]]]:
    return [
        (rows_of(results, families, steps=False), SECONDS),
        (rows_of(results, families, steps=True), STEPS),
    ]


def _draw_panel(axis: Axes, rows: Sequence[Row], limits: tuple[float, float], lines: int, *, in_steps: bool) -> None:
    """lines: that the panel has room for; panels side by side have the same, so that rows are as high in both."""
    low, high = limits
    labels: list[tuple[int, str, bool]] = []
    line = 0
    family = ""
    for row in rows:
        if row.family != family:
            family = row.family
            labels.append((line, family.upper(), True))
            line += 1
        axis.axhline(line, color=FAINT, linewidth=0.8, zorder=0)
        for index, dot in enumerate(row.dots):
            y = line + _spread(index, len(row.dots))
            if dot.bar is not None:
                axis.plot([dot.bar, dot.bar], [y - 0.14, y + 0.14], color=BAR, linewidth=1.6, zorder=1)
            x = high if dot.value is None else min(max(dot.value, low), high)
            shown = {"marker": ">", "s": 34} if dot.value is None else {"marker": "o" if dot.right else "X", "s": 22}
            axis.scatter([x], [y], color=RIGHT if dot.right else WRONG, zorder=2, clip_on=False, linewidths=0, **shown)
        labels.append((line, row.scenario, False))
        line += 1
    axis.set_xscale("log")
    axis.set_xlim(low, high)
    axis.set_ylim(lines - 0.4, -0.8)
    axis.set_yticks([y for y, _, _ in labels], [text for _, text, _ in labels], fontsize=8)
    for tick, (_, _, heading) in zip(axis.get_yticklabels(), labels, strict=True):
        tick.set_fontweight("bold" if heading else "normal")
    axis.tick_params(axis="y", length=0)
    ticks = (1, 2, 3, 5, 10, 20, 40) if in_steps else (0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 100)
    axis.set_xticks(ticks)
    axis.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.xaxis.set_minor_formatter(NullFormatter())
    axis.set_xlabel("slow steps until the incident" if in_steps else "seconds from onset to the incident", fontsize=9)
    axis.grid(axis="x", color=FAINT, linewidth=0.6, zorder=0)
    for side in ("top", "right", "left"):
        axis.spines[side].set_visible(False)
    signs = (("asked", BAR, "|"), ("right", RIGHT, "o"), ("wrong", WRONG, "X"), ("no verdict", WRONG, ">"))
    handles = [
        Line2D([], [], color=color, marker=marker, label=label, linestyle="none", markersize=6)
        for label, color, marker in signs
    ]
    axis.legend(handles=handles, ncols=4, fontsize=8, frameon=False, loc="lower right", bbox_to_anchor=(1.0, 1.0))


def _spread(index: int, count: int) -> float:
    """Dots of one scenario lie below one another, so that none hides another."""
    return 0.0 if count < 2 else -0.22 + 0.44 * index / (count - 1)
