"""What run.json says of a run, and its JSON. Parsing and writing only; what is missing or damaged is unknown."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from ...telemetry.records import Identity
from ...telemetry.redaction import redact_data
from .losses import CountedLosses

RUN_SCHEMA = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerRole:
    """Of one instance of several. role: judge or follower; why: in words."""

    role: str
    nodes: int
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RunDescription:
    """None: not known, or not yet. whichrank: the release. started, ended: Unix seconds; ended None: it goes on, or was
    cut off. listens: no command told how ranks ended, so that it follows from records alone. simulated: no job ran."""

    whichrank: str | None = None
    job: str | None = None
    name: str | None = None
    cluster: str | None = None
    command: tuple[str, ...] | None = None
    working_directory: str | None = None
    host: str | None = None
    boot_id: str | None = None
    identity: Identity | None = None
    ring_directory: str | None = None
    pid: int | None = None
    started: float | None = None
    ended: float | None = None
    exit_code: int | None = None
    peers: PeerRole | None = None
    losses: CountedLosses | None = None
    listens: bool = False
    simulated: bool = False


def write_description(description: RunDescription) -> str:
    """The text of run.json. Of a run that goes on ``ended`` stands there as null."""
    return json.dumps({"schema": RUN_SCHEMA, **_plain(description)}, indent=2) + "\n"


def read_description(text: str) -> RunDescription:
    """The description in the text of run.json.

    Raises ValueError for what is no JSON, TypeError, in words, for JSON that is no object.
    """
    found = json.loads(text)
    if not isinstance(found, dict):
        raise TypeError(f"holds {type(found).__name__}, not an object")
    return _described(found)


def without_secrets(description: RunDescription) -> RunDescription:
    """The description with secrets cut out of its texts: people send it along when they ask for help."""
    redacted: dict[str, Any] = redact_data(_plain(description))
    return _described(redacted)


def _plain(description: RunDescription) -> dict[str, Any]:
    plain = {name: value for name, value in asdict(description).items() if value is not None and value is not False}
    if description.pid is not None:
        order = RunDescription.__slots__
        ending = {"ended": description.ended, "exit_code": description.exit_code}
        plain = dict(sorted({**plain, **ending}.items(), key=lambda item: order.index(item[0])))
    return plain


def _described(found: Mapping[str, Any]) -> RunDescription:
    command, identity, peers, losses = (found.get(name) for name in ("command", "identity", "peers", "losses"))
    return RunDescription(
        **{name: _text(found.get(name)) for name in _TEXTS},
        command=tuple(map(str, command)) if isinstance(command, list | tuple) else None,
        identity=Identity(**{k: v for k, v in identity.items() if k in Identity.__slots__})
        if isinstance(identity, Mapping)
        else None,
        pid=_whole(found.get("pid")),
        started=_number(found.get("started")),
        ended=_number(found.get("ended")),
        exit_code=_whole(found.get("exit_code")),
        peers=PeerRole(role=str(peers.get("role")), nodes=_whole(peers.get("nodes")) or 0, why=str(peers.get("why")))
        if isinstance(peers, Mapping)
        else None,
        losses=losses if isinstance(losses, Mapping) else None,
        listens=found.get("listens") is True,
        simulated=found.get("simulated") is True,
    )


_TEXTS = ("whichrank", "job", "name", "cluster", "working_directory", "host", "boot_id", "ring_directory")


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def _whole(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None
