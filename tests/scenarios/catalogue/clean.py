"""Healthy jobs with all their habits."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace

from ..beside import busy_neighbours, suspend_machine, suspend_ranks
from ..plan import Ending, Scenario
from ..runner import Job
from .truths import DDP, NOTHING


def _clean(name: str, *workloads: str, **options: float | tuple[float, ...]) -> Scenario:
    """Ninety seconds of a healthy job, whatever its habits; any incident is a false alarm."""
    worlds = (4,) if {"tensor_parallel", "pairs_of_stages"} & set(workloads) else (2, 3, 4)
    return Scenario(
        name=f"clean: {name}",
        truth=NOTHING,
        ending=Ending.RUNS,
        workloads=workloads,
        worlds=worlds,
        options=options,
        clean_s=95.0,
        alone=False,
        step_s=(0.05, 2.0),
        repeats=1,
    )


def _twice(scenario: Scenario, beside: Callable[[Job, threading.Event], None] | None = None) -> Scenario:
    """A habit that has to be drawn more than once."""
    return replace(scenario, repeats=2, beside=beside)


#: Seconds-long work of rank 0 alone is drawn in steps: twenty steps of two seconds would fill the run.
_SHORT_STEPS = (0.05, 1.0)

CLEAN = (
    _twice(_clean("first step of 30 s", *DDP, first_step_s=30.0)),
    replace(
        _twice(_clean("rank 0 evaluates", *DDP, evaluate_every=(10, 15, 20), evaluate_steps=(5, 10, 20))),
        step_s=_SHORT_STEPS,
    ),
    replace(
        _twice(_clean("rank 0 saves", *DDP, checkpoint_every=(10, 15, 20), checkpoint_steps=(5, 10, 20))),
        step_s=_SHORT_STEPS,
    ),
    _twice(_clean("steps vary 1:8 together", *DDP, vary_together=8.0)),
    _twice(_clean("loader hiccups of 2 s", *DDP, hiccups=0.02, hiccup_s=2.0, loader_workers=(0, 1))),
    _twice(_clean("batches grow", *DDP, grow_to=(2.0, 3.0), stairs=(6.0, 9.0))),
    _twice(_clean("sequences grow", *DDP, grow_to=(2.0, 4.0))),
    replace(_twice(_clean("compiled at the start and in mid-run", "ddp_compiled")), step_s=_SHORT_STEPS),
    _twice(_clean("no_sync", "accumulate")),
    _twice(_clean("profiler windows", *DDP, profile_every=(10, 20), profile_all=(0, 1))),
    _twice(_clean("all ranks suspended and resumed", *DDP), suspend_ranks),
    _twice(_clean("machine suspended and resumed", *DDP), suspend_machine),
    _twice(_clean("two busy neighbours at nice 19", *DDP), busy_neighbours),
    _twice(_clean("compile at the start and in mid-run", "compiled", recompile_every=(8, 15), compiled_inside=(0, 1))),
    _clean("transformer with loader workers", "ddp_transformer", loader_workers=1),
    _clean("convnet with buffers", "ddp_convnet"),
    _clean("FSDP2", "fsdp2"),
    _clean("TP x DP", "tensor_parallel"),
    _clean("pauses that wander", *DDP, wander=1.0),
    _clean("pipeline", "pipeline"),
    _clean("told by hand", "by_hand"),
    _clean("1F1B pipeline", "pipeline_1f1b"),
    _clean("TP x PP", "pairs_of_stages"),
    _clean("experts and uneven all_to_all", "experts"),
    _clean("exchange in shared memory", "shared_memory"),
    _clean("uneven inputs under join", "uneven_join"),
    _clean("object collectives and a second thread", "objects"),
)
