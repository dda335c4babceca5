"""Two nodes and what is told of them: signals of collectors, in the kernel's and the logs' own words, and findings."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from signal import Signals
from typing import Any

from tests.processors.cluster.conftest import START_S, Court, make_finding
from tests.processors.endings import raised_fact, row_of
from tests.processors.entity.node import Node
from whichrank.agents.collectors.base.collector import Timestamps
from whichrank.agents.collectors.logs.job_log_events import JobLogEvents
from whichrank.agents.collectors.logs.job_logs import JobLogLine
from whichrank.agents.collectors.processes.job_process import JobProcess
from whichrank.diagnosis.scheduler_facts import facts_of_slurm_node
from whichrank.telemetry.evidence_facts import EvidenceFact, How
from whichrank.telemetry.records import Event, Finding, Identity, Point, Samples
from whichrank.telemetry.vocabulary import Bucket, EventName, Kind

SUSPECT = 2
BUS = "0000:0c:00"  # of its GPU
HANG, CRASH, NUMERIC = Bucket.COMMUNICATION_HANG, Bucket.IMMEDIATE_CRASH, Bucket.NUMERIC
Measure = tuple[str, Mapping[str, str]]  # a metric, and attributes of its points
Signal = tuple[str, Event | Samples | Finding]  # the node that tells it; "" of findings


class Stage:
    """Two nodes of four ranks each; rank R has GPU-R."""

    def __init__(self) -> None:
        self.court = Court()
        self.nodes = {"n1": Node("n1", self.court), "n2": Node("n2", self.court)}
        for rank in range(8):
            self.nodes["n1" if rank < 4 else "n2"].rank(rank, f"GPU-{rank}", pid=100 + rank)
        for node in self.nodes.values():
            for name, device, value, where in _AT_FIRST:
                node.take(_samples(node.name, name, device, value, where, -60.0))

    def hear(self, signal: Signal) -> None:
        node, payload = signal
        if isinstance(payload, Finding):
            self.court.hear(payload)
        else:
            self.nodes[node].take(payload)


#: What was measured before anything happened.
ECC: Measure = ("whichrank.gpu.ecc.errors", {"error.type": "uncorrected", "whichrank.gpu.since": "driver_load"})
PORT_UP: Measure = ("hw.network.up", {})
SHM: Measure = ("whichrank.shared_memory.utilization", {})
_AT_FIRST = [(ECC[0], "GPU-2", 0.0, ECC[1]), (PORT_UP[0], "mlx5_0/1", 1.0, PORT_UP[1])]


def _samples(node: str, name: str, device: str, value: float, where: Mapping[str, str], at: float) -> Samples:
    time_ns = round((START_S + at) * 1e9)
    point = Point(name=name, value=value, attributes={"hw.id": device, **where}, time_ns=time_ns)
    return Samples(identity=Identity(cluster="local", node=node), points=(point,))


Teller = Callable[[Stage], Iterator[Signal]]


def kernel(text: str, at: float, node: str = "n1") -> Teller:
    return lambda stage: ((node, event) for event in stage.nodes[node].read(text, at=at))


def xid(code: int, words: str, at: float, bus: str = BUS, node: str = "n1", pid: int = 100 + SUSPECT) -> Teller:
    who = "pid='<unknown>', name=<unknown>" if code == 79 else f"pid={pid}, name=python3"
    return kernel(f"NVRM: Xid (PCI:{bus}): {code}, {who}, {words}", at, node)


def event(name: EventName, at: float, node: str = "n1", /, **found: Any) -> Teller:
    who = Identity(cluster="local", node=node)
    told = Event(name=name, identity=who, time_ns=round((START_S + at) * 1e9), attributes=found)
    return lambda stage: iter([(node, told)])


def driver(word: str, at: float, code: str = "") -> Teller:
    found = {"gpu_uuid": f"GPU-{SUSPECT}", "pci_bus": "00000000:0C:00.0", **({"code": code} if code else {})}
    return event(EventName.DEVICE_EVENT, at, event=word, **found)


def measured(what: Measure, device: str, value: float, at: float, node: str = "n1") -> Teller:
    return lambda stage: iter([(node, _samples(node, what[0], device, value, what[1], at))])


def said(rank: int, text: str, at: float) -> Teller:
    """A line of a rank's log, as the collector of logs understands it."""
    node = "n1" if rank < 4 else "n2"
    process = JobProcess(pid=100 + rank, job="j", rank=rank)
    moment = Timestamps(wall_ns=round((START_S + at) * 1e9), mono_ns=1)
    line = JobLogLine(process=process, path="/log", descriptor=2, text=text, look_back=False)
    reader = JobLogEvents(lambda: [process], node=node)
    (told,) = [*reader([line], moment), *reader.flush(moment)]
    who = Identity(cluster="local", job="j", attempt="a1", node=node, rank=rank)
    found = {**told.attributes, "pid": told.pid}
    return lambda stage: iter([(node, Event(name=told.name, identity=who, time_ns=told.time_ns, attributes=found))])


