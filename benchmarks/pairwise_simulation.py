"""Pairs of thousands of nodes as a model of a fabric has them: what ``pairwise_check`` judges without any network.

Exchanges have a usual time, noise, and now and then one that is late for no reason. A fault is drawn: of nodes, of one
rail, of links of two nodes, of a leaf's way out (which a part of its flows takes), or none.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from whichrank.diagnosis.pair_checks.judging import Named, SlowPart
from whichrank.diagnosis.pair_checks.measured import Measured, PairPhase
from whichrank.diagnosis.pair_checks.planner import PairPlanner, Round

LEAF = 32
SECONDS, LATENCY_S = 2e-3, 8e-6
#: Of the logarithm; and how many exchanges are late for no reason.
NOISE, NOISE_LATENCY, LATE = 0.04, 0.12, 2e-3
FAULTS = (
    "none", "none", "node_rate", "two_nodes", "node_latency", "node_loss", "node_dead",
    "rail", "link_rate", "two_links", "link_loss", "leaf_uplink",
)  # fmt: skip
#: Found only where the two meet: all pairs have to be swept.
NEED_SWEEP = frozenset({"link_rate", "two_links", "link_loss"})


@dataclass(slots=True, kw_only=True)
class World:
    """What is wrong in it. loss: that one exchange stalls. flows: the share of a leaf's ways out that is slow."""

    count: int
    rails: int
    fault: str
    random: np.random.Generator
    nodes: dict[int, float] = field(default_factory=dict)
    rail: int = -1
    links: dict[tuple[int, int], float] = field(default_factory=dict)
    leaf: int = -1
    flows: float = 0.0
    factor: float = 1.0
    loss: float = 0.0

    @classmethod
    def drawn(cls, count: int, rails: int, fault: str, seed: int) -> World:
        """A world with this fault, at places that the seed draws."""
        random = np.random.default_rng(seed)
        world = cls(count=count, rails=rails, fault=fault, random=random)
        factor = float(random.uniform(1.5, 8.0))
        nodes = random.choice(count, 4, replace=False).tolist()
        world.factor = factor
        if fault in ("node_rate", "node_latency", "node_loss", "node_dead", "rail"):
            world.nodes = {nodes[0]: factor}
        elif fault == "two_nodes":
            world.nodes = {nodes[0]: factor, nodes[1]: float(random.uniform(1.5, 8.0))}
        elif fault in ("link_rate", "link_loss", "two_links"):
            pairs = [sorted(nodes[:2]), sorted(nodes[2:])][: 2 if fault == "two_links" else 1]
            world.links = {(low, high): factor for low, high in pairs}
        elif fault == "leaf_uplink":
            world.leaf, world.flows = int(random.integers(count // LEAF)), float(random.uniform(0.15, 0.6))
            world.factor = float(random.uniform(2.0, 8.0))
        if fault == "rail":
            world.rail = int(random.integers(rails))
        if fault in ("node_loss", "link_loss"):
            # Of a node light loss shows with some of those it meets; two that meet once have to lose something then.
            world.loss = float(random.uniform(0.6, 0.95) if fault == "node_loss" else 1.0)
        return world

    @property
    def truth(self) -> set[tuple[str, tuple[int, ...]]]:
        """What has to be named, and nothing else."""
        if self.leaf >= 0:
            return {(SlowPart.GROUP.value, tuple(range(self.leaf * LEAF, (self.leaf + 1) * LEAF)))}
        if self.links:
            return {(SlowPart.LINK.value, pair) for pair in self.links}
        part = SlowPart.RAIL if self.rail >= 0 and self.rails > 1 else SlowPart.NODE
        return {(part.value, (node,)) for node in self.nodes}

    def measure(self, pairs: npt.NDArray[np.int32], phase: PairPhase) -> Measured:
        """One pairing, on all rails."""
        return Measured(self._columns(pairs, phase))

    def _columns(self, pairs: npt.NDArray[np.int32], phase: PairPhase) -> dict[str, npt.NDArray[np.float64]]:
        pairs = np.repeat(pairs, self.rails, axis=0)
        rail = np.tile(np.arange(self.rails), len(pairs) // max(self.rails, 1))
        size, draw = len(pairs), self.random
        a, b = pairs[:, 0].astype(np.int64), pairs[:, 1].astype(np.int64)
        seconds = SECONDS * np.exp(draw.normal(0.0, NOISE, size))
        latency = LATENCY_S * np.exp(draw.normal(0.0, NOISE_LATENCY, size)) * np.where(a // LEAF == b // LEAF, 1, 1.4)
        stall = np.abs(draw.normal(0.0, 1e-4, size))
        late = draw.random(size) < LATE
        seconds[late] *= draw.uniform(1.2, 6.0, int(late.sum()))
        late = draw.random(size) < LATE
        latency[late] *= draw.uniform(1.5, 10.0, int(late.sum()))
        late = draw.random(size) < LATE / 4
        stall[late] += draw.uniform(0.05, 0.4, int(late.sum()))
        failed = np.zeros(size)
        hit = np.ones(size)
        for node, factor in self.nodes.items():
            mine = ((a == node) | (b == node)) & ((rail == self.rail) | (self.rail < 0))
            hit[mine] = np.maximum(hit[mine], factor)
        for (low, high), factor in self.links.items():
            hit[(np.minimum(a, b) == low) & (np.maximum(a, b) == high)] = factor
        if self.leaf >= 0:
            crosses = (a // LEAF == self.leaf) ^ (b // LEAF == self.leaf)
            # Which way a flow takes follows from its ends.
            way = ((np.minimum(a, b) * 2_654_435_761 + np.maximum(a, b) * 40_503) % 100_003) / 100_003
            hit[crosses & (way < self.flows)] = self.factor
        is_hit = hit > 1.0
        if self.fault == "node_latency":
            latency = latency * np.where(is_hit, 1 + hit, 1.0)
        elif self.loss:
            stall = stall + np.where(is_hit & (draw.random(size) < self.loss), 0.21, 0.0)
        elif self.fault == "node_dead":
            failed[is_hit] = 1.0
        else:
            seconds = seconds * hit
        columns = {"a": a, "b": b, "rail": rail, "seconds": seconds, "latency_s": latency, "stall_s": stall}
        return {
            **{name: column.astype(np.float64) for name, column in columns.items()},
            "phase": np.full(size, float(phase)), "failed": failed,
        }  # fmt: skip

    def measured_round(self, asked: Round) -> Measured:
        """All that one round measures; of a sweep each node keeps those pairs of it that stand out most."""
        if asked.phase is PairPhase.SWEEP:
            return self._swept(asked)
        parts = [self.measure(pairs, asked.phase) for pairs in asked.pairings]
        if asked.controls is not None and len(asked.controls):
            parts.append(self.measure(asked.controls, PairPhase.CONTROL))
        whole = Measured()
        for part in parts:
            whole = whole.and_more(part)
        return whole

    def _swept(self, asked: Round) -> Measured:
        kept: list[Measured] = []
        for pairs in asked.pairings:
            measured = self.measure(pairs, PairPhase.SWEEP)
            seconds, latency = measured.columns["seconds"], measured.columns["latency_s"]
            odd = (seconds > 1.2 * np.median(seconds)) | (latency > 2 * np.median(latency))
            kept.append(measured.where(odd | (measured.columns["stall_s"] > 0.05) | measured.failed))
        return Measured({name: np.concatenate([each.columns[name] for each in kept]) for name in kept[0].columns})


def run(world: World, seed: int) -> tuple[PairPlanner, list[Named]]:
    """The planner's rounds in this world, to the verdict."""
    planner = PairPlanner(
        world.count,
        groups=[node // LEAF for node in range(world.count)] if world.count > LEAF else None,
        sweep=world.fault in NEED_SWEEP,
        seed=seed,
    )
    while (asked := planner.next()) is not None:
        planner.take(world.measured_round(asked))
    return planner, planner.named
