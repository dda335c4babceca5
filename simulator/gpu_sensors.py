"""The GPU collector of a simulated node: values as the driver would tell them, its events, whose process is where."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from ..agents.collectors.base.collector import Collected, Timestamps
from ..agents.collectors.gpu.driver import Gpu
from ..agents.collectors.gpu.gathering import GpuCollection, labels_of
from ..agents.collectors.gpu.gpu_collector import status_values
from ..agents.collectors.gpu.gpu_readings import THROTTLE_REASONS, throttle_values
from ..agents.collectors.gpu.values import Value
from ..telemetry.vocabulary import EventName
from .cluster_topology import Topology
from .hardware import DriverWord, Hardware
from .heat import Heat
from .held_ranks import RankHere
from .resources import Resources

_SLOW_S = 60.0
_NOMINAL_HZ = 1.98e9
_LANES = 16
_BITS = {word: bit for bit, word in THROTTLE_REASONS.items()}


class GpuSensors:
    """The GPU collector of one node. numbers: of its GPUs in the cluster."""

    def __init__(self, node: int, *, topology: Topology, resources: Resources, heat: Heat, hardware: Hardware) -> None:
        self._resources, self._heat, self._hardware = resources, heat, hardware
        per_node = topology.shape.gpus_per_node
        self.numbers = range(node * per_node, (node + 1) * per_node)
        self._known = [
            Gpu(
                uuid=topology.gpu_uuid(gpu),
                index=gpu % per_node,
                pci_bus=topology.pci_bus(gpu),
                model="NVIDIA H100 80GB HBM3",
                serial="",
                vbios="",
                handle=None,
            )
            for gpu in self.numbers
        ]
        self._lost: set[int] = set()
        self._placed: set[tuple[int, str]] = set()
        self._slow_due_s = 0.0

    @property
    def driver_hangs_since_s(self) -> float:
        """From when on whoever asks the driver of this node waits for ever, in seconds of the simulation; inf: it
        answers.
        """
        since = self._hardware.firmware_down_since_s
        return min((since[gpu] for gpu in self.numbers if gpu in since), default=np.inf)

    def look(self, at_s: float, now: Timestamps) -> Collected:
        """Values of all GPUs at ``at_s``, and an event for each newly lost one.

        Values that only an administrator changes come once a minute.
        """
        out, resources = GpuCollection(now), self._resources
        slow = at_s >= self._slow_due_s
        if slow:
            self._slow_due_s = at_s + _SLOW_S
        for gpu, known in zip(self.numbers, self._known, strict=True):
            lost = not resources.of("gpu", "on_bus")[gpu]
            if lost and gpu not in self._lost:
                self._lost.add(gpu)
                out.tell_device("gpu_lost", known, {"why": "gpu_is_lost"})
            out.add(labels_of(known), status_values(lost=lost))
            if not lost:
                out.add(labels_of(known), tuple(self._values(gpu, slow=slow)))
        return out.done()

    def hear(self, word: DriverWord, now: Timestamps) -> Collected:
        """The driver's word as an event of its GPU; a lost GPU is remembered."""
        known = self._known[word.gpu - self.numbers.start]
        out = GpuCollection(now)
        if word.event in ("nvlink_down", "nvlink_up"):
            out.tell_device(word.event, known, {"link": 3, "remote": "gpu", "remote_pci_bus": ""})
        elif word.event == "gpu_lost":
            self._lost.add(word.gpu)
            out.tell_device("gpu_lost", known, {"why": "gpu_is_lost"})
        elif word.event == "gpu_back":
            self._lost.discard(word.gpu)
            out.tell_device("gpu_back", known, {"why": "gpu_is_lost"})
        else:
            out.tell_device(word.event, known, {"code": word.code})
        return out.done()

    def place_ranks(self, ranks: Mapping[int, RankHere], now: Timestamps) -> Collected:
        """Events of which process is on which GPU, once for each process and attempt; none on lost
        GPUs. ranks: by pid.
        """
        out = GpuCollection(now)
        for pid, rank in ranks.items():
            known = self._known[rank.gpu - self.numbers.start]
            if (pid, rank.identity.attempt) in self._placed or rank.gpu in self._lost:
                continue
            self._placed.add((pid, rank.identity.attempt))
            attributes: dict[str, Any] = {
                "pid": pid,
                "local_rank": rank.local_rank,
                "gpu_uuid": known.uuid,
                "gpu_index": known.index,
                "pci_bus": known.pci_bus,
                "mig": "",
                "method": "nvml_processes",
                "certainty": "certain",
                "rank": rank.identity.rank,
            }
            out.tell(EventName.RANK_DEVICE, attributes, pid=pid)
        return out.done()

    def _values(self, gpu: int, *, slow: bool) -> Iterator[Value]:
        resources, heat = self._resources, self._heat
        bits = 0
        if heat.throttled[gpu]:
            bits |= _BITS["sw_thermal_slowdown"]
        if heat.braked[gpu]:
            bits |= _BITS["hw_power_brake_slowdown"] | _BITS["hw_slowdown"]
        yield from throttle_values(bits)
        limit = float(resources.of("gpu", "clock_limit")[gpu])
        sm = {"whichrank.gpu.clock": "sm"}
        # The driver tells whole degrees and megahertz.
        yield Value("whichrank.gpu.speed", round(_NOMINAL_HZ * limit * float(heat.speed[gpu]), -6), sm)
        yield Value("hw.temperature", float(round(heat.temperature_c[gpu])), {"hw.sensor_location": "gpu"})
        lanes = _LANES * float(resources.of("gpu", "lanes")[gpu])
        yield Value("whichrank.gpu.pcie.lanes", float(round(lanes)))
        link = {"whichrank.gpu.nvlink.link": "3"}
        resent = float(resources.of("gpu", "nvlink_errors")[gpu])
        if resent:
            yield Value("whichrank.gpu.nvlink.link.errors", resent, {**link, "error.type": "replay"})
        if not resources.of("gpu", "nvlink_up")[gpu]:
            yield Value("whichrank.gpu.nvlink.up", 0.0, link)
        labels = {"whichrank.gpu.since": "driver_load", "whichrank.gpu.memory": "dram"}
        errors = self._hardware.memory_errors.get(gpu, 0)
        corrected = resources.of("gpu", "corrected")[gpu]
        for sort, count in (("uncorrected", float(errors)), ("corrected", float(corrected))):
            yield Value("whichrank.gpu.ecc.errors", count, {"error.type": sort, **labels})
        if slow:
            yield Value("whichrank.gpu.pcie.lanes.limit", float(_LANES))
            yield Value("whichrank.gpu.speed.limit", _NOMINAL_HZ * limit, {**sm, "hw.limit_type": "max"})
