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
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from ..telemetry.evidence_pieces import encode_evidence, split_evidence
from ..telemetry.records import Event, Identity
from ..telemetry.vocabulary import EventName, ProcessState
from .base.health import AgentHealth
from .base.settings import AgentSettings
from .evidence.call_site_desk import ACTION as CALLS_ACTION
from .evidence.call_site_desk import CallDesk
from .evidence.evidence_desk import ACTIONS as FILE_ACTIONS
from .evidence.evidence_desk import EvidenceDesk
from .evidence.evidence_store import EvidenceStore, kept_name
from .evidence.exit_reporter import ExitReporter
from .evidence.stack_desk import StackDesk
from .privacy.privacy_options import STACKS
from .privacy.redaction_filter import Publish, PublishRanked
from .processes import processes
from .processes.socket_bytes import SocketBytes
from .publish.shipper import Shipper
from .ranks import motion
from .ranks.drain import Drained, drain_rings
from .ranks.inferred_steps import InferredSteps
from .ranks.launches import Launches
from .ranks.local_verdicts import (
    judge_stale,
    judge_stop,
    oldest_open_age_ns,
    process_look_due,
    stood_still_alone,
    to_ns,
    wants_a_closer_look,
)
from .ranks.pending_events import PendingEvents
from .ranks.rank_events import (
    bad_loss_attributes,
    checkpoints_named,
    level_changes,
    started_attributes,
    where_attributes,
)
from .ranks.watched_rank import WatchedRank
from .reduction.block_builder import BlockBuilder
from .reduction.definitions import Definitions
from .rings.crash_area import read_stack
from .rings.ring_directory import EndedRings, RingDirectory, find_process, gave_sign_of_life
from .rings.ring_file import RingFile
from .rings.ring_history import RingHistory
from .telemetry_export.observability_export import ObservabilityExport
from .telemetry_export.rank_spans import attempt_words

_ENDED = select.POLLIN | select.POLLHUP
_CLOCK_STEP_NS = 10_000_000
#: A pause of the agent itself (stopped, starved) makes every heartbeat look old; wait this long before judging.
_GRACE_NS = 1_000_000_000
_OWN_PAUSE_NS = 500_000_000
#: So long a pause, and the machine may have stood still: the ranks with us.
_SUSPENDED_NS = 2_000_000_000
_LAUNCHERS_NS = 500_000_000
#: So long after a stop its peers have shown whether they stopped as well.
_WITNESS_NS = 200_000_000
#: No rank gets more than this part of what is kept of the rings: usual nodes have so many.
_HISTORY_SHARES = 8


