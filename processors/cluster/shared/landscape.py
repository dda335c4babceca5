"""What nodes have in common: where they stand, which versions they have and since when, how much they ask of services.

Rows of three tables; a working copy beside them. Bounded by the number of nodes and by what is kept of each.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from ...operator import Table
from .placements import Attempt, Value

MAX_NODES = 65_536
MAX_VERSIONS_PER_NODE = 64
MAX_SPELLS = 16
#: Of one service and operation: jobs on its servers that ever asked for much.
MAX_JOB_LOADS = 2_048
#: Services, by operation, whose servers count by job.
MAX_COUNTED = 1_024
#: Changes that are looked at; what a node has is known for longer.
CHANGES_KEPT_S = 3 * 86_400.0
CLOCK = "clock"
#: Everybody's, where no label says which.
ONE_FOR_ALL = {"storage": "the shared storage", "service": "the control services", "fabric": "the fabric"}
_SPATIAL = ("leaf", "spine", "rack", "pdu", "nvlink_domain", "cooling", "storage")
RAIL = "rail."


@dataclass(frozen=True, slots=True, kw_only=True)
class NodePlaces:
    """Where a node stands. labels: by attribute. refused: what could not be taken as the name of a place."""

    node: str
    labels: dict[str, str]
    refused: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeChange:
    """What was changed on a node, and when (Unix seconds). is_baseline: it was so at the first look.

    where: of several of one kind, "" the only one.
    """

    node: str
    what: str
    where: str
    new: str
    old: str
    time_s: float
    is_baseline: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ToldLoad:
    """What a node asks of a service, per second. usual: None not told. since_s, until_s: of a burst (Unix seconds).

    since_s None: of no burst. until_s None: it lasts. job: whose burst it is in the words of the server (``node``) that
    counts it, whole: what all jobs ask of it; "" where a client counts.
    """

    node: str
    service: str
    operation: str
    usual: float | None
    since_s: float | None
    until_s: float | None
    rate: float
    job: str = ""
    whole: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeVersion:
    """What a node has, since when (Unix seconds). is_baseline: it was there at the first look."""

    new: str
    time_s: float
    is_baseline: bool
    old: str

    def row(self) -> list[str | float]:
        """The entry that stands for it in the node's row."""
        return [self.new, self.time_s, self.is_baseline, self.old]


