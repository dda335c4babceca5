"""Rings that are none, or claim what they have not; and what the agent may do at all."""

from __future__ import annotations

import ctypes
import os
import resource
import subprocess
import sys
import sysconfig
import time
from pathlib import Path

from tests.attacks.node import forge, ring, shared_node
from tests.attacks.register import Outcome, attack
from tests.attacks.users import EVE, QUINN, living_as, run_as
from whichrank.agents.collectors.surroundings.rank_environments import RankEnvironments
from whichrank.agents.user_files.user_files import POOL
from whichrank.instrumentation.ring_writer import RingWriter
from whichrank.telemetry import ring_layout as layout
from whichrank.telemetry.redaction import redact
from whichrank.telemetry.vocabulary import EventName

_KEPT: list[object] = []


def _peak_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


@attack("A15", "a", "1,048,576 event slots, an event head of 2^40, garbage", asked="survives, bounded", limit_s=60)
def wild_head(folder: Path) -> Outcome:
    with shared_node(folder) as node:
        mine = node.user_folder(EVE)

        def act() -> None:
            for rank, slots in enumerate((1 << 20, 1 << 17)):
                writer = RingWriter.create(mine, rank=rank, local_rank=rank, world_size=3, identity={}, slots=slots)
                sizes = writer.geometry
                head = {layout.H_EVENT_HEAD: 1 << 40}
                forge(writer.path, sizes.file_bytes, head, sizes.events_offset, os.urandom(1 << 16))
                _KEPT.append(writer)
            _KEPT.append(ring(mine, 2, 3))

        node.watch()
        node.turn_for(0.5)
        before_mb = _peak_mb()
        with living_as(EVE, act):
            seen = node.turn_until(lambda: any(e.identity.rank == 2 for e in node.events(EventName.RANK_STARTED)))
            node.turn_for(2.0)
        return Outcome(held=seen and _peak_mb() - before_mb < 150, measured=f"{_peak_mb() - before_mb:.0f} MB more")


@attack("A16", "a", "a definition of 4 MB of [", asked="survives, in one line", limit_s=60)
def deep_definition(folder: Path) -> Outcome:
    with shared_node(folder) as node:
        mine = node.user_folder(EVE)

        def act() -> None:
            writer = ring(mine, 0, 2)
            begin, size = writer.geometry.file_bytes, 4 << 20
            entry = layout.DEFINITION_HEAD.pack(size - 64, layout.DEFINITION_GROUP, 1) + b"[" * (size - 64)
            words = {
                layout.H_DEFINITIONS_OFFSET: begin,
                layout.H_DEFINITIONS_BYTES: size,
                layout.H_DEFINITIONS_USED: len(entry),
            }
            forge(writer.path, begin + size, words, begin, entry)
            _KEPT.append(writer)
            _KEPT.append(ring(mine, 1, 2))

        node.watch()
        with living_as(EVE, act):
            seen = node.turn_until(lambda: len(node.events(EventName.RANK_STARTED)) == 2)
            node.turn_for(2.0)
        return Outcome(held=seen, measured=f"both ranks seen: {seen}, {_peak_mb():.0f} MB")


@attack("A17", "a", "malformed rings: links, a FIFO, a folder, devices, a hole of 4 TB, wild headers, a pid of init",
        asked="each refused, the good one seen", limit_s=60)  # fmt: skip
def malformed_rings(folder: Path) -> Outcome:
    with shared_node(folder) as node:
        mine = node.user_folder(EVE)

        def act() -> None:
            os.symlink("/dev/zero", mine / "rank-1.ring")
            os.symlink("/etc/passwd", mine / "rank-2.ring")
            os.symlink("/proc/1/environ", mine / "rank-3.ring")
            os.mkfifo(mine / "rank-4.ring")
            os.mkdir(mine / "rank-5.ring")
            os.truncate(os.open(mine / "rank-6.ring", os.O_CREAT | os.O_WRONLY, 0o600), 4 << 40)
            for number, (offset, value) in enumerate(
                (
                    (layout.H_LAYOUT, 0),
                    (layout.H_LAYOUT, 2),
                    (layout.H_PROGRESS_OFFSET, (1 << 64) - 8),
                    (layout.H_EVENTS_OFFSET, 4096),
                    (layout.H_DEFINITIONS_BYTES, (1 << 64) - 1),
                    (layout.H_IDENTITY_BYTES, 1 << 40),
                    (layout.H_RANK, 1 << 62),
                    (layout.H_PID, 1),
                    (layout.H_CREATED_MONO_NS, (1 << 64) - 1),
                    (layout.H_CREATED_WALL_NS, (1 << 64) - 1),
                )
            ):
                writer = ring(mine, number, 32)
                forge(writer.path, writer.geometry.file_bytes, {offset: value})
                _KEPT.append(writer)
            _KEPT.append(ring(mine, 31, 32))

        node.watch()
        with living_as(EVE, act):
            seen = node.turn_until(lambda: any(e.identity.rank == 31 for e in node.events(EventName.RANK_STARTED)))
            node.turn_for(2.0)
        started = len(node.events(EventName.RANK_STARTED))
        return Outcome(held=seen and started <= 6, measured=f"the good one seen: {seen}, {started} rings attached")