class Agent:
    """Watches one ring directory. Not thread-safe: one thread calls everything."""

    def __init__(
        self,
        *,
        ring_directory: Path,
        publish: Publish | None,
        identity: Identity,
        evidence_directory: Path | None = None,
        job_name: str = "",
        settings: AgentSettings | None = None,
        publish_ranked: PublishRanked | None = None,
        more_health: Callable[[], Mapping[str, int | str]] = dict,
        owner_uid: int | None = None,
        since_ns: int | None = None,
        missed_since_ns: int | None = None,
        monotonic_ns: Callable[[], int] = time.monotonic_ns,
        wall_ns: Callable[[], int] = time.time_ns,
    ) -> None:
        """``publish(topic, key, value)`` may raise OSError, which is counted. ``identity`` names cluster, run, job.

        publish_ranked: the way to Kafka; like ``publish`` it gets everything, in messages of one priority each.
        more_health: counters of that way, told with the agent's own.
        job_name: what people call the job, told with each rank and in spans and metrics; empty: nobody has told us.
        owner_uid: read only this user's rings (and root's); None: everybody's.
        since_ns: monotonic; what began before and is dead is none of our news. None: now.
        missed_since_ns: monotonic; nobody has watched here since: who gave a sign of life later and is dead is news
            all the same. None: whatever was to be told of the dead has been told.
        """
        self.settings = settings or AgentSettings()
        self.health = AgentHealth()
        self._monotonic_ns, self._wall_ns = monotonic_ns, wall_ns
        self._identity = replace(identity, node=identity.node or socket.gethostname(), attempt="", rank=-1)
        self._launches = Launches(self._identity)
        self._directory = RingDirectory(ring_directory, self.health, owner_uid)
        self._ended_rings = EndedRings(self.settings.ended_ring_bytes)
        self._shipper = Shipper(publish, identity.job, self.health, self.settings.request_bytes, publish_ranked)
        self._more_health = more_health
        self._stacks = StackDesk(self.settings, self.health, self._identity.node)
        self._files = EvidenceDesk(self.settings, self.health, wall_ns)
        self._calls = CallDesk(self.health, is_refused=STACKS in self.settings.withheld)
        self._blocks = BlockBuilder(
            self.health,
            self.settings.open_rows,
            single_phases=self.settings.tell_people,
            withheld=self.settings.withheld,
        )
        self._job_name = job_name
        self._people = self._new_people()
        self._socket_bytes = SocketBytes()
        self._inferred_steps = InferredSteps()
        self._poller = select.poll()
        self._by_pidfd: dict[int, WatchedRank] = {}
        self._ranks: list[WatchedRank] = []
        #: Read by other threads: replaced, never changed.
        self._rank_processes: Mapping[int, Identity] = {}
        self._free_slots = list(range(self.settings.max_rings - 1, -1, -1))
        now_ns = monotonic_ns()
        self._started_ns = now_ns if since_ns is None else since_ns
        self._last_poll_ns = now_ns
        self._news = PendingEvents(wall_ns() - now_ns)
        self._definitions = Definitions(self._news, self._blocks, self.health)
        self._evidence = EvidenceStore(evidence_directory, self.settings.evidence_bytes, self.health)
        self._endings = ExitReporter(
            self._news, self._evidence, self.health, tells_stacks=STACKS not in self.settings.withheld
        )
        self._next_look_ns = self._next_flush_ns = self._next_progress_ns = 0
        self._next_health_ns = now_ns + to_ns(self.settings.health_period_s)
        self._next_launchers_ns = now_ns
        self._witness_ns = 0  # when progress is to be told for the sake of a stop, 0 never
        self._step_at_flush = (0, now_ns)  # highest step of any rank, and when
        self._judge_from_ns = now_ns
        self._stale_ns = to_ns(self.settings.stale_heartbeat_s)
        self._may_touch = True
        self._missed_since_ns = missed_since_ns
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

    @property
    def rank_processes(self) -> Mapping[int, Identity]:
        """Ranks that are watched, by pid. Any thread."""
        return self._rank_processes

    @property
    def watched(self) -> int:
        """Ranks whose end has not been told."""
        return len(self._ranks)

    def request(self, event: Event) -> None:
        """Take an EVIDENCE_REQUEST: bounded, idempotent by id, answered within its lifetime or dropped."""
        action = event.attributes.get("action")
        if action == CALLS_ACTION:
            self._calls.request(event)
            return
        desk = self._files if action in FILE_ACTIONS else self._stacks
        desk.request(event, self._monotonic_ns())

    def rename_node(self, node: str) -> None:
        """Another node of the job has our name: what is told from now on carries this one."""
        self._identity = replace(self._identity, node=node)
        self._launches.rename_node(node)
        self._stacks.rename_node(node)
        self._people = self._new_people()
        for rank in self._ranks:
            rank.identity = replace(rank.identity, node=node)

    def _new_people(self) -> ObservabilityExport | None:
        if not self.settings.tell_people:
            return None
        send = self._shipper.send_to_people
        return ObservabilityExport(
            self.settings,
            self.health,
            self._identity,
            self._job_name,
            send,
            since_ns=self._monotonic_ns(),
            more_health=self._more_health,
        )

    def announce(self) -> None:
        """Tell again which ranks and groups there are, with the next flush: somebody may have missed it."""
        self._definitions.tell_again(self._ranks, self._monotonic_ns())
        for rank in self._ranks:
            self._tell_started(rank)
        self._news.urgent = True

    def read_left_behind(self) -> None:
        """Read rings whose agent is gone: everything in them is shipped, dead writers aged by their own last times.

        Repeats of what the capture already holds are harmless: every row and event has a key. No process is touched.
        """
        self._may_touch = self._endings.keeps_rings = False
        self._guarded(lambda: self._read_left_behind(self._monotonic_ns()))

    def close(self) -> None:
        """Final drain and flush; ends the stack thread."""
        if self._closed:
            return
        self._next_look_ns = 0
        if self._may_touch:  # what was left behind has been read once; a second look would only repeat it, older
            self.poll()
        self._stacks.close()
        self._files.close()
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
        self._tell_files()
        self._news.behind_blocks(EventName.AGENT_HEALTH, self._identity, now_ns, self._health_now())
        left = {replace(rank.identity, rank=-1) for rank in self._ranks if rank.alive} if self._may_touch else set()
        for launch in sorted(left, key=lambda launch: launch.attempt):
            self._news.behind_blocks(EventName.AGENT_STOPPED, launch, now_ns, {})
        self._flush(now_ns, with_progress=bool(self._ranks) and self._may_touch)
        if self._people is not None:
            self._tell_people(self._people, now_ns, everything=True)

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
            self._attach(ring, now_ns, left_behind=gave_sign_of_life(ring, self._missed_since_ns))
        for rank in self._ranks:
            self._look(rank, now_ns)
        if paused_ns > _SUSPENDED_NS:
            self._tell_resumed(now_ns)
        self._tell_stacks(now_ns)
        self._tell_calls(now_ns)
        self._tell_files()
        if now_ns >= self._next_health_ns:
            self._next_health_ns = now_ns + to_ns(settings.health_period_s)
            self._news.behind_blocks(EventName.AGENT_HEALTH, self._identity, now_ns, self._health_now())
        witnessed = 0 < self._witness_ns <= now_ns
        if witnessed:
            self._witness_ns = 0
        if self._news.urgent or witnessed or now_ns >= self._next_flush_ns:
            at_once = self._news.urgent or witnessed
            self._flush(now_ns, with_progress=at_once or now_ns >= self._next_progress_ns)
        self._close_ended()
        if now_ns >= self._next_launchers_ns:
            self._next_launchers_ns = now_ns + _LAUNCHERS_NS
            self._tell_ended_launches(now_ns)
        if self._may_touch:
            self._stacks.ask_for_stacks(self._ranks, self._blocks.longest_ns, now_ns)
        if self._stacks.busy or any(wants_a_closer_look(rank, now_ns, settings) for rank in self._ranks):
            self._next_look_ns = now_ns + to_ns(settings.alert_look_period_s)

    def _tell_resumed(self, now_ns: int) -> None:
        """Ranks that live and are not stopped go on with us: what they stood still for meanwhile was no wait."""
        for rank in self._ranks:
            if rank.alive and not rank.stopped and not rank.stop_first_seen_ns:
                self._news.before_blocks(EventName.RANK_CONTINUED, rank.identity, now_ns, where_attributes(rank))

    def _tell_ended_launches(self, now_ns: int) -> None:
        for identity in self._launches.take_ended({rank.identity.attempt for rank in self._ranks}):
            self._news.behind_blocks(EventName.LAUNCH_ENDED, identity, now_ns, {})
            self._news.urgent = True

    def _look(self, rank: WatchedRank, now_ns: int) -> None:
        moved = rank.look(now_ns)
        if rank.alive and process_look_due(rank, now_ns, self.settings):
            rank.read_process(now_ns)
        self._look_at_motion(rank, now_ns, moved=moved)
        self._endings.look(rank, now_ns, moved=moved)
        if not rank.alive:
            self._endings.tell_exit(rank, now_ns)
            return
        self._judge(rank, now_ns)
        if rank.groups_unmoved():
            rank.parse_groups()
            self._announce_slow(rank, now_ns)

    def _look_at_motion(self, rank: WatchedRank, now_ns: int, *, moved: bool) -> None:
        """A rank whose ring stands still may be at work all the same."""
        if moved:
            rank.motion.forget()
        elif rank.alive and rank.pid and now_ns - rank.moved_ns >= motion.LOOK_NS and rank.motion.is_due(now_ns):
            rank.motion.look(
                rank.pid,
                rank.moved_ns,
                rank.heartbeat_age_ns(now_ns),
                read_stack(rank.ring),
                partial(self._socket_bytes.at, now_ns),
                now_ns,
            )

    def _judge(self, rank: WatchedRank, now_ns: int) -> None:
        """Local verdicts: stopped, continued, silent."""
        if rank.process_read_ns == now_ns:
            news = judge_stop(rank, now_ns, self.settings)
            if rank.stop_first_seen_ns == now_ns and rank.process is not None and not rank.process.traced:
                # No word yet, but a progress row: should this be our last look, the rings left behind are the second.
                self._news.urgent = True
            if news is not None:
                name = EventName.RANK_STOPPED if news else EventName.RANK_CONTINUED
                self._news.tell(rank, name, now_ns, where_attributes(rank))
                if news:
                    self._witness_ns = now_ns + _WITNESS_NS
                    self._endings.save_ring(rank, "stopped")
        age_ns = rank.heartbeat_age_ns(now_ns)
        if not rank.stale and (age_ns <= self._stale_ns or now_ns < self._judge_from_ns):
            return
        holds = rank.stale or processes.lock_holder(rank.ring.fd) is not None
        if judge_stale(rank, now_ns, self.settings, holds):
            state = rank.process_state().name.lower()
            attributes = {"heartbeat_age_ns": age_ns, "process_state": state, **where_attributes(rank)}
            self._news.tell(rank, EventName.RANK_STALE, now_ns, attributes)

    def _announce_slow(self, rank: WatchedRank, now_ns: int) -> None:
        """Ship everything at once when an operation gets slow for the first time."""
        age_ns = oldest_open_age_ns(rank, now_ns)
        if age_ns > to_ns(self.settings.slow_operation_s) and rank.slow_open_ns != now_ns - age_ns:
            rank.slow_open_ns = now_ns - age_ns
            self._news.urgent = True

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
            self._endings.look(rank, now_ns, moved=True)
        self._tell_left_stopped(now_ns)
        drained = drain_rings(self._ranks, self.health)
        for rank in self._ranks:
            if not rank.alive:  # after the drain: the last event is the best witness of when it ended
                self._endings.tell_exit(rank, now_ns)
        self._news.put_exits_last()
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
                self._news.before_blocks(EventName.RANK_STOPPED, rank.identity, since_ns, attributes)

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
            history=RingHistory(self.settings.history_s),
        )
        self._ranks.append(rank)
        self._note_processes()
        self._share_history()
        self._files.know(rank)
        self._blocks.add_ring(rank)
        if process.pidfd >= 0 and process.alive:
            self._poller.register(process.pidfd, select.POLLIN)
            self._by_pidfd[process.pidfd] = rank
        self._next_flush_ns = self._next_progress_ns = 0
        self._tell_started(rank)

    def _note_processes(self) -> None:
        self._rank_processes = {rank.pid: rank.identity for rank in self._ranks if rank.pid}

    def _share_history(self) -> None:
        """The bound is the agent's: its ranks have equal shares."""
        share = self.settings.history_bytes // max(len(self._ranks), _HISTORY_SHARES)
        for rank in self._ranks:
            rank.history.limit_bytes = share

    def _tell_started(self, rank: WatchedRank) -> None:
        started_ns = rank.ring.header.created_mono_ns
        attributes = started_attributes(rank)
        if self._job_name:
            attributes["job_name"] = self._job_name
        self._news.before_blocks(EventName.RANK_STARTED, rank.identity, started_ns, attributes)

    def _close_ended(self) -> None:
        """Close rings whose exit has been shipped."""
        for rank in [rank for rank in self._ranks if rank.exit_sent]:
            self._ranks.remove(rank)
            self._note_processes()
            if self._by_pidfd.pop(rank.pidfd, None) is not None:
                self._poller.unregister(rank.pidfd)
            self._blocks.forget_ring(rank)
            self._inferred_steps.forget(rank.slot)
            if self._people is not None:
                self._people.forget(rank, self._ranks, time_ns=self._wall_ns())
            if self._may_touch:
                self._ended_rings.add(rank.ring)
            self._files.forget(rank, self._monotonic_ns())
            rank.close()
            self._free_slots.append(rank.slot)
            self.health.rings_closed += 1
            if not any(peer.identity.attempt == rank.identity.attempt for peer in self._ranks):
                self._definitions.forget_launch(rank.identity.attempt)

    # --- flush ------------------------------------------------------------------------------------------------------
    def _flush(self, now_ns: int, with_progress: bool) -> None:
        """Drain all rings and ship: definitions, collectives, steps, progress, then what happened."""
        settings = self.settings
        self._news.urgent = False
        period_s = settings.fast_flush_period_s if self._steps_are_short(now_ns) else settings.flush_period_s
        self._next_flush_ns = now_ns + to_ns(period_s - settings.look_period_s / 2)
        if with_progress:
            self._next_progress_ns = now_ns + to_ns(settings.progress_period_s - settings.look_period_s / 2)
        offset_ns = self._wall_ns() - self._monotonic_ns()
        if abs(offset_ns - self._news.clock_offset_ns) > _CLOCK_STEP_NS:
            self._news.clock_offset_ns = offset_ns
        self._ship(drain_rings(self._ranks, self.health), now_ns, with_progress)

    def _steps_are_short(self, now_ns: int) -> bool:
        """By the steps that the fastest rank has made since the last flush."""
        steps = [rank.step_and_phase()[0] for rank in self._ranks]
        step, (before, before_ns) = max(steps, default=0), self._step_at_flush
        self._step_at_flush = (step, now_ns)
        return step > before and now_ns - before_ns < (step - before) * to_ns(self.settings.fast_step_s)

    def _ship(self, drained: Drained, now_ns: int, with_progress: bool) -> None:
        for rank in self._ranks:
            self._definitions.read(rank, self._ranks, now_ns)
            if with_progress:
                rank.parse_groups()
                self._announce_slow(rank, now_ns)
        self._news.urgent = False  # what would have been announced is in this flush
        drained = self._inferred_steps.add_steps(self._ranks, drained)
        for bad in self._inferred_steps.take_bad_losses():
            self._news.behind_blocks(EventName.RANK_BAD_LOSS, bad.rank.identity, bad.time_ns, bad_loss_attributes(bad))
        if len(drained.events):
            self._tell_levels(drained)
        offset_ns = self._news.clock_offset_ns
        see = None
        if self._people is not None:
            see = partial(self._people.see, ranks=self._ranks, clock_offset_ns=offset_ns, now_ns=now_ns)
        blocks = self._blocks.build(
            self._ranks,
            drained,
            progress_at_ns=now_ns if with_progress else 0,
            clock_offset_ns=offset_ns,
            time_ns=now_ns + offset_ns,
            see=see,
        )
        before, behind = self._news.take()
        self._shipper.ship([*before, *blocks, *behind])
        if self._people is not None:
            self._tell_people(self._people, now_ns, everything=False)

    def _tell_people(self, people: ObservabilityExport, now_ns: int, everything: bool) -> None:
        people.tell(self._ranks, clock_offset_ns=self._news.clock_offset_ns, now_ns=now_ns, everything=everything)

    def _tell_levels(self, drained: Drained) -> None:
        by_slot = {rank.slot: rank for rank in self._ranks}
        for rank, time_ns, attributes in level_changes(drained, by_slot):
            self._news.before_blocks(EventName.RANK_LEVEL, rank.identity, time_ns, attributes)
        for rank, time_ns, attributes in checkpoints_named(drained, by_slot):
            self._news.before_blocks(EventName.RANK_CHECKPOINT, rank.identity, time_ns, attributes)

    # --- stacks and evidence ----------------------------------------------------------------------------------------
    def _tell_stacks(self, now_ns: int) -> None:
        for report in self._stacks.finished(self._ranks):
            self._news.tell(report.rank, EventName.RANK_STACK, now_ns, report.attributes)
            self._endings.save_stack(report)

    def _tell_calls(self, now_ns: int) -> None:
        for rank, attributes in self._calls.answers(self._ranks):
            self._news.tell(rank, EventName.RANK_CALLS, now_ns, attributes)

    def _tell_files(self) -> None:
        """What was asked for, in pieces; at once, because it may be all that is left of a node soon."""
        for whole in self._files.finished():
            if self.settings.keeps_answers:
                self._evidence.save(kept_name(whole), whole.content)
            if self.settings.ships_answers:
                for piece in split_evidence(whole):
                    self._shipper.send_evidence(encode_evidence(piece))

    def _health_now(self) -> dict[str, Any]:
        dropped = [rank.hot.events_dropped for rank in self._ranks]
        self.health.events_dropped_by_writers = sum(count for count in dropped if count < 1 << 62)
        attributes: dict[str, Any] = dict(self.health.attributes())
        attributes["pid"] = os.getpid()
        attributes["ranks"] = len(self._ranks)
        attributes["cpu_ns"] = time.process_time_ns()
        if self._people is not None:
            words = attempt_words(self._ranks)
            attributes["attempt_words"] = tuple(f"{launch} {word}" for launch, word in words.items())
        return {**attributes, **self._more_health()}
