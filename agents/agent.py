"""The agent: looks at every ring and process of the node, and ships what it learned in an order one can rely on.

One polling thread (the caller of ``wait`` and ``poll``) owns everything here; only stacks are taken elsewhere. Order on
the bus: rank and group definitions, then each rank's collectives, then its step rows, then progress, then what went
wrong. Before an exit, an exception or a stop is told, all rings of the node have been drained and shipped.
It never writes to a ring, never signals a process, and touches one (py-spy) only while its ring shows no progress.
"""

from __future__ import annotations

import contextlib
import gzip
import os
import select
import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from ..telemetry import ring_layout as L
from ..telemetry.records import Event, Group, Identity
from ..telemetry.tables import NO_GROUP
from ..telemetry.vocabulary import EventKind, EventName, ExitState, ProcessState
from . import processes
from .block_builder import BlockBuilder
from .crash_area import read_exception, read_signal, read_stack
from .drain import Drained, drain_rings
from .evidence import EvidenceStore
from .group_identity import group_from_definition
from .health import AgentHealth
from .launches import Launches, token_of
from .local_verdicts import (
    judge_stale,
    judge_stop,
    oldest_open_age_ns,
    process_look_due,
    stood_still_alone,
    to_ns,
    wants_a_closer_look,
)
from .rank_events import (
    exception_attributes,
    exit_attributes,
    exit_state_of,
    joining_attributes,
    last_stack_attributes,
    started_attributes,
    where_attributes,
)
from .ring_directory import EndedRings, RingDirectory, find_process
from .ring_file import RingFile, exception_version
from .settings import AgentSettings
from .shipper import Shipper
from .stack_desk import StackDesk
from .watched_rank import WatchedRank

