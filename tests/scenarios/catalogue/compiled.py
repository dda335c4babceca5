"""Models under torch.compile and FSDP2, and the frameworks that people run."""

from __future__ import annotations

from pathlib import Path

from ..plan import Ending, Scenario
from .truths import DIVERGED, NOT_ENTERED, PLANNED, RAISED, SLOW

#: Where torch.compile stands: around the wrapper or inside it.
_COMPILED = {"compiled_inside": (0.0, 1.0)}
#: Six ranks that compile on two cores take minutes to their first step.
_FEW = (2, 3, 4)
#: Where `make setup-frameworks` puts Lightning and Hugging Face.
_VENV = ".venv-frameworks"


def _no_frameworks() -> str:
    there = (Path(__file__).parents[3] / _VENV / "bin" / "torchrun").exists()
    return "" if there else "the frameworks are not installed (make setup-frameworks)"


COMPILED = (
    Scenario(
        name="compiled model hangs",
        truth=NOT_ENTERED,
        ending=Ending.HANGS,
        workloads=("compiled",),
        fault="sleep",
        points=("forward", "data", "backward"),
        worlds=_FEW,
        options=_COMPILED,
    ),
    Scenario(
        name="exception in a compiled model",
        truth=RAISED,
        ending=Ending.CRASHES,
        workloads=("compiled",),
        fault="throw",
        points=("forward", "backward"),
        worlds=_FEW,
        options=_COMPILED,
    ),
    Scenario(
        name="compiled straggler",
        truth=SLOW,
        ending=Ending.RUNS,
        workloads=("compiled",),
        fault="slow",
        worlds=_FEW,
        options={**_COMPILED, "slow_by": 0.3},
    ),
    Scenario(
        name="FSDP2 block skipped",
        truth=DIVERGED,
        ending=Ending.EITHER,
        workloads=("fsdp2",),
        fault="skip",
        points=("block",),
    ),
    Scenario(
        name="hang in a Lightning training_step",
        truth=NOT_ENTERED,
        ending=Ending.HANGS,
        workloads=("lightning_ddp",),
        venv=_VENV,
        skip=_no_frameworks,
        fault="sleep",
        worlds=_FEW,
    ),
    Scenario(
        name="exception in the data set of a Hugging Face Trainer",
        truth=RAISED,
        ending=Ending.CRASHES,
        workloads=("hf_trainer",),
        venv=_VENV,
        skip=_no_frameworks,
        fault="throw",
        points=("data",),
        worlds=_FEW,
    ),
    # Lightning's handler of SIGTERM broadcasts, on each rank wherever it is just then.
    Scenario(
        name="SIGTERM to a Lightning job",
        truth=PLANNED,
        ending=Ending.TOLD,
        workloads=("lightning_ddp",),
        venv=_VENV,
        skip=_no_frameworks,
        signal_to="run",
        worlds=_FEW,
    ),
)
