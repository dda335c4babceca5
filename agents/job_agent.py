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
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..telemetry.records import Event, Identity
from ..telemetry.vocabulary import EventName
from .base.health import AgentHealth
from .base.settings import AgentSettings
from .evidence.evidence_answers import EvidenceAnswers
from .evidence.evidence_store import EvidenceStore
from .evidence.exit_reporter import ExitReporter
from .flushes import Flushes
from .privacy.privacy_options import STACKS
from .privacy.redaction_filter import Publish, PublishRanked
from .publish.shipper import Shipper
from .rank_looks import RankLooks, next_look_ns
from .ranks.drain import drain_rings
from .ranks.launches import Launches, identity_of_job
from .ranks.local_verdicts import to_ns, wants_a_closer_look
from .ranks.pending_events import PendingEvents
from .ranks.rank_events import started_attributes
from .ranks.ring_reading import RingReading
from .ranks.watched_rank import WatchedRank
from .rings.ring_directory import EndedRings, RingDirectory, find_process, gave_sign_of_life
from .rings.ring_file import RingFile
from .rings.ring_history import RingHistory
from .telemetry_export.rank_spans import attempt_words
from .user_files.user_files import end_idle_helpers

_ENDED = select.EPOLLIN | select.EPOLLHUP
_OWN_PAUSE_NS = 500_000_000
#: So long a pause, and the machine may have stood still: the ranks with us.
_SUSPENDED_NS = 2_000_000_000
_LAUNCHERS_NS = 500_000_000
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
        ring_folder: int = -1,
        since_ns: int | None = None,
        missed_since_ns: int | None = None,
        monotonic_ns: Callable[[], int] = time.monotonic_ns,
        wall_ns: Callable[[], int] = time.time_ns,
    ) -> None:
        """``publish(topic, key, value)`` may raise OSError, which is counted. ``identity`` names cluster, run, job.

        publish_ranked: the way to Kafka; like ``publish`` it gets everything, in messages of one priority each.
        more_health: counters of that way, told with the agent's own.
        job_name: what people call the job, told with each rank and in spans and metrics; empty: nobody has told us.
        owner_uid: read only this user's rings; None: everybody's, each with its owner's rights. The job is his, where
            ``identity`` does not say whose it is.
        ring_folder: the directory's open descriptor, which is closed at the end; -1: it is opened by its name.
        since_ns: monotonic; what began before and is dead is none of our news. None: now.
        missed_since_ns: monotonic; nobody has watched here since: who gave a sign of life later and is dead is news
            all the same. None: whatever was to be told of the dead has been told.
        """
        self.settings = settings or AgentSettings()
        self.health = AgentHealth()
        self._monotonic_ns, self._wall_ns = monotonic_ns, wall_ns
        self._identity = identity_of_job(identity, owner_uid)
        self._launches, self._owner_uid = Launches(self._identity), owner_uid
        self._directory = RingDirectory(ring_directory, self.health, owner_uid, ring_folder)
        self._ended_rings = EndedRings(self.settings.ended_ring_bytes, self._directory.remove)
        self._shipper = Shipper(publish, identity.job, self.health, self.settings.request_bytes, publish_ranked)
        self._more_health, self._job_name = more_health, job_name
        self._poller = select.epoll()
        self._by_pidfd: dict[int, WatchedRank] = {}
        self._ranks: list[WatchedRank] = []
        #: Read by other threads: replaced, never changed.
        self._rank_processes: Mapping[int, Identity] = {}
        self._free_slots = list(range(self.settings.max_rings - 1, -1, -1))
        now_ns = monotonic_ns()
        self._started_ns = now_ns if since_ns is None else since_ns
        self._news = PendingEvents(wall_ns() - now_ns)
        self._evidence = EvidenceStore(evidence_directory, self.settings.evidence_bytes, self.health)
        self._endings = ExitReporter(
            self._news, self._evidence, self.health, tells_stacks=STACKS not in self.settings.withheld
        )
        self._answers = self._new_answers()
        self._looks = RankLooks(self.settings, self._news, self._endings, now_ns)
        self._flushes = self._new_flushes()
        self._next_look_ns, self._next_launchers_ns = 0, now_ns
        self._next_health_ns = now_ns + to_ns(self.settings.health_period_s)
        self._may_touch, self._closed = True, False
        self._missed_since_ns, self._last_poll_ns = missed_since_ns, now_ns

    def _new_answers(self) -> EvidenceAnswers:
        return EvidenceAnswers(
            self.settings,
            self.health,
            self._identity.node,
            pending=self._news,
            store=self._evidence,
            endings=self._endings,
            send=self._shipper.send_evidence,
            wall_ns=self._wall_ns,
            owner_uid=os.geteuid() if self._owner_uid is None else self._owner_uid,
        )

    def _new_flushes(self) -> Flushes:
        return Flushes(
            self.settings,
            self.health,
            self._identity,
            self._job_name,
            pending=self._news,
            looks=self._looks,
            shipper=self._shipper,
            more_health=self._more_health,
            monotonic_ns=self._monotonic_ns,
            wall_ns=self._wall_ns,
        )

    # --- the loop ---------------------------------------------------------------------------------------------------
    def wait(self, timeout_s: float) -> None:
        """Sleep until something is due, at most ``timeout_s``; return at once when a watched process ends."""
        with contextlib.suppress(InterruptedError):
            self._poller.poll(max(min(timeout_s, self.due_s), 0.0))

    @property
    def due_s(self) -> float:
        """Seconds until the next look."""
        return max((self._next_look_ns - self._monotonic_ns()) / 1e9, 0.0)

    @property
    def ended_fd(self) -> int:
        """A descriptor that is readable as soon as a watched process has ended; -1 after ``close``."""
        return -1 if self._poller.closed else self._poller.fileno()

    def poll(self, jobs_here: int = 1) -> None:
        """Do what is due. Never raises for anything a ring, a process, the bus or the disk can do.

        jobs_here: of this node, of its owner, and other owners; the more, the less often each is flushed."""
        now_ns, self._flushes.jobs_here = self._monotonic_ns(), jobs_here
        if self._closed:
            return
        ended = [fd for fd, flags in self._poller.poll(0) if flags & _ENDED] if self._by_pidfd else []
        if not ended and now_ns < self._next_look_ns:
            return
        self._guarded(lambda: self._poll(now_ns, ended))
        took_ns = self._monotonic_ns() - now_ns
        self.health.polls += 1
        self.health.poll_ns += took_ns
        self.health.poll_max_ns = max(self.health.poll_max_ns, took_ns)

    @property
    def rank_processes(self) -> Mapping[int, Identity]:
        """Identities of the watched ranks by pid. May be asked from any thread."""
        return self._rank_processes

    @property
    def watched(self) -> int:
        """How many ranks there are whose end has not been told."""
        return len(self._ranks)

    def request(self, event: Event) -> None:
        """Take an EVIDENCE_REQUEST: bounded, idempotent by id, answered within its lifetime or dropped."""
        self._answers.request(event, self._monotonic_ns())

    def rename_node(self, node: str) -> None:
        """Gives the node another name, as another one of the job has it: all that is told from now on carries it."""
        self._identity = replace(self._identity, node=node)
        self._launches.rename_node(node)
        self._answers.stacks.rename_node(node)
        self._flushes.tell_people_of(self._identity)
        for rank in self._ranks:
            rank.identity = replace(rank.identity, node=node)

    def announce(self) -> None:
        """Tell again which ranks and groups there are, with the next flush: somebody may have missed it."""
        self._flushes.definitions.tell_again(self._ranks, self._monotonic_ns())
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
        """Looks and flushes a last time, ends the threads and closes the rings; may be called again."""
        if self._closed:
            return
        self._next_look_ns = 0
        if self._may_touch:  # what was left behind has been read once; a second look would only repeat it, older
            self.poll()
        self._answers.close()
        self._guarded(self._last_words)
        self._closed = True
        for rank in self._ranks:
            rank.close()
        self._ranks.clear()
        self._directory.close()
        self._poller.close()

    def _guarded(self, work: Callable[[], None]) -> None:
        try:
            work()
        except Exception as error:  # the edge between agent and embedder: a bug here must not end the run
            self.health.drop("poll_failed")
            self.health.report(f"agent poll failed: {type(error).__name__}: {error}")

    def _last_words(self) -> None:
        now_ns = self._monotonic_ns()
        self._answers.tell_stacks(self._ranks, now_ns)
        self._answers.tell_files(now_ns)
        self._news.behind_blocks(EventName.AGENT_HEALTH, self._identity, now_ns, self._health_now())
        left = {replace(rank.identity, rank=-1) for rank in self._ranks if rank.alive} if self._may_touch else set()
        for launch in sorted(left, key=lambda launch: launch.attempt):
            self._news.behind_blocks(EventName.AGENT_STOPPED, launch, now_ns, {})
        self._flushes.flush(self._ranks, now_ns, with_progress=bool(self._ranks) and self._may_touch)
        self._flushes.tell_people(self._ranks, now_ns, everything=True)

    # --- one poll ---------------------------------------------------------------------------------------------------
    def _poll(self, now_ns: int, ended: Sequence[int]) -> None:
        settings = self.settings
        paused_ns = now_ns - self._last_poll_ns
        if paused_ns > _OWN_PAUSE_NS:
            self._looks.had_a_pause(now_ns)
        self._last_poll_ns = now_ns
        self._next_look_ns = next_look_ns(now_ns, to_ns(settings.look_period_s), self._flushes.jobs_here)
        for fd in ended:
            self._by_pidfd.pop(fd).alive = False
            self._poller.unregister(fd)  # at once: it stays readable, and a loop that fails below must not spin
        for ring in self._new_rings(now_ns):
            self._attach(ring, now_ns, left_behind=gave_sign_of_life(ring, self._missed_since_ns))
        for rank in self._ranks:
            self._looks.look(rank, now_ns)
        if paused_ns > _SUSPENDED_NS:
            self._looks.tell_resumed(self._ranks, now_ns)
        self._answers.tell_stacks(self._ranks, now_ns)
        self._answers.tell_calls(self._ranks, now_ns)
        self._answers.tell_files(now_ns)
        if now_ns >= self._next_health_ns:
            self._next_health_ns = now_ns + to_ns(settings.health_period_s) * self._flushes.health_every(self._ranks)
            end_idle_helpers()
            self._news.behind_blocks(EventName.AGENT_HEALTH, self._identity, now_ns, self._health_now())
        at_once = self._looks.take_witness(now_ns) or self._news.urgent
        if at_once or now_ns >= self._flushes.next_flush_ns:
            is_due = now_ns >= self._flushes.next_progress_ns
            self._flushes.flush(self._ranks, now_ns, with_progress=at_once or is_due)
        self._close_ended()
        if now_ns >= self._next_launchers_ns:
            self._next_launchers_ns = now_ns + _LAUNCHERS_NS
            self._tell_ended_launches(now_ns)
        if self._may_touch:
            self._answers.stacks.ask_for_stacks(self._ranks, self._flushes.blocks.longest_ns, now_ns)
        if self._answers.stacks.busy or any(wants_a_closer_look(rank, now_ns, settings) for rank in self._ranks):
            self._next_look_ns = now_ns + to_ns(settings.alert_look_period_s)

    def _tell_ended_launches(self, now_ns: int) -> None:
        for identity in self._launches.take_ended({rank.identity.attempt for rank in self._ranks}):
            self._news.behind_blocks(EventName.LAUNCH_ENDED, identity, now_ns, {})
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
        self._looks.tell_left_stopped(self._ranks, now_ns)
        drained = drain_rings(self._ranks, self.health)
        for rank in self._ranks:
            if not rank.alive:  # after the drain: the last event is the best witness of when it ended
                self._endings.tell_exit(rank, now_ns)
        self._news.put_exits_last()
        self._flushes.ship(self._ranks, drained, now_ns, with_progress=True)
        self._close_ended()

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
            reading=RingReading(history=RingHistory(self.settings.history_s)),
        )
        self._ranks.append(rank)
        self._note_processes()
        self._share_history()
        self._answers.files.know(rank)
        self._flushes.blocks.add_ring(rank)
        if process.pidfd >= 0 and process.alive:
            self._poller.register(process.pidfd, select.EPOLLIN)
            self._by_pidfd[process.pidfd] = rank
        self._flushes.next_flush_ns = self._flushes.next_progress_ns = 0
        self._tell_started(rank)

    def _note_processes(self) -> None:
        self._rank_processes = {rank.pid: rank.identity for rank in self._ranks if rank.pid}

    def _share_history(self) -> None:
        """The bound is the agent's: its ranks have equal shares."""
        share = self.settings.history_bytes // max(len(self._ranks), _HISTORY_SHARES)
        for rank in self._ranks:
            rank.reading.history.limit_bytes = share

    def _tell_started(self, rank: WatchedRank) -> None:
        started_ns = rank.ring.header.created_mono_ns
        attributes = started_attributes(rank)
        if self._job_name:
            attributes["job_name"] = self._job_name
        self._news.before_blocks(EventName.RANK_STARTED, rank.identity, started_ns, attributes)

    def _close_ended(self) -> None:
        """Close rings whose exit has been shipped."""
        for rank in [rank for rank in self._ranks if rank.told.exit_sent]:
            self._ranks.remove(rank)
            self._note_processes()
            if self._by_pidfd.pop(rank.pidfd, None) is not None:
                self._poller.unregister(rank.pidfd)
            self._flushes.forget(rank, self._ranks)
            if self._may_touch:
                self._ended_rings.add(rank.ring)
            self._answers.files.forget(rank, self._monotonic_ns())
            rank.close()
            self._free_slots.append(rank.slot)
            self.health.rings_closed += 1
            if not any(peer.identity.attempt == rank.identity.attempt for peer in self._ranks):
                self._flushes.definitions.forget_launch(rank.identity.attempt)

    def _health_now(self) -> dict[str, Any]:
        dropped = [rank.hot.events_dropped for rank in self._ranks]
        self.health.events_dropped_by_writers = sum(count for count in dropped if count < 1 << 62)
        attributes: dict[str, Any] = dict(self.health.attributes())
        attributes["pid"] = os.getpid()
        attributes["ranks"] = len(self._ranks)
        attributes["cpu_ns"] = time.process_time_ns()
        if self._flushes.people is not None:
            words = attempt_words(self._ranks)
            attributes["attempt_words"] = tuple(f"{launch} {word}" for launch, word in words.items())
        return {**attributes, **self._more_health()}
