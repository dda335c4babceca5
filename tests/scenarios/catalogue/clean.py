"""Healthy jobs with all their habits."""

from __future__ import annotations

from ..plan import Ending, Scenario
from .truths import DDP, NOTHING


def _clean(name: str, *workloads: str, **options: float | tuple[float, ...]) -> Scenario:
    """Ninety seconds of a healthy job, whatever its habits; any incident is a false alarm."""
    worlds = (4,) if "tensor_parallel" in workloads else (2, 3, 4)
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
    )


CLEAN = (
    _clean("perceptron", "ddp_mlp"),
    _clean("transformer with loader workers", "ddp_transformer", loader_workers=1),
    _clean("convnet with buffers", "ddp_convnet"),
    _clean("first step of 20 s", *DDP, first_step_s=20.0),
    _clean("rank 0 evaluates", *DDP, evaluate_every=20, evaluate_s=(2.0, 5.0)),
    _clean("rank 0 saves", *DDP, checkpoint_every=20, checkpoint_s=(2.0, 5.0)),
    _clean("steps vary 1:4 together", *DDP, vary_together=4.0),
    _clean("gradient accumulation", "accumulate"),
    _clean("FSDP2", "fsdp2"),
    _clean("TP x DP", "tensor_parallel"),
    _clean("loader hiccups", *DDP, hiccups=0.03),
    _clean("loader hiccups of 2 s", *DDP, hiccups=0.02, hiccup_s=2.0),
    _clean("steps vary 1:8 together", *DDP, vary_together=8.0),
    _clean("pauses that wander", *DDP, wander=1.0),
    _clean("sequences grow", *DDP, grow_to=(2.0, 4.0)),
    _clean("batches grow", *DDP, grow_to=(2.0, 3.0), stairs=(6.0, 9.0)),
    _clean("pipeline", "pipeline"),
    _clean("told by hand", "by_hand"),
)
