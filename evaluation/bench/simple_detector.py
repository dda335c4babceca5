"""The detector that everybody writes first, as a measure of how hard the scenarios are: first error, longest wait.

Reads the same records as the operators, and shares no code with them. One incident per attempt of a job.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from ...simulator.sent import SentMessage
from ...telemetry.records import Block, Event, Identity
from ...telemetry.vocabulary import EventName

#: An operation that is open for so long is a hang.
HANG_S = 20.0
#: The usual length of a step is the median of so many; the first ones are longer.
FIRST_STEPS, USUAL_STEPS = 3, 20
#: So many steps in a row, so much longer than usual, are a slow rank.
SLOW_STEPS, SLOW = 5, 1.15


@dataclass(kw_only=True)
class _Attempt:
    """nodes: by rank. lengths: of steps, in their order, as the last rank told. slow: such steps in a row."""

    identity: Identity
    said: bool = False
    nodes: dict[int, str] = field(default_factory=dict)
    open_s: dict[int, float] = field(default_factory=dict)
    lengths: dict[int, float] = field(default_factory=dict)
    longest_wait: dict[int, tuple[float, int]] = field(default_factory=dict)
    slow: int = 0
    looked_at: int = -1


class SimpleDetector:
    """``take`` windows of a simulation; ``revisions`` holds what was concluded of them."""

    def __init__(self, *, start_unix_ns: int) -> None:
        self._start_s = start_unix_ns / 1e9
        self._attempts: dict[tuple[str, str], _Attempt] = {}
        #: JSON of an incident each, with what the scorer asks for.
        self.revisions: list[bytes] = []

    def take(self, until_s: float, sent: Sequence[SentMessage]) -> None:
        """Looks at what agents have sent in a window. until_s: its end, in seconds of the simulation."""
        for message in sent:
            for payload in message.payloads:
                if isinstance(payload, Block):
                    self._read(payload)
                elif isinstance(payload, Event):
                    self._hear(payload, message.at_s)
        for attempt in self._attempts.values():
            if not attempt.said:
                self._look(attempt, until_s)

    def _of(self, identity: Identity) -> _Attempt:
        return self._attempts.setdefault((identity.job, identity.attempt), _Attempt(identity=identity))

    def _hear(self, event: Event, at_s: float) -> None:
        """The first error that arrives is the cause."""
        attempt, found = self._of(event.identity), event.attributes
        if event.name is EventName.RANK_EXCEPTION:
            kind = "rank_raised"
        elif event.name is EventName.RANK_EXIT and (found.get("signal") or found.get("exit_code")):
            kind = "rank_died"
        else:
            return
        if not attempt.said:
            bucket = "immediate_crash"
            self._say(attempt, at_s, kind, bucket, event.identity.rank, event.identity.node)

    def _read(self, block: Block) -> None:
        attempt = self._of(block.identity)
        if block.name is EventName.BLOCK_GROUP_PROGRESS:
            for rank in np.unique(block.rows["rank"]).tolist():
                attempt.nodes[rank] = block.identity.node
                ages = block.rows["open_age_ns"][block.rows["rank"] == rank]
                attempt.open_s[rank] = float(ages.max()) / 1e9
        elif block.name is EventName.BLOCK_STEPS:
            for row in block.rows:
                step, rank = int(row["step"]), int(row["rank"])
                attempt.nodes[rank] = block.identity.node
                attempt.lengths[step] = max(attempt.lengths.get(step, 0.0), float(row["end_ns"] - row["begin_ns"]))
                waited = (float(row["collective_ns"]), rank)
                attempt.longest_wait[step] = max(attempt.longest_wait.get(step, waited), waited)

    def _look(self, attempt: _Attempt, now_s: float) -> None:
        """Whoever waits longest is the cause."""
        if attempt.open_s:
            rank = max(attempt.open_s, key=lambda r: attempt.open_s[r])
            if attempt.open_s[rank] >= HANG_S:
                bucket = "communication_hang"
                self._say(attempt, now_s, "rank_not_entered", bucket, rank, attempt.nodes[rank])
                return
        steps = sorted(attempt.lengths)[FIRST_STEPS:-1]  # of the last one not all have told
        if len(steps) <= USUAL_STEPS:
            return
        usual = float(np.median([attempt.lengths[step] for step in steps[:USUAL_STEPS]]))
        for step in steps[USUAL_STEPS:]:
            if step <= attempt.looked_at:
                continue
            attempt.looked_at = step
            attempt.slow = attempt.slow + 1 if attempt.lengths[step] > SLOW * usual else 0
            if attempt.slow >= SLOW_STEPS:
                rank = attempt.longest_wait[step][1]
                self._say(attempt, now_s, "rank_slow", "speed_regression", rank, attempt.nodes[rank])
                return

    def _say(self, attempt: _Attempt, at_s: float, kind: str, bucket: str, rank: int, node: str) -> None:
        attempt.said = True
        who = attempt.identity
        suspect = {"scope": "rank", "id": str(rank), "rank": rank, "node": node, "gpu": None, "probability": 1.0}
        told = {
            "id": f"{who.job}/{who.attempt}",
            "revision": 1,
            "change": "opened",
            "state": "open",
            "severity": "page",
            "job": {"id": who.job, "attempt": who.attempt},
            "bucket": bucket,
            "kind": kind,
            "scope": "rank",
            "suspects": [suspect],
            "times": {"detected": self._start_s + at_s},
            "confidence": 1.0,
        }
        self.revisions.append(json.dumps(told).encode())
