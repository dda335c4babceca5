"""Whether a job hangs, from what its workers say of themselves, and since when all of them do. Pure.

Rules of DLRover. They need every worker, and name no culprit: they confirm a hang, they do not find who began it.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

#: Tensor cores at or below that share of their time are idle.
IDLE_UTILISATION = 0.001
#: Looks on end, a minute apart, in which they must be.
IDLE_RECORDS = 10
#: Kinds of step that may take long without being stuck.
_PATIENT_KINDS = frozenset({"inspect", "eval", "evaluate", "evaluation", "validation"})

Worker = TypeVar("Worker", bound=Hashable)


@dataclass(frozen=True, slots=True, kw_only=True)
class Overlap(Generic[Worker]):
    """All workers hang at once: ``last`` was the last to begin, ``seconds`` ago."""

    last: Worker
    seconds: float


def overlap(samples: Mapping[Worker, Sequence[tuple[float, bool]]]) -> Overlap[Worker] | None:
    """``samples``: worker -> (time, hangs?) in the order of time. None: somebody does not hang, or has said nothing."""
    if not samples or any(not each or not each[-1][1] for each in samples.values()):
        return None
    begins = {worker: _began(each) for worker, each in samples.items()}
    last = max(begins, key=lambda worker: begins[worker])
    return Overlap(last=last, seconds=min(each[-1][0] for each in samples.values()) - begins[last])


def step_hangs(
    *, is_open: bool, age_s: float, limit_s: float, ceiling_s: float, is_first: bool, kinds: Sequence[str]
) -> bool:
    """A step that began and did not end. First steps and evaluations are given ``ceiling_s``."""
    is_patient = is_first or any(kind.strip().lower() in _PATIENT_KINDS for kind in kinds)
    return is_open and age_s > (ceiling_s if is_patient else limit_s)


def is_idle(
    newest_first: Sequence[float], records: int = IDLE_RECORDS, watermark: float = IDLE_UTILISATION
) -> bool | None:
    """Whether the last ``records`` utilisations were all at the watermark or below; None: too few to say."""
    if len(newest_first) < records:
        return None
    return all(value <= watermark for value in newest_first[:records])


def job_hangs(*, is_idle: bool, step: bool, checkpoint: bool, event: bool) -> bool:
    """Idle tensor cores alone may be a pause: something that is open must agree."""
    return is_idle and (step or checkpoint or event)


def _began(samples: Sequence[tuple[float, bool]]) -> float:
    began = samples[-1][0]
    for t_s, is_hanging in reversed(samples):
        if not is_hanging:
            break
        began = t_s
    return began
