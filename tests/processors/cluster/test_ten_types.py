"""The ten failure types of large jobs, each with its neighbours: signals -> bucket, kind, scope, cause, what to do.

A story is what collectors and JobOperator tell of one failure, the kernel in its own words. The last word on it is the
same in whatever order its signals come.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from io import BytesIO
from typing import Any

import pytest

from tests.processors.cluster.conftest import START_S, Court, make_finding
from tests.processors.entity.node import Node
from whichrank.diagnosis.job_log.reader import Source, read_job_logs
from whichrank.telemetry.records import Event, Finding, Identity, Point, Samples
from whichrank.telemetry.vocabulary import Action, Bucket, EventName, Kind, Scope

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
_ECC: Measure = ("whichrank.gpu.ecc.errors", {"error.type": "uncorrected", "whichrank.gpu.since": "driver_load"})
_PORT_UP: Measure = ("hw.network.up", {})
_SHM: Measure = ("whichrank.shared_memory.utilization", {})
_AT_FIRST = [(_ECC[0], "GPU-2", 0.0, _ECC[1]), (_PORT_UP[0], "mlx5_0/1", 1.0, _PORT_UP[1])]


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


def event(name: EventName, at: float, node: str = "n1", **found: Any) -> Teller:
    who = Identity(cluster="local", node=node)
    told = Event(name=name, identity=who, time_ns=round((START_S + at) * 1e9), attributes=found)
    return lambda stage: iter([(node, told)])


def driver(word: str, at: float, code: str = "") -> Teller:
    found = {"gpu_uuid": f"GPU-{SUSPECT}", "pci_bus": "00000000:0C:00.0", **({"code": code} if code else {})}
    return event(EventName.DEVICE_EVENT, at, event=word, **found)


def measured(what: Measure, device: str, value: float, at: float, node: str = "n1") -> Teller:
    return lambda stage: iter([(node, _samples(node, what[0], device, value, what[1], at))])


def rank_ends(shows: str, *, signal: str, kind: Kind, rank: int | None = SUSPECT, **body: Any) -> Teller:
    who = f"rank {rank}" if rank is not None else "job j"
    evidence = [{"signal": signal, "source": who, "time": START_S, "value": None, "shows": shows}]
    finding = make_finding(kind, rank, at=0.3, onset=0.0, evidence=evidence, **body)
    return lambda stage: iter([("", finding)])


def raised(words: str) -> Teller:
    shows = f"rank {SUSPECT} raised {words} at /data/disk/nccl_gpu/train.py:88 in step 30, phase backward"
    return rank_ends(shows, signal="rank.exception", kind=Kind.RANK_RAISED)


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
    shows = f"rank {SUSPECT} was ended by {signal} in step 30, phase data, before ranks 0-1 failed"
    return rank_ends(shows, signal="rank.exit", kind=Kind.RANK_DIED)


def only_victims() -> Teller:
    shows = "only victims' errors: rank 0 raised DistBackendError: NCCL error: remote process exited or network error"
    return rank_ends(shows, signal="rank.exit", kind=Kind.RANK_DIED, rank=None, scope="job")


def stuck(rank: int | None = SUSPECT, kind: Kind = Kind.RANK_NOT_ENTERED, **body: Any) -> Teller:
    return lambda stage: iter([("", make_finding(kind, rank, at=4.0, onset=0.0, **body))])


def numbers(kind: Kind, rank: int | None) -> Teller:
    return lambda stage: iter([("", make_finding(kind, rank, at=0.5, onset=0.0))])


def node_gone() -> Teller:
    suspect = {"scope": "node", "id": "n2", "rank": None, "ranks": "4-7", "node": "n2", "probability": 0.95}
    body: dict[str, Any] = {"suspects": [suspect], "scope": "node", "bucket": CRASH.value}
    return lambda stage: iter([("", make_finding(Kind.NODE_LOST, None, at=4.0, onset=0.0, **body))])


@dataclass(frozen=True, slots=True, kw_only=True)
class Story:
    """cause: the condition, "" none. device, entity: of the cause; device "" any."""

    name: str
    signals: tuple[Teller, ...]
    bucket: Bucket
    kind: Kind
    scope: Scope
    cause: str = ""
    device: str = ""
    entity: str = "n1"
    action: Action | None = None


_CUDA_ECC = "RuntimeError: CUDA error: uncorrectable ECC error encountered"
_ILLEGAL = "AcceleratorError: CUDA error: an illegal memory access was encountered"
_UNHANDLED = "DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:3356, unhandled cuda error, NCCL version 2.21.5"
_REMOTE = (
    "DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:3356, remote process exited or there was a network error"
)
_SYSTEM = "DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:3356, unhandled system error, NCCL version 2.21.5"
_MMU = "Ch 00000010, intr 00000000. MMU Fault: ENGINE GRAPHICS GPC3 GPCCLIENT_T1_3 faulted @ 0x7f21_e4000000."
_DBE = "DBE (double bit error) ECC Error: An uncorrectable double bit error (DBE) has been detected on GPU"
_CONTAINED = "Contained: SM (0x1). RST: No, D-RST: No"
_UNCONTAINED = "Uncontained: LTC TAG (0x2,0x0). RST: Yes, D-RST: No"
_CARD = "mlx5_core 0000:9f:00.0: poll_health:843:(pid 0): device's health compromised - reached miss count"
_PORT_DOWN = "mlx5_core 0000:9f:00.0 ens11f0np0: Link down"
_PORT_IS_UP = "mlx5_core 0000:9f:00.0 ens11f0np0: Link up"
_OFF = (
    xid(79, "GPU has fallen off the bus.", -0.8),
    kernel(f"NVRM: GPU {BUS}.0: GPU has fallen off the bus.", -0.8),
    driver("gpu_lost", -0.2),
)
_ON_CODE = Story(name="", signals=(), bucket=CRASH, kind=Kind.RANK_RAISED, scope=Scope.RANK)
_KILLED = replace(_ON_CODE, kind=Kind.RANK_DIED)
_WITHOUT_NODE = Action.RESTART_WITHOUT_NODE

STORIES = (
    # 1. Transformer Engine's user buffers: their time-out is in the rank's log (see the end of this file).
    replace(_ON_CODE, name="user buffers time out", signals=(stuck(),), bucket=HANG, kind=Kind.RANK_NOT_ENTERED),
    # 2. GPU off the bus
    Story(
        name="GPU off the bus, the rank hangs",
        signals=(*_OFF, stuck()),
        bucket=HANG,
        kind=Kind.RANK_NOT_ENTERED,
        scope=Scope.GPU,
        cause="xid_79",
        device="GPU-2",
        action=_WITHOUT_NODE,
    ),
    Story(
        name="GPU off the bus, the rank fails",
        signals=(*_OFF, raised("RuntimeError: CUDA error: unspecified launch failure")),
        bucket=CRASH,
        kind=Kind.RANK_RAISED,
        scope=Scope.GPU,
        cause="xid_79",
        device="GPU-2",
        action=_WITHOUT_NODE,
    ),
    replace(
        _ON_CODE,
        name="GPU off the bus, of another rank's on another node",
        signals=(xid(79, "GPU has fallen off the bus.", -0.8, bus="0000:10:00", node="n2"), stuck()),
        bucket=HANG,
        kind=Kind.RANK_NOT_ENTERED,
    ),
    # 3. uncorrectable ECC
    Story(
        name="uncorrectable ECC",
        signals=(
            xid(48, _DBE, -0.5),
            xid(63, "Row Remapper: New row marked for remapping, reset gpu to activate.", -0.4),
            xid(45, "Ch 00000008", 0.6),
            driver("ecc_uncorrected", -0.3),
            raised(_CUDA_ECC),
        ),
        bucket=CRASH,
        kind=Kind.RANK_RAISED,
        scope=Scope.GPU,
        cause="xid_48",
        device="GPU-2",
        action=_WITHOUT_NODE,
    ),
    Story(
        name="uncorrectable ECC, contained: the device goes on after a restart",
        signals=(
            xid(94, _CONTAINED, -0.5),
            driver("xid", -0.4, "94"),
            raised(_CUDA_ECC),
        ),
        bucket=CRASH,
        kind=Kind.RANK_RAISED,
        scope=Scope.GPU,
        cause="xid_94",
        device="GPU-2",
        action=Action.RESTART,
    ),
    # 4. node failure, as Slurm sees it
    Story(
        name="node lost, its kernel panicked",
        signals=(kernel("Kernel panic - not syncing: Fatal hardware error!", -0.5, "n2"), node_gone()),
        bucket=CRASH,
        kind=Kind.NODE_LOST,
        scope=Scope.NODE,
        cause="kernel_panic",
        entity="n2",
        action=_WITHOUT_NODE,
    ),
    Story(name="node lost without a word", signals=(node_gone(),), bucket=CRASH, kind=Kind.NODE_LOST, scope=Scope.NODE),
    Story(
        name="node lost, and trouble on one that stays",
        signals=(xid(79, "GPU has fallen off the bus.", -0.5), node_gone()),
        bucket=CRASH,
        kind=Kind.NODE_LOST,
        scope=Scope.NODE,
    ),
    # 5. bus error
    Story(
        name="bus error, the file system does not answer",
        signals=(
            kernel("nfs: server nas1 not responding, still trying", -20.0),
            event(EventName.PROBE_LATE, -1.0, mount="/data", operation="stat", age_s=18.0),
            ended_by("SIGBUS"),
        ),
        bucket=CRASH,
        kind=Kind.RANK_DIED,
        scope=Scope.STORAGE,
        cause="nfs_not_responding",
        device="nas1",
        action=Action.WAIT,
    ),
    Story(
        name="bus error, the host's memory is broken",
        signals=(
            kernel("Memory failure: 0x3f1a2: Sending SIGBUS to python3:102 due to hardware memory corruption", -0.1),
            ended_by("SIGBUS"),
        ),
        bucket=CRASH,
        kind=Kind.RANK_DIED,
        scope=Scope.NODE,
        cause="memory_failure",
        action=_WITHOUT_NODE,
    ),
    Story(
        name="bus error, /dev/shm is full",
        signals=(measured(_SHM, "", 0.99, -4.0), ended_by("SIGBUS")),
        bucket=CRASH,
        kind=Kind.RANK_DIED,
        scope=Scope.NODE,
        cause="shared_memory_full",
        action=Action.RAISE_QUOTA,
    ),
    replace(_KILLED, name="bus error of the program", signals=(ended_by("SIGBUS"),)),
    replace(
        _KILLED,
        name="killed by a person while a file system does not answer",
        signals=(kernel("nfs: server nas1 not responding, still trying", -20.0), ended_by("SIGKILL")),
    ),
    replace(
        _KILLED,
        name="bus error, long after a file system did not answer",
        signals=(
            kernel("nfs: server nas1 not responding, still trying", -300.0),
            kernel("nfs: server nas1 OK", -290.0),
            ended_by("SIGBUS"),
        ),
    ),
    replace(
        _ON_CODE,
        name="a mistake in the program while /dev/shm is full",
        signals=(
            measured(_SHM, "", 0.99, -4.0),
            raised("KeyError: 'input_ids'"),
        ),
    ),
    # 6. unhandled CUDA error that surfaces in NCCL
    Story(
        name="CUDA error in NCCL, the GPU's firmware does not answer",
        signals=(xid(119, "Timeout after 6s of waiting for RPC response from GPU2 GSP!", 2.0), raised(_UNHANDLED)),
        bucket=CRASH,
        kind=Kind.RANK_RAISED,
        scope=Scope.GPU,
        cause="xid_119",
        device="GPU-2",
        action=_WITHOUT_NODE,
    ),
    Story(
        name="CUDA error in NCCL, of the program",
        signals=(xid(31, _MMU, -0.2), xid(45, "Ch 00000011", 0.4), raised(_UNHANDLED)),
        bucket=CRASH,
        kind=Kind.RANK_RAISED,
        scope=Scope.APPLICATION,
        cause="xid_31",
        device="GPU-2",
        action=Action.FIX_CODE,
    ),
    replace(_ON_CODE, name="CUDA error in NCCL, of which nobody knows", signals=(raised(_UNHANDLED),)),
    # 7. network error that surfaces in NCCL
    Story(
        name="network error in NCCL, its own port is down",
        signals=(kernel(_PORT_DOWN, -8.0), measured(_PORT_UP, "mlx5_0/1", 0.0, -3.0), raised(_REMOTE)),
        bucket=CRASH,
        kind=Kind.RANK_RAISED,
        scope=Scope.LINK,
        cause="port_down",
        action=Action.REPLACE_LINK,
    ),
    Story(
        name="network error in NCCL on all ranks, the port of the other node is down",
        signals=(kernel(_PORT_DOWN, -8.0, "n2"), only_victims()),
        bucket=CRASH,
        kind=Kind.RANK_DIED,
        scope=Scope.LINK,
        cause="link_down",
        entity="n2",
        action=Action.REPLACE_LINK,
    ),
    replace(
        _ON_CODE,
        name="network error in NCCL, no port has told anything",
        signals=(raised(_REMOTE),),
    ),
    replace(
        _ON_CODE,
        name="network error in NCCL, its port has come back minutes before",
        signals=(kernel(_PORT_DOWN, -300.0), kernel(_PORT_IS_UP, -299.0), raised(_REMOTE)),
    ),
    replace(
        _ON_CODE,
        name="a mistake in the program while a port is down",
        signals=(kernel(_PORT_DOWN, -8.0), raised("KeyError: 'input_ids'")),
    ),
    replace(
        _ON_CODE,
        name="network error in NCCL, one of its ports is down since an hour",
        signals=(measured(_PORT_UP, "mlx5_0/1", 0.0, -58.0), later(raised(_REMOTE), 3600.0)),
    ),
    # 8. NCCL system error
    Story(
        name="NCCL system error, connections are not tracked any more",
        signals=(kernel("nf_conntrack: nf_conntrack: table full, dropping packet", -5.0), raised(_SYSTEM)),
        bucket=CRASH,
        kind=Kind.RANK_RAISED,
        scope=Scope.NODE,
        cause="conntrack_table_full",
        action=Action.RAISE_QUOTA,
    ),
    Story(
        name="NCCL system error, no file descriptors are left",
        signals=(kernel("VFS: file-max limit 1048576 reached", -1.0), raised(_SYSTEM)),
        bucket=CRASH,
        kind=Kind.RANK_RAISED,
        scope=Scope.NODE,
        cause="vfs_file_max_limit_reached",
        action=Action.RAISE_QUOTA,
    ),
    Story(
        name="NCCL system error, the card's firmware has died",
        signals=(
            kernel(
                "mlx5_core 0000:9f:00.0: poll_health:843:(pid 0): device's health compromised - reached miss count", -2
            ),
            raised(_SYSTEM),
        ),
        bucket=CRASH,
        kind=Kind.RANK_RAISED,
        scope=Scope.LINK,
        cause="nic_health_compromised",
        action=_WITHOUT_NODE,
    ),
    replace(_ON_CODE, name="NCCL system error, of which nobody knows", signals=(raised(_SYSTEM),)),
    # 9. illegal memory access
    Story(
        name="illegal memory access",
        signals=(
            xid(31, _MMU, -0.2),
            xid(43, "Ch 00000010", -0.1),
            xid(45, "Ch 00000011", 0.5),
            driver("xid", -0.1, "31"),
            raised(_ILLEGAL),
        ),
        bucket=CRASH,
        kind=Kind.RANK_RAISED,
        scope=Scope.APPLICATION,
        cause="xid_31",
        device="GPU-2",
        action=Action.FIX_CODE,
    ),
    Story(
        name="illegal memory access, because of memory that is broken",
        signals=(xid(31, _MMU, -0.2), xid(94, _CONTAINED, -0.3), raised(_ILLEGAL)),
        bucket=CRASH,
        kind=Kind.RANK_RAISED,
        scope=Scope.GPU,
        cause="xid_94",
        device="GPU-2",
        action=Action.RESTART,
    ),
    replace(
        _ON_CODE,
        name="a mistake in the program, and the clean-up of its GPU",
        signals=(raised("KeyError: 'input_ids'"), xid(45, "Ch 00000011", 0.5)),
    ),
    # 10. NaN in gradients
    Story(
        name="NaN on one rank first, its GPU's memory has failed",
        signals=(measured(_ECC, "GPU-2", 1.0, -4.0), numbers(Kind.NUMERIC_FIRST_RANK, SUSPECT)),
        bucket=NUMERIC,
        kind=Kind.NUMERIC_FIRST_RANK,
        scope=Scope.GPU,
        cause="gpu_memory_error",
        device="GPU-2",
        action=_WITHOUT_NODE,
    ),
    Story(
        name="NaN on one rank first, the kernel tells of its GPU's memory",
        signals=(
            xid(95, _UNCONTAINED, -2.0),
            numbers(Kind.NUMERIC_FIRST_RANK, 2),
        ),
        bucket=NUMERIC,
        kind=Kind.NUMERIC_FIRST_RANK,
        scope=Scope.GPU,
        cause="xid_95",
        device="GPU-2",
        action=_WITHOUT_NODE,
    ),
    Story(
        name="NaN on one rank first, another's GPU's memory has failed",
        signals=(
            xid(95, _UNCONTAINED, -2.0, bus="0000:0d:00", pid=103),
            numbers(Kind.NUMERIC_FIRST_RANK, SUSPECT),
        ),
        bucket=NUMERIC,
        kind=Kind.NUMERIC_FIRST_RANK,
        scope=Scope.RANK,
    ),
    Story(
        name="NaN on all ranks at once, all GPUs are well",
        signals=(numbers(Kind.NUMERIC_ALL, None), xid(31, _MMU, -1.0)),
        bucket=NUMERIC,
        kind=Kind.NUMERIC_ALL,
        scope=Scope.RANK,
    ),
)


def in_turn(signals: Sequence[Signal], choose: Callable[[int], int]) -> Iterator[Signal]:
    """Each source tells in its own order; which of them is heard next ``choose(how many)`` says."""
    sources: dict[tuple[str, str], list[Signal]] = {}
    for node, payload in signals:
        what = payload.name.value if isinstance(payload, Event) else type(payload).__name__
        sources.setdefault((node, what), []).append((node, payload))
    left = list(sources.values())
    while left:
        source = left[choose(len(left))]
        yield source.pop(0)
        left = [source for source in left if source]


def last_word(story: Story, choose: Callable[[int], int]) -> dict[str, Any]:
    stage = Stage()
    for signal in in_turn([signal for teller in story.signals for signal in teller(stage)], choose):
        stage.hear(signal)
    (document,) = stage.court.pages
    return {name: value for name, value in document.items() if name not in ("revision", "change")}


def first(sources: int) -> int:
    return 0


def last(sources: int) -> int:
    return sources - 1


@pytest.mark.parametrize("story", STORIES, ids=lambda story: story.name)
def test_each_type_is_told_apart_from_its_neighbours(story: Story) -> None:
    document = last_word(story, first)
    cause = document.get("cause") or {}
    assert (cause.get("condition", ""), document["scope"]) == (story.cause, story.scope.value)
    assert (document["bucket"], document["kind"]) == (story.bucket.value, story.kind.value)
    assert (document.get("advice") or {}).get("action") == (story.action.value if story.action else None)
    if story.cause:
        assert cause["entity"] == story.entity
        assert story.device in ("", cause["device"])
        assert [row for row in document["evidence"] if row.get("condition") == story.cause]
    else:
        assert not [row for row in document["evidence"] if "condition" in row]


@pytest.mark.parametrize("story", [story for story in STORIES if len(story.signals) > 1], ids=lambda story: story.name)
def test_the_last_word_is_the_same_in_whatever_order_the_signals_come(story: Story) -> None:
    words = last_word(story, first)
    assert last_word(story, last) == words
    for seed in range(6):
        assert last_word(story, random.Random(seed).randrange) == words


def test_the_user_buffers_line_has_a_class_of_its_own() -> None:
    """A line of that kind is ``EventName.JOB_LOG`` with this class: what makes a condition of it needs no more."""
    line = b"2026-05-04 11:07:31 [rank1]: UB_TIMEOUT: SM 3 [1]:expecting 214 got 213\n"
    (episode,) = read_job_logs([Source(name="rank_1.log", file=BytesIO(line * 3), rank=1)]).episodes
    assert {group.first.failure.name for group in episode.groups} == {"user_buffer_timeout"}
