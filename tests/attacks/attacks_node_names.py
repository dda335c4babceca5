"""A user names files that are not his: his rank's log, links, swapped folders, devices, a container's paths."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from pathlib import Path

from tests.attacks.node import CANARY, forge, ring, secret_of_root, shared_node
from tests.attacks.register import Outcome, attack
from tests.attacks.users import EVE, QUINN, living_as, run_as
from whichrank.agents.collectors.base.collector import Timestamps
from whichrank.agents.collectors.logs.job_logs import JobLogsCollector
from whichrank.agents.collectors.processes.job_process import JobProcess
from whichrank.telemetry import ring_layout as layout
from whichrank.telemetry.vocabulary import EventName

_KEPT: list[object] = []


@attack("A1", "a", "stdout is an O_PATH descriptor of a root-only file, and the own rank raises",
        asked="the file stays on the node", limit_s=60)  # fmt: skip
def stdout_of_root(folder: Path) -> Outcome:
    secret = secret_of_root(folder)
    with shared_node(folder) as node:
        mine = node.user_folder(EVE)

        def act() -> None:
            os.dup2(os.open(secret, os.O_PATH), 1)
            own = os.open(mine / "own.log", os.O_CREAT | os.O_RDWR, 0o600)
            os.write(own, b"a line of her own\n" * 5)
            os.dup2(own, 2)
            writer = ring(mine)
            _KEPT.append(writer)
            writer.record_exception("builtins.ValueError: look at my log", [("x.py", 1, "f")], True)

        with living_as(EVE, act):
            node.watch()
            seen = node.turn_until(lambda: node.events(EventName.RANK_EXCEPTION))
            node.turn_for(0.5)
            node.ask("log_tail")
            node.turn_for(2.0)
        leaked = node.has_sent(CANARY)
        where = "among them" if leaked else "not among them"
        own = node.has_sent("a line of her own")
        return Outcome(
            held=bool(seen) and own and not leaked,
            measured=f"{node.sent_bytes} bytes sent, the file {where}, the own log: {own}",
        )


@attack("A1b", "a", "stdout is a file that another user lets everybody read",
        asked="only the own files are taken as logs", limit_s=60)  # fmt: skip
def stdout_of_another(folder: Path) -> Outcome:
    theirs = folder / "theirs.log"
    theirs.write_text(CANARY * 20)
    os.chown(theirs, QUINN, QUINN)
    theirs.chmod(0o644)
    with shared_node(folder) as node:
        mine = node.user_folder(EVE)

        def act() -> None:
            os.dup2(os.open(theirs, os.O_RDONLY), 1)
            _KEPT.append(ring(mine))

        with living_as(EVE, act):
            node.watch()
            seen = node.turn_until(lambda: node.events(EventName.RANK_STARTED))
            node.turn_for(0.5)
            node.ask("log_tail")
            node.turn_for(2.0)
        return Outcome(held=bool(seen) and not node.has_sent(CANARY), measured=f"{node.sent_bytes} bytes sent")


@attack("A2", "a", "two ended rings that claim 20 MB each, and the own folder is swapped for a link to another user's",
        asked="root removes nothing of others", limit_s=90)  # fmt: skip
def rings_of_another_removed(folder: Path) -> Outcome:
    with shared_node(folder) as node:
        mine, theirs = node.user_folder(EVE), node.user_folder(QUINN)
        run_as(QUINN, lambda: (theirs / "job").mkdir(mode=0o700))
        run_as(EVE, lambda: (mine / "job").mkdir(mode=0o700))
        names: list[str] = []

        def large_ring(rank: int) -> None:
            writer = ring(mine / "job", rank, 2)
            forge(writer.path, 20 << 20)
            _KEPT.append(writer)

        with contextlib.ExitStack() as ended:
            first = living_as(EVE, lambda: large_ring(0))
            second = living_as(EVE, lambda: large_ring(1))
            ended.enter_context(second)
            with first:
                names = [entry.name for entry in (mine / "job").iterdir()]
                victims = [theirs / "job" / name for name in names]

                def leave_files() -> None:
                    for victim in victims:
                        victim.write_bytes(b"other user's")

                run_as(QUINN, leave_files)
                node.watch(ended_ring_bytes=1 << 20)
                node.turn_until(lambda: len(node.events(EventName.RANK_STARTED)) == 2)

                def swap() -> None:
                    (mine / "job").rename(mine / "job-old")
                    (mine / "job").symlink_to(theirs / "job")

                run_as(EVE, swap)
            node.turn_until(lambda: len(node.events(EventName.RANK_EXIT)) == 1)
            ended.close()
            told = node.turn_until(lambda: len(node.events(EventName.RANK_EXIT)) == 2)
            node.turn_for(1.0)
        left = sum(victim.exists() for victim in victims)
        ends = len(node.events(EventName.RANK_EXIT))
        return Outcome(
            held=bool(told) and left == len(victims),
            measured=f"{left} of {len(victims)} files of the other left, {ends} ends told",
        )


@attack("A4", "a", "the watched folder is swapped for a link to the private folder of a job of root's",
        asked="refused: another owner", limit_s=60)  # fmt: skip
def folder_of_root(folder: Path) -> Outcome:
    with shared_node(folder) as node:
        mine = node.user_folder(EVE)
        private = folder / "private"
        private.mkdir(mode=0o700)
        roots = ring(private)
        roots.record_exception(f"builtins.ValueError: {CANARY}", [("x.py", 1, "f")], True)
        run_as(EVE, lambda: (mine / "job").mkdir(mode=0o700))
        with living_as(EVE, lambda: _KEPT.append(ring(mine / "job"))):
            node.watch()
            seen = node.turn_until(lambda: node.events(EventName.RANK_STARTED))

            def swap() -> None:
                (mine / "job").rename(mine / "job-old")
                (mine / "job").symlink_to(private)

            run_as(EVE, swap)
            node.turn_for(3.0)
        roots.close()
        return Outcome(held=bool(seen) and not node.has_sent(CANARY),
                       measured=f"{len(node.events(EventName.RANK_EXCEPTION))} exceptions told")  # fmt: skip


@attack("A18", "a", "a ring of root's in a user's folder, as a hard link would make one",
        asked="refused: another owner", limit_s=60)  # fmt: skip
def hard_link_to_root(folder: Path) -> Outcome:
    with shared_node(folder) as node:
        mine = node.user_folder(EVE)
        roots = ring(node.rings)
        roots.record_exception(f"builtins.ValueError: {CANARY}", [("x.py", 1, "f")], True)
        os.link(roots.path, mine / roots.path.name)  # protected_hardlinks does not stop root
        with living_as(EVE, lambda: _KEPT.append(ring(mine, 1, 2))):
            node.watch()
            seen = node.turn_until(lambda: node.events(EventName.RANK_STARTED))
            node.turn_for(2.0)
        roots.close()
        return Outcome(held=bool(seen) and not node.has_sent(CANARY),
                       measured=f"{len(node.events(EventName.RANK_STARTED))} ring attached, its owner's")  # fmt: skip


@attack("A19", "a", "a ring claims another user's process", asked="that process is left alone", limit_s=60)
def process_of_another(folder: Path) -> Outcome:
    with shared_node(folder) as node:
        mine = node.user_folder(EVE)
        ready = folder / "their.log"
        ready.write_text(CANARY * 10)
        os.chown(ready, QUINN, QUINN)

        def victim() -> None:
            os.dup2(os.open(ready, os.O_WRONLY | os.O_APPEND), 1)

        with living_as(QUINN, victim) as pid:
            ticks = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])

            def claim() -> None:
                writer = ring(mine)
                with open(writer.path, "r+b") as file:
                    for offset, value in ((layout.H_PID, pid), (layout.H_PROCESS_START_TICKS, ticks)):
                        file.seek(offset)
                        file.write(value.to_bytes(8, "little"))

            run_as(EVE, claim)
            node.watch()
            node.turn_for(1.5)
            node.ask("log_tail")
            node.turn_for(1.0)
        return Outcome(held=not node.has_sent(CANARY), measured="its log was not read")


@attack("A6", "a", "a folder of logs is a link to a private folder of root's",
        asked="never reached through a link", limit_s=30)  # fmt: skip
def logs_through_a_link(folder: Path) -> Outcome:
    private = folder / "private"
    private.mkdir(mode=0o700)
    (private / "secret.log").write_text(f"{CANARY}\n")
    home = folder / "home"
    for uid in (EVE, QUINN):
        (home / str(uid)).mkdir(parents=True)
        os.chown(home / str(uid), uid, uid)

    def honest() -> None:
        (home / str(QUINN) / "logs").mkdir()
        (home / str(QUINN) / "logs" / "own.log").write_text("a line of mine\n")

    run_as(EVE, lambda: (home / str(EVE) / "logs").symlink_to(private))
    run_as(QUINN, honest)
    lines: list[str] = []

    def classify(found: object, now: Timestamps) -> list[object]:
        lines.extend(line.text for line in found)  # type: ignore[attr-defined]
        return []

    collector = JobLogsCollector(classify, tuple, [str(home / "*/logs/*.log")])  # type: ignore[arg-type]
    for second in range(3):
        now_ns = time.monotonic_ns() + second * 11_000_000_000
        collector.collect(Timestamps(wall_ns=time.time_ns(), mono_ns=now_ns))
    collector.close()
    return Outcome(
        held=CANARY not in lines and "a line of mine" in lines, measured=f"{len(lines)} lines, all of owners"
    )


@attack("A6b", "a", "a rank's stdout, followed as a job's log, is a file of root's",
        asked="it is not followed", limit_s=30)  # fmt: skip
def followed_log_of_root(folder: Path) -> Outcome:
    secret = secret_of_root(folder)
    lines: list[str] = []

    def classify(found: object, now: Timestamps) -> list[object]:
        lines.extend(line.text for line in found)  # type: ignore[attr-defined]
        return []

    def act() -> None:
        os.dup2(os.open(secret, os.O_PATH), 1)

    with living_as(EVE, act) as pid:
        ranks = [JobProcess(pid=pid, job="j", rank=0)]
        collector = JobLogsCollector(classify, lambda: ranks)  # type: ignore[arg-type]
        for second in range(3):
            now_ns = time.monotonic_ns() + second * 11_000_000_000
            collector.collect(Timestamps(wall_ns=time.time_ns(), mono_ns=now_ns))
        collector.close()
    return Outcome(held=not lines, measured=f"{len(lines)} lines read")


_CONTAINER = """
import ctypes, os, sys, time
from pathlib import Path
from tests.attacks.node import ring
rings, inside = sys.argv[1:]
libc = ctypes.CDLL(None)
libc.unshare(0x20000)
libc.mount(b"none", b"/", None, 0x44000, None)
libc.mount(rings.encode(), (inside + "/dev/shm").encode(), None, 0x1000, None)
os.chroot(inside)
os.chdir("/job")
kept = ring(Path("/dev/shm"))
print("ready", flush=True)
time.sleep(60)
"""


@attack("A5", "a", "a container's root (no user namespace) names its dump through an absolute link",
        asked="the link leads nowhere but into the container", limit_s=120)  # fmt: skip
def dump_of_the_host(folder: Path) -> Outcome:
    secret = secret_of_root(folder)
    inside = folder / "container"
    for name in ("dev/shm", "job", "tmp"):
        (inside / name).mkdir(parents=True)
    (inside / "link").symlink_to(secret.parent)
    (inside / "job/own").write_bytes(b"the rank's own dump")
    with shared_node(folder) as node:
        sent: list[int] = []
        # A helper that did not answer in time is not asked for ten seconds.
        for name, wait_s in ((f"/link/{secret.name}", 3.0), ("/job/own", 8.0)):
            rings = node.user_folder(0, f"box-{len(sent)}")
            environ = {**os.environ, "TORCH_FR_DUMP_TEMP_FILE": name, "TORCH_FR_DUMP_DYNAMIC_FILE_NAME": "1"}
            with subprocess.Popen([sys.executable, "-c", _CONTAINER, str(rings), str(inside)], env=environ,
                                  stdout=subprocess.PIPE) as rank:  # fmt: skip
                assert rank.stdout is not None
                rank.stdout.readline()
                (inside / "job/own").touch()
                os.utime(secret)
                if node.agent is None:
                    node.watch()
                node.turn_until(lambda: len(node.events(EventName.RANK_STARTED)) == len(sent) + 1)
                for attempt in range(4):  # the first may come before its places are known
                    node.turn_for(1.0)
                    node.ask("flight_recorder", 10 * len(sent) + attempt)
                    if node.turn_until(lambda: any(b"dump.gz" in value for _, _, value, _ in node.messages), wait_s):
                        break
                rank.kill()
            node.turn_until(lambda: len(node.events(EventName.RANK_EXIT)) == len(sent) + 1)
            sent.append(sum(b"dump.gz" in value for _, _, value, _ in node.messages))
        told = f"{sent[0]} dumps through the link, {sent[1]} of the container's own"
        return Outcome(held=sent[0] == 0 and sent[1] > 0, measured="; ".join([told, *node.said]))
