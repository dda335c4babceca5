"""What the scheduler has in store for this node and its jobs: attempt, time limit, preemption, maintenance, drain.

Asks programs (``scontrol``) that may hang with the scheduler: for 5 s each, and in its own thread. A fact is told when
it is first seen and when it changes; that one of the node is over is told as well.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import subprocess
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from ....diagnosis.scheduler_facts import (
    SchedulerFact,
    facts_of_environment,
    facts_of_kubernetes_node,
    facts_of_pod,
    facts_of_reservations,
    facts_of_slurm_job,
    facts_of_slurm_node,
    parse_downward_api,
    slurm_job_id,
)
from ....telemetry.ring_layout import cut_text
from ....telemetry.vocabulary import EventName
from ..base.collector import Collected, NodeEvent, Timestamps
from ..base.kernel_files import read_text
from .rank_environments import RankEnvironment, RankEnvironments

_TIMEOUT_S = 5.0
_MAX_ANSWER_BYTES = 4 << 20
_MAX_FILE_BYTES = 1 << 20
#: Jobs of one node that Slurm is asked about.
_MAX_JOBS = 16
_NS = 1_000_000_000
_OF_NODES = frozenset({"maintenance", "preemption", "node_state"})
#: What the answers that are no job's are kept under.
_RESERVATIONS, _NODE = "", "node"
_NODE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,252}")


def run_program(command: Sequence[str]) -> str:
    """Runs a command and returns its standard output, cut after ``_MAX_ANSWER_BYTES``.

    Raises OSError or subprocess.SubprocessError, also when it takes longer than 5 s or fails.
    """
    done = subprocess.run(
        command,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=_TIMEOUT_S,
        check=True,
        env={**os.environ, "SLURM_TIME_FORMAT": "%s"},
    )
    return done.stdout[:_MAX_ANSWER_BYTES].decode("utf-8", "replace")


class SchedulerCollector:
    """pod_info: folder of the downward API. node_file: a Kubernetes node as JSON, where somebody keeps one; "" none.

    node_names: further names of this node, as Slurm may know it. ask_period_s: between questions to Slurm.
    """

    name = "scheduler"

    def __init__(
        self,
        *,
        proc: str | Path = "/proc",
        pod_info: str | Path = "/etc/podinfo",
        node_file: str = "",
        node_names: Sequence[str] = (),
        period_s: float = 10.0,
        ask_period_s: float = 60.0,
        scontrol: str = "scontrol",
        run: Callable[[Sequence[str]], str] = run_program,
    ) -> None:
        self.period_s = period_s
        self._ranks = RankEnvironments(Path(proc))
        self._pod_info = Path(pod_info)
        self._node_file = node_file
        self._node_names = [socket.gethostname(), *node_names]
        self._ask_period_ns = int(ask_period_s * _NS)
        self._scontrol = scontrol
        self._run = run
        self._asked_ns = -(1 << 62)
        #: What Slurm said last, by question: an answer that does not come takes nothing back.
        self._answers: dict[str, list[SchedulerFact]] = {}
        self._told: dict[tuple[str, ...], SchedulerFact] = {}

    def collect(self, now: Timestamps) -> Collected:
        """An event for whatever is new in what environments, Kubernetes and Slurm say of jobs' attempts and limits."""
        problems: list[str] = []
        ranks = self._ranks.look()
        pids: dict[str, int] = {}
        facts: dict[tuple[str, ...], SchedulerFact] = {}
        # Launchers have a job's variables, too; a rank is what it is about.
        for rank in sorted(ranks, key=lambda rank: "RANK" not in rank.environ):
            for fact in facts_of_environment(rank.environ):
                pids.setdefault(fact.job, rank.program)
                # torchelastic's count may differ between launches on one node: the newest is the highest.
                known = facts.get(fact.key)
                if known is None or _attempt(fact) > _attempt(known):
                    facts[fact.key] = fact
        # What Slurm says itself is newer than a variable from the job's start.
        for fact in [*self._kubernetes(problems), *self._slurm(ranks, now, problems)]:
            facts[fact.key] = fact
        return Collected(happenings=list(self._news(facts, pids, now)), problems=problems)

    def close(self) -> None:
        """Does nothing: nothing is kept open."""
        return

    def _news(
        self, facts: dict[tuple[str, ...], SchedulerFact], pids: dict[str, int], now: Timestamps
    ) -> Iterator[NodeEvent]:
        for key, fact in facts.items():
            if self._told.get(key) != fact:
                self._told[key] = fact
                yield _happening(fact, pids.get(fact.job, 0), now)
        for key in self._told.keys() - facts.keys():
            fact = self._told.pop(key)
            if fact.what in _OF_NODES and not fact.job:
                yield _happening(fact, 0, now, is_over=True)

    # --- sources ----------------------------------------------------------------------------------------------------

    def _slurm(self, ranks: Sequence[RankEnvironment], now: Timestamps, problems: list[str]) -> list[SchedulerFact]:
        jobs = sorted({job for job in (slurm_job_id(rank.environ) for rank in ranks) if job})[:_MAX_JOBS]
        kept = {*jobs, _RESERVATIONS, _NODE} if jobs else set()
        self._answers = {what: said for what, said in self._answers.items() if what in kept}
        if jobs and now.mono_ns - self._asked_ns >= self._ask_period_ns:
            self._asked_ns = now.mono_ns
            if self._run is run_program and shutil.which(self._scontrol) is None:
                problems.append(
                    f"{self._scontrol}: not found; changed time limits, preemption and maintenance are unseen"
                )
            else:
                self._ask_slurm(jobs, [rank.environ.get("SLURMD_NODENAME", "") for rank in ranks], problems)
        return [fact for said in self._answers.values() for fact in said]

    def _ask_slurm(self, jobs: Sequence[str], names: Sequence[str], problems: list[str]) -> None:
        for job in jobs:
            answer = self._ask(["show", "job", job], problems)
            if answer is not None:
                self._answers[job] = list(facts_of_slurm_job(answer))
        answer = self._ask(["show", "res"], problems)
        if answer is not None:
            own = [name for name in (*self._node_names, *names) if name]
            self._answers[_RESERVATIONS] = list(facts_of_reservations(answer, own))
        # By the name that Slurm itself has given to the ranks.
        node = next((name for name in names if _NODE_NAME.fullmatch(name)), "")
        answer = self._ask(["show", "node", node], problems) if node else None
        if answer is not None:
            self._answers[_NODE] = list(facts_of_slurm_node(answer))

    def _ask(self, words: Sequence[str], problems: list[str]) -> str | None:
        try:
            return self._run([self._scontrol, "-o", *words])
        except (OSError, subprocess.SubprocessError) as error:
            problems.append(f"{self._scontrol} {' '.join(words[:2])}: {_why(error)}")
            return None

    def _kubernetes(self, problems: list[str]) -> Iterator[SchedulerFact]:
        labels = read_text(self._pod_info / "labels", _MAX_FILE_BYTES)
        if labels:
            yield from facts_of_pod(parse_downward_api(labels))
        if not self._node_file:
            return
        text = read_text(self._node_file, _MAX_FILE_BYTES)
        try:
            yield from facts_of_kubernetes_node(json.loads(text or ""))
        except (ValueError, RecursionError):
            problems.append(f"{self._node_file}: no JSON of a Kubernetes node (kubectl get node NAME -o json)")


def _attempt(fact: SchedulerFact) -> float:
    attempt = fact.values.get("attempt", -1)
    return attempt if isinstance(attempt, (int, float)) else -1


def _why(error: Exception) -> str:
    if isinstance(error, subprocess.TimeoutExpired):
        return f"no answer within {_TIMEOUT_S:g} s"
    if isinstance(error, subprocess.CalledProcessError):
        said = bytes(error.stderr or b"").decode("utf-8", "replace").strip().splitlines()
        return cut_text(said[-1], 200) if said else f"exit code {error.returncode}"
    return cut_text(str(error), 200)


def _happening(fact: SchedulerFact, pid: int, now: Timestamps, *, is_over: bool = False) -> NodeEvent:
    return NodeEvent(
        name=EventName.SCHEDULER,
        time_ns=now.wall_ns,
        mono_ns=now.mono_ns,
        attributes={
            "scheduler": fact.scheduler,
            "what": fact.what,
            "job": fact.job,
            "over": is_over,
            **fact.values,
        },
        pid=pid,
    )
