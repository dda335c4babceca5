"""What the runs showed, against what was asked."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from tests.stack.nodes.kinds import Kind

#: Of all runs together, and of those with a delay that is compared.
FEWEST_RUNS, FEWEST_DELAYS = 30, 20
#: Over Kafka the 95th percentile may be so much later than embedded.
LATER_S = 1.0


def percentile(values: Sequence[float], share: float) -> float:
    """The smallest of the values that so large a share does not exceed."""
    return sorted(values)[max(0, math.ceil(share * len(values)) - 1)]


def stored_name(kind: str, repeat: int, *, embedded: bool = False) -> str:
    return f"{kind}-{repeat}{'-embedded' if embedded else ''}".replace(" ", "-").replace(",", "")


def _read(results: Path, kind: Kind, repeats: int, *, embedded: bool = False) -> list[dict[str, Any]]:
    paths = [results / f"{stored_name(kind.name, repeat, embedded=embedded)}.json" for repeat in range(repeats)]
    return [json.loads(path.read_text()) for path in paths if path.exists()]


def report(console: Console, results: Path, kinds: Sequence[Kind], repeats: Mapping[str, int], *, twins: bool) -> int:
    """Prints the table and one line; the exit status."""
    table = Table(title="three nodes over Kafka: one job, one incident, the right rank, node and attempt")
    for heading in ("asked", "measured", "k of n", ""):
        table.add_column(heading, justify="right" if heading == "k of n" else "left")
    verdicts: list[bool] = []

    def row(asked: str, measured: str, good: int, of: int, fewest: int) -> None:
        ok = good == of >= fewest
        verdicts.append(ok)
        table.add_row(asked, measured, f"{good} of {of}", "ok" if ok else "SHORT")

    done: list[dict[str, Any]] = []
    for kind in kinds:
        runs = _read(results, kind, repeats[kind.name])
        done += runs
        wrong = [run["problems"][0] for run in runs if run["problems"]]
        row(kind.name, wrong[0] if wrong else "all right", len(runs) - len(wrong), len(runs), repeats[kind.name])
        within = [run for run in runs if run["limit_s"] is not None]
        if within:
            late = [run for run in within if run.get("late_s")]
            slowest = max((run["delay_s"] for run in within if run["delay_s"] is not None), default=math.nan)
            limits = {round(run["limit_s"], 1) for run in within}
            words = f"{min(limits):.1f}" + (f" to {max(limits):.1f}" if len(limits) > 1 else "")
            row(f"{kind.name}: within {words} s", f"slowest {slowest:.2f} s", len(within) - len(late), len(within), 1)
        if kind.timed and twins:
            _compare(row, kind, runs, _read(results, kind, repeats[kind.name], embedded=True))
    right = sum(not run["problems"] for run in done)
    row(f"all runs right, {FEWEST_RUNS} at least", f"{right} right", right, len(done), FEWEST_RUNS)
    told = [run for run in done if run["gaps"] is not None]
    gaps = [run["gaps"][0] for run in told if run["gaps"]]
    words = gaps[0] if gaps else "event, span and gauge are there"
    row("the incident in VictoriaLogs, as a span in Jaeger, in PromQL", words, len(told) - len(gaps), len(told), 1)
    console.print(table)
    console.print(f"{sum(verdicts)} of {len(verdicts)} demands ok")
    return 0 if all(verdicts) else 1


def _compare(row: Any, kind: Kind, runs: Sequence[Mapping[str, Any]], twins: Sequence[Mapping[str, Any]]) -> None:
    here = [run["delay_s"] for run in runs if run["delay_s"] is not None]
    there = [run["delay_s"] for run in twins if run["delay_s"] is not None]
    asked = f"{kind.name}: p95 at most {LATER_S:.0f} s later than embedded, n >= {FEWEST_DELAYS}"
    if not here or not there:
        row(asked, "not measured", 0, len(runs), FEWEST_DELAYS)
        return
    late, usual = percentile(here, 0.95), percentile(there, 0.95)
    fewest = min(len(here), len(there))
    good = fewest if late <= usual + LATER_S else 0
    row(asked, f"{late:.2f} s; embedded {usual:.2f} s", good, fewest, FEWEST_DELAYS)
