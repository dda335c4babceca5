"""What judging costs while all ranks of a job hang, beside what it cost before: CPU of the same process, same run."""

from __future__ import annotations

import tempfile
import time
from dataclasses import replace
from pathlib import Path

from ...commands.support.gc_tuning import search_seldom
from ...simulator.scenarios.scenarios import SCENARIOS
from ...simulator.scoring.summary import ScoreLine
from ..simulate.judge import Judge
from .cost import as_bytes

#: One rank waits for ever; the job's length before it is that at which its steps are known.
SCENARIO, RANKS, SEED = "never_enters", 2048, 1
ONSET_S, HANGS_S = 60.0, 40.0
#: Compared are windows of so long, and the dearest one of the hang counts.
WINDOW_S = 10.0
MOST_TIMES = 2.0


def hang_line(ranks: int = RANKS) -> ScoreLine:
    """Measures it now, with state on disk as a service has it. ranks: of the job."""
    search_seldom()
    scenario = replace(SCENARIOS[SCENARIO], at_s=ONSET_S, after_s=HANGS_S)
    world = scenario.build(ranks, SEED)
    spent: dict[int, float] = {}
    with tempfile.TemporaryDirectory(prefix="whichrank-hang-") as folder:
        judge = Judge(start_unix_ns=world.start_unix_ns, state=Path(folder) / "state.sqlite")
        for until_s, sent in world.run(ONSET_S + HANGS_S):
            values = as_bytes(sent)
            began_s = time.process_time()
            judge.take(until_s, values)
            window = int((until_s - 1e-6) // WINDOW_S)
            spent[window] = spent.get(window, 0.0) + time.process_time() - began_s
        found = len(judge.incidents)
        judge.close()
    onset = int(ONSET_S // WINDOW_S)
    before, during = spent[onset - 1], max(spent[window] for window in spent if window >= onset)
    times = during / before
    us = 1e6 / ranks / WINDOW_S
    return ScoreLine(
        name=f"a hang of {ranks:,} ranks, times the CPU of the {WINDOW_S:g} s before",
        asked=f"<= {MOST_TIMES:g}",
        measured=f"{times:.2f}: {before * us:.1f} -> {during * us:.1f} us per rank and second, {found} incidents",
        share="1 hang",
        ok=times <= MOST_TIMES and found > 0,
    )