#: Begin, end (None: it lasts) and rate of a burst.
Spell = tuple[float, float | None, float]
#: The same, with the rate of all jobs on the server.
ServerSpell = tuple[float, float | None, float, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeLoad:
    """What a node asks of a service, per second. usual: None not told."""

    usual: float | None = None
    spells: tuple[Spell, ...] = ()

    def row(self) -> bytes:
        """The row of state that stands for it, as JSON."""
        return json.dumps({"usual": self.usual, "spells": self.spells}).encode()

    @classmethod
    def of_row(cls, usual: float | None, spells: Sequence[Spell]) -> NodeLoad:
        """What such a row holds by these names. Raises TypeError or ValueError for something else."""
        return cls(usual=usual, spells=tuple((since, until, rate) for since, until, rate in spells))


class Landscape:
    def __init__(self, labels: Table, versions: Table, loads: Table, job_loads: Table) -> None:
        self.tables = {"labels": labels, "versions": versions, "loads": loads, "job_loads": job_loads}
        self.labels: dict[str, dict[str, str]] = {node: json.loads(row) for node, row in labels.rows()}
        #: By node: by what and where.
        self.versions: dict[str, dict[str, NodeVersion]] = {
            node: {
                key: NodeVersion(new=str(new), time_s=float(time), is_baseline=is_baseline, old=old)
                for key, (new, time, is_baseline, old) in json.loads(row).items()
            }
            for node, row in versions.rows()
        }
        #: By service and operation: by node.
        self.loads: dict[str, dict[str, NodeLoad]] = {}
        for name, row in list(loads.rows()):
            key, node, told = *_key_and_node(name), json.loads(row)
            nodes = self.loads.setdefault(key, {})
            if node:
                nodes[node] = NodeLoad.of_row(**told)
                continue
            loads.delete(name)  # all in one row, as an earlier release has it
            for each, known in told.items():
                nodes[each] = NodeLoad.of_row(**known)
                loads.put(f"{key}\t{each}", nodes[each].row())
        #: By service and operation: by server and job, as the server names it.
        self.job_loads: dict[str, dict[tuple[str, str], tuple[ServerSpell, ...]]] = {}
        for name, row in job_loads.rows():
            service, operation, server, job = name.split("\t", 3)
            spells = tuple(
                (float(since), None if until is None else float(until), float(rate), float(whole))
                for since, until, rate, whole in json.loads(row)
            )
            self.job_loads.setdefault(f"{service}\t{operation}", {})[server, job] = spells
        self.values: dict[str, Counter[str]] = {}
        for found in self.labels.values():
            self._count(found, 1)
        self.generation = 0
        #: By node, when its clock was last stepped and by how much.
        self.clocks: dict[str, tuple[float, str]] = {}
        self._changes: list[tuple[float, str, str]] = []
        for node, known in self.versions.items():
            for key, version in known.items():
                self._note_change(node, key, version)
        self._changes.sort()

    def take_places(self, places: NodePlaces) -> None:
        """Keeps the places of a node, in place of those told before; a new node beyond MAX_NODES is passed over."""
        node, labels = places.node, places.labels
        before = self.labels.get(node)
        if before == labels or (before is None and len(self.labels) >= MAX_NODES):
            return
        self._count(before or {}, -1)
        self._count(labels, 1)
        self.labels[node] = labels
        self.tables["labels"].put(node, json.dumps(labels).encode())
        self.generation += 1

    def take_change(self, change: NodeChange) -> bool:
        """Keeps a version. Whether it is a change, and not what was there at the first look; False beyond MAX_NODES,
        too.
        """
        node = change.node
        if node not in self.versions and len(self.versions) >= MAX_NODES:
            return False
        versions = self.versions.setdefault(node, {})
        key = f"{change.what}\t{change.where}"
        versions.pop(key, None)
        versions[key] = NodeVersion(
            new=change.new, time_s=change.time_s, is_baseline=change.is_baseline, old=change.old
        )
        self._note_change(node, key, versions[key])
        while len(versions) > MAX_VERSIONS_PER_NODE:
            del versions[next(iter(versions))]
        rows = {name: version.row() for name, version in versions.items()}
        self.tables["versions"].put(node, json.dumps(rows).encode())
        return not change.is_baseline

    def take_load(self, load: ToldLoad) -> None:
        """Keeps what a node asks of a service, or that a burst of it has begun or ended; at most MAX_SPELLS bursts of
        each.
        """
        if load.job:
            self._take_job_load(load)
            return
        key, node = f"{load.service}\t{load.operation}", load.node
        nodes = self.loads.setdefault(key, {})
        if node not in nodes and len(nodes) >= MAX_NODES:
            return
        known = nodes.get(node, NodeLoad())
        spells = known.spells
        if load.since_s is not None:
            others = (spell for spell in spells if spell[0] != load.since_s)
            spells = (*others, (load.since_s, load.until_s, load.rate))[-MAX_SPELLS:]
        nodes[node] = NodeLoad(usual=known.usual if load.usual is None else load.usual, spells=spells)
        self.tables["loads"].put(f"{key}\t{node}", nodes[node].row())

    def _take_job_load(self, load: ToldLoad) -> None:
        key = f"{load.service}\t{load.operation}"
        if load.since_s is None or (key not in self.job_loads and len(self.job_loads) >= MAX_COUNTED):
            return
        jobs = self.job_loads.setdefault(key, {})
        spells = [spell for spell in jobs.get((load.node, load.job), ()) if spell[0] != load.since_s]
        spells.append((load.since_s, load.until_s, load.rate, load.whole))
        jobs.pop((load.node, load.job), None)
        jobs[load.node, load.job] = tuple(spells[-MAX_SPELLS:])
        row = json.dumps(jobs[load.node, load.job]).encode()
        self.tables["job_loads"].put(f"{key}\t{load.node}\t{load.job}", row)
        while len(jobs) > MAX_JOB_LOADS:
            server, job = next(iter(jobs))
            del jobs[server, job]
            self.tables["job_loads"].delete(f"{key}\t{server}\t{job}")

    def values_of(self, node: str) -> Iterator[Value]:
        """Every (attribute, value) that the node has: itself, its places, and what all nodes have in common."""
        yield "node", node
        labels = self.labels.get(node, {})
        for attribute in _SPATIAL:
            if attribute in labels:
                yield attribute, labels[attribute]
        for attribute, value in ONE_FOR_ALL.items():
            if attribute not in self.values:
                yield attribute, value
            elif attribute not in _SPATIAL and attribute in labels:
                yield attribute, labels[attribute]

    def rails(self) -> set[str]:
        """All rails on which ports of nodes stand."""
        return {rail for name, found in self.values.items() if name.startswith(RAIL) for rail in found}

    def services_of(self, server: str) -> set[str]:
        """Services of which the server has ever told who burdens them."""
        return {key.partition("\t")[0] for key, jobs in self.job_loads.items() if any(s == server for s, _ in jobs)}

    def counts(self, attempt: Attempt) -> Mapping[Value, int]:
        """How many of the attempt's nodes have each value, without the nodes themselves; kept in the attempt."""
        if attempt.counted != self.generation:
            found: Counter[Value] = Counter()
            for node in attempt.nodes:
                found.update(value for value in self.values_of(node) if value[0] != "node")
            attempt.counts, attempt.counted = dict(found), self.generation
        return attempt.counts

    def number_of_values(self, attribute: str, nodes: int) -> int:
        """How many values an attribute has in the fleet, at least 1. nodes: how many are known, for
        attribute "node".
        """
        if attribute == "node":
            return max(nodes, 1)
        return max(len(self.values.get(attribute, ())), 1)

    def changes(self, since: float) -> Iterator[tuple[str, str, str, float, str]]:
        """(node, what, new, time, old) of what was changed since ``since`` (Unix seconds), the latest taken first.

        Steps of clocks, and what was there at the first look, are left out.
        """
        for _, node, key in reversed(self._changes):
            version = self.versions.get(node, {}).get(key)
            if version is not None and not version.is_baseline and version.time_s >= since:
                yield node, key.partition("\t")[0], version.new, version.time_s, version.old

    def _note_change(self, node: str, key: str, version: NodeVersion) -> None:
        if key == f"{CLOCK}\t":
            self.clocks[node] = version.time_s, version.new
        elif not version.is_baseline:
            self._changes.append((version.time_s, node, key))
            while self._changes[0][0] < version.time_s - CHANGES_KEPT_S:
                del self._changes[0]

    def _count(self, labels: Mapping[str, str], by: int) -> None:
        for attribute, value in labels.items():
            counter = self.values.setdefault(attribute, Counter())
            counter[value] += by
            if counter[value] <= 0:
                del counter[value]
            if not counter:
                del self.values[attribute]


def _key_and_node(name: str) -> tuple[str, str]:
    """Service and operation, and the node, of a row of loads; no node: it holds all of them."""
    service, operation, *node = name.split("\t", 2)
    return f"{service}\t{operation}", "".join(node)
