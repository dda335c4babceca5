"""The agent: looks at every ring and process of the node, and ships what it learned in an order one can rely on.

One polling thread (the caller of ``wait`` and ``poll``) owns everything here; only stacks are taken elsewhere. Order on
the bus: rank and group definitions, then each rank's collectives, then its step rows, then progress, then what went
wrong. Before an exit, an exception or a stop is told, all rings of the node have been drained and shipped.
It never writes to a ring, never signals a process, and touches one (py-spy) only while its ring shows no progress.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..telemetry import ring_layout as L
from ..telemetry.records import Block, Event, Group, Identity
from ..telemetry.tables import NO_GROUP
from ..telemetry.vocabulary import EventKind, EventName, ExitState, Phase, ProcessState
from . import processes
from .collect_collectives import CollectiveJoiner
from .collect_progress import group_progress_rows, progress_rows
from .collect_steps import StepCollector
from .crash_area import read_exception, read_signal, read_stack
from .drain import Drained, drain_rings
from .evidence import EvidenceStore
from .group_identity import GroupRegistry, attempt_id, group_from_definition
from .health import AgentHealth
from .local_verdicts import (
    StackWanted,
    judge_stale,
    judge_stop,
    no_progress,
    oldest_open_age_ns,
    process_look_due,
    stacks_wanted,
    to_ns,
)
from .ring_directory import RingDirectory, find_process, identity_int
from .ring_file import RingFile, exception_version
from .settings import AgentSettings
from .shipper import Shipper
from .stacks import StackAnswer, StackRequest, StackTaker
from .user_frames import Frame, format_stack, innermost_user_frame
from .victims import is_communication_error
from .watched_rank import WatchedRank

#: Words of a ring's identity that are passed on with RANK_STARTED.
_STARTED_WORDS = ("host", "torch", "python", "backend", "script")
_CLOCK_STEP_NS = 10_000_000
#: A pause of the agent itself (stopped, starved) makes every heartbeat look old; wait this long before judging.
_GRACE_NS = 1_000_000_000
_OWN_PAUSE_NS = 500_000_000
_MAX_REQUESTS = 256


class Agent:
    """Watches one ring directory. Not thread-safe: one thread calls everything."""

    def __init__(
        self,
        *,
        ring_directory: Path,
        publish: Callable[[str, str, bytes], None],
        identity: Identity,
        evidence_directory: Path | None = None,
        settings: AgentSettings | None = None,
        monotonic_ns: Callable[[], int] = time.monotonic_ns,
        wall_ns: Callable[[], int] = time.time_ns,
    ) -> None:
        self.settings = settings or AgentSettings()
        self.health = AgentHealth()
        self._monotonic_ns, self._wall_ns = monotonic_ns, wall_ns
        self._identity = replace(identity, node=identity.node or socket.gethostname(), attempt="", rank=-1)
        self._directory = RingDirectory(ring_directory, self.health)
        self._shipper = Shipper(publish, identity.job, self.health, self.settings.request_bytes)
        self._evidence = EvidenceStore(evidence_directory, self.settings.evidence_bytes, self.health)
        self._stacks = StackTaker(self.settings.stack_timeout_s)
        self._registry = GroupRegistry()
        self._joiner = CollectiveJoiner(self.health, self.settings.open_rows)
        self._steps = StepCollector()
        self._poller = select.poll()
        self._by_pidfd: dict[int, WatchedRank] = {}
        self._ranks: list[WatchedRank] = []
        self._free_slots = list(range(self.settings.max_rings - 1, -1, -1))
        self._group_of = np.full((16, 64), NO_GROUP, np.uint16)
        self._rank_of = np.zeros(16, np.uint32)
        self._completion_seen = np.zeros(16, bool)
        self._ship_every = np.ones(16, np.int64)
        self._longest_ns = np.zeros(64, np.int64)
        self._head_events: list[Event] = []  # definitions: shipped before the blocks of the next flush
        self._tail_events: list[Event] = []  # what happened: shipped after them
        self._requests: deque[tuple[int, Event]] = deque()
        self._request_ids: deque[str] = deque(maxlen=1024)
        self._stack_times: deque[int] = deque()
        now_ns = monotonic_ns()
        self._started_ns = self._last_poll_ns = now_ns
        self._clock_offset_ns = wall_ns() - now_ns
        self._next_look_ns = self._next_flush_ns = self._next_progress_ns = 0
        self._next_health_ns = now_ns + to_ns(self.settings.health_period_s)
        self._judge_from_ns = now_ns
        self._urgent = False
        self._closed = False

    # --- the loop ---------------------------------------------------------------------------------------------------
    def wait(self, timeout_s: float) -> None:
        """Sleep up to ``timeout_s``; return at once when a watched process ends."""
        try:
            self._poller.poll(max(timeout_s, 0.0) * 1000)
        except InterruptedError:
            return

    def poll(self) -> None:
        """Do what is due. Never raises for anything a ring, a process, the bus or the disk can do."""
        now_ns = self._monotonic_ns()
        ended = self._poller.poll(0) if self._by_pidfd else []
        if self._closed or (not ended and now_ns < self._next_look_ns):
            return
        try:
            self._poll(now_ns, [fd for fd, _ in ended])
        except Exception as error:  # the edge between the agent and whoever embeds it: a bug must not end the run
            self.health.drop("poll_failed")
            self.health.report(f"agent poll failed: {type(error).__name__}: {error}")
        took_ns = self._monotonic_ns() - now_ns
        self.health.polls += 1
        self.health.poll_ns += took_ns
        self.health.poll_max_ns = max(self.health.poll_max_ns, took_ns)

    def request(self, event: Event) -> None:
        """Take an EVIDENCE_REQUEST: bounded, idempotent by id, answered within its lifetime or dropped."""
        request_id = event.attributes.get("id")
        if event.name is not EventName.EVIDENCE_REQUEST or not isinstance(request_id, str):
            self.health.drop("requests_unreadable")
        elif request_id in self._request_ids or event.attributes.get("node") not in (None, "", self._identity.node):
            return
        elif len(self._requests) >= _MAX_REQUESTS or not self.settings.take_stacks:
            self.health.drop("requests_refused")
        else:
            self._request_ids.append(request_id)
            self._requests.append((self._monotonic_ns(), event))

    def read_left_behind(self) -> None:
        """Read rings whose agent is gone: everything in them is shipped, dead writers aged by their own last times.

        Repeats of what the capture already holds are harmless: every row and event has a key.
        """
        now_ns = self._monotonic_ns()
        self._find_rings(now_ns, left_behind=True)
        for rank in self._ranks:
            rank.look(now_ns)
            rank.read_process(now_ns)
            self._find_exception(rank, now_ns)
            # The previous agent may have seen it move; a rank that lives is as still as its last event is old.
            rank.moved_ns = min(rank.moved_ns, rank.last_sign_of_life_ns() or now_ns)
            if rank.process is not None and rank.process.state is ProcessState.STOPPED and not rank.process.traced:
                rank.stopped = True
                self._tell(rank, EventName.RANK_STOPPED, now_ns, self._where(rank))
            if not rank.alive:
                self._find_exit(rank, now_ns)
        self._tail_events.sort(key=lambda event: event.mono_ns)
        self._flush(now_ns, with_progress=True)
        self._close_ended()

    def close(self) -> None:
        """Final drain and flush; ends the stack thread."""
        if self._closed:
            return
        self._next_look_ns = self._next_flush_ns = self._next_progress_ns = 0
        self.poll()
        self._stacks.close()
        self._next_look_ns = self._next_flush_ns = self._next_health_ns = 0
        self.poll()
        self._closed = True
        for rank in self._ranks:
            rank.close()
        self._ranks.clear()

    # --- one poll ---------------------------------------------------------------------------------------------------
    def _poll(self, now_ns: int, ended: Sequence[int]) -> None:
        settings = self.settings
        if now_ns - self._last_poll_ns > _OWN_PAUSE_NS:
            self._judge_from_ns = now_ns + _GRACE_NS
        self._last_poll_ns = now_ns
        self._next_look_ns = now_ns + to_ns(settings.look_period_s) - 2_000_000
        for fd in ended:
            self._by_pidfd[fd].alive = False
        self._find_rings(now_ns, left_behind=False)
        for rank in self._ranks:
            self._look(rank, now_ns)
        if self._urgent or now_ns >= self._next_flush_ns:
            with_progress = self._urgent or now_ns >= self._next_progress_ns
            self._urgent = False
            self._flush(now_ns, with_progress)
        self._close_ended()
        self._take_stacks(now_ns)
        if now_ns >= self._next_health_ns:
            self._next_health_ns = now_ns + to_ns(settings.health_period_s)
            self._tail_events.append(self._event(EventName.AGENT_HEALTH, self._identity, now_ns, self._health_now()))

    def _look(self, rank: WatchedRank, now_ns: int) -> None:
        rank.look(now_ns)
        if rank.alive and process_look_due(rank, now_ns, self.settings):
            rank.read_process(now_ns)
        if not rank.exception_sent:
            self._find_exception(rank, now_ns)
        if not rank.alive:
            self._find_exit(rank, now_ns)
            return
        news = judge_stop(rank, now_ns, self.settings)
        if news is not None:
            name = EventName.RANK_STOPPED if news else EventName.RANK_CONTINUED
            self._tell(rank, name, now_ns, self._where(rank))
            if news:
                self._save_ring(rank, "stopped")
        late = rank.heartbeat_age_ns(now_ns) > to_ns(self.settings.stale_heartbeat_s)
        if now_ns >= self._judge_from_ns and (late or rank.stale):
            holds = not late or rank.stale or processes.lock_holder(rank.ring.fd) is not None
            if judge_stale(rank, now_ns, self.settings, holds):
                self._tell(
                    rank,
                    EventName.RANK_STALE,
                    now_ns,
                    {
                        "heartbeat_age_ns": rank.heartbeat_age_ns(now_ns),
                        "process_state": rank.process_state().name.lower(),
                        **self._where(rank),
                    },
                )
        if rank.groups_unmoved():
            rank.parse_groups()
            self._announce_slow(rank, now_ns)

    def _announce_slow(self, rank: WatchedRank, now_ns: int) -> None:
        """Ship everything at once when an operation gets slow for the first time."""
        age_ns = oldest_open_age_ns(rank, now_ns)
        if age_ns > to_ns(self.settings.slow_operation_s):
            since_ns = now_ns - age_ns
            if rank.slow_open_ns != since_ns:
                rank.slow_open_ns = since_ns
                self._urgent = True

    # --- rings come and go ------------------------------------------------------------------------------------------
    def _find_rings(self, now_ns: int, left_behind: bool) -> None:
        for path in self._directory.new_paths(now_ns):
            ring = self._directory.open_ring(path)
            if ring is not None:
                self._attach(ring, now_ns, left_behind)

    def _attach(self, ring: RingFile, now_ns: int, left_behind: bool) -> None:
        process = find_process(ring)
        header = ring.header
        if process.problem:
            self.health.report(f"ring {ring.path}: {process.problem}")
        of_the_past = not process.alive and header.created_mono_ns < self._started_ns
        if (of_the_past and not left_behind) or not self._free_slots:
            # Rings of a run that ended before we came are not this run's news.
            self.health.drop("rings_of_the_past" if of_the_past else "rings_over_limit")
            ring.close()
            return
        self.health.rings_found += 1
        slot = self._free_slots.pop()
        rank = WatchedRank(
            ring=ring,
            slot=slot,
            identity=self._rank_identity(ring, process.pid if process.alive else 0),
            pid=process.pid,
            start_ticks=process.start_ticks,
            pidfd=process.pidfd,
            alive=process.alive,
            found_ns=now_ns,
            left_behind=of_the_past,
        )
        self._ranks.append(rank)
        self._grow(slot + 1, header.group_rows)
        self._group_of[slot] = NO_GROUP
        self._rank_of[slot] = header.rank
        self._ship_every[slot] = max(1, header.world_size // 64)
        if process.pidfd >= 0 and process.alive:
            self._poller.register(process.pidfd, select.POLLIN)
            self._by_pidfd[process.pidfd] = rank
        self._next_flush_ns = self._next_progress_ns = 0
        self._head_events.append(
            self._event(EventName.RANK_STARTED, rank.identity, header.created_mono_ns, self._started(rank))
        )

    def _rank_identity(self, ring: RingFile, live_pid: int) -> Identity:
        claims = ring.header.identity
        launcher, ticks = identity_int(claims, "launcher_pid"), identity_int(claims, "launcher_start_ticks")
        # Ranks under a wrapper (a shell script) name their wrapper; the true launcher can be told while they live.
        if live_pid and (not (launcher and ticks) or processes.has_rank_variables(launcher)):
            launcher, ticks = processes.find_launcher(live_pid)
        attempt = claims.get("attempt")
        if not isinstance(attempt, str) or not attempt:
            attempt = attempt_id(self._identity.job, launcher, ticks, identity_int(claims, "restart_count"))
        world = claims.get("world")
        return replace(
            self._identity,
            attempt=attempt[:64],
            world=world[:64] if isinstance(world, str) else self._identity.world,
            rank=ring.header.rank,
        )

    def _started(self, rank: WatchedRank) -> dict[str, Any]:
        header = rank.ring.header
        claims = header.identity
        attributes: dict[str, Any] = {
            "pid": rank.pid or header.pid,
            "local_rank": header.local_rank,
            "world_size": header.world_size,
            "writer": "c" if header.writer == L.WRITER_C else "python",
            "launcher_pid": identity_int(claims, "launcher_pid"),
            "restart_count": identity_int(claims, "restart_count"),
            "uid": rank.ring.uid,
        }
        for word in _STARTED_WORDS:
            if isinstance(claims.get(word), str):
                attributes[word] = claims[word][:256]
        return attributes

    def _grow(self, slots: int, group_rows: int) -> None:
        have_slots, have_rows = self._group_of.shape
        if slots > have_slots or group_rows + 1 > have_rows:
            # One row more than any ring has: the last column stays NO_GROUP and catches what is out of range.
            grown = np.full((max(slots, 2 * have_slots), max(group_rows + 1, have_rows)), NO_GROUP, np.uint16)
            grown[:have_slots, :have_rows] = self._group_of
            self._group_of = grown
            more = len(grown) - have_slots
            self._rank_of = np.concatenate((self._rank_of, np.zeros(more, np.uint32)))
            self._completion_seen = np.concatenate((self._completion_seen, np.zeros(more, bool)))
            self._ship_every = np.concatenate((self._ship_every, np.ones(more, np.int64)))

    def _close_ended(self) -> None:
        """Close rings whose exit has been shipped."""
        for rank in [rank for rank in self._ranks if rank.exit_sent]:
            self._ranks.remove(rank)
            self._by_pidfd.pop(rank.pidfd, None)
            if rank.pidfd >= 0:
                with contextlib.suppress(KeyError):
                    self._poller.unregister(rank.pidfd)
            self._joiner.forget(rank.slot)
            self._steps.forget(rank.slot)
            rank.close()
            self._free_slots.append(rank.slot)
            self.health.rings_closed += 1

    # --- what happened ----------------------------------------------------------------------------------------------
    def _event(self, name: EventName, identity: Identity, mono_ns: int, attributes: dict[str, Any]) -> Event:
        return Event(
            name=name,
            identity=identity,
            time_ns=mono_ns + self._clock_offset_ns,
            mono_ns=mono_ns,
            attributes=attributes,
        )

    def _tell(self, rank: WatchedRank, name: EventName, mono_ns: int, attributes: dict[str, Any]) -> None:
        """Queue an event behind a flush of everything, at once."""
        self._tail_events.append(self._event(name, rank.identity, mono_ns, attributes))
        self._urgent = True

    def _where(self, rank: WatchedRank) -> dict[str, Any]:
        step, phase = rank.step_and_phase()
        return {"step": step, "phase": Phase(phase).name.lower(), "pid": rank.pid}

    def _find_exception(self, rank: WatchedRank, now_ns: int) -> None:
        if not exception_version(rank.ring):
            return
        found = read_exception(rank.ring, writer_is_dead=not rank.alive)
        if found is None:
            return
        rank.exception_sent = rank.had_exception = True
        if not found.complete:
            self.health.rows_torn += 1
        attributes: dict[str, Any] = {
            **self._where(rank),
            "type": found.type_name,
            "message": found.message,
            "stack": format_stack(found.frames),
            "communication": is_communication_error(found.type_name, found.message),
            "in_main": found.in_main,
        }
        if found.step >= 0:
            attributes["step"] = found.step
        attributes.update(_frame_attributes(found.frames))
        self._tell(
            rank, EventName.RANK_EXCEPTION, min(found.time_ns, now_ns) if found.time_ns > 0 else now_ns, attributes
        )
        if not attributes["communication"]:
            self._save_ring(rank, "raised")

    def _find_exit(self, rank: WatchedRank, now_ns: int) -> None:
        if rank.exit_sent:
            return
        rank.exit_sent = True
        status = processes.exit_status(rank.pid, rank.start_ticks, rank.pidfd, rank.ring.uid)
        told = read_signal(rank.ring)
        row = rank.rank_row
        exit_state = row.exit_state if row is not None and row.exit_state <= max(ExitState) else ExitState.RUNNING
        attributes: dict[str, Any] = {
            **self._where(rank),
            "signal": status.signal or (told.number if told is not None and status.exit_code is None else 0),
            "exit_state": int(exit_state),
            "exception": rank.had_exception,
            "core": status.core,
        }
        if status.exit_code is not None:
            attributes["exit_code"] = status.exit_code
        if told is not None:
            attributes["sender_pid"] = told.sender_pid
        if rank.left_behind:
            attributes["left_behind"] = True
        mono_ns = min(rank.last_sign_of_life_ns() or now_ns, now_ns) if rank.left_behind else now_ns
        self._tell(rank, EventName.RANK_EXIT, mono_ns, attributes)
        if exit_state != ExitState.NORMAL or status.signal or status.exit_code:
            self._save_ring(rank, "died")

    # --- flush ------------------------------------------------------------------------------------------------------
    def _flush(self, now_ns: int, with_progress: bool) -> None:
        """Drain all rings and ship: definitions, collectives, steps, progress, then what happened."""
        settings = self.settings
        self._next_flush_ns = now_ns + to_ns(settings.flush_period_s) - to_ns(settings.look_period_s) // 2
        if with_progress:
            self._next_progress_ns = now_ns + to_ns(settings.progress_period_s) - to_ns(settings.look_period_s) // 2
        offset_ns = self._wall_ns() - self._monotonic_ns()
        if abs(offset_ns - self._clock_offset_ns) > _CLOCK_STEP_NS:
            self._clock_offset_ns = offset_ns
        drained = drain_rings(self._ranks, now_ns, settings, self.health)
        # Definitions are read after the events: whatever an event refers to was defined before it.
        for rank in self._ranks:
            if rank.hot.definitions_used != rank.definitions_read:
                self._read_definitions(rank, now_ns)
        blocks = self._blocks(drained, now_ns, with_progress)
        events, self._tail_events = self._tail_events, []
        heads, self._head_events = self._head_events, []
        self._shipper.ship([*heads, *blocks, *events])

    def _read_definitions(self, rank: WatchedRank, now_ns: int) -> None:
        found, position, problem = rank.ring.read_definitions(rank.definitions_read, rank.hot.definitions_used)
        rank.definitions_read = rank.hot.definitions_used if problem else position
        if position < rank.hot.definitions_used and not problem:
            problem = f"definitions end inside an entry at byte {position}"
            rank.definitions_read = rank.hot.definitions_used
        if problem:
            self.health.report(f"ring {rank.ring.path}: {problem}")
        for definition in found:
            if definition.kind == L.DEFINITION_GROUP:
                if definition.index >= rank.ring.header.group_rows:
                    self.health.report(f"ring {rank.ring.path}: group row {definition.index} does not exist")
                    continue
                try:
                    group = group_from_definition(rank.identity.attempt, definition.payload)
                except ValueError as error:
                    self.health.report(f"ring {rank.ring.path}: {error}")
                    continue
                self._define_group(rank, definition.index, group, now_ns)
            elif definition.kind == L.DEFINITION_ATTEMPT:
                token = definition.payload.get("token")
                rank.attempt_token = token[:128] if isinstance(token, str) else ""
            elif definition.kind == L.DEFINITION_NOTE:
                text = definition.payload.get("text")
                if isinstance(text, str) and len(rank.notes) < 32:
                    rank.notes.append(text[:500])
                    self.health.report(f"rank {rank.rank} (pid {rank.pid}) notes: {text[:500]}")

    def _define_group(self, rank: WatchedRank, index: int, group: Group, now_ns: int) -> None:
        number, new = self._registry.number(group)
        if number == NO_GROUP:
            self.health.drop("groups_over_limit")
            return
        self._group_of[rank.slot, index] = number
        rank.group_numbers[index] = number
        rank.ring.expect_groups(max(rank.group_numbers) + 1)
        if number >= len(self._longest_ns):
            self._longest_ns = np.concatenate((self._longest_ns, np.zeros(number + 64, np.int64)))
        if new:
            identity = replace(rank.identity, rank=-1)
            attributes: dict[str, Any] = {
                name: getattr(group, name)
                for name in ("uid", "name", "desc", "ranks", "size", "backend", "timeout_s", "is_default")
            }
            if rank.attempt_token:
                attributes["attempt_token"] = rank.attempt_token
            self._head_events.append(self._event(EventName.GROUP_DEFINED, identity, now_ns, attributes))

    def _blocks(self, drained: Drained, now_ns: int, with_progress: bool) -> list[Block]:
        for rank in self._ranks:
            self._completion_seen[rank.slot] = rank.completion_seen() and rank.alive
        events, ring = drained.events, drained.ring
        collected = self._joiner.collect(events, ring, self._rank_of, self._group_of, self._completion_seen)
        self._note_longest(collected.rows)
        self._steps.add_collectives(collected)
        steps = self._steps.collect(events, ring, self._rank_of)
        if len(events):
            self._tell_levels(events, ring)
        rows, rows_ring = collected.rows, collected.ring
        if len(rows) and (self._ship_every[rows_ring] > 1).any():
            # Large worlds: every k-th step whole, the same steps on every rank, and whatever is unfinished.
            whole = (rows["step"] % self._ship_every[rows_ring] == 0) | (rows["done_ns"] == 0)
            rows, rows_ring = rows[whole], rows_ring[whole]
        blocks: list[Block] = []
        self._add_blocks(blocks, EventName.BLOCK_COLLECTIVES, rows, rows_ring)
        self._add_blocks(blocks, EventName.BLOCK_STEP_GROUPS, steps.groups, steps.groups_ring)
        self._add_blocks(blocks, EventName.BLOCK_STEPS, steps.steps, steps.steps_ring)
        if with_progress and self._ranks:
            for rank in self._ranks:
                rank.parse_groups()
                self._announce_slow(rank, now_ns)
            self._urgent = False  # this flush is what would have been announced
            slots = np.array([rank.slot for rank in self._ranks], np.uint16)
            groups, group_slots = group_progress_rows(self._ranks, now_ns)
            self._add_blocks(blocks, EventName.BLOCK_GROUP_PROGRESS, groups, np.array(group_slots, np.uint16))
            self._add_blocks(blocks, EventName.BLOCK_PROGRESS, progress_rows(self._ranks, now_ns), slots)
        return blocks

    def _add_blocks(
        self, blocks: list[Block], name: EventName, rows: NDArray[np.void], ring: NDArray[np.uint16]
    ) -> None:
        """One block per attempt that has rows (almost always one)."""
        if not len(rows):
            return
        identity_of = {rank.slot: rank.identity for rank in self._ranks}
        by_attempt: dict[str, list[int]] = {}
        for slot in identity_of if len(identity_of) > 1 else ():
            by_attempt.setdefault(identity_of[slot].attempt, []).append(slot)
        if len(by_attempt) <= 1:
            parts = [(identity_of[int(ring[0])], rows)]
        else:
            parts = []
            for slots in by_attempt.values():
                chosen = np.isin(ring, slots)
                if chosen.any():
                    parts.append((identity_of[slots[0]], rows[chosen]))
        for identity, part in parts:
            groups: tuple[Group, ...] = ()
            if "group" in (part.dtype.names or ()):
                part = part.copy()
                groups, part["group"] = self._registry.for_block(part["group"])
            blocks.append(
                Block(
                    name=name,
                    identity=replace(identity, rank=-1),
                    rows=part,
                    groups=groups,
                    clock_offset_ns=self._clock_offset_ns,
                    time_ns=self._wall_ns(),
                )
            )

    def _note_longest(self, rows: NDArray[np.void]) -> None:
        done = rows["done_ns"] > 0
        if done.any():
            rows = rows[done]
            np.maximum.at(self._longest_ns, rows["group"], rows["done_ns"] - rows["enqueued_ns"])

    def _tell_levels(self, events: NDArray[np.void], ring: NDArray[np.uint16]) -> None:
        kind = events["kind"]
        rare = np.flatnonzero((kind == int(EventKind.LEVEL)) | (kind == int(EventKind.HOOK_OFF)))
        if not len(rare):
            return
        by_slot = {rank.slot: rank for rank in self._ranks}
        for place in rare[:256]:
            event, rank = events[place], by_slot[int(ring[place])]
            row = rank.rank_row
            if event["kind"] == int(EventKind.LEVEL):
                level, hook_state = int(event["value"]) & 0xFF, int(event["extra"]) & 0xFFFFFFFF
            else:
                level, hook_state = (row.level & 0xFF if row is not None else 0), int(event["value"]) & 0xFFFFFFFF
            if rank.level_sent == (level, hook_state):
                continue
            rank.level_sent = (level, hook_state)
            attributes: dict[str, Any] = {"level": level, "hook_state": hook_state}
            if rank.notes:
                attributes["note"] = rank.notes[-1]
            mono_ns = int(event["time_ns"])
            self._tail_events.append(self._event(EventName.RANK_LEVEL, rank.identity, mono_ns, attributes))

    # --- stacks and evidence ----------------------------------------------------------------------------------------
    def _take_stacks(self, now_ns: int) -> None:
        for answer in self._stacks.take_finished():
            self._tell_stack(answer, now_ns)
        if self._requests:
            self._serve_requests(now_ns)
        if not self.settings.take_stacks or not any(
            oldest_open_age_ns(rank, now_ns) > to_ns(self.settings.stack_operation_s) for rank in self._ranks
        ):
            return
        longest = dict(enumerate(self._longest_ns.tolist()))
        for want in stacks_wanted(self._ranks, longest, now_ns, self.settings):
            self._ask_stack(want, "", now_ns)

    def _serve_requests(self, now_ns: int) -> None:
        waiting: deque[tuple[int, Event]] = deque()
        for asked_ns, event in self._requests:
            rank = self._requested_rank(event)
            expired = now_ns - asked_ns > to_ns(self.settings.request_lifetime_s)
            if rank is None or expired:
                self.health.drop("requests_expired" if expired else "requests_for_nobody")
            elif rank.alive and no_progress(rank, now_ns, self.settings):
                if not self._ask_stack(StackWanted(rank, "request"), str(event.attributes["id"]), now_ns):
                    waiting.append((asked_ns, event))
            else:
                # It moves: nothing may touch it. It may yet stand still before the request expires.
                waiting.append((asked_ns, event))
        self._requests = waiting

    def _requested_rank(self, event: Event) -> WatchedRank | None:
        wanted, attempt = event.attributes.get("rank"), event.identity.attempt
        for rank in self._ranks:
            if rank.rank == wanted and (not attempt or attempt == rank.identity.attempt):
                return rank
        return None

    def _ask_stack(self, want: StackWanted, request_id: str, now_ns: int) -> bool:
        while self._stack_times and self._stack_times[0] < now_ns - 60_000_000_000:
            self._stack_times.popleft()
        rank = want.rank
        if len(self._stack_times) >= self.settings.stacks_per_minute:
            self.health.drop("stacks_over_rate")
            return False
        stopped = rank.stopped or (rank.process is not None and rank.process.state is ProcessState.STOPPED)
        if not rank.pid or not self._stacks.ask(
            StackRequest(slot=rank.slot, pid=rank.pid, stopped=stopped, why=want.why, request_id=request_id)
        ):
            return False
        self._stack_times.append(now_ns)
        rank.stack_taken_at_head = rank.hot.event_head
        return True

    def _tell_stack(self, answer: StackAnswer, now_ns: int) -> None:
        rank = next((rank for rank in self._ranks if rank.slot == answer.request.slot), None)
        if rank is None or rank.pid != answer.request.pid:
            return
        method, frames = "py-spy", answer.frames
        if not frames:
            self.health.stacks_failed += 1
            self.health.report(f"rank {rank.rank} (pid {rank.pid}): no stack by py-spy: {answer.error}")
            own = read_stack(rank.ring)
            if own is None or own.time_ns < rank.moved_ns:
                return
            method, frames = "ring", own.frames
        else:
            self.health.stacks_taken += 1
        attributes: dict[str, Any] = {
            **self._where(rank),
            "method": method,
            "stack": format_stack(frames),
            "why": answer.request.why,
            "stopped": answer.request.stopped,
            **_frame_attributes(frames),
        }
        if answer.request.request_id:
            attributes["request_id"] = answer.request.request_id
        self._tell(rank, EventName.RANK_STACK, now_ns, attributes)
        text = answer.text or format_stack(frames)
        self._evidence.save(f"{self._evidence_name(rank, answer.request.why)}.stack.txt", text.encode())
        if answer.request.why != "waits":
            self._save_ring(rank, answer.request.why)

    def _evidence_name(self, rank: WatchedRank, why: str) -> str:
        return f"{rank.identity.attempt}-rank-{rank.rank:05d}-{rank.pid}-{why.replace(' ', '_')}"

    def _save_ring(self, rank: WatchedRank, why: str) -> None:
        self._evidence.save(f"{self._evidence_name(rank, why)}{L.RING_SUFFIX}", rank.ring.read_copy())

    def _health_now(self) -> dict[str, Any]:
        self.health.events_dropped_by_writers = sum(
            rank.hot.events_dropped for rank in self._ranks if rank.hot.events_dropped < 1 << 62
        )
        attributes: dict[str, Any] = dict(self.health.attributes())
        attributes["pid"] = os.getpid()
        attributes["ranks"] = len(self._ranks)
        attributes["cpu_ns"] = time.process_time_ns()
        return attributes


def _frame_attributes(frames: tuple[Frame, ...]) -> dict[str, Any]:
    frame = innermost_user_frame(frames)
    return {} if frame is None else {"file": frame.file, "line": frame.line, "function": frame.function}