@attack("A25", "a", "the environment of a process lies behind userfaultfd", asked="the reader is not held", limit_s=30)
def environment_that_waits(folder: Path) -> Outcome:
    def act() -> None:
        libc = ctypes.CDLL(None)
        libc.syscall(323, 1)  # userfaultfd, for pages of users alone
        libc.prctl(15, b"RANK=0\0" * 2, 0, 0, 0)

    with living_as(EVE, act):
        began_s = time.monotonic()
        RankEnvironments(Path("/proc")).look()
        took_s = time.monotonic() - began_s
    return Outcome(held=took_s < 5, measured=f"a look took {took_s:.2f} s")


@attack("A28", "a", "the tmpfs is full when a ring is made", asked="no ring, nothing left, the job goes on", limit_s=30)
def full_memory(folder: Path) -> Outcome:
    place = folder / "full"
    place.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k,mode=1777", "none", str(place)], check=True)
    try:
        said = folder / "said"
        said.touch()
        os.chown(said, EVE, EVE)

        def act() -> None:
            try:
                ring(place)
                said.write_text("made")
            except OSError as error:
                said.write_text(error.strerror or "")

        run_as(EVE, act)
        left = list(place.iterdir())
        return Outcome(
            held=said.read_text() != "made" and not left, measured=f"{said.read_text()}; {len(left)} files left"
        )
    finally:
        subprocess.run(["umount", str(place)], check=True)


@attack("K1", "a", "the root agent and its helpers, by their capabilities",
        asked="the agent has those that it needs; a user's helper has none, and gets none", limit_s=60)  # fmt: skip
def capabilities(folder: Path) -> Outcome:
    program = """
from whichrank.agents.user_files.capabilities import keep_needed
from whichrank.agents.user_files.user_files import POOL, files_of
import os, time
keep_needed()
def of(pid):
    words = dict(line.split(":", 1) for line in open(f"/proc/{pid}/status") if ":" in line)
    return [words[name].strip() for name in ("CapEff", "CapPrm", "CapBnd", "NoNewPrivs", "Uid", "Groups")]
print(of("self"))
place = os.open("/tmp", os.O_RDONLY)
try:
    files_of(12001).open_folder(place, "none")
except OSError:
    pass
print(of(POOL.pids[0]))
folder = f"/proc/{POOL.pids[0]}/fd"
for _ in range(20):  # it closes what it was handed once it has answered
    if "/tmp" in map(os.readlink, (f"{folder}/{fd}" for fd in os.listdir(folder))):
        time.sleep(0.1)
print(sorted(os.readlink(f"{folder}/{fd}").partition(":")[0] for fd in os.listdir(folder)))
print(open(f"/proc/{POOL.pids[0]}/environ").read())
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    agent, user, descriptors, environ = (done.stdout.splitlines() + [""] * 4)[:4]
    none = "0000000000000000"
    words = [word.strip(" '[]") for word in user.split(",")] + [""] * 6
    held = (
        words[:4] == [none, none, none, "1"]
        and words[4].split("\\t") == ["12001"] * 4
        and int(agent.split("'")[1], 16) & ~0x4002801E4 == 0
        and (descriptors.count("socket"), descriptors.count("/dev/null"), descriptors.count(",")) == (1, 3, 3)
        and not environ
    )
    return Outcome(held=held, measured=f"agent {agent.split(chr(39))[1]}, helper {words[0]}, it holds {descriptors}")


@attack("U1", "a", "the agent runs as a user without any right", limit_s=60,
        asked="his own job and log are seen, nobody else's; no helper is started")  # fmt: skip
def agent_of_a_user(folder: Path) -> Outcome:
    redact("what it loads must be loaded by root here")
    sysconfig.get_config_vars()
    folder.chmod(0o777)
    with shared_node(folder) as node:
        mine, theirs = node.user_folder(EVE), node.user_folder(QUINN)

        def rank() -> None:
            log = os.open(folder / "log", os.O_CREAT | os.O_RDWR, 0o600)
            os.write(log, b"a line of his own\n" * 5)
            os.dup2(log, 1)
            _KEPT.append(ring(mine))

        def watch() -> None:
            agent = node.watch()
            node.turn_until(lambda: node.events(EventName.RANK_STARTED))
            node.turn_for(0.5)
            node.ask("log_tail")
            node.turn_until(lambda: node.has_sent("a line of his own"), 5)
            jobs = len(agent.jobs)
            (folder / "said").write_text(f"{jobs} {node.has_sent('a line of his own')} {len(POOL.pids)}")
            agent.close(3.0)

        with living_as(EVE, rank), living_as(QUINN, lambda: _KEPT.append(ring(theirs))):
            run_as(EVE, watch)
        node.agent = None
    said = (folder / "said").read_text()
    return Outcome(held=said == "1 True 0", measured=f"jobs, own log sent, helpers: {said}")
