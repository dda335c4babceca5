"""Which launch a rank belongs to, and by it which world and attempt; and the token that its ranks have told.

A launch is one start of ranks by one launcher on this node: all its ranks are of one attempt. Owned by the polling
thread; reads /proc, nothing else.
"""

from __future__ import annotations

import socket
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from typing import Any

from ...telemetry.identity import launch_id
from ...telemetry.printable import printable
from ...telemetry.records import Identity
from ...telemetry.vocabulary import ProcessState
from ..processes import processes
from ..rings.ring_directory import identity_int
from ..rings.ring_file import RingFile

_MAX_TEXT = 64
#: Launchers that outlive their ranks and start no others (a cluster's own service) are not looked at for ever.
_MOST_LAUNCHERS = 64
_MAX_TOKEN = 128


def identity_of_job(identity: Identity, owner_uid: int | None) -> Identity:
    """The identity under which an agent tells of a job, on this machine where no node is named; the owner's uid counts
    where ``identity`` does not say whose the job is.
    """
    owner = identity.owner or ("" if owner_uid is None else str(owner_uid))
    return replace(identity, node=identity.node or socket.gethostname(), attempt="", rank=-1, owner=owner)


class Launches:
    """Identities of this node's ranks. ``identity`` names cluster, run, job and node."""

    def __init__(self, identity: Identity) -> None:
        self._identity = identity
        #: By launch: pid and start ticks of its launcher, as far as it was seen, and whose it is.
        self._launchers: dict[str, tuple[int, int, Identity]] = {}

    def rename_node(self, node: str) -> None:
        """Identities that are made from now on have this node."""
        self._identity = replace(self._identity, node=node)

    def identify(self, ring: RingFile, live_pid: int) -> Identity:
        """Identity of a ring's rank, with its world and launch; remembers the launcher.

        live_pid: of its process, 0 if that is gone or unknown.
        """
        claims = ring.header.identity
        launcher, ticks = identity_int(claims, "launcher_pid"), identity_int(claims, "launcher_start_ticks")
        # Ranks under a wrapper (a shell script) name their wrapper; the true launcher can be told while they live.
        if live_pid and (not (launcher and ticks) or processes.has_rank_variables(launcher)):
            launcher, ticks = processes.find_launcher(live_pid)
        world = "/".join(filter(None, (self._identity.world, rendezvous_of(claims))))
        launch = launch_id(
            self._identity.job,
            self._identity.node,
            world,
            launcher_pid=launcher,
            launcher_start_ticks=ticks,
            restart_count=identity_int(claims, "restart_count"),
        )
        identity = replace(self._identity, attempt=launch, world=world, rank=ring.header.rank)
        if live_pid and launcher and ticks:
            self._launchers.pop(launch, None)
            self._launchers[launch] = (launcher, ticks, replace(identity, rank=-1))
            if len(self._launchers) > _MOST_LAUNCHERS:
                del self._launchers[next(iter(self._launchers))]
        return identity

    def take_ended(self, watched: Collection[str]) -> list[Identity]:
        """An identity of each launch whose launcher has gone since the last call, and of which no rank is watched.

        watched: launches of which a rank is still watched.
        """
        ended = []
        for launch, (pid, ticks, identity) in list(self._launchers.items()):
            if launch in watched:
                continue
            stat = processes.read_stat(pid)
            if stat is None or stat.start_ticks != ticks or stat.state in (ProcessState.ZOMBIE, ProcessState.DEAD):
                del self._launchers[launch]
                ended.append(identity)
        return ended

    def by_launch(self, rings: Iterable[RingFile]) -> list[list[RingFile]]:
        """Rings that nobody watches any more, in the given order: one list per launch, and a further one where a rank
        comes again.

        (A launch may have several lives: ``processors/job/state/attempts.py``.)
        """
        lists: list[list[RingFile]] = []
        newest: dict[str, list[RingFile]] = {}
        for ring in rings:
            launch = self.identify(ring, 0).attempt
            if launch not in newest or any(ring.header.rank == other.header.rank for other in newest[launch]):
                newest[launch] = []
                lists.append(newest[launch])
            newest[launch].append(ring)
        return lists


def token_of(payload: Mapping[str, Any]) -> str:
    """The token in a ring's definition; "" where there is none that could be one."""
    token = payload.get("token")
    return token[:_MAX_TOKEN] if isinstance(token, str) else ""


def rendezvous_of(claims: Mapping[str, Any]) -> str:
    """A name or port by which two worlds side by side in one job differ, from what a ring claims; "" where none is set.

    WHICHRANK_WORLD_ID, else TORCHELASTIC_RUN_ID, else MASTER_PORT.
    """
    for variable in ("WHICHRANK_WORLD_ID", "TORCHELASTIC_RUN_ID", "MASTER_PORT"):
        value = claims.get(variable)
        if isinstance(value, str) and value and value != "none":
            return printable(value, _MAX_TEXT)
    return ""
