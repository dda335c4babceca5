"""The network: what each rank's groups get of ports, leaf uplinks and spines that all jobs share.

Rings of groups that reach over several leaves are flows; each takes one spine, by its hash (ECMP) or by the leaf's
route, and shares the uplink from its leaf to that spine, and the spine, with the others there.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .cluster_topology import Topology
from .mesh import Mesh
from .resources import Resources

PORT_BYTES_PER_S = 50e9
NVLINK_BYTES_PER_S = 300e9
#: Flows at full rate that one uplink from a leaf to a spine carries.
FLOWS_PER_UPLINK = 4.0
LATENCY_S = {"tp": 5e-6, "dp": 15e-6, "ep": 15e-6, "pp": 10e-6, "world": 20e-6}
Floats = NDArray[np.float64]


class Flows:
    """Which leaf and spine the rings of a job's groups pass. Fixed while the job runs."""

    def __init__(self, job: str, mesh: Mesh, gpus: NDArray[np.int64], topology: Topology) -> None:
        """Lays the rings of the job's groups over leaves and spines. gpus: by rank, the number in the cluster."""
        self.mesh, self.gpus = mesh, gpus
        self._spines = topology.shape.spines
        self.leaf = topology.leaf_of_node[gpus // topology.shape.gpus_per_node]
        self.by_dimension: dict[str, tuple[NDArray[np.int64], NDArray[np.int64]]] = {}
        for name in mesh.dimensions:
            if name not in ("dp", "ep"):
                continue
            group = mesh.group_of(name)
            pairs = np.unique(group * topology.leaves + self.leaf)
            leaves_of_group = np.bincount(pairs // topology.leaves, minlength=int(group.max()) + 1)
            crossing = pairs[leaves_of_group[pairs // topology.leaves] > 1]
            groups, leaves = crossing // topology.leaves, crossing % topology.leaves
            if topology.shape.has_static_routes:
                spines = (leaves % self._spines).tolist()
            else:
                spines = [zlib.crc32(f"{job}/{name}/{g}/{leaf}".encode()) % self._spines for g, leaf in
                          zip(groups.tolist(), leaves.tolist(), strict=True)]  # fmt: skip
            uplink = leaves * self._spines + np.array(spines, np.int64)
            self.by_dimension[name] = groups, uplink


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class UplinkState:
    """What jobs ask of uplinks and spines: (leaves, spines) each, in flows at full rate.

    load: that would pass each uplink. capacity: that it carries. of_spine: share of them that its spine forwards.
    """

    load: Floats
    capacity: Floats
    of_spine: Floats

    @property
    def share(self) -> Floats:
        """By uplink, what each flow gets of its rate, 0 to 1."""
        return np.minimum(np.minimum(1.0, self.capacity / np.maximum(self.load, 1e-9)), self.of_spine)


def uplink_state(
    jobs: Mapping[str, Flows], resources: Resources, topology: Topology, traffic: Mapping[str, float]
) -> UplinkState:
    """How uplinks and spines do. traffic: by job, its share of time that it sends."""
    leaves, spines = topology.leaves, topology.shape.spines
    flows_on = np.zeros(leaves * spines)
    for name, flows in jobs.items():
        for _, uplink in flows.by_dimension.values():
            flows_on += traffic.get(name, 1.0) * np.bincount(uplink, minlength=flows_on.size)
    load: Floats = flows_on.reshape(leaves, spines)
    leaf_up = resources.of("leaf", "capacity") * resources.of("leaf", "up")
    forwarded = topology.shape.flows_per_spine * resources.of("spine", "capacity") / np.maximum(load.sum(axis=0), 1e-9)
    return UplinkState(
        load=load,
        capacity=FLOWS_PER_UPLINK * np.outer(leaf_up, resources.of("spine", "capacity")),
        of_spine=np.tile(np.minimum(1.0, forwarded), (leaves, 1)),
    )


def group_rates(jobs: Mapping[str, Flows], resources: Resources, state: UplinkState) -> dict[str, dict[str, Floats]]:
    """By job and dimension, bytes per second that each rank's group gets. state: with these jobs' traffic."""
    share = state.share.reshape(-1)
    port = PORT_BYTES_PER_S * resources.of("port", "rate") * resources.of("gpu", "lanes")
    return {name: _of_job(flows, port, share, resources) for name, flows in jobs.items()}


def _of_job(flows: Flows, port: Floats, share: Floats, resources: Resources) -> dict[str, Floats]:
    mesh, own = flows.mesh, np.maximum(port[flows.gpus], 1.0)
    nvlink = NVLINK_BYTES_PER_S * np.maximum(resources.of("gpu", "nvlink")[flows.gpus], 1e-6)
    rates: dict[str, Floats] = {"pp": own, "world": np.full(own.size, float(own.min()))}
    for name in mesh.dimensions:
        if name in ("pp", "world"):
            continue
        group = mesh.group_of(name)
        rate = _least(group, nvlink if name == "tp" else own)
        if name in flows.by_dimension:
            groups, uplink = flows.by_dimension[name]
            np.minimum.at(rate, groups, PORT_BYTES_PER_S * np.maximum(share[uplink], 1e-6))
        rates[name] = rate[group]
    return rates


def _least(group: NDArray[np.int64], values: Floats) -> Floats:
    least = np.full(int(group.max()) + 1, np.inf)
    np.minimum.at(least, group, values)
    return least


def links_down(gpus: NDArray[np.int64], resources: Resources, topology: Topology) -> NDArray[np.bool_]:
    """By rank, whether nothing can be sent through its port. gpus: by rank, the number in the cluster."""
    nodes = gpus // topology.shape.gpus_per_node
    leaf = topology.leaf_of_node[nodes]
    return np.asarray((resources.of("port", "up")[gpus] == 0) | (resources.of("leaf", "up")[leaf] == 0))
