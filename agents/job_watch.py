"""One watched folder of rings: its agent, the requests for it, and when it is to be looked at next."""

from __future__ import annotations

import logging
import os
import queue
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from ..telemetry.printable import printable
from ..telemetry.records import Event, Identity
from .job_agent import Agent
from .rings.job_folders import FoundJob, JobFolder
from .user_files.system_calls import state_of
from .user_files.user_files import files_of

logger = logging.getLogger("whichrank.agents")

#: A look at least this often, whatever the agent's own periods are.
LONGEST_WAIT_S = 0.25
MAX_REQUESTS = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class FolderLook:
    """When a folder was last looked at (monotonic), and its mtime just before: by these it is known what came later."""

    changed_ns: int
    at_ns: int


#: Makes the agent of a job; the last two: since when (monotonic ns) it is watched, and the folder's open descriptor.
MakeAgent = Callable[[JobFolder, FoundJob, int, int], Agent]


class JobWatch:
    """``step`` and ``end`` are called by one thread at a time; ``take`` and the properties by any."""

    def __init__(self, folder: JobFolder, job: FoundJob, since_ns: int, make_agent: MakeAgent, idle_s: float) -> None:
        self.folder, self.job = folder, job
        self.last_look = FolderLook(changed_ns=folder.changed_ns, at_ns=since_ns)
        self.is_over = False
        #: How many jobs of its owner are watched on this node, and how many other owners; set by another thread.
        self.jobs_here = 1
        self._since_ns = since_ns
        self._make_agent = make_agent
        self._idle_s = idle_s
        self._idle_since_s = time.monotonic()
        self._requests: queue.Queue[Event] = queue.Queue(MAX_REQUESTS)
        self._agent: Agent | None = None
        #: The folder, held apart from its finder, which lets it go when it is swapped or gone.
        self._place = os.dup(folder.fd)

    @property
    def rank_processes(self) -> Mapping[int, Identity]:
        """Identities of the watched ranks by pid."""
        return {} if self._agent is None else self._agent.rank_processes

    @property
    def watched(self) -> int:
        """How many ranks there are whose end has not been told."""
        return 0 if self._agent is None else self._agent.watched

    @property
    def has_agent(self) -> bool:
        """Whether an agent watches the job: from the first look at its rings on."""
        return self._agent is not None

    @property
    def wakes(self) -> int:
        """A descriptor that is readable as soon as a rank's process has ended; -1: there is none yet."""
        return -1 if self._agent is None else self._agent.ended_fd

    def take(self, event: Event) -> None:
        """Queues a request for evidence."""
        try:
            self._requests.put_nowait(event)
        except queue.Full:
            logger.warning("more than %d requests for evidence wait; the rest is dropped", MAX_REQUESTS)

    def step(self) -> float:
        """Does what is due; returns in how many seconds more will be. Sets ``is_over`` where nobody lives here."""
        if self._agent is None and not self._begin():
            return 0.0
        agent = self._agent
        assert agent is not None
        # Who lives here keeps the folder watched; only then is it asked what has come since.
        look = None if agent.watched else FolderLook(changed_ns=self._changed_ns(), at_ns=time.monotonic_ns())
        while not self._requests.empty():
            agent.request(self._requests.get_nowait())
        agent.poll(self.jobs_here)
        if agent.watched:
            self._idle_since_s = time.monotonic()
        elif look is not None and time.monotonic() - self._idle_since_s > self._idle_s:
            self.last_look = look
            self.end()
        return min(agent.due_s, LONGEST_WAIT_S)

    def end(self) -> None:
        """Ends the watch: what the ranks did until now is published. May be called again."""
        self.is_over = True
        if self._agent is not None:
            self._agent.close()
        if self._place >= 0:
            os.close(self._place)
            self._place = -1

    def _begin(self) -> bool:
        try:
            # A descriptor of its own: two who list a folder by one would take each other's names away.
            place = files_of(self.folder.owner_uid).open_folder(self._place, ".")
            try:
                self._agent = self._make_agent(self.folder, self.job, self._since_ns, place)
            except OSError:
                os.close(place)
                raise
        except OSError as error:
            logger.warning("%s: cannot be watched: %s", printable(str(self.folder.path)), error.strerror or error)
            self.end()
            return False
        return True

    def _changed_ns(self) -> int:
        try:
            return state_of(self._place).changed_ns
        except OSError:
            return 0