def slurm(what: str, at: float, node: str, /, **values: Any) -> Teller:
    return event(EventName.SCHEDULER, at, node, scheduler="slurm", what=what, job="", over=False, **values)


def slurm_node(state: str, reason: str, at: float, *, since: float, node: str) -> list[Teller]:
    """As ``scontrol show node`` says it; since: as Slurm says it."""
    text = f"NodeName={node} State={state} Reason={reason} [slurm@{START_S + since:.0f}]\n"
    return [slurm(fact.what, at, node, **fact.values) for fact in facts_of_slurm_node(text)]


def rank_ends(fact: EvidenceFact, *, signal: str, kind: Kind, rank: int | None = SUSPECT, **body: Any) -> Teller:
    evidence = [row_of(signal, f"rank {rank}" if rank is not None else "job j", START_S, fact)]
    finding = make_finding(kind, rank, at=0.3, onset=0.0, evidence=evidence, **body)
    return lambda stage: iter([("", finding)])


def raised(words: str) -> Teller:
    """A path may hold any word."""
    fact = raised_fact(words, rank=SUSPECT, file="/data/disk/nccl_gpu/train.py", line=88, step=30, phase="backward")
    return rank_ends(fact, signal="rank.exception", kind=Kind.RANK_RAISED)


def later(teller: Teller, by_s: float) -> Teller:
    """The same, so much later."""

    def tell(stage: Stage) -> Iterator[Signal]:
        for node, payload in teller(stage):
            assert isinstance(payload, Finding)
            times = {name: time + by_s for name, time in payload.body["times"].items()}
            body = {**payload.body, "times": times}
            yield node, replace(payload, time_ns=payload.time_ns + round(by_s * 1e9), body=body)

    return tell


def ended_by(signal: str) -> Teller:
    fact = EvidenceFact(how=How.SIGNAL, rank=SUSPECT, signal=Signals[signal], step=30, phase="data")
    return rank_ends(fact, signal="rank.exit", kind=Kind.RANK_DIED)


def only_victims() -> Teller:
    error = raised_fact("DistBackendError: NCCL error: remote process exited or network error", rank=0)
    fact = EvidenceFact(how=How.VICTIMS, ranks="0", endings=(error,))
    return rank_ends(fact, signal="rank.exit", kind=Kind.RANK_DIED, rank=None, scope="job")


def stuck(rank: int | None = SUSPECT, kind: Kind = Kind.RANK_NOT_ENTERED, **body: Any) -> Teller:
    return lambda stage: iter([("", make_finding(kind, rank, at=4.0, onset=0.0, **body))])


def numbers(kind: Kind, rank: int | None) -> Teller:
    return lambda stage: iter([("", make_finding(kind, rank, at=0.5, onset=0.0))])


def node_gone() -> Teller:
    suspect = {"scope": "node", "id": "n2", "rank": None, "ranks": "4-7", "node": "n2", "probability": 0.95}
    body: dict[str, Any] = {"suspects": [suspect], "scope": "node", "bucket": CRASH.value}
    return lambda stage: iter([("", make_finding(Kind.NODE_LOST, None, at=4.0, onset=0.0, **body))])
