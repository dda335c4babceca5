"""The load of ``job_operator``: one recorded job of 4 ranks turned into jobs of 32 ranks, some of them with a fault.

Four nodes of eight ranks (or eight of four), each with its own agent and clock; every job is shifted in time by its own
amount and has its own jitter of arrivals. What a fault does to the records is what its mechanism does to the calls.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import numpy as np

from whichrank.telemetry.records import Block, Event, Group, Record
from whichrank.telemetry.ring_layout import format_ranks, parse_ranks
from whichrank.telemetry.vocabulary import EventName, Op, Phase

FAULT_EVERY = 3  # every so manieth job has a fault
RECORDED_RANKS = 4
RANKS = 32
GUILTY = 13
MATE = 12  # shares a group of two with it
SLOW_SHARE = 0.4  # of a usual step: by so much the slow rank is slower
NODE_CLOCK_NS = 3_000_000_000  # clocks of nodes have nothing to do with each other
NODE_STAMP_NS = 7_000_000


def fault_of(number: int) -> tuple[str, tuple[int, ...]] | None:
    """Kind and suspects expected of the job with this number; None: sound."""
    if number % FAULT_EVERY:
        return None
    kinds = ("desync", "rank_not_entered", "rank_slow")
    return kinds[number // FAULT_EVERY % len(kinds)], (GUILTY,)


def replicate(messages: list[list[Record]], number: int, ranks_per_node: int) -> list[list[Record]]:
    """The recorded job as one of 32 ranks under another name, at another time, with other jitter, perhaps a fault."""
    chance = np.random.default_rng(number)
    fault = fault_of(number)
    newest = max(
        (int(rows["step"].max()) for b in messages for r in b for rows in rows_of(r, EventName.BLOCK_STEPS)), default=0
    )
    lengths = [
        rows["end_ns"] - rows["begin_ns"] for b in messages for r in b for rows in rows_of(r, EventName.BLOCK_STEPS)
    ]
    scene = Scene(
        slow_ns=int(SLOW_SHARE * np.median(np.concatenate(lengths))),
        number=number,
        copies=ranks_per_node // RECORDED_RANKS,
        first_any=_first_calls(messages, newest, fewest=0),
        first_wide=_first_calls(messages, newest, fewest=RECORDED_RANKS),
        shift_ns=int(chance.integers(0, 3_600_000_000_000)),
        chance=chance,
        kind=fault[0] if fault else "",
        bad_step=newest // 2,
    )
    out: list[list[Record]] = []
    for batch in messages:
        for node in range(RANKS // ranks_per_node):
            records = [replica for record in batch for replica in scene.replicas(record, node)]
            if records:
                out.append(records)
    return _cut_off(out, scene.bad_step) if scene.kind == "rank_not_entered" else out


def _first_calls(messages: list[list[Record]], newest: int, fewest: int) -> np.ndarray:
    """(rank, step): when the first call came in a group of at least so many ranks."""
    first = np.full((RECORDED_RANKS, newest + 2), np.iinfo(np.int64).max)
    for record in (record for batch in messages for record in batch):
        for rows in rows_of(record, EventName.BLOCK_COLLECTIVES):
            assert isinstance(record.payload, Block)
            sizes = np.array([group.size for group in record.payload.groups])
            chosen = rows[sizes[rows["group"]] >= fewest]
            np.minimum.at(first, (chosen["rank"], np.maximum(chosen["step"], 0)), chosen["enqueued_ns"])
    return first


def rows_of(record: Record, name: EventName) -> Iterator[np.ndarray]:
    """The rows of a block of that name; nothing of any other record."""
    if isinstance(record.payload, Block) and record.payload.name is name:
        yield record.payload.rows


@dataclasses.dataclass(slots=True)
class Scene:
    """One replicated job: how its records differ from the recorded ones."""

    number: int
    copies: int  # of the recorded ranks on a node
    first_any: np.ndarray  # by recorded rank and step: when its first call came
    first_wide: np.ndarray  # the first one of all ranks
    shift_ns: int
    slow_ns: int
    chance: np.random.Generator
    kind: str
    bad_step: int

    def replicas(self, record: Record, node: int) -> Iterator[Record]:
        payload = record.payload
        assert isinstance(payload, Block | Event)
        stamp_ns = record.stamp_ns + self.shift_ns + node * NODE_STAMP_NS
        identity = dataclasses.replace(
            payload.identity, job=f"job-{self.number}", attempt=f"attempt-{self.number}", node=f"node-{node}"
        )
        if isinstance(payload, Event):
            if payload.name is not EventName.RANK_STARTED:
                return  # the faults must be found in the running job
            for copy in range(self.copies):
                rank = self._rank(payload.identity.rank, node, copy)
                event = dataclasses.replace(
                    payload,
                    identity=dataclasses.replace(identity, rank=rank),
                    attributes={**payload.attributes, "world_size": RANKS},
                )
                yield dataclasses.replace(record, stamp_ns=stamp_ns, payload=event)
            return
        parts: list[np.ndarray] = []
        groups: dict[str, Group] = {}
        for copy in range(self.copies):
            parts.append(self._rows(payload, node, copy, groups))
        block = dataclasses.replace(
            payload,
            identity=identity,
            rows=np.concatenate(parts),
            groups=tuple(groups.values()),
            time_ns=payload.time_ns + self.shift_ns + node * NODE_CLOCK_NS,
        )
        yield dataclasses.replace(record, stamp_ns=stamp_ns, payload=block)

    def _rows(self, block: Block, node: int, copy: int, groups: dict[str, Group]) -> np.ndarray:
        rows: np.ndarray = block.rows.copy()
        rows["rank"] = self._rank(rows["rank"], node, copy)
        for column in ("enqueued_ns", "started_ns", "done_ns", "begin_ns", "end_ns", "read_ns"):
            if column in (rows.dtype.names or ()):
                rows[column] += (self.shift_ns + node * NODE_CLOCK_NS) * (rows[column] > 0)
        if "group" in (rows.dtype.names or ()):
            places = [self._place(group, node, copy, groups) for group in block.groups]
            rows["group"] = np.array(places, np.uint16)[rows["group"]]
        if block.name is EventName.BLOCK_COLLECTIVES:
            rows["enqueued_ns"] -= self.chance.integers(0, 20_000, len(rows))  # never past the end of its own call
            self._put_fault(rows, block.rows)
        elif block.name is EventName.BLOCK_STEPS and self.kind == "rank_slow":
            rows["begin_ns"][rows["step"] >= self.bad_step] -= self.slow_ns
        return rows

    def _rank(self, rank: Any, node: int, copy: int) -> Any:
        return rank + (node * self.copies + copy) * RECORDED_RANKS

    def _place(self, group: Group, node: int, copy: int, groups: dict[str, Group]) -> int:
        """Index in the block of what a recorded group has become: all 32 ranks, or the same pair in this copy."""
        if group.size == RECORDED_RANKS:
            uid, ranks = f"{self.number}-{group.uid}", list(range(RANKS))
        else:
            uid = f"{self.number}-{group.uid}-{node}-{copy}"
            ranks = [self._rank(rank, node, copy) for rank in parse_ranks(group.ranks)]
        if uid not in groups:
            groups[uid] = dataclasses.replace(group, uid=uid, ranks=format_ranks(ranks), size=len(ranks))
        return list(groups).index(uid)

    def _put_fault(self, rows: np.ndarray, recorded: np.ndarray) -> None:
        """What the fault's mechanism does to the collectives of a step."""
        guilty = rows["rank"] == GUILTY
        place = (recorded["rank"], np.maximum(recorded["step"], 0))
        if self.kind == "desync":
            here = np.flatnonzero(guilty & (rows["step"] == self.bad_step) & (rows["op"] == int(Op.ALL_REDUCE)))
            if here.size:
                rows["bytes"][here[0]] += 4
        elif self.kind == "rank_slow":
            # The others come earlier by so much, up to the step's first call that they share with it: there they wait.
            slow = (rows["step"] >= self.bad_step) & ~guilty
            shared = np.where(rows["rank"] == MATE, self.first_any[place], self.first_wide[place])
            for column in ("enqueued_ns", "started_ns", "done_ns"):
                rows[column][slow & (recorded["enqueued_ns"] < shared) & (rows[column] > 0)] -= self.slow_ns
            # Of that call only the end stays: who comes earlier stands in wait() earlier, too. Were it to come so long
            # before its wait(), it would have worked in between and be as slow as the guilty one.
            for column in ("enqueued_ns", "started_ns"):
                rows[column][slow & (recorded["enqueued_ns"] == shared) & (rows[column] > 0)] -= self.slow_ns


