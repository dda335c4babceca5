"""Attacks of the table that are tests of the suite as well: run here again, so that the table is whole."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.attacks.register import Outcome, attack

ROOT = Path(__file__).parents[2]
_COUNT = re.compile(r"(\d+) (passed|failed|errors?|skipped)")


def _tests_pass(folder: Path, *words: str) -> Outcome:
    """Held where all of the chosen tests pass, and at least one was chosen."""
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--basetemp={folder / 'tests'}", *words],
        cwd=ROOT, env={**os.environ, "PYTEST_ADDOPTS": ""}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    counts = {word.rstrip("s"): int(count) for count, word in _COUNT.findall(done.stdout[-400:])}
    passed, whole = counts.get("passed", 0), sum(counts.values())
    return Outcome(held=done.returncode == 0 and passed == whole > 0, measured=f"{passed} of {whole} tests pass")


def _add(
    number: str, who: str, text: str, asked: str, words: Sequence[str], limit_s: float = 120, *, long: bool = False
) -> None:
    attack(number, who, text, asked=asked, limit_s=limit_s, long=long)(lambda folder: _tests_pass(folder, *words))


_add("D1", "d", "script, img and ESC in job name, exception, path and group, in the report", "escaped",
     ["tests/commands/report/test_page.py::test_what_a_job_says_stays_text"])  # fmt: skip
_add("D7", "d", "mentions, links and ESC in a job's texts, to all receivers", "escaped",
     ["tests/commands/notify/test_receivers.py", "-k", "mention or markup or limits or labels or nothing"])  # fmt: skip
_add("D11", "d", "hostile names of nodes and jobs through the hooks of Slurm and Kubernetes", "refused, no shell",
     ["tests/commands/respond/test_hooks.py", "-k", "shell or calls_nobody or requeued or one_argument"])  # fmt: skip
_add("D12", "d", "pickles that name or build objects, lie about sizes, are deep or refer to themselves",
     "nothing runs, bounded", ["tests/diagnosis/flight_recorder/test_pickle_values.py"])  # fmt: skip
_add("R1", "R", "state.sqlite: garbage, nothing, another capture's, cut, a folder", "goes on; set aside",
     ["tests/processors/test_runner_state.py", "-k", "set_aside or second_bad or empty_file"])  # fmt: skip
_add("R2", "R", "the disk is full in the middle of a run", "verdicts go on, losses are told",
     ["tests/processors/test_runner_state.py", "tests/agents/test_spool.py", "-k", "full_disk"])  # fmt: skip
_add("R3", "R", "no place for rings, or a folder that cannot be written", "the job goes on, one line",
     ["tests/commands/test_run_cli.py", "-k", "cannot_be_written or without_a_place"])  # fmt: skip
_add("R4", "R", "the wall clock of a node is set, or is far from the others'", "no incident; who died first is found",
     ["tests/processors/job/test_nodes.py", "tests/agents/collectors/test_host_collector.py", "-k",
      "clocks_apart or step_of_the_wall_clock"])  # fmt: skip
_add("R5", "R", "an agent that sees rings but not the processes behind them", "deaths are told all the same",
     ["tests/agents/test_users_and_namespaces.py", "-k", "sees_a_death"])  # fmt: skip
_add("R6", "R", "no right to look into a process", "the ring's own stack, one line",
     ["tests/agents/test_users_and_namespaces.py", "-k", "by_the_ring_alone"])  # fmt: skip
_add("C1k", "c", "C1 to C5 with the agents' password over a real broker with TLS, users and the shipped rights",
     "refused by the broker, or dead letters; people's words count", ["tests/stack/test_forged_words.py"], 900,
     long=True)  # fmt: skip
