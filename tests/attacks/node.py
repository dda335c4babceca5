"""A node that users share: rings in shared memory, the root agent in this process, and what it sends."""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from whichrank.agents.base.priority import Priority
from whichrank.agents.base.settings import AgentSettings
from whichrank.agents.node_agent import NodeAgent
from whichrank.instrumentation.ring_writer import RingWriter
from whichrank.telemetry import ring_layout as layout
from whichrank.telemetry.otlp import decode_logs
from whichrank.telemetry.records import Event, Identity
from whichrank.telemetry.topics import TOPIC_BLOCKS
from whichrank.telemetry.vocabulary import EventName

OWN = Identity(cluster="c", node="n")
_PR_SET_DUMPABLE = 4
CANARY = "canary-of-root-7f3a"
#: As the service has them.
SERVICE: dict[str, Any] = {"tell_people": True, "requests_per_minute": 30, "history_s": 120.0, "take_stacks": False}


class SharedNode:
    def __init__(self, folder: Path, rings: Path) -> None:
        self.folder, self.rings = folder, rings
        self.said: list[str] = []
        self.messages: list[tuple[str, str, bytes, Priority]] = []
        self.agent: NodeAgent | None = None

    def watch(self, **settings: Any) -> NodeAgent:
        """Starts the agent."""
        self.agent = NodeAgent(
            rings=self.rings / "whichrank-*",
            own=OWN,
            publish_ranked=lambda *message: self.messages.append(message),
            report=self.said.append,
            evidence_directory=self.folder / "evidence",
            settings=AgentSettings(**{**SERVICE, **settings}),
        )
        return self.agent

    def user_folder(self, uid: int, name: str = "") -> Path:
        """A user's own folder for rings, as his first job would have made it."""
        path = self.rings / f"whichrank-{name or uid}"
        path.mkdir(mode=0o700)
        os.chown(path, uid, uid)
        return path

    def turn_until(self, condition: Callable[[], object], timeout_s: float = 10.0) -> bool:
        """Lets the agent look until something is so; whether it came to that."""
        assert self.agent is not None
        end_s = time.monotonic() + timeout_s
        while time.monotonic() < end_s:
            self.agent.turn()
            if condition():
                return True
            time.sleep(0.05)
        return bool(condition())

    def turn_for(self, seconds: float) -> None:
        """Lets the agent look for so long."""
        self.turn_until(lambda: False, seconds)

    def events(self, name: EventName) -> list[Event]:
        """What was sent of one kind."""
        return [
            payload
            for topic, _, value, _ in list(self.messages)
            if topic == TOPIC_BLOCKS
            for payload in decode_logs(topic, value)
            if isinstance(payload, Event) and payload.name is name
        ]

    def ask(self, action: str, number: int = 0, rank: int = 0) -> None:
        """Asks for evidence, as the judge does when it opens an incident."""
        assert self.agent is not None
        attributes = {"id": f"{action}-{number}", "action": action, "rank": rank, "node": OWN.node}
        event = Event(
            name=EventName.EVIDENCE_REQUEST, identity=Identity(), time_ns=time.time_ns(), attributes=attributes
        )
        self.agent.request(event)

    @property
    def sent_bytes(self) -> int:
        """Of all messages together."""
        return sum(len(value) for _, _, value, _ in list(self.messages))

    def has_sent(self, text: str) -> bool:
        """Whether any message, or a piece of evidence packed in one, holds a text."""
        return any(text.encode() in value for _, _, value, _ in list(self.messages))


@contextlib.contextmanager
def shared_node(folder: Path) -> Iterator[SharedNode]:
    """A node whose agent is closed, and whose rings are gone, after the block."""
    rings = Path(tempfile.mkdtemp(prefix="attack-node-", dir="/dev/shm"))
    rings.chmod(0o1777)
    node = SharedNode(folder, rings)
    try:
        yield node
    finally:
        if node.agent is not None:
            node.agent.close(5.0)
        shutil.rmtree(rings, ignore_errors=True)


def ring(folder: Path, rank: int = 0, world: int = 1, **identity: str) -> RingWriter:
    """A ring of this process, as a rank makes one."""
    if os.geteuid() != 0:  # a fork that became a user: only a program that he starts may be looked into by him
        ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 1, 0, 0, 0)
    writer = RingWriter.create(folder, rank=rank, local_rank=rank, world_size=world, identity=dict(identity))
    writer.beat()
    return writer


def forge(path: Path, file_bytes: int, words: dict[int, int] | None = None, begin: int = 0, body: bytes = b"") -> None:
    """Makes a ring's file so large, and writes words of its header, by offset, and ``body`` at ``begin``.

    In a child: a process that closes a file lets go of its own lock on it.
    """
    pid = os.fork()
    if pid == 0:
        with open(path, "r+b") as file:
            file.truncate(file_bytes)
            for offset, value in {layout.H_FILE_BYTES: file_bytes, **(words or {})}.items():
                file.seek(offset)
                file.write(value.to_bytes(8, "little"))
            if body:
                file.seek(begin)
                file.write(body)
        os._exit(0)
    os.waitpid(pid, 0)


def secret_of_root(folder: Path, text: str = CANARY) -> Path:
    """A file that root alone may read."""
    path = folder / "secret"
    path.write_text(f"{text}\n" * 20)
    path.chmod(0o600)
    return path
