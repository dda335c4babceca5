"""A fleet of nodes under switches, in racks, on power units, with jobs on it: tells the findings that operators would.

Only mechanisms are given by the stories: who runs where, whose ranks are late since when. Times are seconds after
START_S; everything goes to a court of the cluster operator in the order of time.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from tests.processors.cluster.conftest import BUCKETS, START_S, Court
from tests.processors.endings import raised_fact, row_of
from whichrank.processors.cluster.operator import ClusterOperator
from whichrank.processors.operator import Timer
from whichrank.telemetry.evidence_facts import EvidenceFact, How
from whichrank.telemetry.records import Finding, Identity, Record
from whichrank.telemetry.ring_layout import format_ranks
from whichrank.telemetry.vocabulary import Bucket, Kind, Severity

GPUS = 8
DAY_S = 86_400.0
_TICKETS = {Kind.RANK_SLOW, Kind.SLOW_TOGETHER, Kind.AGENT_SILENT, Kind.INPUT_SILENT}


class FastCourt(Court):
    """One operator for all records, as a runner has it; ``fresh`` makes another one for each, from the rows alone."""

    def __init__(self, *, fresh: bool = False) -> None:
        super().__init__()
        self._operator = ClusterOperator()
        self._fresh = fresh

    @property
    def operator(self) -> ClusterOperator:
        return ClusterOperator() if self._fresh else self._operator

    def clear_timer(self, name: str) -> None:
        self.timers.pop(name, None)

    def take(self, findings: Sequence[Finding]) -> None:
        """A batch, after the timers that are due before its records, as a runner gives them."""
        batch: list[Record] = []
        for finding in findings:
            if self.timers and min(self.timers.values()) <= finding.time_ns:
                self._process(batch)
                batch = []
                self._fire_until(finding.time_ns)
            batch.append(Record(topic="whichrank.findings", key="local", stamp_ns=finding.time_ns, payload=finding))
        self._process(batch)

    def _process(self, batch: list[Record]) -> None:
        if batch:
            self.now = batch[-1].stamp_ns
            self.operator.process(batch, self)

    def _fire_until(self, until_ns: int) -> None:
        while self.timers and min(self.timers.values()) <= until_ns:
            name = min(self.timers, key=lambda n: (self.timers[n], n))
            self.now = self.timers.pop(name)
            self.operator.on_timer(Timer(name, self.now), self)

    def pass_time(self, until_s: float) -> None:
        self._fire_until(round((START_S + until_s) * 1e9))

    def set_timer(self, name: str, at_ns: int) -> None:
        self.timers[name] = max(at_ns, self.now + 1)


class Job:
    """A job's running attempt in a story."""

    def __init__(self, fleet: Fleet, id_: str, nodes: Sequence[str], at: float, attempt: str, **about: Any) -> None:
        self.fleet, self.name, self.attempt, self.begin = fleet, id_, attempt, at
        self.nodes = list(nodes)
        self.about = {"run": f"run-{id_}", "owner": f"owner-{id_}", **about}
        self._told: dict[str, Finding] = {}
        self._place(at, None)

    def _place(self, at: float, end: float | None) -> None:
        nodes = {n: f"{i * GPUS}-{i * GPUS + GPUS - 1}" for i, n in enumerate(self.nodes)}
        placement = {
            "job": self.name,
            "attempt": self.attempt,
            "name": self.about.get("name", ""),
            "run": self.about["run"],
            "owner": self.about["owner"],
            "world_size": GPUS * len(nodes),
            "begin": START_S + self.begin,
            "end": None if end is None else START_S + end,
            "nodes": nodes,
        }
        self.fleet.say(f"placement/{self.name}/{self.attempt}", at, {"placement": placement}, job=self)

    def end(self, at: float) -> Job:
        self._place(at, at)
        return self

    def again(self, at: float, nodes: Sequence[str] | None = None) -> Job:
        """The next attempt."""
        number = int(self.attempt.removeprefix("a")) + 1
        return Job(self.fleet, self.name, nodes or self.nodes, at, f"a{number}", **self.about)

    def rank_on(self, node: str, local: int = 3) -> int:
        return self.nodes.index(node) * GPUS + local

    def tell(
        self,
        kind: Kind,
        at: float,
        *,
        onset: float | None = None,
        node: str | None = None,
        rank: int | None = None,
        phase: str | None = None,
        step: int | None = 300,
        error: str = "",
        gpu: str | None = None,
        severity: Severity | None = None,
        cleared: bool = False,
        key: str = "",
        stalls: Sequence[tuple[float, float]] = (),
    ) -> str:
        """A finding of the job operator. Gives its key. stalls: begin and end of each, of what comes and goes."""
        onset = at if onset is None else onset
        if node is not None and rank is None:
            rank = self.rank_on(node)
        if rank is not None and node is None:
            node = self.nodes[rank // GPUS]
        suspects = []
        if rank is not None:
            suspects.append(
                {
                    "scope": "rank", "id": str(rank), "rank": rank, "node": node, "gpu": gpu, "pid": 100 + rank,
                    "where": {"file": None, "line": None, "phase": phase} if phase else None, "probability": 0.95,
                }
            )  # fmt: skip
        if kind is Kind.NODE_LOST:
            suspects = [{**suspects[0], "scope": "node", "id": node, "rank": None, "ranks": format_ranks([rank or 0])}]
        key = key or f"{self.attempt}/{kind.value}/{step}.{rank}"
        ends = "exception" if kind is Kind.RANK_RAISED else "exit"
        signal, source, fact = f"steps.{kind.value}", f"rank {rank} on {node}", None
        if error:
            signal, fact = f"rank.{ends}", raised_fact(error, rank=rank, file="train.py", line=88)
        elif kind is Kind.AGENT_SILENT:
            signal, source, fact = "peer.silent", f"node {node}", EvidenceFact(how=How.SILENT, node=node or "")
        evidence = [row_of(signal, source, START_S + onset, fact)]
        severity = severity or (Severity.TICKET if kind in _TICKETS else Severity.PAGE)
        if kind is Kind.PLANNED_STOP:
            severity = Severity.INFO
        whole = GPUS * len(self.nodes)
        body: dict[str, Any] = {
            "bucket": BUCKETS.get(kind, Bucket.COMMUNICATION_HANG).value,
            "kind": kind.value,
            "scope": "rank",
            "severity": severity.value,
            "suspects": suspects if kind not in (Kind.AGENT_SILENT, Kind.INPUT_SILENT) else [],
            "victims": {"count": whole - len(suspects), "ranks": f"0-{whole - 1}"},
            "coverage": {"ranks_seen": whole, "ranks_expected": whole},
            "first_bad": {"step": step, "group": "dp", "sequence": None, "operation": None},
            "times": {"onset": START_S + onset, "detected": START_S + at, "attributed": START_S + at},
            "evidence": evidence,
            "ruled_out": [],
            "confidence": 0.9,
            "job": {"run": self.about["run"], "id": self.name, "name": None, "attempt": self.attempt, "owner": None,
                    "now": "running"},
        }  # fmt: skip
        if kind is Kind.SLOW_TOGETHER:
            body["grew"] = phase or ""
        if stalls:
            body["stalls"] = [(START_S + begin, START_S + end) for begin, end in stalls]
        if kind in (Kind.AGENT_SILENT, Kind.INPUT_SILENT):
            body["bucket"] = Bucket.TELEMETRY.value
        self.fleet.say(key, at, body, job=self, cleared=cleared)
        self._last: tuple[Kind, dict[str, Any]] = (
            kind,
            {"onset": onset, "node": node, "rank": rank, "phase": phase, "step": step, "error": error},
        )
        return key

    def well(self, at: float) -> None:
        """What was told last is over."""
        kind, told = self._last
        self.tell(kind, at, cleared=True, **told)


class Fleet:
    """``leaves`` leaves of ``nodes_per_leaf`` nodes; two leaves to a spine; a rack holds half a leaf; a PDU a rack."""

    def __init__(self, leaves: int = 8, nodes_per_leaf: int = 8, *, fresh: bool = False, labels: bool = True) -> None:
        self.court = FastCourt(fresh=fresh)
        self.findings: list[tuple[float, int, Finding]] = []
        self._order = itertools.count()
        self.nodes = [f"n{leaf}-{i}" for leaf in range(leaves) for i in range(nodes_per_leaf)]
        self.labels = {
            f"n{leaf}-{i}": {
                "leaf": f"leaf{leaf}",
                "spine": f"spine{leaf // 2}",
                "rack": f"rack{leaf}{'ab'[i * 2 // nodes_per_leaf]}",
                "pdu": f"pdu{leaf}{'ab'[i * 2 // nodes_per_leaf]}",
                "storage": "lustre1",
            }
            for leaf in range(leaves)
            for i in range(nodes_per_leaf)
        }
        if labels:
            for node in self.nodes:
                self.topology(node, self.labels[node])

    def say(
        self,
        key: str,
        at: float,
        body: Mapping[str, Any],
        *,
        job: Job | None = None,
        node: str = "",
        cleared: bool = False,
    ) -> None:
        who = Identity(cluster="local", node=node)
        if job is not None:
            who = Identity(cluster="local", run=job.about["run"], job=job.name, attempt=job.attempt)
        finding = Finding(identity=who, key=key, cleared=cleared, time_ns=round((START_S + at) * 1e9), body=body)
        self.findings.append((at, next(self._order), finding))

    def under(self, leaf: int, *places: int) -> list[str]:
        return [f"n{leaf}-{i}" for i in places]

    def job(self, id_: str, nodes: Iterable[str], at: float = -7200.0, **about: Any) -> Job:
        return Job(self, id_, list(nodes), at, "a1", **about)

    def topology(self, node: str, labels: Mapping[str, Any], at: float = -20 * DAY_S) -> None:
        body = {"topology": {"entity": node, "entity_kind": "node", "labels": dict(labels)}}
        self.say(f"topology/node:{node}", at, body, node=node)

    def condition(
        self,
        name: str,
        entity: str,
        at: float,
        *,
        kind: str = "node",
        device_kind: str = "gpu",
        device: str = "GPU-1",
        job: Job | None = None,
        explains: Sequence[str] = ("rank_slow", "slow_together"),
        until: float | None = None,
        severity: str = "error",
        **more: Any,
    ) -> None:
        ranks = []
        if job is not None:
            ranks = [{"job": job.name, "attempt": job.attempt, "rank": job.rank_on(entity), "pid": 1, "world": ""}]
        condition = {
            "name": name, "entity": entity, "entity_kind": kind, "device_kind": device_kind, "device": device,
            "severity": severity, "domain": "hardware", "scope": "gpu" if device_kind == "gpu" else "node",
            "action": "drain_after_job", "explains": list(explains), "since": START_S + at, "last": START_S + at,
            "text": name, "source": "metric", "until": None if until is None else START_S + until, "count": 1,
            "value": "1", "pid": 0, "of_process": False, "of_job": "", "before_s": 60.0, "lag_s": 10.0, "lasts_s": 0.0,
            "tolerated_s": 0.0, "tolerated_times": 0, "ends_with": "", "at_once": False, "ranks": ranks, "others": [],
            "tolerated": False, "is_state": True, **more,
        }  # fmt: skip
        body = {"condition": condition}
        told_at = at if until is None else until
        self.say(f"condition/{kind}:{entity}/{name}/{device}", told_at, body, node=entity, cleared=until is not None)

    def change(self, node: str, what: str, old: str, new: str, at: float, *, baseline: bool = False) -> None:
        change = {"entity": node, "entity_kind": "node", "what": what, "old": old, "new": new, "where": "",
                  "time": START_S + at, "baseline": baseline, "job": ""}  # fmt: skip
        self.say(f"change/node:{node}/{what}/", at, {"change": change}, node=node)

    def load(
        self, node: str, at: float, *, rate: float, usual: float | None = 20.0, service: str = "lustre1",
        operation: str = "metadata", since: float | None = None, until: float | None = None,
    ) -> None:  # fmt: skip
        load = {"entity": node, "entity_kind": "node", "service": service, "operation": operation, "rate": rate,
                "usual": usual, "since": None if since is None else START_S + since,
                "until": None if until is None else START_S + until}  # fmt: skip
        self.say(f"load/node:{node}/{service}/{operation}", at, {"load": load}, node=node, cleared=until is not None)

    def plan(
        self, what: str, begin: float, end: float, *, told: float = -3600.0, where: Any = None, jobs: Any = ()
    ) -> None:
        plan = {"id": what, "what": what, "begin": START_S + begin, "end": START_S + end, "told": START_S + told,
                "where": where or {}, "jobs": list(jobs), "by": "operations"}  # fmt: skip
        self.say(f"plan/{what}", told, {"plan": plan})

    def harmless(self, at: float = 0.0) -> None:
        """What is there in every fleet, and has to do with nothing: on nodes of jobs of their own, in the last leaf."""
        nodes = [node for node in self.nodes if node.startswith(f"n{len(self.nodes) // 8 - 1}-")]
        calm = self.job("harmless-a", nodes[:2])
        odd = self.job("harmless-b", nodes[2:4])
        self.condition("gpu_throttled", nodes[0], at + 1.0, job=calm, device="GPU-odd")
        calm.tell(Kind.RANK_SLOW, at + 25.0, onset=at + 2.0, node=nodes[0], phase="forward", gpu="GPU-odd")
        self.condition(
            "link_down", nodes[2], at - 5.0, device_kind="nic", device="mlx5_9", until=at - 3.0,
            explains=["rank_raised"], tolerated=True, severity="warning",
        )  # fmt: skip
        self.condition("memory_short", nodes[3], at - 300.0, device_kind="memory", device="", explains=["rank_died"])
        del odd

    def run(self, until: float, *, batches: Sequence[int] = ()) -> FastCourt:
        """All findings in the order of their times, then time passes. batches: sizes, in turn; default all at once."""
        findings = [finding for _, _, finding in sorted(self.findings, key=lambda each: each[:2])]
        sizes = itertools.cycle(batches or [len(findings) or 1])
        while findings:
            size = next(sizes)
            self.court.take(findings[:size])
            findings = findings[size:]
        self.court.pass_time(until)
        return self.court


def standing(court: Court) -> list[Mapping[str, Any]]:
    """Incidents that are not merged and not planned, of jobs that are no part of the harmless ones."""
    return [
        document
        for document in court.pages
        if not str(document["job"]["id"]).startswith("harmless") and document["bucket"] != "planned"
    ]


def joint_of(court: Court, kind: Kind) -> Mapping[str, Any]:
    """The only incident of this kind that is open, or else that there was."""
    found = [document for document in court.pages if document["kind"] == kind.value]
    found = [document for document in found if document["state"] == "open"] or found
    assert len(found) == 1, [(d["kind"], d["job"]["id"], d["state"]) for d in court.pages]
    return found[0]


def jobs_of(document: Mapping[str, Any], role: str = "victim") -> set[str]:
    return {job["id"] for job in document["jobs"] if job["role"] == role}


def nodes_blamed(court: Court) -> set[str]:
    """By incidents that stand, with the scope of a node or a device, or with the advice to take one out."""
    blamed: set[str] = set()
    for document in standing(court):
        advice = (document.get("advice") or {}).get("action")
        if document["scope"] in ("node", "gpu") or advice in ("restart_without_node", "drain_after_job"):
            blamed |= {suspect["node"] for suspect in document["suspects"] if suspect["node"]}
    return blamed
