"""The hook of ``whichrank respond`` on a real Slurm: what the trials of nodes and of jobs share. Not a test module."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from unittest import mock

from tests.commands.respond.parts import incident
from tests.stack.parts.slurm_room import SlurmRoom, until
from whichrank.commands.respond.hooks.slurm import Slurm
from whichrank.commands.respond.planning.acts import HookOperation, HookResult
from whichrank.commands.respond.planning.plan import act_of
from whichrank.commands.respond.respond_service import make_hooks
from whichrank.commands.settings.respond_options import RespondOptions
from whichrank.telemetry.incident import Document
from whichrank.telemetry.incident_reading import read_incident

SLEEPS = "sleep 600"
WHICHRANK = Path(sys.executable).with_name("whichrank")
_numbers = itertools.count(1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """asked: in words. is_slow: it takes Slurm's own time-outs (a requeued job waits 5 s at least), or many checks."""

    asked: str
    hold: Callable[[SlurmRoom], str]
    is_slow: bool = False


def hook_of(room: SlurmRoom, **settings: Any) -> Slurm:
    """The hook as ``whichrank respond`` makes it, with the settings' own defaults."""
    options = RespondOptions(respond_hooks="slurm", respond_from=room.folder, **settings)
    hook = make_hooks(options)["slurm"]
    assert isinstance(hook, Slurm)
    return hook


@contextmanager
def within(room: SlurmRoom) -> Iterator[None]:
    """The hook's programs find this Slurm, as those of a service on a cluster do."""
    with mock.patch.dict("os.environ", {name: room.environment[name] for name in ("SLURM_CONF", "PATH")}):
        yield


def told(node: str = "n1", job: str = "") -> Document:
    """An incident of now, with an id of its own."""
    made = incident(next(_numbers), node=node)
    return {**made, "job": {**made["job"], "id": job or made["job"]["id"]}}


def do(room: SlurmRoom, document: Document, operation: HookOperation, target: str, **settings: Any) -> HookResult:
    leave_out = (str(document["suspects"][0]["node"]),) if settings.get("respond_slurm_exclude") else ()
    act = act_of(read_incident(document), "slurm", operation, target, "restart_without_node")
    act = replace(act, leave_out=leave_out)
    with within(room):
        return hook_of(room, **settings).do(act)


def what_did_not(checks: Mapping[str, bool]) -> str:
    return ", ".join(what for what, holds in checks.items() if not holds)


def running(room: SlurmRoom, *options: str, text: str = SLEEPS) -> str:
    job = room.submit(text, *options)
    room.wait_for_job(job, "RUNNING")
    return job


@contextmanager
def cleared(room: SlurmRoom) -> Iterator[None]:
    """All jobs are gone behind it, and all nodes serve."""
    try:
        yield
    finally:
        room.run("scancel", "--user=root", "--signal=KILL", "--full", check=False)
        room.run("scancel", "--user=root", check=False)
        for node in room.nodes:
            if room.node(node)[0] not in ("IDLE", "MIXED", "ALLOCATED", "COMPLETING"):
                room.run("scontrol", "update", f"nodename={node}", "state=resume", check=False)
        until(lambda: not room.run("squeue", "--noheader").strip(), "no job is left")
        until(lambda: all(room.node(node)[0] == "IDLE" for node in room.nodes), "all nodes are idle")
