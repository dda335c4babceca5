"""On which node a pod was: kubectl tells it lines before what became of the pod, and in words of its own."""

from __future__ import annotations

import re
from dataclasses import replace

from .model import LogLine, Witness

#: Of events and of "kubectl describe pod".
PLACED = re.compile(r"Successfully assigned (?:[\w.-]+/)?(?P<pod>[\w.-]+) to (?P<node>[\w.-]+)")
DESCRIBED = re.compile(r"Node:\s{4,}(?P<node>[A-Za-z][\w.-]*)/")
#: How lines begin that tell of a pod's end, or who says it.
OF_A_POD = re.compile(r"(?:Reason|Exit Code|State|Last State):\s|(?:\S+\s+)?(?:Warning|Normal)\s|.{0,200}\bkubelet\b")
NAME = re.compile(r"[\w.-]+")
MOST_PODS = 4096


class Pods:
    """``see`` lines; ``placed`` is a witness with the node of its pod."""

    def __init__(self) -> None:
        self._nodes: dict[str, str] = {}
        self._described = ""

    def see(self, line: LogLine) -> None:
        """Notes the node if the line says where a pod was placed."""
        if match := PLACED.search(line.text):
            if len(self._nodes) < MOST_PODS:
                self._nodes[match["pod"]] = match["node"]
        elif match := DESCRIBED.match(line.text):
            self._described = match["node"]

    def placed(self, witness: Witness) -> Witness:
        """The witness with its pod's node added.

        Unchanged where it is of no pod, has a node, or several are possible.
        """
        if not (self._nodes or self._described) or witness.line.node or not OF_A_POD.match(witness.text):
            return witness
        named = set(NAME.findall(witness.text))
        of_pods = {node for pod, node in self._nodes.items() if pod in named} or set(self._nodes.values())
        node = self._described or (of_pods.pop() if len(of_pods) == 1 else "")
        return replace(witness, line=replace(witness.line, node=node)) if node else witness
