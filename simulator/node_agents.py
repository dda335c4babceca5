"""The agents of a job's nodes: the agent's own reduction over up to 4,096 rings at once, and the rows split by node.

Each node flushes at its own moments, with the clock of its own; what comes out is what one agent per node would have
sent. Everything that decides what is sent is the agent's own code (``agents.reduction``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from ..agents.base.health import AgentHealth
from ..agents.ranks.drain import Drained
from ..agents.reduction.coarse_rows import coarse
from ..agents.reduction.collect_progress import GROUP_STANDS, RANK_STANDS, group_progress_table, progress_table
from ..agents.reduction.group_identity import group_uid
from ..agents.reduction.large_jobs import is_large
from ..agents.reduction.reduction import Reduction, Table, split_by_part
from ..telemetry.records import Block, Group, Identity
from ..telemetry.ring_layout import format_ranks
from ..telemetry.vocabulary import EventName, HookState, Level
from .mesh import Mesh
from .rank_stand import stand_at
from .recording import StepRecording, events_between

#: Rings of one reduction: its join key has 12 bits for them.
MOST_SLOTS = 4095
#: As ``AgentSettings.open_rows``, of one node.
_OPEN_ROWS = 65_536
_HOOKED = int(HookState.COLLECTIVES_HOOKED | HookState.COMPLETION_HOOKED | HookState.PHASES_HOOKED)
Ints = NDArray[np.int64]


def groups_of(mesh: Mesh, backend: str, timeout_s: float) -> list[tuple[list[Group], Ints]]:
    """By dimension of the mesh, which is the row of a ring: its groups, and by rank the number of the one it is in."""
    found = []
    for row, dimension in enumerate(mesh.dimensions):
        groups = []
        for place, members in mesh.groups(dimension):
            ranks = format_ranks(members.tolist())
            name = "0" if dimension == "world" else f"{row}.{place}"
            groups.append(
                Group(
                    uid=group_uid(name, ranks, 0),
                    name=name,
                    desc="default_pg" if dimension == "world" else f"mesh_{dimension}",
                    ranks=ranks,
                    size=members.size,
                    backend=backend,
                    timeout_s=timeout_s,
                    is_default=dimension == "world",
                )
            )
        found.append((groups, mesh.group_of(dimension)))
    return found


@dataclass(frozen=True, kw_only=True, eq=False)
class NodeClocks:
    """By node of the job, ns to add: mono_ns from the simulation to its monotonic clock, wall_ns to its wall clock."""

    mono_ns: Ints
    wall_ns: Ints


@dataclass(frozen=True, kw_only=True, eq=False)
class ProcessLook:
    """What the agents see of the ranks' processes; by rank. since_ns: of the simulation."""

    pid: Ints
    state: Ints
    heartbeat_ns: Ints
    cpu_ns: Ints
    exit_state: Ints
    still_since_ns: Ints  # 0: it moves


