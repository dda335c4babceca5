"""Where everything stands: GPUs and ports on nodes, nodes under leaves and in racks, racks behind power supplies.

Arrays by index; names are made from indices, all of one length. Nothing here ever changes during a run.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

#: The one file server, and the one place of the services that jobs need to start.
STORAGE, CONTROL = "nas-1", "control-1"
#: Of the GPU driver, one after the other.
_DRIVERS = ("580.65.06", "580.82.07")
_BUSES = ("1a", "3d", "4e", "5f", "9b", "bb", "cb", "db")


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterShape:
    """How many of each. Raises ValueError for what cannot be built.

    flows_per_spine: at full rate, that a spine forwards. has_static_routes: all that leaves a leaf takes one spine
    (which a site knows then), not one by the hash of each flow.
    """

    nodes: int
    gpus_per_node: int = 8
    nodes_per_leaf: int = 16
    nodes_per_rack: int = 4
    racks_per_supply: int = 2
    spines: int = 8
    data_servers: int = 8
    flows_per_spine: float = float("inf")
    has_static_routes: bool = False

    def __post_init__(self) -> None:
        for name in self.__slots__:
            if name != "has_static_routes" and getattr(self, name) < 1:
                raise ValueError(f"a cluster needs at least one of {name}")
        if self.gpus_per_node > len(_BUSES):
            raise ValueError(f"a node has at most {len(_BUSES)} GPUs")


@dataclass(frozen=True, kw_only=True)
class Topology:
    """Where everything stands in a cluster. One port per GPU: GPU i of a node sends through port i (rail i)."""

    shape: ClusterShape
    cluster: str = "simulated"

    @property
    def nodes(self) -> int:
        """How many nodes the cluster has."""
        return self.shape.nodes

    @property
    def gpus(self) -> int:
        """How many GPUs all nodes have together."""
        return self.shape.nodes * self.shape.gpus_per_node

    @cached_property
    def leaf_of_node(self) -> NDArray[np.int64]:
        """By node, the number of the leaf switch above it."""
        return np.arange(self.nodes) // self.shape.nodes_per_leaf

    @cached_property
    def rack_of_node(self) -> NDArray[np.int64]:
        """By node, the number of its rack."""
        return np.arange(self.nodes) // self.shape.nodes_per_rack

    @cached_property
    def supply_of_node(self) -> NDArray[np.int64]:
        """By node, the number of the power supply that feeds its rack."""
        return self.rack_of_node // self.shape.racks_per_supply

    @property
    def leaves(self) -> int:
        """How many leaf switches there are."""
        return int(self.leaf_of_node[-1]) + 1

    @property
    def racks(self) -> int:
        """How many racks there are; the last one may be half full."""
        return int(self.rack_of_node[-1]) + 1

    @property
    def supplies(self) -> int:
        """How many power supplies there are."""
        return int(self.supply_of_node[-1]) + 1

    def node_of_gpu(self, gpu: int) -> int:
        """The node's number. gpu: its number in the cluster, which counts through the nodes."""
        return gpu // self.shape.gpus_per_node

    # --- names --------------------------------------------------------------------------------------------------------
    def node_name(self, node: int) -> str:
        """The node's name as its agent tells it, ``node-00012``."""
        return f"node-{node:05d}"

    def gpu_uuid(self, gpu: int) -> str:
        """The UUID of the GPU with this number in the cluster; the same in every run of a cluster of this name."""
        words = hashlib.blake2b(f"{self.cluster}/{gpu}".encode(), digest_size=16).hexdigest()
        return f"GPU-{words[:8]}-{words[8:12]}-{words[12:16]}-{words[16:20]}-{words[20:]}"

    def pci_bus(self, gpu: int) -> str:
        """The GPU's PCI address on its node, as the driver writes it. gpu: its number in the cluster."""
        return f"0000:{_BUSES[gpu % self.shape.gpus_per_node]}:00.0"

    def port_name(self, port: int) -> str:
        """The name on its node of the network port that belongs to the GPU with this number in the cluster."""
        return f"mlx5_{port % self.shape.gpus_per_node}/1"

    @staticmethod
    def driver_release(number: int) -> str:
        """The driver's version for the value of the parameter host.release. Raises IndexError for an unknown one."""
        return _DRIVERS[number]

    def labels(self, node: int) -> dict[str, str]:
        """The node's rack, leaf, pdu, storage, service, and spine where routes are static, as in a site's table of
        places.
        """
        found = {
            "rack": f"rack-{int(self.rack_of_node[node]):04d}",
            "leaf": f"leaf-{int(self.leaf_of_node[node]):04d}",
            "pdu": f"pdu-{int(self.supply_of_node[node]):04d}",
            "storage": STORAGE,
            "service": CONTROL,
        }
        if self.shape.has_static_routes:
            found["spine"] = f"spine-{int(self.leaf_of_node[node]) % self.shape.spines:04d}"
        return found
