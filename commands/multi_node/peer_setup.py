"""Before the command starts: is this one of several nodes, does this instance judge, and under what name.

Runs in the main thread of ``whichrank run`` while there is no other thread: sockets are bound here and served only
later. For a job on one machine it loads nothing but the standard library, so that its command starts at once.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ...transport.peer_listener import listen
from .launcher import find_rendezvous
from .peer_plan import InstanceRole, PeerPlan, plan_peers, secret_of
from .peer_secret import NoSecret, find_secret
from .peer_tls import NOT_ENCRYPTED, NoTls, PeerTls

if TYPE_CHECKING:
    from ...transport.peer_encryption import PeerEncryption


@dataclass(slots=True, kw_only=True)
class PeerSetup:
    """role is JUDGE, FOLLOWER or ALONE. listener: the judge's, None where no port was free. job: "" to be made up."""

    plan: PeerPlan
    secret: bytes = b""
    #: None: nothing is encrypted.
    encryption: PeerEncryption | None = None
    node: str = ""
    job: str = ""
    listener: socket.socket | None = None
    #: Held while this instance judges: whoever has it came first on this machine.
    claim: socket.socket | None = None

    @property
    def role(self) -> InstanceRole:
        """What this instance is: judge, follower, the first to come on this machine, or alone."""
        return self.plan.role

    @property
    def how(self) -> str:
        """Whether what nodes say to each other is encrypted, and how; or why not."""
        return NOT_ENCRYPTED if self.encryption is None else self.encryption.how

    @property
    def several(self) -> bool:
        """Whether there are other nodes to talk to."""
        return self.plan.role is not InstanceRole.ALONE


def set_up_peers(
    command: Sequence[str],
    *,
    judge: str,
    secret: str,
    script: str,
    report: Callable[[str], None],
    tls: PeerTls | None = None,
) -> PeerSetup:
    """Finds out whether this is one of several nodes, and if so listens as judge or gets ready to follow.

    tls: how connections are encrypted; None: with the secret. Never raises for anything that a network, a name service
    or a file does: then this node is watched alone, with a line to ``report``.
    """
    environ, hostname = os.environ, socket.gethostname()
    found = find_rendezvous(command, environ)
    given = environ.get("WHICHRANK_JOB_ID", "")
    try:
        plan = plan_peers(found, judge=judge, job=given, is_local=is_this_machine)
    except ValueError as error:
        report(f"{error}; this node is watched alone")
        plan = plan_peers(None, judge="", job="", is_local=is_this_machine)
    if plan.role is InstanceRole.ALONE:
        return PeerSetup(plan=plan)
    try:
        shared = secret_of(plan, find_secret(secret, environ))
        encryption = (tls or PeerTls()).encryption(shared)
    except (NoSecret, NoTls) as error:
        report(f"{error}; this node is watched alone")
        return PeerSetup(plan=replace(plan, role=InstanceRole.ALONE))
    except Exception as error:  # whatever it is: the job is to start
        report(f"nodes cannot talk to each other: {type(error).__name__}: {error}; this node is watched alone")
        return PeerSetup(plan=replace(plan, role=InstanceRole.ALONE))
    # Only now: it brings numpy along, and a job on one machine need not wait for that.
    from ...telemetry.identity import read_pod_labels, resolve_identity

    identity = resolve_identity(environ, pod_labels=read_pod_labels(environ), hostname=hostname)
    setup = PeerSetup(
        plan=plan,
        secret=shared,
        encryption=encryption,
        node=identity.node,
        job=given or identity.job or f"{script.removesuffix('.py').rsplit('.', 1)[-1]}-{plan.key[:8]}",
    )
    if plan.role is InstanceRole.FIRST_COME:
        setup.claim = _claim(plan.key)
        came_first = setup.claim is not None
        role = InstanceRole.JUDGE if came_first else InstanceRole.FOLLOWER
        setup.plan = replace(plan, role=role, why=plan.why if came_first else f"{plan.why} and has a judge already")
    if setup.role is InstanceRole.JUDGE:
        setup.listener = listen(plan.ports, report)
    elif not environ.get("WHICHRANK_NODE_ID") and is_this_machine(plan.host):
        setup.node = f"{setup.node}~{os.getpid()}"  # the judge on this machine has the name
    return setup


def is_this_machine(host: str) -> bool:
    """Whether a host's address is one of this machine's.

    The kernel then takes it for the source of what we send there too. False where it cannot be resolved.
    """
    if host.lower() in ("localhost", socket.gethostname().lower()):
        return True
    try:
        found = socket.getaddrinfo(host, 9, type=socket.SOCK_DGRAM)
    except OSError:
        return False
    for family, kind, _, _, address in found:
        try:
            with socket.socket(family, kind) as probe:
                probe.connect(address)  # of a datagram socket: nothing is sent
                own = str(probe.getsockname()[0])
        except OSError:
            continue
        if own == address[0] or own.startswith("127."):
            return True
    return False


def _claim(key: str) -> socket.socket | None:
    """An abstract name of this network namespace: one process can have it, and its end gives it back."""
    claim = socket.socket(socket.AF_UNIX)
    try:
        claim.bind(f"\0whichrank-judge-{key}")
    except OSError:
        claim.close()
        return None
    return claim
