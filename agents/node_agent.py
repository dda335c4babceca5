"""All jobs of a node: a folder of rings gets an agent of its own, for as long as somebody lives in it.

One broken folder, ring or job never touches another, and no owner's many folders keep others' from being watched. Two
users who claim the same job are two jobs. Folders come and go; the thread that calls ``turn`` looks for them, the
threads of ``watch_pool`` do the rest.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import re
import shutil
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

from ..telemetry.otlp import encode_batches
from ..telemetry.printable import printable
from ..telemetry.records import Event, Identity
from ..telemetry.topics import TOPIC_BLOCKS
from ..telemetry.vocabulary import EventName
from .base.priority import Priority
from .base.settings import AgentSettings
from .job_agent import Agent
from .job_watch import FolderLook, JobWatch
from .privacy.redaction_filter import PublishRanked, RedactionFilter
from .publish.owner_shares import OwnerShares
from .rings.job_folders import FolderFinder, FoundJob, JobFolder, identify_job
from .user_files.user_files import end_helpers, end_idle_helpers
from .watch_pool import WatchPool

logger = logging.getLogger("whichrank.agents")

#: A folder in which nobody has lived for so long is left until something new appears in it.
IDLE_S = 15.0
#: The clock behind mtime ticks in jiffies: a change that is so old has no other beside it that it hides.
_SETTLED_NS = 2_000_000_000
#: Evidence of so many jobs of each owner is kept; the oldest goes.
KEPT_EVIDENCE = 16
#: Folders that are watched at once: of an owner, and of all; however many owners there are, each has some.
MOST_WATCHES_OF_OWNER, MOST_WATCHES, _LEAST_WATCHES = 64, 512, 4
MOST_RINGS_OF_OWNER = 256
#: Folders of an owner that one turn looks into for their job.
_TRIED_PER_TURN = 16
_SAID_S = 3600.0
#: Nothing at all for five seconds is an incident (``input_silent``).
_BEAT_NS = 2_000_000_000


class NodeAgent:
    """Not thread-safe but for ``request``: one thread calls ``turn`` and ``close``."""

    def __init__(
        self,
        *,
        rings: Path,
        own: Identity,
        publish_ranked: PublishRanked,
        publish_of: Callable[[int], PublishRanked] | None = None,
        evidence_directory: Path | None = None,
        more_health: Callable[[], Mapping[str, int]] = dict,
        settings: AgentSettings | None = None,
        missed_since_ns: int | None = None,
        report: Callable[[str], None] = logger.warning,
        idle_s: float = IDLE_S,
        wall_ns: Callable[[], int] = time.time_ns,
    ) -> None:
        """rings: where folders of rings are, with ``*``. own: cluster and node; the rest of it is not looked at.

        publish_of: the way for the jobs of one owner (uid); None: ``publish_ranked`` for all.
        missed_since_ns: until then (monotonic) an earlier agent of this node has watched; None: it is not known.
        """
        self._rings = rings
        self._own = own
        # Of the agents, each of which has a gate of its own.
        self._shares = OwnerShares(publish_ranked, more_health, publish_of=publish_of)
        self._publish_own = RedactionFilter().publish_ranked(publish_ranked)
        self._evidence_directory = evidence_directory
        self._more_health = more_health
        self._settings = settings or AgentSettings()
        self._report = _Once(report)
        self._idle_s = idle_s
        self._wall_ns = wall_ns
        self._next_beat_ns = 0
        self._since_ns = time.monotonic_ns()
        self._missed_since_ns = missed_since_ns
        self._finder = FolderFinder(rings, self._report)
        self._pool = WatchPool()
        #: By what tells a folder from any other that has its name.
        self._watches: dict[tuple[int, int], JobWatch] = {}
        #: Folders in which nobody lives: by the last look at them.
        self._left: dict[tuple[int, int], FolderLook] = {}
        self.watched_before = 0

    def turn(self) -> None:
        """Looks for folders of rings: starts a thread for each new or changed one, and forgets threads that have ended.

        Without any job it tells that the agent lives. To be called every few seconds.
        """
        folders = {folder.key: folder for folder in self._finder.look()}
        for key, watch in list(self._watches.items()):
            if watch.is_over:
                del self._watches[key]
                if key in folders:
                    self._left[key] = watch.last_look
        self._left = {key: look for key, look in self._left.items() if key in folders}
        tried: Counter[int] = Counter()
        for key, folder in folders.items():
            left = self._left.get(key)
            is_new = key not in self._watches and (left is None or left.changed_ns != folder.changed_ns)
            if is_new and tried[folder.owner_uid] < _TRIED_PER_TURN and self._has_room(folder.owner_uid):
                tried[folder.owner_uid] += 1
                self._watch(folder, left.at_ns if left is not None else self._since_ns)
        jobs = Counter(watch.folder.owner_uid for watch in self._watches.values())
        for watch in self._watches.values():  # another owner counts once, however many jobs he has
            watch.jobs_here = jobs[watch.folder.owner_uid] + len(jobs) - 1
        end_idle_helpers()
        if not self._watches:
            self._tell_alive()

    def request(self, event: Event) -> None:
        """Hands a request for evidence to the job that it names, or to all jobs. May be called from any thread."""
        for watch in list(self._watches.values()):
            mine, asked = watch.job.identity, event.identity
            if asked.job in ("", mine.job) and asked.owner in ("", mine.owner):
                watch.take(event)

    @property
    def rank_processes(self) -> Mapping[int, Identity]:
        """Identities of all jobs' watched ranks by pid. May be asked from any thread."""
        found: dict[int, Identity] = {}
        for watch in list(self._watches.values()):
            found.update(watch.rank_processes)
        return found

    @property
    def jobs(self) -> list[str]:
        """Names of the jobs that are watched now, sorted; with its owner, where several claim the same."""
        found = [watch.job.identity for watch in list(self._watches.values())]
        owners = {(each.job, each.owner) for each in found}
        claimed = Counter(job for job, _ in owners)
        return sorted(each.job if claimed[each.job] == 1 else f"{each.job}@{each.owner}" for each in found)

    def close(self, patience_s: float) -> None:
        """Ends all jobs' threads; what the ranks did until now is published.

        Waits ``patience_s`` for all together; threads that take longer are left.
        """
        self._pool.close(patience_s)
        self._finder.close()
        end_helpers()

    def _has_room(self, uid: int) -> bool:
        """Whether one more folder of this owner can be watched; others' watches leave him his part of all."""
        owners = Counter(watch.folder.owner_uid for watch in self._watches.values())
        owners[uid] += 0
        share = max(_LEAST_WATCHES, min(MOST_WATCHES_OF_OWNER, MOST_WATCHES // len(owners)))
        ranks = sum(watch.watched for watch in self._watches.values() if watch.folder.owner_uid == uid)
        if owners[uid] < share and (ranks < MOST_RINGS_OF_OWNER or not owners[uid]):
            return True
        self._report(
            f"user {uid} has more than {share} folders, or {MOST_RINGS_OF_OWNER} rings, of jobs that run: the others "
            "are not watched"
        )
        return False

    def _watch(self, folder: JobFolder, since_ns: int) -> None:
        job = identify_job(folder, self._own, since_ns, self._missed_since(since_ns))
        if job is None:  # not written yet, all damaged, or of the past: looked at again when something new is there
            if time.time_ns() - folder.changed_ns > _SETTLED_NS:
                self._left[folder.key] = FolderLook(changed_ns=folder.changed_ns, at_ns=since_ns)
            return
        who = job.identity
        others = [watch.job.identity for watch in self._watches.values() if watch.job.identity.job == who.job]
        if any(other.owner != who.owner for other in others):
            self._report(
                f"{printable(str(folder.path))}: job {printable(who.job)} is another owner's here, too; "
                f"this one is {who.owner}'s"
            )
        self._left.pop(folder.key, None)
        watch = JobWatch(folder, job, since_ns, self._make_agent, self._idle_s)
        self._watches[folder.key] = watch
        self.watched_before += 1
        self._pool.add(watch)

    def _tell_alive(self) -> None:
        """A node without a job says that it is there: silence is to mean trouble. And the brokers' answers tell the
        time before the first job needs it. Nothing is said behind what has not been sent yet."""
        now_ns, health = time.monotonic_ns(), self._more_health()
        if now_ns < self._next_beat_ns or health.get("kafka.unsent"):
            return
        self._next_beat_ns = now_ns + _BEAT_NS
        attributes = {"pid": os.getpid(), "ranks": 0, **health}
        alive = Event(name=EventName.AGENT_HEALTH, identity=self._own, time_ns=self._wall_ns(), attributes=attributes)
        for value in encode_batches([alive], self._settings.request_bytes):
            self._publish_own(TOPIC_BLOCKS, self._own.node, value, Priority.PROGRESS)

    def _missed_since(self, since_ns: int) -> int | None:
        """Folders that were left and are taken up again, we have watched ourselves."""
        return self._missed_since_ns if since_ns == self._since_ns else None

    def _make_agent(self, folder: JobFolder, job: FoundJob, since_ns: int, place: int) -> Agent:
        evidence = None
        if self._evidence_directory is not None:
            evidence = self._evidence_directory / evidence_name(folder.owner_uid, folder.path.name)
            with contextlib.suppress(OSError):  # stacks and rings are their users' own
                self._evidence_directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._forget_evidence(self._evidence_directory, keep=evidence.name)
        return Agent(
            ring_directory=folder.path,
            publish=None,
            publish_ranked=self._shares.of(folder.owner_uid),
            identity=job.identity,
            job_name=job.name,
            evidence_directory=evidence,
            settings=self._settings_of(folder.owner_uid),
            more_health=self._more_health,
            owner_uid=folder.owner_uid,
            ring_folder=place,
            missed_since_ns=self._missed_since(since_ns),
            since_ns=since_ns,
            wall_ns=self._wall_ns,
        )

    def _settings_of(self, uid: int) -> AgentSettings:
        """For one more job of an owner: what each may keep in memory and on disk is less, the more he has."""
        count = 1 + sum(watch.folder.owner_uid == uid for watch in list(self._watches.values()) if watch.has_agent)
        whole = self._settings
        return replace(
            whole,
            max_rings=min(whole.max_rings, MOST_RINGS_OF_OWNER),
            history_bytes=max(whole.history_bytes // count**2, 256 << 10),
            evidence_bytes=max(whole.evidence_bytes // count, 1 << 20),
            ended_ring_bytes=whole.ended_ring_bytes // count,
            max_histograms=max(whole.max_histograms // count, 64),
            open_rows=max(whole.open_rows // count, 1024),
        )

    def _forget_evidence(self, directory: Path, keep: str) -> None:
        """Each owner has so many folders of evidence; beyond that his oldest goes, and nobody else's."""
        owner = keep.partition("-")[0] + "-"
        try:
            folders = sorted((e.stat().st_mtime_ns, e.name) for e in os.scandir(directory) if e.is_dir())
        except OSError:
            return
        own = [name for _, name in folders if name.startswith(owner)]
        for name in own[: max(0, len(own) - KEPT_EVIDENCE + 1)]:
            if name != keep:
                shutil.rmtree(directory / name, ignore_errors=True)


def evidence_name(uid: int, folder: str) -> str:
    """Of the folder for a job's evidence: its owner, and the name of its rings' folder where that is a plain one."""
    plain = re.sub(r"[^A-Za-z0-9._-]", "_", folder)[:100]
    if plain == folder:
        return f"{uid}-{folder}"
    return f"{uid}-{plain}-{hashlib.blake2b(os.fsencode(folder), digest_size=4).hexdigest()}"


class _Once:
    """Each line once an hour, and not without end."""

    def __init__(self, report: Callable[[str], None], limit: int = 256) -> None:
        self._report, self._limit = report, limit
        self._said: set[str] = set()
        self._since_s = time.monotonic()

    def __call__(self, line: str) -> None:
        line = printable(line)
        if time.monotonic() - self._since_s > _SAID_S:
            self._since_s, self._said = time.monotonic(), set()
        if line not in self._said and len(self._said) < self._limit:
            self._said.add(line)
            self._report(line)
