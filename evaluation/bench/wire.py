"""What the nodes of a simulated cluster send, as bytes on the way to Kafka: by topic, and by what a packed flush tells.

Of some nodes spread over all, in the batches that their producers make (``producer_batches``). Nobody simulates spans
and metrics of ranks, the agents' counters and copies of events: benchmarks/cost_sheet.py has those of a real agent.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence

from ...simulator.scoring.summary import ScoreLine
from ...simulator.sent import SentMessage
from ...telemetry.packed_flush import Packing
from ...telemetry.packed_rows import pack_rows
from ...telemetry.records import Block
from ..simulate.judge import encoded
from .producer_batches import ProducedBatches, Wire

#: So many nodes are looked at.
NODES = 16
ASKED_BYTES = 100.0
_EVERYTHING = "all"


class NodesWire:
    """``see`` windows of a simulation; ``per_rank_s`` and ``messages_s`` are of what came in them."""

    def __init__(self, nodes: Collection[str], ranks_per_node: int) -> None:
        """nodes: names of those that are looked at."""
        self._nodes = frozenset(nodes)
        self._ranks = ranks_per_node * len(nodes)
        self._now_s = 0.0
        self._wires = {node: Wire(lambda: self._now_s) for node in self._nodes}
        self._packed: Counter[str] = Counter()

    def see(self, sent: Sequence[SentMessage]) -> None:
        """Takes what was sent in a window."""
        for message in sent:
            if message.node not in self._nodes:
                continue
            for value in encoded(message):
                self._wires[message.node].published.append(
                    ProducedBatches(at_s=message.at_s, topic=message.topic, key=message.key, value=value)
                )
            for payload in message.payloads if message.packing is not Packing.NONE else ():
                if isinstance(payload, Block) and len(payload.rows):
                    self._packed[payload.name.value] += len(pack_rows(payload.name, payload.rows))

    def per_rank_s(self, seconds: float) -> dict[str, float]:
        """Bytes per rank and second: by topic on the wire, all together, and by table in packed flushes.

        seconds: how long the windows were together.
        """
        found: Counter[str] = Counter()
        for wire in self._wires.values():
            for topic, size in wire.sizes(0.0).items():
                found[topic] += size.wire
                found[_EVERYTHING] += size.wire
        found.update(self._packed)
        return {name: count / (self._ranks * seconds) for name, count in found.items()}

    def messages_s(self, seconds: float) -> dict[str, float]:
        """Messages per rank and second, by topic. seconds: as of ``per_rank_s``."""
        found = Counter(each.topic for wire in self._wires.values() for each in wire.published)
        return {topic: count / (self._ranks * seconds) for topic, count in found.items()}


def wire_lines(
    ranks: int, per_rank_s: Mapping[str, float], messages_s: Mapping[str, float], nodes: int
) -> list[ScoreLine]:
    """Lines on bytes and messages. per_rank_s, messages_s: by name, as ``NodesWire`` gives them; nodes: of the job."""
    share = f"{min(NODES, nodes)} of {nodes:,} nodes"
    lines = []
    for name, measured in sorted(per_rank_s.items(), key=lambda item: -item[1]):
        if name == _EVERYTHING:
            continue
        told = f"{measured:.1f}"
        if name in messages_s:
            told += f"; {messages_s[name]:.3f} messages"
        where = "on the wire" if name in messages_s else "of it, packed"
        line = f"{ranks:,} ranks: bytes per rank and second {where}: {name}"
        lines.append(ScoreLine(name=line, asked="", measured=told, share=share))
    total = per_rank_s[_EVERYTHING]
    name = f"{ranks:,} ranks: bytes per rank and second on the wire, blocks and collectors"
    asked = f"<= {ASKED_BYTES:g}"
    lines.append(ScoreLine(name=name, asked=asked, measured=f"{total:.1f}", share=share, ok=total <= ASKED_BYTES))
    return lines
