"""Limits of what is done: per hook and hour, and the breaker over nodes that are taken out. Pure.

The breaker opens rather than taking out one node more than allowed, and stays open until a person resets it: whoever
has to take out many nodes at once is more likely to be wrong than right.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from ..incident_service.inbox import HOUR_S

#: A node that was taken out and never given back by us counts as out for so long, or until the breaker is reset.
OUT_S = 7 * 24 * HOUR_S


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    acts_per_hour: int
    nodes_per_hour: int
    nodes_share: float
    cluster_nodes: int

    @property
    def nodes_out(self) -> int | None:
        """How many nodes may be out at once; None where nobody knows how large the cluster is.

        (Then nothing is done for real.)
        """
        return int(self.nodes_share * self.cluster_nodes) if self.cluster_nodes else None


def why_open(nodes: Collection[str], out: Mapping[str, float], limits: Limits, now: float) -> str | None:
    """Why taking ``nodes`` out is too much; None: it is not. now: Unix seconds.

    out: by node that is out, when it was taken out.
    """
    new = {node for node in nodes if node not in out}
    if not new:
        return None
    in_hour = len(new) + sum(1 for since in out.values() if since > now - HOUR_S)
    if in_hour > limits.nodes_per_hour:
        return f"{', '.join(sorted(new))} would be node {in_hour} within an hour; {limits.nodes_per_hour} are allowed"
    if limits.nodes_out is not None and len(out) + len(new) > limits.nodes_out:
        return (
            f"{', '.join(sorted(new))} would be node {len(out) + len(new)} out of {limits.cluster_nodes};"
            f" {limits.nodes_out} are allowed"
        )
    return None
