"""A job of drawn steps as its node's agent would send it, and what the job operator says of it, on a simulated clock.

Each step is own work and one collective in which all wait for the last. The agent flushes four times a second and looks
at progress once. All in arrays: a thousand jobs of a minute take minutes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from tests.processors.job.synthetic_job import FLUSH_NS, SECOND, WALL_NS, MemoryContext, MemoryTable
from whichrank.processors.job.operator import JobOperator
from whichrank.processors.operator import Timer
from whichrank.telemetry.records import Block, Event, Finding, Group, Identity, Record
from whichrank.telemetry.ring_layout import format_ranks
from whichrank.telemetry.tables import COLLECTIVES, GROUP_PROGRESS, PROGRESS, STEP_GROUPS, STEPS
from whichrank.telemetry.vocabulary import (
    EventFlag,
    EventName,
    ExitState,
    HookState,
    Level,
    Op,
    Phase,
    ProcessState,
    StepFlag,
)

BEGIN_NS = 100 * SECOND
TRANSFER_NS = 1_000_000
ARRIVES_NS = 5_000_000
BYTES = 4096
_HOOKS = HookState.COLLECTIVES_HOOKED | HookState.COMPLETION_HOOKED | HookState.PHASES_HOOKED


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """A finding when it was first told. at_step: steps that the job had made by then, sent: of these, the steps that
    had been sent, 0 not known. resolved: while it ran."""

    kind: str
    ranks: tuple[int, ...]
    at_step: int
    resolved: bool
    sent: int = 0


class _Unwritten(MemoryTable):
    """Nobody loads this state again."""

    def put_later(self, row: str, make: Callable[[], bytes]) -> None:
        pass


class _Context(MemoryContext):
    def table(self, name: str) -> MemoryTable:
        return self.tables.setdefault(name, _Unwritten())


def said_of(own_s: np.ndarray) -> list[Said]:
    """own_s: (steps, ranks). All that is found until the job's last step, and that ever asks for anybody: a wait that
    was noticed, and nobody called, is none."""
    own_ns = (own_s * 1e9).astype(np.int64)
    ends_ns = BEGIN_NS + np.cumsum(own_ns.max(axis=1) + TRANSFER_NS)
    context, operator = _Context(), JobOperator()
    for records in _messages(own_ns, ends_ns):
        while context.timers and (first := min((at, name) for name, at in context.timers.items()))[0] <= (
            records[0].stamp_ns
        ):
            del context.timers[first[1]]
            context.now = first[0]
            operator.on_timer(Timer(first[1], first[0]), context)
        context.now = records[-1].stamp_ns
        operator.process(records, context)
    loud = [finding for finding in context.findings() if finding.body["severity"] != "info"]
    begun: dict[str, Finding] = {}
    for finding in loud:
        begun.setdefault(finding.key, finding)
    cleared = {finding.key for finding in loud if finding.cleared}
    return [
        Said(
            kind=str(finding.body["kind"]),
            ranks=tuple(int(each["rank"]) for each in finding.body["suspects"] if each.get("rank") is not None),
            at_step=(at_step := int(np.searchsorted(ends_ns, (at_ns := finding.time_ns - WALL_NS), side="right"))),
            sent=min(at_step, int(np.searchsorted(ends_ns, at_ns // FLUSH_NS * FLUSH_NS, side="right"))),
            resolved=key in cleared,
        )
        for key, finding in begun.items()
    ]


def _messages(own_ns: np.ndarray, ends_ns: np.ndarray) -> Iterator[list[Record]]:
    """What comes in at a time, in order."""
    steps, ranks = own_ns.shape
    yield [_event(rank, ranks) for rank in range(ranks)]
    begins_ns = np.append(BEGIN_NS, ends_ns[:-1])
    calls, rows, groups = _rows(own_ns, begins_ns, ends_ns)
    sent = 0
    for number, now in enumerate(range(BEGIN_NS + FLUSH_NS, int(ends_ns[-1]) + FLUSH_NS, FLUSH_NS)):
        done = int(np.searchsorted(ends_ns, now, side="right"))
        records = []
        if done > sent:
            new = slice(sent, done)
            records.append(_block(now, EventName.BLOCK_COLLECTIVES, calls[new].reshape(-1), ranks))
            records.append(_block(now, EventName.BLOCK_STEP_GROUPS, groups[new].reshape(-1), ranks))
            records.append(_block(now, EventName.BLOCK_STEPS, rows[new].reshape(-1), ranks))
            sent = done
        if number % 4 == 0 and done < steps:
            by_group, by_rank = _progress(now, done, int(begins_ns[done]), own_ns[done])
            records.append(_block(now, EventName.BLOCK_GROUP_PROGRESS, by_group, ranks))
            records.append(_block(now, EventName.BLOCK_PROGRESS, by_rank, ranks))
        if records:
            yield records


def _rows(own_ns: np.ndarray, begins_ns: np.ndarray, ends_ns: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(steps, ranks) of COLLECTIVES, STEPS and STEP_GROUPS."""
    number, rank = np.indices(own_ns.shape)
    calls, rows, groups = (np.zeros(own_ns.shape, table) for table in (COLLECTIVES, STEPS, STEP_GROUPS))
    waits_ns = (ends_ns - begins_ns)[:, None] - own_ns
    for table in (calls, rows, groups):
        table["rank"], table["step"] = rank, number
    calls["op"], calls["dtype"], calls["phase"], calls["peer"] = Op.ALL_REDUCE, 6, Phase.BACKWARD, -1
    calls["flags"] = EventFlag.NONE
    calls["seq"], calls["bytes"] = number + 1, BYTES
    calls["enqueued_ns"], calls["done_ns"] = begins_ns[:, None] + own_ns, ends_ns[:, None]
    rows["begin_ns"], rows["end_ns"], rows["collectives"] = begins_ns[:, None], ends_ns[:, None], 1
    rows["phase_ns"][:, :, Phase.FORWARD], rows["phase_ns"][:, :, Phase.BACKWARD] = own_ns, waits_ns
    rows["collective_ns"], rows["flags"] = waits_ns, StepFlag.NONE
    groups["count"], groups["collective_ns"], groups["last_seq"] = 1, waits_ns, number + 1
    groups["last_op"], groups["last_bytes"] = Op.ALL_REDUCE, BYTES
    return calls, rows, groups


