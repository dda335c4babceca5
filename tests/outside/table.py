"""The table of a measurement: asked, measured, k of n, and whether that is enough."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """state: ok, SHORT, not run, or "no bar" for what is only counted."""

    asked: str
    measured: str
    k_of_n: str
    state: str

    @classmethod
    def of(cls, asked: str, right: int, runs: int, share: float, measured: str = "") -> Line:
        """share: of the runs that have to be right. Without runs the line was not run."""
        if not runs:
            return cls(asked=f"{asked} >= {share:.0%}", measured="-", k_of_n="0 of 0", state="not run")
        state = "ok" if right >= share * runs - 1e-9 else "SHORT"
        said = f"{right / runs:.1%}" + (f", {measured}" if measured else "")
        return cls(asked=f"{asked} >= {share:.0%}", measured=said, k_of_n=f"{right} of {runs}", state=state)

    @classmethod
    def count(cls, asked: str, runs: int, least: int) -> Line:
        """A share of a few runs says little: so many have to be there."""
        state = "not run" if not runs else "ok" if runs >= least else "SHORT"
        return cls(asked=f"{asked} >= {least}", measured=str(runs), k_of_n=f"{runs} of {least}", state=state)

    @classmethod
    def skipped(cls, asked: str, why: str) -> Line:
        return cls(asked=asked, measured=why, k_of_n="0", state="not run")


def print_table(lines: Sequence[Line], title: str) -> int:
    """Returns the exit status: 1 where a line falls short."""
    widths = [max(len(getattr(line, name)) for line in lines) for name in ("asked", "measured", "k_of_n")]
    print(f"\n{title}")
    for line in lines:
        cells = (line.asked.ljust(widths[0]), line.measured.ljust(widths[1]), line.k_of_n.ljust(widths[2]), line.state)
        print(" | ".join(cells))
    counts = {state: sum(line.state == state for line in lines) for state in ("ok", "SHORT", "not run", "no bar")}
    others = ", ".join(f"{counts[state]} {state}" for state in ("SHORT", "not run", "no bar"))
    print(f"{counts['ok']} of {len(lines)} lines ok, {others}")
    return int(counts["SHORT"] > 0)