def _cut_off(batches: list[list[Record]], bad_step: int) -> list[list[Record]]:
    """The guilty rank sleeps from the first call of the step on; nothing but progress rows comes after that."""
    out: list[list[Record]] = []
    frozen: dict[tuple[EventName, str], Record] = {}
    stopped_ns = 0
    for batch in batches:
        kept: list[Record] = []
        for record in batch:
            block = record.payload
            if not isinstance(block, Block):
                kept.append(record)
                continue
            place = (block.name, block.identity.node)
            if "step" in (block.rows.dtype.names or ()) and block.name is not EventName.BLOCK_PROGRESS:
                rows = block.rows[block.rows["step"] < bad_step]
                if len(rows) < len(block.rows) and not stopped_ns:
                    stopped_ns = record.stamp_ns
                if len(rows):
                    kept.append(dataclasses.replace(record, payload=dataclasses.replace(block, rows=rows)))
            elif not stopped_ns:
                frozen[place] = record
                kept.append(record)
            elif place in frozen:
                kept.append(_still(frozen[place], record, record.stamp_ns - stopped_ns, bad_step))
        if kept:
            out.append(kept)
    return out


def _still(last: Record, now: Record, age_ns: int, bad_step: int) -> Record:
    """The last progress rows before the fault, aged: all but the guilty rank wait in their next call."""
    block, present = last.payload, now.payload
    assert isinstance(block, Block)
    assert isinstance(present, Block)
    rows = block.rows.copy()
    if block.name is EventName.BLOCK_GROUP_PROGRESS:
        world = np.array([group.is_default for group in block.groups])[rows["group"]]
        waits = world & (rows["rank"] != GUILTY)
        rows["enqueued"][world], rows["completed"][world] = 1_000_000, 1_000_000
        rows["enqueued"][waits] += 1
        rows["open"] = 0
        rows["open"][waits], rows["open_age_ns"][waits] = 1, age_ns
    else:
        rows["step"], rows["phase"], rows["phase_age_ns"] = bad_step, int(Phase.FORWARD), age_ns
        rows["read_ns"] = present.time_ns - block.clock_offset_ns
    return dataclasses.replace(now, payload=dataclasses.replace(block, rows=rows, time_ns=present.time_ns))
