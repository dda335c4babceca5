"""Where this node stands (rack, leaf, spine, rail, power), told at the start, on change and once an hour.

Runs in a thread. Sources, of which a later one fills in what an earlier one does not say: a table of the site's own,
Slurm's topology.conf, the node's Kubernetes labels.
"""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Callable, Mapping, Sequence

from ....diagnosis.scheduler_facts import parse_downward_api
from ....diagnosis.topology import (
    TopologyError,
    from_kubernetes_labels,
    parse_label_list,
    parse_topology,
    place_of,
)
from ....telemetry.vocabulary import EventName
from ..base.collector import Collected, NodeEvent, Timestamps
from ..base.kernel_files import read_text

#: A longer file would be cut while it is read, and half a table is no table.
_MAX_FILE_BYTES = 64 << 20
_TOLD_AGAIN_NS = 3600 * 1_000_000_000

Labels = Mapping[str, str]


class TopologyCollector:
    """table_file: the site's own, "" none. labels_file: labels of the node, as the downward API or kubectl (-o json)
    writes them, "" none. labels: the same as one text, "KEY=VALUE,...". slurm_file: read if it is
    there. node_names: further names of this node.
    """

    name = "topology"

    def __init__(
        self,
        *,
        table_file: str = "",
        labels_file: str = "",
        labels: str = "",
        slurm_file: str = "/etc/slurm/topology.conf",
        node_names: Sequence[str] = (),
        period_s: float = 60.0,
    ) -> None:
        self.period_s = period_s
        self._labels_given = from_kubernetes_labels(parse_label_list(labels))
        self._names = [*node_names, socket.gethostname()]
        self._sources: list[tuple[str, Callable[[str], Labels], bool]] = [
            (table_file, lambda text: self._place(text, table_file), True),
            (slurm_file, lambda text: self._place(text, "topology.conf"), False),
            (labels_file, _kubernetes_labels, True),
        ]
        #: Path -> (size, time of change), and what was read of it then.
        self._read: dict[str, tuple[tuple[int, int], Labels]] = {}
        self._told: Labels = {}
        self._told_ns = 0

    def collect(self, now: Timestamps) -> Collected:
        """A NODE_TOPOLOGY event with the node's place by level; none if unchanged and told within the hour.

        Of several sources the first that has a level counts.
        """
        problems: list[str] = []
        found: dict[str, str] = {}
        for path, parse, is_wanted in self._sources:
            if path:
                for level, value in self._labels(path, parse, is_wanted, problems).items():
                    found.setdefault(level, value)
        for level, value in self._labels_given.items():
            found.setdefault(level, value)
        is_news = found != self._told or now.mono_ns - self._told_ns >= _TOLD_AGAIN_NS
        if not is_news or not (found or self._told):
            return Collected(problems=problems)
        self._told, self._told_ns = found, now.mono_ns
        place = NodeEvent(name=EventName.NODE_TOPOLOGY, time_ns=now.wall_ns, mono_ns=now.mono_ns, attributes=found)
        return Collected(happenings=(place,), problems=problems)

    def close(self) -> None:
        """Does nothing: nothing is kept open."""
        return

    def _labels(self, path: str, parse: Callable[[str], Labels], is_wanted: bool, problems: list[str]) -> Labels:
        """Of one source; a file that can no longer be read keeps what it said last."""
        try:
            status = os.stat(path)
        except OSError as error:
            if is_wanted:
                problems.append(f"{path}: {error.strerror}; it is to say where nodes stand")
            return self._read.get(path, ((0, 0), {}))[1] if is_wanted else {}
        stamp = status.st_size, status.st_mtime_ns
        before = self._read.get(path)
        if before is not None and before[0] == stamp:
            return before[1]
        labels: Labels = before[1] if before is not None else {}
        if status.st_size > _MAX_FILE_BYTES:
            problems.append(f"{path}: longer than {_MAX_FILE_BYTES >> 20} MiB; it is not read")
        else:
            try:
                labels = parse(read_text(path, _MAX_FILE_BYTES) or "")
                if not labels and is_wanted:
                    problems.append(f"{path}: says nothing of this node ({', '.join(self._names)})")
            except TopologyError as error:
                problems.append(str(error) if str(error).startswith(path) else f"{path}: {error}")
        self._read[path] = stamp, labels
        return labels

    def _place(self, text: str, name: str) -> Labels:
        return place_of(parse_topology(text, name), self._names)


def _kubernetes_labels(text: str) -> Labels:
    """Raises TopologyError."""
    if not text.startswith("{"):
        return from_kubernetes_labels(parse_downward_api(text))
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise TopologyError(f"no JSON of a Kubernetes node: {str(error)[:100]}") from None
    about = document.get("metadata") if isinstance(document, dict) else None
    labels = about.get("labels") if isinstance(about, dict) else None
    labels = labels if isinstance(labels, dict) else document
    return from_kubernetes_labels({str(key): value for key, value in labels.items() if isinstance(value, str)})