_ENDED = select.POLLIN | select.POLLHUP
_CLOCK_STEP_NS = 10_000_000
#: A pause of the agent itself (stopped, starved) makes every heartbeat look old; wait this long before judging.
_GRACE_NS = 1_000_000_000
_OWN_PAUSE_NS = 500_000_000
#: So long a pause, and the machine may have stood still: the ranks with us.
_SUSPENDED_NS = 2_000_000_000
_MAX_NOTES = 32
#: Level changes told of one drain; a rank that flips more often is broken, and the newest state is in its progress.
_MAX_LEVEL_EVENTS = 64


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
        """``publish(topic, key, value)`` may raise OSError, which is counted. ``identity`` names cluster, run, job."""
        self.settings = settings or AgentSettings()
        self.health = AgentHealth()
        self._monotonic_ns, self._wall_ns = monotonic_ns, wall_ns
        self._identity = replace(identity, node=identity.node or socket.gethostname(), attempt="", rank=-1)
        self._launches = Launches(self._identity)
        self._directory = RingDirectory(ring_directory, self.health)
        self._ended_rings = EndedRings(self.settings.ended_ring_bytes)
        self._shipper = Shipper(publish, identity.job, self.health, self.settings.request_bytes)
        self._evidence = EvidenceStore(evidence_directory, self.settings.evidence_bytes, self.health)
        self._stacks = StackDesk(self.settings, self.health, self._identity.node)
        self._blocks = BlockBuilder(self.health, self.settings.open_rows)
        self._poller = select.poll()
        self._by_pidfd: dict[int, WatchedRank] = {}
        self._ranks: list[WatchedRank] = []
        self._groups_told: set[tuple[str, int]] = set()  # launch and agent-wide number of defined groups
        self._free_slots = list(range(self.settings.max_rings - 1, -1, -1))
        self._head_events: list[Event] = []  # definitions: shipped before the blocks of the next flush
        self._tail_events: list[Event] = []  # what happened: shipped after them
        now_ns = monotonic_ns()
        self._started_ns = self._last_poll_ns = now_ns
        self._clock_offset_ns = wall_ns() - now_ns
        self._next_look_ns = self._next_flush_ns = self._next_progress_ns = 0
        self._next_health_ns = now_ns + to_ns(self.settings.health_period_s)
        self._step_at_flush = (0, now_ns)  # highest step of any rank, and when
        self._judge_from_ns = now_ns
        self._stale_ns = to_ns(self.settings.stale_heartbeat_s)
        self._urgent = False
        self._may_touch = True
        self._closed = False

    # --- the loop ---------------------------------------------------------------------------------------------------
    def wait(self, timeout_s: float) -> None:
        """Sleep until something is due, at most ``timeout_s``; return at once when a watched process ends."""
        due_s = (self._next_look_ns - self._monotonic_ns()) / 1e9
        with contextlib.suppress(InterruptedError):
            self._poller.poll(max(min(timeout_s, due_s), 0.0) * 1000)

    def poll(self) -> None:
        """Do what is due. Never raises for anything a ring, a process, the bus or the disk can do."""
        now_ns = self._monotonic_ns()
        ended = [fd for fd, flags in self._poller.poll(0) if flags & _ENDED] if self._by_pidfd else []
        if self._closed or (not ended and now_ns < self._next_look_ns):
            return
        self._guarded(lambda: self._poll(now_ns, ended))
        took_ns = self._monotonic_ns() - now_ns
        self.health.polls += 1
        self.health.poll_ns += took_ns
        self.health.poll_max_ns = max(self.health.poll_max_ns, took_ns)

    def request(self, event: Event) -> None:
        """Take an EVIDENCE_REQUEST: bounded, idempotent by id, answered within its lifetime or dropped."""
        self._stacks.request(event, self._monotonic_ns())

    def rename_node(self, node: str) -> None:
        """Another node of the job has our name: what is told from now on carries this one."""
        self._identity = replace(self._identity, node=node)
        self._launches.rename_node(node)
        self._stacks.rename_node(node)
        for rank in self._ranks:
            rank.identity = replace(rank.identity, node=node)

    def announce(self) -> None:
        """Tell again which ranks and groups there are, with the next flush: somebody may have missed it."""
        self._groups_told.clear()
        now_ns = self._monotonic_ns()
        for rank in self._ranks:
            if rank.token:
                self._tell_token(rank, rank.token, now_ns)
            started_ns = rank.ring.header.created_mono_ns
            self._head_events.append(
                self._event(EventName.RANK_STARTED, rank.identity, started_ns, started_attributes(rank))
            )
            rank.definitions_read = 0
        self._urgent = True

    def read_left_behind(self) -> None:
        """Read rings whose agent is gone: everything in them is shipped, dead writers aged by their own last times.

        Repeats of what the capture already holds are harmless: every row and event has a key. No process is touched.
        """
        self._may_touch = False
        self._guarded(lambda: self._read_left_behind(self._monotonic_ns()))

    def close(self) -> None:
        """Final drain and flush; ends the stack thread."""
        if self._closed:
            return
        self._next_look_ns = 0
        if self._may_touch:  # what was left behind has been read once; a second look would only repeat it, older
            self.poll()
        self._stacks.close()
        self._guarded(self._last_words)
        self._closed = True
        for rank in self._ranks:
            rank.close()
        self._ranks.clear()

    def _guarded(self, work: Callable[[], None]) -> None:
        try:
            work()
        except Exception as error:  # the edge between agent and embedder: a bug here must not end the run
            self.health.drop("poll_failed")
            self.health.report(f"agent poll failed: {type(error).__name__}: {error}")

    def _last_words(self) -> None:
        now_ns = self._monotonic_ns()
        self._tell_stacks(now_ns)
        self._tail_events.append(self._event(EventName.AGENT_HEALTH, self._identity, now_ns, self._health_now()))
        self._flush(now_ns, with_progress=bool(self._ranks) and self._may_touch)

    # --- one poll ---------------------------------------------------------------------------------------------------
    def _poll(self, now_ns: int, ended: Sequence[int]) -> None:
        settings = self.settings
        paused_ns = now_ns - self._last_poll_ns
        if paused_ns > _OWN_PAUSE_NS:
            self._judge_from_ns = now_ns + _GRACE_NS
        self._last_poll_ns = now_ns
        self._next_look_ns = now_ns + to_ns(settings.look_period_s)
        for fd in ended:
            self._by_pidfd.pop(fd).alive = False
            self._poller.unregister(fd)  # at once: it stays readable, and a loop that fails below must not spin
        for ring in self._new_rings(now_ns):
            self._attach(ring, now_ns, left_behind=False)
        for rank in self._ranks:
            self._look(rank, now_ns)
        if paused_ns > _SUSPENDED_NS:
            self._tell_resumed(now_ns)
        self._tell_stacks(now_ns)
        if now_ns >= self._next_health_ns:
            self._next_health_ns = now_ns + to_ns(settings.health_period_s)
            self._tail_events.append(self._event(EventName.AGENT_HEALTH, self._identity, now_ns, self._health_now()))
        if self._urgent or now_ns >= self._next_flush_ns:
            self._flush(now_ns, with_progress=self._urgent or now_ns >= self._next_progress_ns)
        self._close_ended()
        if self._may_touch:
            self._stacks.ask_for_stacks(self._ranks, self._blocks.longest_ns, now_ns)
        if self._stacks.busy or any(wants_a_closer_look(rank, now_ns, settings) for rank in self._ranks):
            self._next_look_ns = now_ns + to_ns(settings.alert_look_period_s)

    def _tell_resumed(self, now_ns: int) -> None:
        """Ranks that live and are not stopped go on with us: what they stood still for meanwhile was no wait."""
        for rank in self._ranks:
            if rank.alive and not rank.stopped and not rank.stop_first_seen_ns:
                event = self._event(EventName.RANK_CONTINUED, rank.identity, now_ns, where_attributes(rank))
                self._head_events.append(event)

    def _look(self, rank: WatchedRank, now_ns: int) -> None:
        moved = rank.look(now_ns)
        if rank.alive and process_look_due(rank, now_ns, self.settings):
            rank.read_process(now_ns)
        if not rank.exception_final and (moved or not rank.alive):
            self._find_exception(rank, now_ns)
        if not rank.alive:
            self._tell_exit(rank, now_ns)
            return
        self._judge(rank, now_ns)
        if rank.groups_unmoved():
            rank.parse_groups()
            self._announce_slow(rank, now_ns)

    def _judge(self, rank: WatchedRank, now_ns: int) -> None:
        """Local verdicts: stopped, continued, silent."""
        if rank.process_read_ns == now_ns:
            news = judge_stop(rank, now_ns, self.settings)
            if rank.stop_first_seen_ns == now_ns and rank.process is not None and not rank.process.traced:
                # No word yet, but a progress row: should this be our last look, the rings left behind are the second.
                self._urgent = True
            if news is not None:
                name = EventName.RANK_STOPPED if news else EventName.RANK_CONTINUED
                self._tell(rank, name, now_ns, where_attributes(rank))
                if news:
                    self._save_ring(rank, "stopped")
        age_ns = rank.heartbeat_age_ns(now_ns)
        if not rank.stale and (age_ns <= self._stale_ns or now_ns < self._judge_from_ns):
            return
        holds = rank.stale or processes.lock_holder(rank.ring.fd) is not None
        if judge_stale(rank, now_ns, self.settings, holds):
            state = rank.process_state().name.lower()
            attributes = {"heartbeat_age_ns": age_ns, "process_state": state, **where_attributes(rank)}
            self._tell(rank, EventName.RANK_STALE, now_ns, attributes)

    def _announce_slow(self, rank: WatchedRank, now_ns: int) -> None:
        """Ship everything at once when an operation gets slow for the first time."""
        age_ns = oldest_open_age_ns(rank, now_ns)
        if age_ns > to_ns(self.settings.slow_operation_s) and rank.slow_open_ns != now_ns - age_ns:
            rank.slow_open_ns = now_ns - age_ns
            self._urgent = True

    def _read_left_behind(self, now_ns: int) -> None:
        """Launch by launch in the order in which they began: what ended first is told to its end first."""
        for rings in self._launches.by_launch(self._new_rings(now_ns)):
            for ring in rings:
                self._attach(ring, now_ns, left_behind=True)
            self._read_launch(now_ns)

    def _read_launch(self, now_ns: int) -> None:
        for rank in self._ranks:
            rank.look(now_ns)
            rank.read_process(now_ns)
            # A rank that lives has stood still for as long as its last event is old, not since we came.
            rank.moved_ns = min(rank.moved_ns, rank.last_sign_of_life_ns() or now_ns)
            self._find_exception(rank, now_ns)
        self._tell_left_stopped(now_ns)
        drained = drain_rings(self._ranks, self.health)
        for rank in self._ranks:
            if not rank.alive:  # after the drain: the last event is the best witness of when it ended
                self._tell_exit(rank, now_ns)
        # The end of a writer nobody watched is only known to lie after its last sign of life: exits come last.
        self._tail_events.sort(key=lambda event: (event.name is EventName.RANK_EXIT, event.mono_ns))
        self._ship(drained, now_ns, with_progress=True)
        self._close_ended()

    def _tell_left_stopped(self, now_ns: int) -> None:
        """Stops of ranks that are still stopped, before the rows that show how long the others have waited for them.

        The heartbeat says since when, and has been silent for so long that a second look at the process adds nothing.
        """
        for rank in self._ranks:
            if not rank.alive or rank.process is None or rank.process.state is not ProcessState.STOPPED:
                continue
            rank.stopped = not rank.process.traced
            since_ns = min(rank.last_sign_of_life_ns() or now_ns, now_ns)
            if rank.stopped and stood_still_alone(rank, self._ranks):
                attributes = {**where_attributes(rank), "left_behind": True}
                self._head_events.append(self._event(EventName.RANK_STOPPED, rank.identity, since_ns, attributes))

    # --- rings come and go ------------------------------------------------------------------------------------------
    def _new_rings(self, now_ns: int) -> list[RingFile]:
        """Rings not seen before, the oldest first."""
        opened = [self._directory.open_ring(path) for path in self._directory.new_paths(now_ns)]
        return sorted(filter(None, opened), key=lambda ring: (ring.header.created_mono_ns, ring.header.rank))

    def _attach(self, ring: RingFile, now_ns: int, left_behind: bool) -> None:
        process = find_process(ring)
        header = ring.header
        if process.problem:
            self.health.report(f"ring {ring.path}: {process.problem}")
        of_the_past = not process.alive and header.created_mono_ns < self._started_ns
        if (of_the_past and not left_behind) or not self._free_slots:
            # Rings of a run that ended before we came are not this run's news.
            self.health.drop("rings_of_the_past" if of_the_past else "rings_over_limit")
            if process.pidfd >= 0:
                os.close(process.pidfd)
            ring.close()
            return
        self.health.rings_found += 1
        identity = self._launches.identify(ring, process.pid if process.alive else 0)
        rank = WatchedRank(
            ring=ring,
            slot=self._free_slots.pop(),
            identity=identity,
            pid=process.pid,
            start_ticks=process.start_ticks,
            pidfd=process.pidfd,
            alive=process.alive,
            found_ns=now_ns,
            left_behind=of_the_past,
        )
        self._ranks.append(rank)
        self._blocks.add_ring(rank)
        if process.pidfd >= 0 and process.alive:
            self._poller.register(process.pidfd, select.POLLIN)
            self._by_pidfd[process.pidfd] = rank
        self._next_flush_ns = self._next_progress_ns = 0
        self._head_events.append(
            self._event(EventName.RANK_STARTED, rank.identity, header.created_mono_ns, started_attributes(rank))
        )

    def _close_ended(self) -> None:
        """Close rings whose exit has been shipped."""
        for rank in [rank for rank in self._ranks if rank.exit_sent]:
            self._ranks.remove(rank)
            if self._by_pidfd.pop(rank.pidfd, None) is not None:
                self._poller.unregister(rank.pidfd)
            self._blocks.forget_ring(rank)
            if self._may_touch:
                self._ended_rings.add(rank.ring)
            rank.close()
            self._free_slots.append(rank.slot)
            self.health.rings_closed += 1
            if not any(peer.identity.attempt == rank.identity.attempt for peer in self._ranks):
                self._groups_told = {told for told in self._groups_told if told[0] != rank.identity.attempt}

    # --- what happened ----------------------------------------------------------------------------------------------
    def _event(self, name: EventName, identity: Identity, mono_ns: int, attributes: dict[str, Any]) -> Event:
        time_ns = mono_ns + self._clock_offset_ns
        return Event(name=name, identity=identity, time_ns=time_ns, mono_ns=mono_ns, attributes=attributes)

    def _tell(self, rank: WatchedRank, name: EventName, mono_ns: int, attributes: dict[str, Any]) -> None:
        """Queue an event behind a flush of everything, at once."""
        self._tail_events.append(self._event(name, rank.identity, mono_ns, attributes))
        self._urgent = True

    def _find_exception(self, rank: WatchedRank, now_ns: int) -> None:
        """Tell the recorded exception: a thread's at once, and the main thread's in its place should it come."""
        if exception_version(rank.ring) in (0, rank.exception_told):
            return
        found = read_exception(rank.ring, writer_is_dead=not rank.alive)
        if found is None:
            return
        rank.exception_told, rank.exception_final, rank.had_exception = found.version, found.in_main, True
        if not found.complete:
            self.health.rows_torn += 1
        attributes = exception_attributes(rank, found)
        raised_ns = min(found.time_ns, now_ns) if found.time_ns > 0 else now_ns
        self._tell(rank, EventName.RANK_EXCEPTION, raised_ns, attributes)
        if not attributes["communication"]:
            self._save_ring(rank, "raised")

    def _tell_exit(self, rank: WatchedRank, now_ns: int) -> None:
        if rank.exit_sent:
            return
        rank.exit_sent = True
        self._tell_last_stack(rank)
        status = processes.exit_status(rank.pid, rank.start_ticks, rank.pidfd, rank.ring.uid)
        told = read_signal(rank.ring)
        ended_ns = min(rank.last_sign_of_life_ns() or now_ns, now_ns) if rank.left_behind else now_ns
        if told is not None and (status.signal == told.number or status == processes.UNKNOWN_EXIT):
            # The kernel takes its time to clear a process away, and we to look: victims would seem to come first.
            ended_ns = min(ended_ns, told.time_ns) if told.time_ns > 0 else ended_ns
        self._tell(rank, EventName.RANK_EXIT, ended_ns, exit_attributes(rank, status, told))
        if exit_state_of(rank) != ExitState.NORMAL or status.signal or status.exit_code:
            self._save_ring(rank, "died")

    def _tell_last_stack(self, rank: WatchedRank) -> None:
        """Where the main thread was when a fatal signal came, if the rank could still write it down."""
        own, told = read_stack(rank.ring), read_signal(rank.ring)
        if own is None or told is None or own.time_ns < told.time_ns:
            return
        self._tell(rank, EventName.RANK_STACK, own.time_ns, last_stack_attributes(rank, own))

    # --- flush ------------------------------------------------------------------------------------------------------
    def _flush(self, now_ns: int, with_progress: bool) -> None:
        """Drain all rings and ship: definitions, collectives, steps, progress, then what happened."""
        settings = self.settings
        self._urgent = False
        period_s = settings.fast_flush_period_s if self._steps_are_short(now_ns) else settings.flush_period_s
        self._next_flush_ns = now_ns + to_ns(period_s - settings.look_period_s / 2)
        if with_progress:
            self._next_progress_ns = now_ns + to_ns(settings.progress_period_s - settings.look_period_s / 2)
        offset_ns = self._wall_ns() - self._monotonic_ns()
        if abs(offset_ns - self._clock_offset_ns) > _CLOCK_STEP_NS:
            self._clock_offset_ns = offset_ns
        self._ship(drain_rings(self._ranks, self.health), now_ns, with_progress)

    def _steps_are_short(self, now_ns: int) -> bool:
        """By the steps that the fastest rank has made since the last flush."""
        steps = [rank.step_and_phase()[0] for rank in self._ranks]
        step, (before, before_ns) = max(steps, default=0), self._step_at_flush
        self._step_at_flush = (step, now_ns)
        return step > before and now_ns - before_ns < (step - before) * to_ns(self.settings.fast_step_s)

    def _ship(self, drained: Drained, now_ns: int, with_progress: bool) -> None:
        # Definitions are read after the events: whatever an event refers to was defined before it.
        for rank in self._ranks:
            if rank.hot.definitions_used != rank.definitions_read:
                self._read_definitions(rank, now_ns)
            if with_progress:
                rank.parse_groups()
                self._announce_slow(rank, now_ns)
        self._urgent = False  # what would have been announced is in this flush
        if len(drained.events):
            self._tell_levels(drained)
        blocks = self._blocks.build(
            self._ranks,
            drained,
            progress_at_ns=now_ns if with_progress else 0,
            clock_offset_ns=self._clock_offset_ns,
            time_ns=now_ns + self._clock_offset_ns,
        )
        heads, self._head_events = self._head_events, []
        tails, self._tail_events = self._tail_events, []
        self._shipper.ship([*heads, *blocks, *tails])

    def _read_definitions(self, rank: WatchedRank, now_ns: int) -> None:
        used = rank.hot.definitions_used
        found, position, problem = rank.ring.read_definitions(rank.definitions_read, used)
        if position != used and not problem:
            problem = f"definitions end inside an entry at byte {position} of {used}"
        rank.definitions_read = used
        if problem:
            self.health.report(f"ring {rank.ring.path}: {problem}")
        for definition in found:
            if definition.kind == L.DEFINITION_GROUP:
                self._define_group(rank, definition.index, definition.payload, now_ns)
            elif definition.kind == L.DEFINITION_ATTEMPT:
                token = token_of(definition.payload)
                if token:
                    self._learn_token(rank, token, now_ns)
            elif definition.kind == L.DEFINITION_JOINING:
                time_ns, values = joining_attributes(rank, definition.payload, now_ns)
                self._tail_events.append(self._event(EventName.RANK_JOINING, rank.identity, time_ns, values))
            elif definition.kind == L.DEFINITION_NOTE:
                text = definition.payload.get("text")
                if isinstance(text, str) and len(rank.notes) < _MAX_NOTES:
                    rank.notes.append(text[:500])
                    self.health.report(f"rank {rank.rank} (pid {rank.pid}) notes: {text[:500]}")

    def _learn_token(self, rank: WatchedRank, token: str, now_ns: int) -> None:
        """Where the rank's launch has met the others; told once, by the first of its ranks."""
        if not any(peer.token for peer in self._ranks if peer.identity.attempt == rank.identity.attempt):
            self._tell_token(rank, token, now_ns)
        rank.token = token

    def _tell_token(self, rank: WatchedRank, token: str, now_ns: int) -> None:
        identity = replace(rank.identity, rank=-1)
        self._head_events.append(self._event(EventName.LAUNCH_MET, identity, now_ns, {"token": token}))

    def _define_group(self, rank: WatchedRank, row: int, payload: dict[str, Any], now_ns: int) -> None:
        if row >= rank.ring.header.group_rows:
            self.health.report(f"ring {rank.ring.path}: group row {row} does not exist")
            return
        try:
            group: Group = group_from_definition(payload)
        except ValueError as error:
            self.health.report(f"ring {rank.ring.path}: {error}")
            return
        number = self._blocks.define_group(rank, row, group)
        if number != NO_GROUP and (rank.identity.attempt, number) not in self._groups_told:
            self._groups_told.add((rank.identity.attempt, number))
            names = ("uid", "name", "desc", "ranks", "size", "backend", "timeout_s", "is_default")
            attributes = {name: getattr(group, name) for name in names}
            identity = replace(rank.identity, rank=-1)
            self._head_events.append(self._event(EventName.GROUP_DEFINED, identity, now_ns, attributes))
        if row not in rank.group_numbers:
            self.health.drop("groups_over_limit")
            return
        rank.ring.expect_groups(max(rank.group_numbers) + 1)
        rank.read_page_again()

    def _tell_levels(self, drained: Drained) -> None:
        kind = drained.events["kind"]
        rare = np.flatnonzero((kind == int(EventKind.LEVEL)) | (kind == int(EventKind.HOOK_OFF)))
        if not len(rare):
            return
        by_slot = {rank.slot: rank for rank in self._ranks}
        for place in rare[-_MAX_LEVEL_EVENTS:]:
            event, rank = drained.events[place], by_slot[int(drained.ring[place])]
            if event["kind"] == int(EventKind.LEVEL):
                level, hook_state = int(event["value"]) & 0xFF, int(event["extra"]) & 0xFFFFFFFF
            else:
                level = rank.rank_row.level & 0xFF if rank.rank_row is not None else 0
                hook_state = int(event["value"]) & 0xFFFFFFFF
            if rank.level_sent == (level, hook_state):
                continue
            rank.level_sent = (level, hook_state)
            attributes: dict[str, Any] = {"level": level, "hook_state": hook_state}
            if rank.notes:
                attributes["note"] = rank.notes[-1]
            happened = self._event(EventName.RANK_LEVEL, rank.identity, int(event["time_ns"]), attributes)
            self._head_events.append(happened)

    # --- stacks and evidence ----------------------------------------------------------------------------------------
    def _tell_stacks(self, now_ns: int) -> None:
        for report in self._stacks.finished(self._ranks):
            self._tell(report.rank, EventName.RANK_STACK, now_ns, report.attributes)
            name = self._evidence_name(report.rank, report.why)
            self._evidence.save(f"{name}.stack.txt", report.text.encode("utf-8", "replace"))
            if report.why != "waits":
                self._save_ring(report.rank, report.why)

    def _evidence_name(self, rank: WatchedRank, why: str) -> str:
        return f"{rank.identity.attempt}-rank-{rank.rank:05d}-{rank.pid}-{why}"

    def _save_ring(self, rank: WatchedRank, why: str) -> None:
        if self._may_touch:
            copy = rank.ring.read_copy()
            name = f"{self._evidence_name(rank, why)}{L.RING_SUFFIX}.gz"
            self._evidence.save(name, gzip.compress(copy, compresslevel=1, mtime=0) if copy else b"")  # 1 to 4 ms

    def _health_now(self) -> dict[str, Any]:
        dropped = [rank.hot.events_dropped for rank in self._ranks]
        self.health.events_dropped_by_writers = sum(count for count in dropped if count < 1 << 62)
        attributes: dict[str, Any] = dict(self.health.attributes())
        attributes["pid"] = os.getpid()
        attributes["ranks"] = len(self._ranks)
        attributes["cpu_ns"] = time.process_time_ns()
        return attributes
