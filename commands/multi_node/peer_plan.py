"""Which of the ``whichrank run`` of one job judges, and where the others find it. Pure; the reason comes in words.

A job on one machine has no peers and opens no port. With several nodes the instance on the rendezvous's machine judges:
its address is one that all nodes can reach, or the job itself could not start.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

from ..support.addresses import split_address
from .launcher import Rendezvous

#: Where judges listen: below the ports that kernels give to connections, above those of known services.
FIRST_PORT, PORT_COUNT = 21_000, 4_000
#: Tried one after the other, should another job's judge have the first.
NEIGHBOURS = 4


class InstanceRole(Enum):
    ALONE = "alone"
    JUDGE = "judge"
    FOLLOWER = "follower"
    #: The address is this machine's, and nothing says who is first: whoever comes first judges.
    FIRST_COME = "first come"


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerPlan:
    """key: the job's, equal on all nodes and of no other job at this address. nodes: instances expected, at most."""

    role: InstanceRole
    why: str
    host: str = ""
    ports: tuple[int, ...] = ()
    key: str = ""
    nodes: int = 1

    @property
    def address(self) -> str:
        """HOST:PORT of the first port that the judge may have; HOST alone without ports."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.ports[0]}" if self.ports else host


def plan_peers(
    found: Rendezvous | None,
    *,
    judge: str,
    job: str,
    is_local: Callable[[str], bool],
) -> PeerPlan:
    """Whether this instance judges, follows or is alone, where the judge is, and why.

    found: what the launcher says. judge: HOST[:PORT] as the user gave it, "" not at all. job: a given job id or "".
    is_local: whether a host is this machine; asked only where it matters. Raises ValueError for an unusable judge.
    """
    if found is None and not judge:
        return PeerPlan(role=InstanceRole.ALONE, why="one machine, as far as the command says")
    key = job_key(found, judge=judge, job=job)
    nodes = max(2, found.places if found else 2)
    if judge:
        host, port = split_address(judge, 0)
        ports = (port,) if port else ports_of(key)
        source = "--judge"
    else:
        assert found is not None
        host, ports, source = found.host, ports_of(key), found.source
    role, reason = _role(found, host, is_local, given=bool(judge))
    why = f"{nodes} nodes meet at {host} ({source}), {reason}"
    return PeerPlan(role=role, why=why, host=host, ports=ports, key=key, nodes=nodes)


def job_key(found: Rendezvous | None, *, judge: str, job: str) -> str:
    """A key for the job, equal on all its nodes without a word between them: from its id, meeting place or judge."""
    if job:
        return _digest("key", "job", job)
    if found is not None:
        return _digest("key", found.host.lower(), found.port, found.id)
    return _digest("key", "judge", judge.lower())


def secret_of(plan: PeerPlan, given: str) -> bytes:
    """The secret that a peer of this job must know. given: what its instances share (``peer_secret``)."""
    return hashlib.blake2b(f"{given}\0{plan.key}".encode(), digest_size=32, person=b"whichrank-peers").digest()


def ports_of(key: str) -> tuple[int, ...]:
    """The ports at which the judge of this job may listen; they follow from the key, so that every node knows them."""
    first = int(key[:8], 16) % (PORT_COUNT - NEIGHBOURS)
    return tuple(FIRST_PORT + first + neighbour for neighbour in range(NEIGHBOURS))


def _role(
    found: Rendezvous | None, host: str, is_local: Callable[[str], bool], *, given: bool
) -> tuple[InstanceRole, str]:
    if found is not None and found.place >= 0 and not given:
        if found.place == 0:
            return InstanceRole.JUDGE, "and this is number 0"
        return InstanceRole.FOLLOWER, f"and this is number {found.place}"
    if is_local(host):
        return InstanceRole.FIRST_COME, "which is this machine"
    return InstanceRole.FOLLOWER, "which is another machine"


def _digest(*parts: object) -> str:
    return hashlib.blake2b("\0".join(map(str, parts)).encode(), digest_size=8).hexdigest()