def _progress(now: int, step: int, begin_ns: int, own_ns: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """GROUP_PROGRESS and PROGRESS in the middle of a step."""
    ranks, called_ns = np.arange(own_ns.size), begin_ns + own_ns
    waits = called_ns <= now
    since_ns = now - np.where(waits, called_ns, begin_ns)
    by_group, by_rank = np.zeros(own_ns.size, GROUP_PROGRESS), np.zeros(own_ns.size, PROGRESS)
    by_group["rank"] = by_rank["rank"] = ranks
    by_group["op"], by_group["peer"], by_group["bytes"], by_group["started"] = Op.ALL_REDUCE, -1, BYTES, -1
    by_group["enqueued"], by_group["completed"] = step + waits, step
    by_group["open"] = by_rank["open"] = waits
    by_group["open_age_ns"], by_group["moved_age_ns"] = since_ns * waits, since_ns
    by_rank["pid"], by_rank["step"] = 4000 + ranks, step
    by_rank["phase"] = np.where(waits, Phase.BACKWARD, Phase.FORWARD)
    by_rank["process_state"], by_rank["level"] = ProcessState.SLEEPING, Level.EVENTS
    by_rank["exit_state"], by_rank["hook_state"], by_rank["read_ns"] = ExitState.RUNNING, _HOOKS, now
    by_rank["phase_age_ns"], by_rank["step_age_ns"] = since_ns, now - begin_ns
    by_rank["heartbeat_age_ns"], by_rank["cpu_ns"], by_rank["still_ns"] = 50_000_000, -1, -1
    return by_group, by_rank


def _block(now: int, name: EventName, rows: np.ndarray, ranks: int) -> Record:
    world = Group(
        uid="world",
        name="world",
        ranks=format_ranks(list(range(ranks))),
        size=ranks,
        backend="gloo",
        timeout_s=1800.0,
        is_default=True,
    )
    block = Block(
        name=name,
        identity=_identity(-1),
        rows=rows.copy(),
        groups=(world,),
        clock_offset_ns=WALL_NS,
        time_ns=now + WALL_NS,
    )
    return _record(now, block)


def _event(rank: int, ranks: int) -> Record:
    attributes = {"pid": 4000 + rank, "world_size": ranks, "local_rank": rank}
    event = Event(
        name=EventName.RANK_STARTED,
        identity=_identity(rank),
        time_ns=BEGIN_NS + WALL_NS,
        mono_ns=BEGIN_NS,
        attributes=attributes,
    )
    return _record(BEGIN_NS, event)


def _record(now: int, payload: Block | Event) -> Record:
    return Record(topic="whichrank.blocks", key="job-1", stamp_ns=now + WALL_NS + ARRIVES_NS, payload=payload)


def _identity(rank: int) -> Identity:
    return Identity(cluster="lab", run="run-1", job="job-1", attempt="a1", world="w", node="node-0", rank=rank)
