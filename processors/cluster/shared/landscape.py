"""What nodes have in common: where they stand, which versions they have and since when, how much they ask of services.

Rows of three tables; a working copy beside them. Bounded by the number of nodes and by what is kept of each.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from ...operator import Table
from .placements import Attempt, Value

MAX_NODES = 65_536
MAX_VERSIONS_PER_NODE = 64
MAX_SPELLS = 16
#: Changes that are looked at; what a node has is known for longer.
CHANGES_KEPT_S = 3 * 86_400.0
CLOCK = "clock"
#: Everybody's, where no label says which.
ONE_FOR_ALL = {"storage": "the shared storage", "service": "the control services", "fabric": "the fabric"}
_SPATIAL = ("leaf", "spine", "rack", "pdu", "storage")


class Landscape:
    def __init__(self, labels: Table, versions: Table, loads: Table) -> None:
        self.tables = {"labels": labels, "versions": versions, "loads": loads}
        self.labels: dict[str, dict[str, str]] = {node: json.loads(row) for node, row in labels.rows()}
        #: By node: by what and where, [new, time, was it there at the first look, old].
        self.versions: dict[str, dict[str, list[Any]]] = {node: json.loads(row) for node, row in versions.rows()}
        #: By service and operation: by node, {usual, spells: [[since, until, rate], ...]}.
        self.loads: dict[str, dict[str, dict[str, Any]]] = {key: json.loads(row) for key, row in loads.rows()}
        self.values: dict[str, Counter[str]] = {}
        for found in self.labels.values():
            self._count(found, 1)
        self.generation = 0
        #: By node, when its clock was last stepped and by how much.
        self.clocks: dict[str, tuple[float, str]] = {}
        self._changes: list[tuple[float, str, str]] = []
        for node, known in self.versions.items():
            for key, (new, time, is_baseline, _) in known.items():
                self._note_change(node, key, str(new), float(time), is_baseline=is_baseline)
        self._changes.sort()

    def take_topology(self, body: Mapping[str, Any]) -> None:
        node = str(body["entity"])
        labels = {str(k): str(v) for k, v in body["labels"].items()}
        before = self.labels.get(node)
        if before == labels or (before is None and len(self.labels) >= MAX_NODES):
            return
        self._count(before or {}, -1)
        self._count(labels, 1)
        self.labels[node] = labels
        self.tables["labels"].put(node, json.dumps(labels).encode())
        self.generation += 1

    def take_change(self, body: Mapping[str, Any]) -> bool:
        """Whether it is a change, and not what was there at the first look."""
        node = str(body["entity"])
        if node not in self.versions and len(self.versions) >= MAX_NODES:
            return False
        versions = self.versions.setdefault(node, {})
        key = f"{body['what']}\t{body.get('where') or ''}"
        versions.pop(key, None)
        versions[key] = [str(body["new"]), float(body["time"]), bool(body.get("baseline")), str(body.get("old") or "")]
        self._note_change(node, key, str(body["new"]), float(body["time"]), is_baseline=bool(body.get("baseline")))
        while len(versions) > MAX_VERSIONS_PER_NODE:
            del versions[next(iter(versions))]
        self.tables["versions"].put(node, json.dumps(versions).encode())
        return not body.get("baseline")

    def take_load(self, body: Mapping[str, Any]) -> None:
        key = f"{body['service']}\t{body['operation']}"
        nodes = self.loads.setdefault(key, {})
        node = str(body["entity"])
        if node not in nodes and len(nodes) >= MAX_NODES:
            return
        known = nodes.setdefault(node, {"usual": None, "spells": []})
        if body.get("usual") is not None:
            known["usual"] = float(body["usual"])
        if body.get("since") is not None:
            spell = [float(body["since"]), body.get("until"), float(body["rate"])]
            known["spells"] = [*(s for s in known["spells"] if s[0] != spell[0]), spell][-MAX_SPELLS:]
        self.tables["loads"].put(key, json.dumps(nodes).encode())

    def values_of(self, node: str) -> Iterator[Value]:
        """Every value that the node has."""
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

    def counts(self, attempt: Attempt) -> Mapping[Value, int]:
        """How many of its nodes have each value."""
        if attempt.counted != self.generation:
            found: Counter[Value] = Counter()
            for node in attempt.nodes:
                found.update(value for value in self.values_of(node) if value[0] != "node")
            attempt.counts, attempt.counted = dict(found), self.generation
        return attempt.counts

    def number_of_values(self, attribute: str, nodes: int) -> int:
        if attribute == "node":
            return max(nodes, 1)
        return max(len(self.values.get(attribute, ())), 1)

    def changes(self, since: float) -> Iterator[tuple[str, str, str, float, str]]:
        """(node, what, new, time, old) of what was changed since then; steps of a clock are none."""
        for _, node, key in reversed(self._changes):
            new, time, is_baseline, old = self.versions.get(node, {}).get(key, ("", 0.0, True, ""))
            if not is_baseline and time >= since:
                yield node, key.partition("\t")[0], new, time, old

    def _note_change(self, node: str, key: str, new: str, time: float, *, is_baseline: bool) -> None:
        if key == f"{CLOCK}\t":
            self.clocks[node] = time, new
        elif not is_baseline:
            self._changes.append((time, node, key))
            while self._changes[0][0] < time - CHANGES_KEPT_S:
                del self._changes[0]

    def _count(self, labels: Mapping[str, str], by: int) -> None:
        for attribute, value in labels.items():
            counter = self.values.setdefault(attribute, Counter())
            counter[value] += by
            if counter[value] <= 0:
                del counter[value]
            if not counter:
                del self.values[attribute]
