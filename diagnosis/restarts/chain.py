"""A training as a chain of jobs (generations), each of which restarts its workers in cycles: what goes wrong in it.

Pure: a view of one moment in, alerts out. What the scheduler does not show is unknown, not gone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

from ..data_file import read_toml

_PENDING, _RUNNING = "PENDING", "RUNNING"


@dataclass(frozen=True, slots=True, kw_only=True)
class Cycle:
    """One start of all workers. ``end_s`` None: it goes on. ``active``, ``standby``: nodes."""

    job: str
    number: int
    start_s: float
    end_s: float | None
    active: tuple[str, ...]
    standby: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    index: int
    state: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Generation:
    """A job that is queued or running. Task 0 holds the launcher; others may be spares in the queue."""

    job: str
    tasks: tuple[Task, ...]

    def has(self, state: str) -> bool:
        """Whether one of its tasks is in this state."""
        return any(task.state == state for task in self.tasks)


@dataclass(frozen=True, slots=True, kw_only=True)
class EndedTask:
    job: str
    task: int
    state: str
    ended_s: float
    exit_code: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """``value``: the newest step on disk; ``since_s``: since when it has been that."""

    value: int
    since_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ChainView:
    """``cycles`` in the order of time. generations None: the scheduler cannot be asked. checkpoint None: unknown."""

    now_s: float
    cycles: tuple[Cycle, ...] = ()
    generations: tuple[Generation, ...] | None = None
    ended: tuple[EndedTask, ...] = ()
    checkpoint: Checkpoint | None = None
    max_restarts: int | None = None
    #: The training is not done, so that something of it must be queued or running.
    is_expected: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ChainAlert:
    detector: str
    severity: str
    text: str
    node: str = ""
    job: str = ""
    #: What a person may do about it, in the scheduler's terms; nothing does it by itself.
    remedy: str = ""


Detector = Callable[[ChainView, dict[str, Any]], Iterator[ChainAlert]]


def watch(view: ChainView) -> list[ChainAlert]:
    """The alerts of all detectors for one moment of a chain of jobs."""
    limits = chain_limits()
    return [alert for name, detect in _DETECTORS.items() for alert in detect(view, {"name": name, **limits[name]})]


@cache
def chain_limits() -> dict[str, dict[str, Any]]:
    """Limits of the detectors by name, from chain.toml."""
    return read_toml(__package__ or "", "chain.toml")


def _alert(limits: dict[str, Any], text: str, **more: str) -> ChainAlert:
    return ChainAlert(detector=limits["name"], severity=limits["severity"], text=text, **more)


def _restart_storm(view: ChainView, limits: dict[str, Any]) -> Iterator[ChainAlert]:
    recent = sum(view.now_s - cycle.start_s <= limits["within_s"] for cycle in view.cycles)
    if recent >= limits["cycles"]:
        yield _alert(limits, f"{recent} restarts within {limits['within_s'] / 60:.0f} minutes")


def _stalled_progress(view: ChainView, limits: dict[str, Any]) -> Iterator[ChainAlert]:
    if view.checkpoint is None:
        return
    since_s = view.checkpoint.since_s
    idle = sum(cycle.start_s >= since_s for cycle in view.cycles)
    if idle >= limits["cycles"]:
        yield _alert(limits, f"{idle} restarts since the checkpoint last moved (step {view.checkpoint.value})")


def _cycle_stalled(view: ChainView, limits: dict[str, Any]) -> Iterator[ChainAlert]:
    if not view.cycles or view.cycles[-1].end_s is not None:
        return
    cycle = view.cycles[-1]
    is_alive = view.generations is None or any(
        each.job == cycle.job and each.has(_RUNNING) for each in view.generations
    )
    moved_s = max(cycle.start_s, view.checkpoint.since_s if view.checkpoint else cycle.start_s)
    idle_s = view.now_s - moved_s
    if is_alive and view.checkpoint is not None and idle_s >= limits["idle_s"]:
        yield _alert(limits, f"{cycle.job} has run for {idle_s / 60:.0f} minutes without a checkpoint", job=cycle.job)


def _restart_budget_low(view: ChainView, limits: dict[str, Any]) -> Iterator[ChainAlert]:
    if not view.cycles or not view.max_restarts:
        return
    used = view.cycles[-1].number
    if used >= limits["share"] * view.max_restarts:
        yield _alert(limits, f"{used} of {view.max_restarts} restarts are used", job=view.cycles[-1].job)


def _spares_exhausted(view: ChainView, limits: dict[str, Any]) -> Iterator[ChainAlert]:
    if not view.cycles or view.cycles[-1].standby or view.cycles[-1].end_s is not None:
        return
    if any(generation.has(_PENDING) for generation in view.generations or ()):
        return
    yield _alert(limits, "no spare node is left, and none is queued", job=view.cycles[-1].job)


def _suspect_node(view: ChainView, limits: dict[str, Any]) -> Iterator[ChainAlert]:
    last = view.cycles[-limits["cycles"] :]
    is_short = [each.end_s is not None and each.end_s - each.start_s < limits["shorter_than_s"] for each in last]
    if len(last) < limits["cycles"] or not all(is_short):
        return
    common = set(last[0].active).intersection(*(cycle.active for cycle in last[1:]))
    smallest = min(len(cycle.active) for cycle in last)
    # The same nodes every time say nothing about any of them.
    if 0 < len(common) <= max(1, smallest // 2) and len(common) < len(set().union(*(each.active for each in last))):
        for node in sorted(common):
            yield _alert(limits, f"{node} was in each of the last {len(last)} short attempts", node=node)


def _orphaned_generation(view: ChainView, limits: dict[str, Any]) -> Iterator[ChainAlert]:
    for generation in view.generations or ():
        if any(task.index == 0 for task in generation.tasks) or not generation.has(_PENDING):
            continue
        gone = [each for each in view.ended if each.job == generation.job and each.task == 0]
        if gone and view.now_s - max(each.ended_s for each in gone) > limits["grace_s"]:
            yield _alert(
                limits,
                f"the launcher of {generation.job} is gone, and its spares still wait in the queue",
                job=generation.job,
                remedy=f"cancel_pending {generation.job}",
            )


def _chain_exhausted(view: ChainView, limits: dict[str, Any]) -> Iterator[ChainAlert]:
    # A scheduler that was never asked shows nothing; only an expected chain makes its silence a fact.
    if view.is_expected and not view.generations:
        yield _alert(limits, "the training is not done, and nothing of it is queued or running")


def _chain_not_cancelled(view: ChainView, limits: dict[str, Any]) -> Iterator[ChainAlert]:
    stopped = [each for each in view.ended if each.exit_code == limits["exit_code"]]
    if not stopped:
        return
    last = max(stopped, key=lambda each: each.ended_s)
    for generation in view.generations or ():
        if generation.job != last.job or generation.has(_PENDING):
            yield _alert(
                limits,
                f"{last.job} ended with {limits['exit_code']} (do not try again), and {generation.job} goes on",
                job=generation.job,
                remedy=f"cancel {generation.job}",
            )


def _generation_churn(view: ChainView, limits: dict[str, Any]) -> Iterator[ChainAlert]:
    recent = {cycle.job for cycle in view.cycles if view.now_s - cycle.start_s <= limits["within_s"]}
    recent |= {each.job for each in view.ended if view.now_s - each.ended_s <= limits["within_s"]}
    if len(recent) > limits["generations"]:
        yield _alert(limits, f"{len(recent)} jobs of this training within {limits['within_s'] / 3600:.0f} hours")


_DETECTORS: dict[str, Detector] = {
    "restart_storm": _restart_storm,
    "stalled_progress": _stalled_progress,
    "cycle_stalled": _cycle_stalled,
    "restart_budget_low": _restart_budget_low,
    "spares_exhausted": _spares_exhausted,
    "suspect_node": _suspect_node,
    "orphaned_generation": _orphaned_generation,
    "chain_exhausted": _chain_exhausted,
    "chain_not_cancelled": _chain_not_cancelled,
    "generation_churn": _generation_churn,
}
