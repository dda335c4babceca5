"""Whether a real run and its simulation say the same: the finding, and each rank's medians of wait and self time.

Pure.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from .observed import Observed, StepsSeen

#: Two medians agree within this share of the real one.
ASKED_WITHIN = 0.20
#: Medians below this cannot be told from nothing: what a host's scheduler does to a step is as long. Where the real one
#: is, the simulated one must be as well, or nearly.
FLOOR_S = 0.005
#: Steps before these are nobody's usual ones (``straggler.WARM_UP_STEPS``).
FIRST_STEP = 3
_APART = "telemetry"
#: Suspects with less of the likeliest one's probability are mentioned, not blamed.
_AS_LIKELY = 0.999


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """Of one incident, as its last revision says. suspects: the likeliest ranks."""

    kind: str
    scope: str
    bucket: str
    suspects: tuple[int, ...]

    def __str__(self) -> str:
        ranks = ", ".join(map(str, self.suspects))
        return f"{self.kind} ({self.scope}, {self.bucket}{'' if not ranks else f', rank {ranks}'})"


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """A rank's median over steps, in seconds. what: "wait" or "self"; when: "before" or "after" the onset."""

    what: str
    when: str
    rank: int
    real_s: float
    simulated_s: float

    @property
    def is_measurable(self) -> bool:
        return self.real_s >= FLOOR_S

    @property
    def error(self) -> float:
        """Of the real one."""
        return abs(self.simulated_s - self.real_s) / max(self.real_s, FLOOR_S)

    @property
    def agrees(self) -> bool:
        return self.error <= ASKED_WITHIN if self.is_measurable else self.simulated_s < 2.0 * FLOOR_S


@dataclass(frozen=True, slots=True, kw_only=True)
class Tied:
    """One kind, run really and simulated. delays: from the onset until the incident, seconds; None without one.

    is_clean: nothing went wrong, and nothing should be found. problem: why there is nothing to compare; it counts as
    disagreement.
    """

    kind: str
    real: tuple[Finding, ...] = ()
    simulated: tuple[Finding, ...] = ()
    pairs: tuple[Pair, ...] = ()
    real_delay_s: float | None = None
    simulated_delay_s: float | None = None
    is_clean: bool = False
    problem: str = ""

    @property
    def same_finding(self) -> bool:
        return not self.problem and bool(self.real) is not self.is_clean and self.real == self.simulated

    def as_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Tied:
        found = {
            name: tuple(Finding(**{**each, "suspects": tuple(each["suspects"])}) for each in document[name])
            for name in ("real", "simulated")
        }
        return cls(**{**document, **found, "pairs": tuple(Pair(**each) for each in document["pairs"])})


def findings(revisions: Sequence[Mapping[str, Any]], until_unix_s: float = math.inf) -> tuple[Finding, ...]:
    """What is left in the end of what was detected by then, without what is said of the telemetry itself.

    In a fixed order. until_unix_s: when its owner ended a job that stood still, which is a finding of its own.
    """
    latest = {str(document["id"]): document for document in revisions}
    told = [
        each
        for each in latest.values()
        if each["state"] != "merged" and each["bucket"] != _APART and each["times"]["detected"] < until_unix_s
    ]
    return tuple(sorted((_finding(each) for each in told), key=str))


def _finding(document: Mapping[str, Any]) -> Finding:
    suspects = document["suspects"]
    most = max((suspect["probability"] for suspect in suspects), default=0.0)
    likely = {s["rank"] for s in suspects if s.get("rank") is not None and s["probability"] >= _AS_LIKELY * most}
    return Finding(
        kind=document["kind"],
        scope=document["scope"],
        bucket=document["bucket"],
        suspects=tuple(sorted(likely)),
    )


def told_after_s(revisions: Sequence[Mapping[str, Any]], onset_unix_s: float) -> float | None:
    """Until the first incident of the job was detected."""
    times = [float(each["times"]["detected"]) for each in revisions if each["bucket"] != _APART]
    return min(times) - onset_unix_s if times else None


def compare(
    kind: str, real: Observed, simulated: Observed, *, onset_step: int, last_step: int, ended_unix_s: float = math.inf
) -> Tied:
    """onset_step: the first that the fault changes. last_step: of the job; none after the onset if the same.

    ended_unix_s: when the owner ended the real job. Raises ValueError where one of them has no steps to compare.
    """
    windows = {"before": (FIRST_STEP, onset_step - 1), "after": (onset_step + 1, last_step)}
    pairs = [
        pair
        for when, (first, last) in windows.items()
        if last >= first
        for pair in _pairs(when, real.steps.between(first, last), simulated.steps.between(first, last))
    ]
    return Tied(
        kind=kind,
        real=findings(real.revisions, ended_unix_s),
        simulated=findings(simulated.revisions),
        pairs=tuple(pairs),
    )


def _pairs(when: str, real: StepsSeen, simulated: StepsSeen) -> Iterator[Pair]:
    """Raises ValueError where one of them has no such steps."""
    if not (real.steps.size and simulated.steps.size):
        raise ValueError(f"no steps {when} the onset in the {'simulation' if real.steps.size else 'real run'}")
    for what, of_real, of_simulated in (
        ("wait", real.wait_ns, simulated.wait_ns),
        ("self", real.self_ns, simulated.self_ns),
    ):
        medians = np.median(of_real, axis=0) / 1e9, np.median(of_simulated, axis=0) / 1e9
        for rank, (real_s, simulated_s) in enumerate(zip(*medians, strict=True)):
            yield Pair(what=what, when=when, rank=rank, real_s=float(real_s), simulated_s=float(simulated_s))
