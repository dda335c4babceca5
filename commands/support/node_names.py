"""Names that mean one node to a scheduler, and nothing else. Pure."""

from __future__ import annotations

import re

#: What Slurm and Kubernetes call a node. No list of hosts, no pattern: ``node[1-99]`` is one word for Slurm, too.
NODE_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,251}[A-Za-z0-9])?\Z")
#: Words that mean all nodes.
_EVERYBODY = frozenset({"all", "default", "localhost"})


def is_node_name(name: str) -> bool:
    """Whether it names one node, to Slurm and Kubernetes alike."""
    return NODE_NAME.match(name) is not None and name.lower() not in _EVERYBODY
