"""Abuse of the agent: killed, its disk full, rings planted by another user or cut short under its eyes.

Each function prepares one job under ``whichrank run``, yields while it runs, and then counts in ``run.struck`` what
shows that it was abused. A rank whose own ring is cut short is beyond help; there the agent alone is judged.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import struct
from collections.abc import Callable, Iterator
from pathlib import Path

from benchmarks.harmless_run import RANKS, SOMEBODY, Run, fill, small_mount


def whole_run(run: Run) -> Iterator[None]:
    run.watched = "run"
    yield
    run.struck = int((run.directory / "out" / "run.json").exists())


def agent_killed_mid_run(run: Run) -> Iterator[None]:
    def strike(run: Run, step: int) -> bool:
        assert run.process is not None
        os.kill(run.process.pid, signal.SIGKILL)
        run.struck = int(run.process.wait(10) == -signal.SIGKILL)
        return True

    run.watched = "run"
    run.mid_run = strike
    yield


def state_disk_full_before(run: Run) -> Iterator[None]:
    run.watched = "run"
    with small_mount(run.directory / "out", "size=64k,mode=700"):
        run.struck = fill(run.directory / "out")
        yield


def state_disk_full_mid_run(run: Run) -> Iterator[None]:
    def strike(run: Run, step: int) -> bool:
        run.struck = fill(run.directory / "out")
        return True

    run.watched = "run"
    run.mid_run = strike
    with small_mount(run.directory / "out", "size=16m,mode=700"):
        yield


def job_of_another_user(run: Run) -> Iterator[None]:
    """Started by root, the ranks give up root: they may not write where their rings would go."""
    run.watched = "run"
    run.as_somebody = True
    yield
    run.struck = RANKS * (run.was_somebodys() and (run.directory / "out" / "run.json").exists())


# --- rings ------------------------------------------------------------------------------------------------------------
def live_rings(run: Run) -> list[Path]:
    """The ranks' rings in the folder that ``whichrank run`` made, by rank."""
    description = json.loads((run.directory / "out" / "run.json").read_text())
    return sorted(Path(description["ring_directory"]).glob("*.ring"))


def foreign_rings(run: Run) -> Iterator[None]:
    """Rings that belong to another user and claim to be those of our processes, the agent's among them."""

    def strike(run: Run, step: int) -> bool:
        from whichrank.instrumentation.ring_creation import read_process_start_ticks
        from whichrank.telemetry import ring_layout as layout

        assert run.process is not None
        for rank, ring in enumerate(live_rings(run)):
            planted = ring.with_name(ring.name.replace(".ring", "0.ring"))
            shutil.copyfile(ring, planted)
            if rank == 0:
                with open(planted, "r+b") as file:
                    agent = run.process.pid
                    os.pwrite(file.fileno(), struct.pack("<QQ", agent, read_process_start_ticks(agent)), layout.H_PID)
            os.chown(planted, SOMEBODY, SOMEBODY)
        return True

    run.watched = "run"
    run.mid_run = strike
    yield
    run.struck = (run.directory / "log").read_text(errors="replace").count("belongs to another user")


def ring_cut_short(*, keep: Callable[[int], int]) -> Callable[[Run], Iterator[None]]:
    """keep: bytes of the ring to leave, of so many."""

    def prepare(run: Run) -> Iterator[None]:
        def strike(run: Run, step: int) -> bool:
            ring = live_rings(run)[1]
            os.truncate(ring, keep(ring.stat().st_size))
            run.struck = 1
            return True

        run.watched = "run"
        run.mid_run = strike
        yield

    return prepare


def agent_lived_on(run: Run) -> list[bool]:
    """Whether the run ended as its command did, without an error of ours, and shipped the other rank to the end."""
    assert run.process is not None
    log = (run.directory / "log").read_text(errors="replace")
    return [
        run.exit_code is not None and run.process.returncode == run.exit_code,
        not any(words in log for words in ("stopped watching", "agent poll failed")),
        shipped_after(run, rank=0),
    ]


def shipped_after(run: Run, *, rank: int) -> bool:
    """Whether the capture has something of the rank that ended, or happened, after the strike."""
    from whichrank.telemetry.otlp import decode_logs
    from whichrank.telemetry.records import Block, Event
    from whichrank.telemetry.vocabulary import EventName
    from whichrank.transport.embedded import EmbeddedBus

    bus = EmbeddedBus(run.directory / "out" / "capture", read_only=True)
    position = 0
    while messages := bus.read(position, 1000):
        position = messages[-1].position
        for payload in (payload for message in messages for payload in decode_logs(message.topic, message.value)):
            if isinstance(payload, Event) and payload.identity.rank == rank and payload.time_ns > run.struck_ns:
                return True
            if isinstance(payload, Block) and payload.name is EventName.BLOCK_STEPS:
                ends = payload.rows["end_ns"][payload.rows["rank"] == rank] + payload.clock_offset_ns
                if len(ends) and ends.max() > run.struck_ns:
                    return True
    return False