class NodeAgents:
    """Agents of nodes whose ranks are ``first`` to ``first + count`` of an attempt."""

    def __init__(
        self,
        *,
        mesh: Mesh,
        first: int,
        count: int,
        ranks_per_node: int,
        identities: Sequence[Identity],
        groups: Sequence[tuple[list[Group], Ints]],
        clocks: NodeClocks,
    ) -> None:
        """Agents of nodes with ranks ``first`` to ``first + count``. identities, clocks: by node of these.

        groups: of the whole mesh, as ``groups_of`` gives them.
        """
        self.first, self.count = first, count
        self.health = AgentHealth()
        self._mesh = mesh
        self._identities = [replace(identity, rank=-1) for identity in identities]
        self._clocks = clocks
        self._node_of_slot = np.arange(count) // ranks_per_node
        self._mono_ns = clocks.mono_ns[self._node_of_slot]
        self._reduction = Reduction(self.health, _OPEN_ROWS * len(identities))
        ranks = np.arange(first, first + count)
        for slot, rank in enumerate(ranks.tolist()):
            self._reduction.add_slot(slot, rank, mesh.world_size, len(groups))
            self._reduction.see_completion(slot, True)
        self._numbers = np.zeros((len(groups), count), np.int64)
        for row, (all_groups, group_of) in enumerate(groups):
            mine = group_of[ranks]
            for place in np.unique(mine).tolist():
                slots = np.flatnonzero(mine == place)
                self._numbers[row, slots] = self._reduction.define_group(slots, row, all_groups[place])
        self._drained = np.full(count, -1, np.int64)
        self._slots = np.arange(count).astype(np.uint16)
        self.watched = np.ones(count, bool)

    def flush(
        self,
        live: Sequence[Sequence[StepRecording]],
        at: Ints,
        *,
        with_progress: NDArray[np.bool_],
        processes: ProcessLook,
    ) -> list[tuple[int, list[Block]]]:
        """What these agents send: (node of these, its blocks in their order).

        live: by stage, recordings of its ranks, oldest first. at: by rank of these, when its node looks (ns of the
        simulation; of one that does not now, its last look). with_progress: by rank of these. processes: of these
        ranks.
        """
        at = np.maximum(at, self._drained)
        drained = self._drain(live, at)
        collected, steps = self._reduction.collect(drained.events, drained.ring)
        tables = self._reduction.tables(collected, steps, at + self._mono_ns)
        chosen = np.flatnonzero(with_progress & self.watched)
        if chosen.size:
            tables += self._progress(live, at, chosen, processes)
        self._drained = at
        return self._blocks(tables, at)

    def read_until_ns(self) -> int:
        """Up to when (ns of the simulation) all rings that are watched have been read; the largest number there is
        without any.
        """
        return int(self._drained[self.watched].min(initial=np.iinfo(np.int64).max))

    def forget(self, slot: int) -> None:
        """Closes the ring of a rank whose exit has been told. slot: the rank's number less ``first``."""
        self.watched[slot] = False
        self._reduction.forget_slot(slot)

    def _stages(self) -> list[tuple[int, slice, slice]]:
        """(stage, its part of a stage's arrays, the same part of our slots)"""
        size = self._mesh.stage_size
        found = []
        for stage in range(self.first // size, (self.first + self.count - 1) // size + 1):
            begin, end = max(self.first, stage * size), min(self.first + self.count, (stage + 1) * size)
            found.append(
                (stage, slice(begin - stage * size, end - stage * size), slice(begin - self.first, end - self.first))
            )
        return found

    def _drain(self, live: Sequence[Sequence[StepRecording]], at: Ints) -> Drained:
        parts = []
        for stage, inside, slots in self._stages():
            for recording in live[stage]:
                part = _part(recording, inside)
                parts.append(
                    events_between(
                        part, self._drained[slots], at[slots], clock_ns=self._mono_ns[slots], slots=self._slots[slots]
                    )
                )
        events = np.concatenate([events for events, _ in parts])
        ring = np.concatenate([ring for _, ring in parts])
        if sum(bool(len(events)) for events, _ in parts) > 1:
            order = np.argsort(ring, kind="stable")  # per ring contiguous; a step's events before the next one's
            events, ring = events.take(order), ring[order]
        return Drained(events=events, ring=ring)

    def _progress(
        self, live: Sequence[Sequence[StepRecording]], at: Ints, chosen: Ints, processes: ProcessLook
    ) -> list[Table]:
        ranks: NDArray[np.void] = np.zeros(self.count, RANK_STANDS)
        rows = self._numbers.shape[0]
        groups: NDArray[np.void] = np.zeros((self.count, rows), GROUP_STANDS)
        mono = self._mono_ns
        for stage, inside, slots in self._stages():
            stand = stand_at([_part(recording, inside) for recording in live[stage]], at[slots])
            offset, part = mono[slots], ranks[slots]
            part["step"], part["phase"] = stand.step, stand.phase
            part["phase_since_ns"], part["step_since_ns"] = stand.phase_since + offset, stand.step_since + offset
            for number, calls in stand.rows.items():
                row = groups[slots, number]
                row["op"], row["flags"], row["dtype"] = calls.op, calls.flags, np.where(calls.op > 0, 13, 0)
                row["peer"], row["bytes"] = calls.peer, calls.nbytes
                for column in ("enqueued", "started", "completed", "p2p_enqueued", "p2p_completed", "open"):
                    row[column] = getattr(calls, column)
                row["open_since_ns"] = np.where(calls.open_since > 0, calls.open_since + offset, 0)
                row["moved_ns"] = np.where(calls.moved > 0, calls.moved + offset, 0)
                on_device = live[stage][0].plan.on_device
                row["told"] = (calls.completed > 0) | (not on_device)
                part["open"] += np.maximum(calls.open, 0).astype(np.int32)
        ranks["rank"] = groups["rank"].T[...] = np.arange(self.first, self.first + self.count)
        ranks["pid"], ranks["process_state"] = processes.pid, processes.state
        ranks["level"], ranks["hook_state"] = int(Level.EVENTS), _HOOKED
        ranks["exit_state"] = processes.exit_state
        ranks["read_ns"] = groups["read_ns"].T[...] = at + mono
        ranks["heartbeat_since_ns"] = processes.heartbeat_ns + mono
        ranks["cpu_ns"], ranks["own_cost_ns"] = processes.cpu_ns, 0
        ranks["still_since_ns"] = _still_since_ns(processes.still_since_ns, ranks, groups, mono)
        groups["group"] = self._numbers.T
        chosen_groups = groups[chosen].reshape(-1)
        return [
            (
                EventName.BLOCK_GROUP_PROGRESS,
                group_progress_table(chosen_groups),
                np.repeat(chosen, rows).astype(np.uint16),
            ),
            (EventName.BLOCK_PROGRESS, progress_table(ranks[chosen]), chosen.astype(np.uint16)),
        ]

    def _blocks(self, tables: Sequence[Table], at: Ints) -> list[tuple[int, list[Block]]]:
        by_node: dict[int, list[Block]] = {}
        for name, table, ring in tables:
            for node, rows in split_by_part(table, ring, self._node_of_slot):
                mono_ns, wall_ns = int(self._clocks.mono_ns[node]), int(self._clocks.wall_ns[node])
                looked = int(at[int(np.searchsorted(self._node_of_slot, node))])
                block = self._reduction.block(
                    name, rows, self._identities[node], clock_offset_ns=wall_ns - mono_ns, time_ns=looked + wall_ns
                )
                if is_large(self._mesh.world_size):
                    block = coarse(block, looked + mono_ns)
                by_node.setdefault(node, []).append(block)
        return sorted(by_node.items())


def _still_since_ns(stands_ns: Ints, ranks: NDArray[np.void], groups: NDArray[np.void], mono_ns: Ints) -> Ints:
    """By rank, since when nothing of its process moves, on the node's clock; 0: it moves. stands_ns: since when its
    host stands (simulation); it gets on until it comes to what it stands for. Who waits in a call of the host stands,
    too."""
    moved_ns = np.maximum(ranks["phase_since_ns"], groups["moved_ns"].max(axis=1, initial=0))
    waits_ns = np.where(groups["told"] & (groups["started"] < 0), groups["open_since_ns"], 0).max(axis=1, initial=0)
    since_ns = np.where(stands_ns > 0, stands_ns + mono_ns, waits_ns)
    return np.asarray(np.where(since_ns > 0, np.maximum(since_ns, moved_ns), 0), np.int64)


def _part(recording: StepRecording, ranks: slice) -> StepRecording:
    """The same of some of its ranks only; views."""
    if ranks == slice(0, recording.begin.size):
        return recording
    arrays = {name: getattr(recording, name) for name in ("begin", "end", "since", "loss", "norm")}
    tables = {name: getattr(recording, name) for name in ("phase_at", "called", "started", "done")}
    return replace(
        recording,
        **{name: array[ranks] for name, array in arrays.items()},
        **{name: table[:, ranks] for name, table in tables.items()},
        started_before={row: newest[ranks] for row, newest in recording.started_before.items()},
        nbytes=None if recording.nbytes is None else recording.nbytes[:, ranks],
    )
