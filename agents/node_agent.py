"""All jobs of a node: a folder of rings gets an agent and a thread of its own, for as long as somebody lives in it.

One broken folder, ring or job never touches another. Two users who claim the same job are two jobs. Folders come and
go; the thread that calls ``turn`` looks for them, the threads of the folders do the rest.
"""

from __future__ import annotations

import contextlib
import logging
import os
import queue
import shutil
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from ..telemetry.otlp import encode_batches
from ..telemetry.printable import file_name, printable
from ..telemetry.records import Event, Identity
from ..telemetry.topics import TOPIC_BLOCKS
from ..telemetry.vocabulary import EventName
from .base.priority import Priority
from .base.settings import AgentSettings
from .job_agent import Agent
from .privacy.redaction_filter import PublishRanked, RedactionFilter
from .rings.job_folders import FoundJob, JobFolder, find_job_folders, identify_job

logger = logging.getLogger("whichrank.agents")

_WAIT_S = 0.25
#: A folder in which nobody has lived for so long is left until something new appears in it.
IDLE_S = 15.0
#: The clock behind mtime ticks in jiffies: a change that is so old has no other beside it that it hides.
_SETTLED_NS = 2_000_000_000
#: Evidence of so many jobs is kept; the oldest goes.
KEPT_EVIDENCE = 32
MAX_REQUESTS = 256
#: Nothing at all for five seconds is an incident (``input_silent``).
_BEAT_NS = 2_000_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class _Look:
    """When a folder was last looked at (monotonic), and its mtime just before: by these it is known what came later."""

    changed_ns: int
    at_ns: int


class NodeAgent:
    """Not thread-safe but for ``request``: one thread calls ``turn`` and ``close``."""

    def __init__(
        self,
        *,
        rings: Path,
        own: Identity,
        publish_ranked: PublishRanked,
        evidence_directory: Path | None = None,
        more_health: Callable[[], Mapping[str, int]] = dict,
        settings: AgentSettings | None = None,
        missed_since_ns: int | None = None,
        report: Callable[[str], None] = logger.warning,
        idle_s: float = IDLE_S,
        wall_ns: Callable[[], int] = time.time_ns,
    ) -> None:
        """rings: where folders of rings are, with ``*``. own: cluster and node; the rest of it is not looked at.

        missed_since_ns: until then (monotonic) an earlier agent of this node has watched; None: it is not known.
        """
        self._rings = rings
        self._own = own
        self._publish_ranked = publish_ranked  # of the agents, each of which has a gate of its own
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
        self._watches: dict[Path, _FolderWatch] = {}
        #: Folders in which nobody lives: by the last look at them.
        self._left: dict[Path, _Look] = {}
        self.watched_before = 0

    def turn(self) -> None:
        """Looks for folders of rings: starts a thread for each new or changed one, and forgets threads that have ended.

        Without any job it tells that the agent lives. To be called every few seconds.
        """
        folders = {folder.path: folder for folder in find_job_folders(self._rings, self._report)}
        for path, watch in list(self._watches.items()):
            if not watch.is_alive():
                del self._watches[path]
                if path in folders:
                    self._left[path] = watch.last_look
        self._left = {path: look for path, look in self._left.items() if path in folders}
        for path, folder in folders.items():
            left = self._left.get(path)
            if path not in self._watches and (left is None or left.changed_ns != folder.changed_ns):
                self._watch(folder, left.at_ns if left is not None else self._since_ns)
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
        deadline = time.monotonic() + patience_s
        for watch in self._watches.values():
            watch.finish.set()
        for watch in self._watches.values():
            watch.join(max(0.0, deadline - time.monotonic()))

    def _watch(self, folder: JobFolder, since_ns: int) -> None:
        job = identify_job(folder, self._own, since_ns, self._missed_since(since_ns))
        if job is None:  # not written yet, all damaged, or of the past: looked at again when something new is there
            if time.time_ns() - folder.changed_ns > _SETTLED_NS:
                self._left[folder.path] = _Look(changed_ns=folder.changed_ns, at_ns=since_ns)
            return
        who = job.identity
        others = [w.job.identity for w in self._watches.values() if w.job.identity.job == who.job]
        if any(other.owner != who.owner for other in others):
            self._report(f"{folder.path}: job {who.job} is another owner's here, too; this one is {who.owner}'s")
        self._left.pop(folder.path, None)
        watch = _FolderWatch(folder, job, since_ns, self._make_agent, self._idle_s)
        self._watches[folder.path] = watch
        self.watched_before += 1
        watch.start()

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

    def _make_agent(self, folder: JobFolder, job: FoundJob, since_ns: int) -> Agent:
        evidence = None
        if self._evidence_directory is not None:
            evidence = self._evidence_directory / f"{folder.owner_uid}-{file_name(folder.path.name)}"
            with contextlib.suppress(OSError):  # stacks and rings are their users' own
                self._evidence_directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._forget_evidence(self._evidence_directory, keep=evidence.name)
        return Agent(
            ring_directory=folder.path,
            publish=None,
            publish_ranked=self._publish_ranked,
            identity=job.identity,
            job_name=job.name,
            evidence_directory=evidence,
            settings=self._settings,
            more_health=self._more_health,
            owner_uid=folder.owner_uid,
            missed_since_ns=self._missed_since(since_ns),
            since_ns=since_ns,
            wall_ns=self._wall_ns,
        )

    def _forget_evidence(self, directory: Path, keep: str) -> None:
        try:
            folders = sorted((e.stat().st_mtime_ns, e.path) for e in os.scandir(directory) if e.is_dir())
        except OSError:
            return
        for _, path in folders[: max(0, len(folders) - KEPT_EVIDENCE + 1)]:
            if Path(path).name != keep:
                shutil.rmtree(path, ignore_errors=True)


