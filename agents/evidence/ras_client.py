"""Asks NCCL's RAS beside a rank how far each rank of each communicator is, while something hangs.

RAS listens on the node, in the first process of a job that began (NCCL 2.24 on): anybody may listen there in its place,
and who answers may take hours, or send without end. So it is asked only where the kernel says that the port is held by
the rank's own user, in the rank's own network; for so long and for so many bytes. It is text of a user's: what is made
of it goes on as that.
"""

from __future__ import annotations

import contextlib
import os
import socket
import time
from dataclasses import dataclass

from ...diagnosis.nccl_ras import BadRas, parse_ras
from ...diagnosis.ras_facts import write_ras_facts
from ..processes.processes import process_uid
from .rank_environment import read_environment

ADDRESS_VARIABLE, ENABLE_VARIABLE = "NCCL_RAS_ADDR", "NCCL_RAS_ENABLE"
DEFAULT_HOST, DEFAULT_PORT = "localhost", 28028
#: RAS gathers for five seconds by default, from processes that may not answer.
ANSWER_S = 10.0
#: A text for 16,384 ranks with all of them listed has 1.5 MB; more is no status.
MOST_BYTES = 2 << 20
_QUESTION = b"verbose status\n"
_LISTENS = "0A"
_LOOPBACK = ("127.0.0.1", "::1")


class RasRefused(OSError):
    """It is not asked: the text says why, in one line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RasAddress:
    host: str
    port: int


def ras_address(pid: int, owner_uid: int) -> RasAddress:
    """Where the RAS of a rank's job listens, by the environment that its process began with.

    Raises RasRefused, and OSError where the process has gone or is another user's.
    """
    if process_uid(pid) != owner_uid:
        raise RasRefused(f"process {pid} is not of uid {owner_uid} any more")
    environment = read_environment(pid, (ADDRESS_VARIABLE, ENABLE_VARIABLE))
    if environment.get(ENABLE_VARIABLE, "1").strip() == "0":
        raise RasRefused(f"{ENABLE_VARIABLE} is 0 in the job")
    address = environment.get(ADDRESS_VARIABLE, "").strip()
    host, _, port = address.rpartition(":") if address else (DEFAULT_HOST, "", str(DEFAULT_PORT))
    host = host.strip("[]") or DEFAULT_HOST
    if not (port.isascii() and port.isdigit() and 0 < int(port[:6]) < 65_536):
        raise RasRefused(f"{ADDRESS_VARIABLE} of rank's process {pid} has no port")
    if host != DEFAULT_HOST and host not in _LOOPBACK:
        # A user's variable must not make the agent speak to a machine of his choice.
        raise RasRefused(f"{ADDRESS_VARIABLE} is not on the loopback interface; only that is asked")
    return RasAddress(host=host, port=int(port))


def check_listener(pid: int, owner_uid: int, port: int) -> None:
    """Whether a process of the rank's user, in our network as the rank is, listens on the port.

    Raises RasRefused where another user's does, or it is another network; ConnectionRefusedError where nobody listens.
    """
    if os.readlink(f"/proc/{pid}/ns/net") != os.readlink("/proc/self/ns/net"):
        raise RasRefused("the rank has a network of its own (a container's): it cannot be asked from outside")
    owners: set[int] = set()
    for name in ("tcp", "tcp6"):
        with contextlib.suppress(FileNotFoundError), open(f"/proc/{pid}/net/{name}", encoding="ascii") as table:
            next(table, "")
            for line in table:
                words = line.split()
                if len(words) > 7 and words[3] == _LISTENS and int(words[1].rpartition(":")[2], 16) == port:
                    owners.add(int(words[7]))
    if not owners:
        raise ConnectionRefusedError(f"nobody listens on port {port} (RAS is there from NCCL 2.24 on)")
    if owners != {owner_uid}:
        raise RasRefused(f"port {port} is not of uid {owner_uid} alone")


def ask(address: RasAddress, answer_s: float = ANSWER_S) -> bytes:
    """The status that RAS tells.

    Raises OSError where nobody answers, TimeoutError where not in time, RasRefused for more than ``MOST_BYTES``.
    """
    deadline_s = time.monotonic() + answer_s
    with socket.create_connection((address.host, address.port), timeout=answer_s) as connection:
        connection.sendall(_QUESTION)
        told = bytearray()
        while piece := _piece(connection, deadline_s):
            told += piece
            if len(told) > MOST_BYTES:
                raise RasRefused(f"more than {MOST_BYTES} bytes")
    return bytes(told)


def _piece(connection: socket.socket, deadline_s: float) -> bytes:
    left_s = deadline_s - time.monotonic()
    if left_s <= 0:
        raise TimeoutError("no whole answer in time")
    connection.settimeout(left_s)
    return connection.recv(64 << 10)


def ras_attributes(pid: int, owner_uid: int, answer_s: float = ANSWER_S) -> dict[str, str]:
    """Attributes of an NCCL_RAS event: what the RAS beside a rank's process found, or why nothing is known."""
    try:
        address = ras_address(pid, owner_uid)
        check_listener(pid, owner_uid, address.port)
        told = ask(address, answer_s)
        found = parse_ras(told)
    except RasRefused as why:
        return {"status": "refused", "problem": str(why)}
    except OSError as why:
        return {"status": "silent", "problem": why.strerror or str(why) or type(why).__name__}
    except BadRas as wrong:
        return {"status": "refused", "problem": f"the answer {wrong}"}
    return {"status": "answered", "findings": write_ras_facts(found), "address": f"{address.host}:{address.port}"}
