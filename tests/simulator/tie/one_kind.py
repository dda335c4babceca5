"""One kind from end to end: the real job, what its healthy steps say, the simulation, and how the two compare."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

from tests.scenarios.runner import Outcome

from .comparison import FIRST_STEP, Tied, compare, told_after_s
from .healthy import Healthy
from .kinds import Kind
from .lines import RESULT_FILE
from .observed import Observed, observe
from .real_run import run_real
from .simulated_run import run_simulated

ONSET_FILE = "onset.json"


def tie(kind: Kind, repeat: int, seed: int, folder: Path) -> Tied:
    """Runs both, and keeps the result. What goes wrong with either is the result's ``problem``."""
    outcome = run_real(kind, repeat, seed, folder / "real")
    if outcome.harness_error or (onset_unix_s(outcome) is None and not kind.is_clean):
        tied = Tied(kind=kind.name, is_clean=kind.is_clean, problem=outcome.harness_error or "the fault never bit")
    else:
        onset = {"realtime": onset_unix_s(outcome), "ended": outcome.stopped, "seed": seed}
        (folder / ONSET_FILE).write_text(json.dumps(onset))
        tied = simulate_again(kind, folder)
    _keep(tied, folder)
    return tied


def simulate_again(kind: Kind, folder: Path) -> Tied:
    """The simulation of a real run that lies there, and the comparison, anew."""
    onset = json.loads((folder / ONSET_FILE).read_text())
    try:
        real = observe(folder / "real" / "out")
        healthy = Healthy.of(real.steps.between(FIRST_STEP, kind.steps_before - 1))
        before_s = _end_of(real, kind.steps_before - 1)
        onset_s = before_s if onset["realtime"] is None else float(onset["realtime"])
        into_step_s = max(0.0, onset_s - before_s)
        at_unix_s = run_simulated(
            kind, healthy, into_step_s=into_step_s, seed=onset["seed"], folder=folder / "simulated"
        )
        simulated = observe(folder / "simulated")
        last_step = kind.steps_before + kind.steps_after - 1 if kind.goes_on else kind.steps_before
        tied = compare(
            kind.name,
            real,
            simulated,
            onset_step=kind.steps_before,
            last_step=last_step,
            ended_unix_s=onset["ended"] or math.inf,
        )
    except (ValueError, LookupError, OSError) as error:
        tied = Tied(kind=kind.name, is_clean=kind.is_clean, problem=f"{type(error).__name__}: {error}")
    else:
        tied = replace(
            tied,
            is_clean=kind.is_clean,
            real_delay_s=told_after_s(real.revisions, onset_s),
            simulated_delay_s=told_after_s(simulated.revisions, at_unix_s),
        )
    _keep(tied, folder)
    return tied


def onset_unix_s(outcome: Outcome) -> float | None:
    return min((onset.realtime for onset in outcome.onsets), default=outcome.signalled)


def _end_of(seen: Observed, step: int) -> float:
    """Unix seconds. Raises LookupError for a step that was not closed."""
    places = (seen.steps.steps == step).nonzero()[0]
    if not places.size:
        raise LookupError(f"step {step} was not closed")
    return float(seen.steps.begin_ns[places[0]] + seen.steps.duration_ns[places[0]]) / 1e9


def _keep(tied: Tied, folder: Path) -> None:
    (folder / RESULT_FILE).write_text(json.dumps(tied.as_json(), indent=1) + "\n")
