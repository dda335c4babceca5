"""What lines of ranks' logs signal: of whose process, or of which job as a whole. Only what begins something counts.

A line that follows from another one (cascade, teardown), of another node, or from before the agent's start is none.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from ...telemetry.records import Event
from ...telemetry.vocabulary import Bucket, CausalRole
from .conditions import EntityState
from .signal_facts import SignalFacts, read_signal

#: The writer waited for a peer, went on without it, and what it computed since may be wrong.
_WAITED_FOR_PEER = "user_buffer_timeout"
_STALE_DATA = "user_buffer_stale_data"


@dataclass(frozen=True, slots=True, kw_only=True)
class Signal:
    """What a line signals. word: what the rules know it by. facts: with the pid that it concerns, or ``of_job``."""

    word: str
    device: str
    facts: SignalFacts


def signals_of(state: EntityState, event: Event) -> Iterator[Signal]:
    """What a line of a rank's log signals: a process or a whole job that it concerns.

    None for a line that only follows from another, is of another node, or is from before the agent's start.
    """
    found = event.attributes
    if found.get("role") != CausalRole.INITIATING.value or found.get("before_start"):
        return
    word, pid, facts = str(found["class"]), int(found.get("pid") or 0), read_signal(found)
    if found.get("bucket") == Bucket.PLANNED.value:
        if job := event.identity.job or only_job(state):
            yield Signal(word=word, device=job, facts=replace(facts, device_kind="job", of_job=job, pid=0))
        return
    if found.get("node") not in (None, "", event.identity.node):
        return
    about = [f"local port {port}" for port in [found.get("port")] if port]
    about += [str(found["warning"])] if found.get("warning") else []
    if word == _WAITED_FOR_PEER:
        if pid:
            yield _of_process(_STALE_DATA, pid, facts, about)
        pid = _pid_of(state, event.identity.job, found.get("peer"))
    if pid:
        yield _of_process(word, pid, facts, about)


def _of_process(word: str, pid: int, facts: SignalFacts, about: list[str]) -> Signal:
    """about: what else is to be said of it."""
    text = "; ".join([facts.text or word, *about])
    return Signal(word=word, device=str(pid), facts=replace(facts, device_kind="process", pid=pid, text=text))


def _pid_of(state: EntityState, job: str, rank: int | None) -> int:
    """The process of a rank that runs here, the newest of several; 0 where none does."""
    if rank is None or not job:
        return 0
    pids = [int(pid) for pid, who in state.ranks.items() if who.job == job and who.rank == rank]
    return pids[-1] if pids else 0


def only_job(state: EntityState) -> str:
    """The job of all ranks of the node; "" where there are several, or none."""
    jobs = {who.job for who in state.ranks.values()}
    return jobs.pop() if len(jobs) == 1 else ""
