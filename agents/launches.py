"""Which launch a rank belongs to, and by it which world and attempt; and the token that its ranks have told.

A launch is one start of ranks by one launcher on this node: all its ranks are of one attempt. Owned by the polling
thread; reads /proc, nothing else.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from ..telemetry.identity import launch_id
from ..telemetry.records import Identity
from . import processes
from .ring_directory import identity_int
from .ring_file import RingFile

_MAX_TEXT = 64
_MAX_TOKEN = 128


class Launches:
    """Identities of this node's ranks. ``identity`` names cluster, run, job and node."""

    def __init__(self, identity: Identity) -> None:
        self._identity = identity

    def rename_node(self, node: str) -> None:
        self._identity = replace(self._identity, node=node)

    def identify(self, ring: RingFile, live_pid: int) -> Identity:
        """Identity of a ring's rank. live_pid: 0 if its process is gone or unknown."""
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
        return replace(self._identity, attempt=launch, world=world, rank=ring.header.rank)

    def by_launch(self, rings: Iterable[RingFile]) -> list[list[RingFile]]:
        """Rings that nobody watches any more, one list per launch, in the order in which they come."""
        lists: dict[str, list[RingFile]] = {}
        for ring in rings:
            lists.setdefault(self.identify(ring, 0).attempt, []).append(ring)
        return list(lists.values())


def token_of(payload: Mapping[str, Any]) -> str:
    """The token in a ring's definition; "" where there is none that could be one."""
    token = payload.get("token")
    return token[:_MAX_TOKEN] if isinstance(token, str) else ""


def rendezvous_of(claims: Mapping[str, Any]) -> str:
    """What two worlds side by side in one job never share: a name that somebody gave, or where their ranks meet."""
    for variable in ("WHICHRANK_WORLD_ID", "TORCHELASTIC_RUN_ID", "MASTER_PORT"):
        value = claims.get(variable)
        if isinstance(value, str) and value and value != "none":
            return value[:_MAX_TEXT]
    return ""
