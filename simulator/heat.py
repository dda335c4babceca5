"""Temperatures of GPUs, and the clocks that follow: power heats, cooling carries away, the driver holds clocks down.

A first-order model: each GPU goes towards where its power and its cooling balance, and no further than its limit.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from .cluster_topology import Topology
from .resources import Resources

POWER_W = 650.0
IDLE_W = 90.0
#: Of a sound heatsink: 41 K above the inlet at full power.
KELVIN_PER_W = 0.063
LIMIT_C = 87.0
#: Its board slows it down at once.
SLOWDOWN_C = 95.0
TIME_CONSTANT_S = 15.0


class Heat:
    """Temperatures and clocks of all GPUs. Call ``advance`` in steps of the simulation; then ``speed`` and
    ``throttled`` hold.
    """

    def __init__(self, topology: Topology, resources: Resources) -> None:
        self._topology, self._resources = topology, resources
        self._supply = topology.supply_of_node[np.arange(topology.gpus) // topology.shape.gpus_per_node]
        self.temperature_c: NDArray[np.float64] = np.full(topology.gpus, 40.0)
        #: Share of nominal clocks that heat and power leave.
        self.speed = np.ones(topology.gpus)
        self.throttled = np.zeros(topology.gpus, bool)
        self.braked = np.zeros(topology.gpus, bool)

    def advance(self, seconds: float, busy: NDArray[np.bool_]) -> None:
        """So many seconds later. busy: a flag for each device of the cluster, whether it computes."""
        resources = self._resources
        inlet = resources.of("supply", "inlet_c")[self._supply]
        resistance = KELVIN_PER_W / np.maximum(resources.of("gpu", "cooling"), 0.05)
        brake = resources.of("supply", "power")[self._supply]
        power = np.where(busy, POWER_W * np.minimum(brake, 1.0), IDLE_W)
        allowed = np.maximum((LIMIT_C - inlet) / resistance, IDLE_W)
        target = inlet + resistance * power
        share = 1.0 - np.exp(-seconds / TIME_CONSTANT_S)
        self.temperature_c += share * (target - self.temperature_c)
        hot = self.temperature_c >= LIMIT_C
        np.minimum(self.temperature_c, SLOWDOWN_C, out=self.temperature_c)
        # Power goes with the square of the clock, near enough.
        by_heat = np.where(hot & busy, np.sqrt(np.minimum(1.0, allowed / power)), 1.0)
        self.speed = by_heat * np.sqrt(np.minimum(brake, 1.0))
        self.throttled = hot & busy & (by_heat < 1.0)
        self.braked = brake < 1.0
