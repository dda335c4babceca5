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
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ....diagnosis.scheduler_facts import (
    SchedulerFact,
    facts_of_environment,
    facts_of_kubernetes_node,
    facts_of_pod,
    facts_of_reservations,
    facts_of_slurm_job,
    facts_of_slurm_node,
    is_slurm_node_of,
    parse_downward_api,
    slurm_job_id,
)
from ....telemetry.ring_layout import cut_text
from ....telemetry.trust import Trust
from ....telemetry.vocabulary import EventName
from ...base.turns import in_turns
from ..base.collector import Collected, NodeEvent, Timestamps
from ..base.kernel_files import read_text
from ..base.node_condition import NodeCondition, looks_anew
from .rank_environments import RankEnvironment, RankEnvironments

#: Of what a Kubernetes node says is wrong with it.
SOURCE = "kubernetes"
_TIMEOUT_S = 5.0
_MAX_ANSWER_BYTES = 4 << 20
_MAX_FILE_BYTES = 1 << 20
#: Jobs of one node that Slurm is asked about.
_MAX_JOBS = 16
#: Names of this node, by ranks, that Slurm is asked about.
_MAX_NAMES = 4
_NS = 1_000_000_000
_CONDITION = "node_condition"
_OF_NODES = frozenset({"maintenance", "preemption", "node_state", _CONDITION})
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


#: A fact's key, and the user whose variables tell it; None of what the scheduler says itself.
FactKey = tuple[tuple[str, ...], int | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Told:
    """A fact, and the process that it is about (0: none is known). is_claimed: only that process's variables say so."""

    fact: SchedulerFact
    pid: int
    is_claimed: bool


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
        #: As Slurm calls this node, once it has said so.
        self._name = ""
        self._ask_period_ns = int(ask_period_s * _NS)
        self._scontrol = scontrol
        self._run = run
        self._asked_ns = -(1 << 62)
        #: What Slurm said last, by question: an answer that does not come takes nothing back.
        self._answers: dict[str, list[SchedulerFact]] = {}
        self._told: dict[FactKey, SchedulerFact] = {}
        self._has_begun = False

    def collect(self, now: Timestamps) -> Collected:
        """An event for whatever is new in what environments, Kubernetes and Slurm say of jobs' attempts and limits."""
        problems: list[str] = []
        ranks = self._ranks.look()
        claimed: dict[FactKey, _Told] = {}
        pids: dict[str, dict[int | None, int]] = {}
        # Launchers have a job's variables, too; a rank is what it is about.
        for rank in sorted(ranks, key=lambda rank: "RANK" not in rank.environ):
            uid = self._ranks.uid_of(rank.pid)
            for fact in facts_of_environment(rank.environ):
                pid = pids.setdefault(fact.job, {}).setdefault(uid, rank.program)
                # torchelastic's count may differ between launches on one node: the newest is the highest.
                known = claimed.get((fact.key, uid))
                if known is None or _attempt(fact) > _attempt(known.fact):
                    claimed[fact.key, uid] = _Told(fact=fact, pid=pid, is_claimed=True)
        said = [*self._kubernetes(problems), *self._slurm(ranks, now, problems)]
        owners = {fact.job: int(fact.values["owner_uid"]) for fact in said if fact.what == "owner"}
        facts: dict[FactKey, _Told] = {}
        for fact in said:
            pid = _pid_of(pids.get(fact.job, {}), owners.get(fact.job))
            facts[fact.key, None] = _Told(fact=fact, pid=pid, is_claimed=False)
        # What Slurm says itself is newer than a variable from the job's start.
        facts |= {key: told for key, told in claimed.items() if (key[0], None) not in facts}
        return Collected(happenings=list(self._news(facts, now)), problems=problems)

    def close(self) -> None:
        """Does nothing: nothing is kept open."""
        return

    def _news(self, facts: dict[FactKey, _Told], now: Timestamps) -> Iterator[NodeEvent]:
        if self._node_file and not self._has_begun:
            self._has_begun = True
            yield looks_anew(SOURCE, now)
        for key, told in facts.items():
            if self._told.get(key) != told.fact:
                self._told[key] = told.fact
                yield _happening(told, now)
        for key in self._told.keys() - facts.keys():
            fact = self._told.pop(key)
            if fact.what in _OF_NODES and not fact.job:
                yield _happening(_Told(fact=fact, pid=0, is_claimed=False), now, is_over=True)

    # --- sources ----------------------------------------------------------------------------------------------------

    def _slurm(self, ranks: Sequence[RankEnvironment], now: Timestamps, problems: list[str]) -> list[SchedulerFact]:
        jobs = self._jobs_of_owners(ranks)
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

    def _jobs_of_owners(self, ranks: Sequence[RankEnvironment]) -> list[str]:
        """Ids that ranks claim, of each user in turn: nobody's claims keep another's job from being asked about."""
        claims = {(self._ranks.uid_of(rank.pid), job) for rank in ranks if (job := slurm_job_id(rank.environ))}
        in_order = sorted(claims, key=lambda claim: (-1 if claim[0] is None else claim[0], claim[1]))
        return list(dict.fromkeys(in_turns(in_order)))[:_MAX_JOBS]

    def _ask_slurm(self, jobs: Sequence[str], names: Sequence[str], problems: list[str]) -> None:
        for job in jobs:
            answer = self._ask(["show", "job", job], problems)
            if answer is not None:
                self._answers[job] = list(facts_of_slurm_job(answer))
        reservations = self._ask(["show", "res"], problems)
        # A rank's variable says how Slurm calls this node; whether that is true, Slurm says.
        for name in sorted(filter(_NODE_NAME.fullmatch, set(names)), key=lambda each: each != self._name)[:_MAX_NAMES]:
            answer = self._ask(["show", "node", name], problems)
            if answer is None:
                break
            if is_slurm_node_of(answer, self._node_names):
                self._name, self._answers[_NODE] = name, list(facts_of_slurm_node(answer))
                break
        if reservations is not None:
            own = [name for name in (*self._node_names, self._name) if name]
            self._answers[_RESERVATIONS] = list(facts_of_reservations(reservations, own))

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


def _pid_of(pids: Mapping[int | None, int], owner: int | None) -> int:
    """The process of a job by its owner; where the scheduler has not said who that is, of the only user who has one."""
    if owner in pids:
        return pids[owner]
    return next(iter(pids.values())) if len(pids) == 1 and (owner is None or None in pids) else 0


def _happening(told: _Told, now: Timestamps, *, is_over: bool = False) -> NodeEvent:
    fact = told.fact
    if fact.what == _CONDITION:
        name, text = str(fact.values["condition"]), str(fact.values["text"])
        condition = NodeCondition(name=name, device=str(fact.values["name"]), text=text, is_over=is_over)
        return condition.happening(SOURCE, now)
    return NodeEvent(
        name=EventName.SCHEDULER,
        time_ns=now.wall_ns,
        mono_ns=now.mono_ns,
        attributes={
            "scheduler": fact.scheduler,
            "what": fact.what,
            "job": fact.job,
            "over": is_over,
            **({"trust": Trust.USER.value} if told.is_claimed else {}),
            **fact.values,
        },
        pid=told.pid,
    )
