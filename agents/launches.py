"""Which launch a rank belongs to, and by it which world and attempt: one id before the token is known, one after.

A launch is one start of ranks by one launcher on this node. All its ranks share the attempt, so one rank's token is
every rank's; a rank that died before it could ask for the token is told apart by its launch all the same. Owned by the
polling thread; reads /proc, nothing else.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from ..telemetry import ring_layout as L
from ..telemetry.identity import attempt_of_token, provisional_attempt
from ..telemetry.records import Identity
from . import processes
from .ring_directory import identity_int
from .ring_file import RingFile

_MAX_TEXT = 64
_MAX_TOKEN = 128
#: Launches of past attempts whose rings may still be read; beyond that the oldest are forgotten.
_MAX_LAUNCHES = 4096


class Launches:
    """Identities of this node's ranks. ``identity`` names cluster, run, job and node."""

    def __init__(self, identity: Identity) -> None:
        self._identity = identity
        self._attempts: dict[str, str] = {}

    def rename_node(self, node: str) -> None:
        self._identity = replace(self._identity, node=node)

    def identify(self, ring: RingFile, live_pid: int) -> tuple[Identity, str]:
        """(identity of a ring's rank as known by now, its launch). live_pid: 0 if its process is gone or unknown."""
        claims = ring.header.identity
        launcher, ticks = identity_int(claims, "launcher_pid"), identity_int(claims, "launcher_start_ticks")
        # Ranks under a wrapper (a shell script) name their wrapper; the true launcher can be told while they live.
        if live_pid and (not (launcher and ticks) or processes.has_rank_variables(launcher)):
            launcher, ticks = processes.find_launcher(live_pid)
        world = "/".join(filter(None, (self._identity.world, rendezvous_of(claims))))
        launch = provisional_attempt(
            self._identity.job,
            self._identity.node,
            world,
            launcher_pid=launcher,
            launcher_start_ticks=ticks,
            restart_count=identity_int(claims, "restart_count"),
        )
        attempt = self._attempts.get(launch, launch)
        return replace(self._identity, attempt=attempt, world=world, rank=ring.header.rank), launch

    def by_attempt(self, rings: Iterable[RingFile]) -> list[list[RingFile]]:
        """Rings that nobody watches any more, one list per attempt, in the order in which they come."""
        found = [(ring, self.identify(ring, 0)[1], read_token(ring)) for ring in rings]
        known = {launch: token for _, launch, token in found if token}
        lists: dict[str, list[RingFile]] = {}
        for ring, launch, token in found:
            lists.setdefault(token or known.get(launch, launch), []).append(ring)
        return list(lists.values())

    def learn(self, launch: str, token: str) -> tuple[str, bool]:
        """(attempt of that token, whether the launch's attempt was not known before)."""
        attempt = attempt_of_token(self._identity.job, token)
        new = launch not in self._attempts
        if new:
            self._attempts[launch] = attempt
            if len(self._attempts) > _MAX_LAUNCHES:
                del self._attempts[next(iter(self._attempts))]
        return attempt, new


def token_of(payload: Mapping[str, Any]) -> str:
    """The token in a ring's definition; "" where there is none that could be one."""
    token = payload.get("token")
    return token[:_MAX_TOKEN] if isinstance(token, str) else ""


def read_token(ring: RingFile) -> str:
    """The token that a ring's rank has told by now, or ""."""
    found, _, _ = ring.read_definitions(0, ring.read_hot().definitions_used)
    return next((token_of(entry.payload) for entry in found if entry.kind == L.DEFINITION_ATTEMPT), "")


def rendezvous_of(claims: Mapping[str, Any]) -> str:
    """What two worlds side by side in one job never share: a name that somebody gave, or where their ranks meet."""
    for variable in ("WHICHRANK_WORLD_ID", "TORCHELASTIC_RUN_ID", "MASTER_PORT"):
        value = claims.get(variable)
        if isinstance(value, str) and value and value != "none":
            return value[:_MAX_TEXT]
    return ""