class _FolderWatch(threading.Thread):
    """The polling thread of one folder's agent."""

    def __init__(
        self,
        folder: JobFolder,
        job: FoundJob,
        since_ns: int,
        make_agent: Callable[[JobFolder, FoundJob, int], Agent],
        idle_s: float,
    ) -> None:
        super().__init__(name=f"whichrank-{folder.path.name}", daemon=True)
        self.folder, self.job = folder, job
        self.finish = threading.Event()
        self.last_look = _Look(changed_ns=folder.changed_ns, at_ns=since_ns)
        self._since_ns = since_ns
        self._make_agent = make_agent
        self._idle_s = idle_s
        self._requests: queue.Queue[Event] = queue.Queue(MAX_REQUESTS)
        self._agent: Agent | None = None

    @property
    def rank_processes(self) -> Mapping[int, Identity]:
        return {} if self._agent is None else self._agent.rank_processes

    def take(self, event: Event) -> None:
        try:
            self._requests.put_nowait(event)
        except queue.Full:
            logger.warning("more than %d requests for evidence wait; the rest is dropped", MAX_REQUESTS)

    def run(self) -> None:
        try:
            agent = self._make_agent(self.folder, self.job, self._since_ns)
        except OSError as error:
            logger.warning("%s: cannot be watched: %s", self.folder.path, error)
            return
        self._agent = agent
        try:
            self._poll(agent)
        finally:
            agent.close()

    def _poll(self, agent: Agent) -> None:
        idle_since = time.monotonic()
        while not self.finish.is_set():
            look = _Look(changed_ns=self._changed_ns(), at_ns=time.monotonic_ns())
            agent.wait(_WAIT_S)
            while not self._requests.empty():
                agent.request(self._requests.get_nowait())
            agent.poll()
            if agent.watched:
                idle_since = time.monotonic()
            elif time.monotonic() - idle_since > self._idle_s:
                self.last_look = look
                return

    def _changed_ns(self) -> int:
        try:
            return os.stat(self.folder.path).st_mtime_ns
        except OSError:
            return 0


class _Once:
    """Each line once, and not without end."""

    def __init__(self, report: Callable[[str], None], limit: int = 256) -> None:
        self._report, self._limit = report, limit
        self._said: set[str] = set()

    def __call__(self, line: str) -> None:
        line = printable(line)  # names of users' folders are in it
        if line not in self._said and len(self._said) < self._limit:
            self._said.add(line)
            self._report(line)
