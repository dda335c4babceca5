"""The job that is watched: its names and places, and what ``run.json`` says of it."""

from __future__ import annotations

import socket
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ...telemetry.redaction import redact_command
from ..run_folder.run_description import RunDescription, without_secrets
from ..run_folder.run_directory import RunDirectory

if TYPE_CHECKING:
    from ...telemetry.records import Identity


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """The names and places of the job to be watched. ``rings`` None: it cannot be watched."""

    id: str
    script: str
    command: tuple[str, ...]
    directory: RunDirectory | None
    rings: Path | None


def describe_run(job: Job, rings: Path, *, name: str, identity: Identity, pid: int, started_ns: int) -> RunDescription:
    """What run.json says at the start, without secrets: people send it along when they ask for help."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        release = version("whichrank")
    except PackageNotFoundError:
        release = "unknown"
    return without_secrets(
        RunDescription(
            whichrank=release,
            job=job.id,
            name=name,
            cluster=identity.cluster,
            command=tuple(redact_command(job.command)),
            working_directory=str(Path.cwd()),
            host=socket.gethostname(),
            boot_id=_boot_id(),
            identity=identity,
            ring_directory=str(rings),
            pid=pid,
            started=started_ns / 1e9,
        )
    )


def _boot_id() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""
