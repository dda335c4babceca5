"""One owner's memory, threads, folders and rings are not everybody's: bounds that are asked before memory is taken."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import resource
import signal
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from tests.attacks.node import SharedNode, forge, ring, shared_node
from tests.attacks.register import Outcome, attack
from tests.attacks.users import AGENT_LIMIT_MB as LIMIT_MB
from tests.attacks.users import EVE, QUINN, living_as, run_as
from whichrank.agents.evidence.stacks import StackAnswer, StackRequest, StackTaker
from whichrank.agents.processes.processes import read_stat
from whichrank.agents.user_files.user_files import POOL
from whichrank.instrumentation import rank_identity
from whichrank.instrumentation.ring_writer import RingWriter
from whichrank.telemetry import ring_layout as layout
from whichrank.telemetry import ring_root
from whichrank.telemetry.vocabulary import EventName

_KEPT: list[object] = []
_MB = 1 << 20


def _peak_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def _quiet_rank(node: SharedNode) -> contextlib.AbstractContextManager[int]:
    theirs = node.user_folder(QUINN)

    def act() -> None:
        (theirs / "job").mkdir(mode=0o700)
        _KEPT.append(ring(theirs / "job", WHICHRANK_JOB_ID="quiet"))

    return living_as(QUINN, act)


def _slowest_turn_s(node: SharedNode, seconds: float) -> tuple[float, float]:
    """The longest turn, and the processor's time of all of them as a share of one core."""
    assert node.agent is not None
    slowest, began_s, used_s = 0.0, time.monotonic(), time.process_time()
    while time.monotonic() - began_s < seconds:
        turn_s = time.thread_time()
        node.agent.turn()
        slowest = max(slowest, time.thread_time() - turn_s)
        time.sleep(0.25)
    return slowest, (time.process_time() - used_s) / (time.monotonic() - began_s)


def _is_seen(node: SharedNode, job: str = "quiet") -> bool:
    return any(event.identity.job == job for event in node.events(EventName.RANK_STARTED))


def _beside_quiet(folder: Path, prepare: Callable[[Path], None], most_turn_s: float, most_share: float) -> Outcome:
    with shared_node(folder) as node:
        mine = node.user_folder(EVE, "0-first")
        run_as(EVE, lambda: prepare(mine))
        node.watch()
        slowest, share = _slowest_turn_s(node, 4.0)
        with _quiet_rank(node):
            began_s = time.monotonic()
            seen = node.turn_until(lambda: _is_seen(node), 20)
            took_s = time.monotonic() - began_s
        return Outcome(
            held=seen and slowest < most_turn_s and share < most_share and _peak_mb() < LIMIT_MB,
            measured=f"the other's job seen: {seen}, after {took_s:.1f} s; longest look {slowest:.2f} s of CPU, "
            f"{100 * share:.0f} % of a core, {_peak_mb():.0f} MB",
        )


@attack("A7", "a", "4,096 folders with an empty ring, named before all others",
        asked="other users stay watched", limit_s=120, memory_mb=LIMIT_MB)  # fmt: skip
def many_folders(folder: Path) -> Outcome:
    def prepare(mine: Path) -> None:
        for number in range(4096):
            (mine / f"{number:04}").mkdir()
            (mine / f"{number:04}" / "x.ring").touch()

    return _beside_quiet(folder, prepare, 1.0, 0.5)


@attack("A7b", "a", "4,096 folders with an empty ring, directly where the roots of users are",
        asked="other users stay watched", limit_s=120, memory_mb=LIMIT_MB)  # fmt: skip
def many_roots(folder: Path) -> Outcome:
    def prepare(mine: Path) -> None:
        for number in range(4096):
            place = mine.parent / f"whichrank-0-{number:04}"
            place.mkdir()
            (place / "x.ring").touch()

    return _beside_quiet(folder, prepare, 1.0, 0.5)


@attack("A8", "a", "100,000 empty folders", asked="a bounded look", limit_s=180, memory_mb=LIMIT_MB, long=True)
def very_many_folders(folder: Path) -> Outcome:
    def prepare(mine: Path) -> None:
        for number in range(100_000):
            os.mkdir(f"{mine}/{number:06}")

    return _beside_quiet(folder, prepare, 1.0, 0.5)


@attack(
    "A9", "a", "200,000 empty rings in one folder", asked="a bounded look", limit_s=180, memory_mb=LIMIT_MB, long=True
)
def very_many_rings(folder: Path) -> Outcome:
    def prepare(mine: Path) -> None:
        for number in range(200_000):
            os.close(os.open(f"{mine}/{number:06}.ring", os.O_CREAT | os.O_WRONLY, 0o600))

    return _beside_quiet(folder, prepare, 1.0, 0.5)


@attack("A10", "a", "400 folders with a valid ring each, of ranks that live",
        asked="threads, memory and time do not grow with the folders", limit_s=120, memory_mb=LIMIT_MB)  # fmt: skip
def many_tiny_jobs(folder: Path) -> Outcome:
    with shared_node(folder) as node:
        mine = node.user_folder(EVE)
        node.watch()
        node.turn_for(0.5)
        before_mb, before = _peak_mb(), threading.active_count()

        def act() -> None:
            for number in range(400):
                place = mine / f"job-{number:03}"
                place.mkdir(mode=0o700)
                _KEPT.append(ring(place, WHICHRANK_JOB_ID=f"tiny-{number}"))

        with living_as(EVE, act):
            node.turn_for(6.0)
            _, share = _slowest_turn_s(node, 6.0)
            watched = len(node.agent.jobs) if node.agent is not None else 0
            with _quiet_rank(node):
                seen = node.turn_until(lambda: _is_seen(node), 10)
        threads, more_mb = threading.active_count() - before, _peak_mb() - before_mb
        return Outcome(
            held=seen and threads <= 16 and more_mb < 60 and share < 0.3 and 0 < watched <= 64,
            measured=f"{watched} watched, {threads} threads and {more_mb:.0f} MB more, {100 * share:.0f} % of a core; "
            f"the other's job seen: {seen}",
        )


@attack("A11", "a", "sparse rings that claim 255, 31 and 31 MB and take nothing, with an exception each",
        asked="bounded memory", limit_s=60, memory_mb=LIMIT_MB)  # fmt: skip
def sparse_rings(folder: Path) -> Outcome:
    with shared_node(folder) as node:
        mine = node.user_folder(EVE)

        def act() -> None:
            for rank, size in enumerate((255 * _MB, 31 * _MB, 31 * _MB)):
                writer = ring(mine, rank, 3)
                forge(writer.path, size)
                writer.record_exception("builtins.ValueError: large", [("x.py", 1, "f")], True)
                _KEPT.append(writer)

        node.watch()
        node.turn_for(0.5)
        before_mb = _peak_mb()
        with living_as(EVE, act):
            node.turn_for(2.0)
            for rank in range(3):
                node.ask("ring", rank, rank)
            node.turn_for(3.0)
        more_mb = _peak_mb() - before_mb
        return Outcome(held=more_mb < 100, measured=f"{more_mb:.0f} MB more, {_peak_mb():.0f} MB in all")


@attack("A12", "a", "24 MB of definitions in one ring", asked="bounded memory and time", limit_s=90, memory_mb=LIMIT_MB)
def many_definitions(folder: Path) -> Outcome:
    with shared_node(folder) as node:
        mine = node.user_folder(EVE)

        def act() -> None:
            writer = ring(mine)
            begin, size = writer.geometry.file_bytes, 24 * _MB
            body = json.dumps({"name": "g", "ranks": "0-999999"}).encode()
            entry = layout.DEFINITION_HEAD.pack(len(body), layout.DEFINITION_GROUP, 1) + body + bytes(-len(body) % 8)
            entries = entry * (size // len(entry))
            words = {
                layout.H_DEFINITIONS_OFFSET: begin,
                layout.H_DEFINITIONS_BYTES: size,
                layout.H_DEFINITIONS_USED: len(entries),
            }
            forge(writer.path, begin + size, words, begin, entries)
            _KEPT.append(writer)

        node.watch()
        node.turn_for(0.5)
        before_mb = _peak_mb()
        with living_as(EVE, act):
            _, share = _slowest_turn_s(node, 5.0)
            with _quiet_rank(node):
                seen = node.turn_until(lambda: _is_seen(node), 10)
        more_mb = _peak_mb() - before_mb
        return Outcome(
            held=seen and more_mb < 25,
            measured=f"{more_mb:.0f} MB more, {100 * share:.0f} % of a core, the other's job seen: {seen}",
        )


@attack(
    "A13",
    "a",
    "a group's list of ranks has 4,000 ranges of a million each",
    asked="bounded memory",
    limit_s=60,
    memory_mb=LIMIT_MB,
)
def wide_ranges(folder: Path) -> Outcome:
    with shared_node(folder) as node:
        mine = node.user_folder(EVE)

        def act() -> None:
            writer = ring(mine)
            for ranges in (12, 3000):
                text = ",".join(f"{number}000000-{number}999999" for number in range(ranges))
                writer.define_group({"name": f"g{ranges}", "ranks": text, "backend": "gloo"})
            _KEPT.append(writer)

        node.watch()
        node.turn_for(0.5)
        before_mb = _peak_mb()
        with living_as(EVE, act):
            node.turn_until(lambda: node.events(EventName.RANK_STARTED))
            node.turn_for(1.5)
        more_mb = _peak_mb() - before_mb
        return Outcome(held=more_mb < 40, measured=f"{more_mb:.0f} MB more")


@attack("A14", "a", "20 threads, 800 frames each, with names of 3.9 kB, and a stack is taken",
        asked="bounded memory", limit_s=90)  # fmt: skip
def huge_stacks(folder: Path) -> Outcome:
    def act() -> None:
        sys.setrecursionlimit(10_000)
        name = "f" * 3900
        scope: dict[str, Callable[[int], None]] = {}
        code = f"import time\ndef {name}(left):\n    if left: {name}(left - 1)\n    else: time.sleep(1000)\n"
        exec(compile(code, "x" * 3900, "exec"), scope)
        for _ in range(20):
            threading.Thread(target=scope[name], args=(800,), daemon=True).start()
        time.sleep(1.0)

    with living_as(0, act) as pid:
        stat = read_stat(pid)
        assert stat is not None
        before_mb = _peak_mb()
        taker = StackTaker(10.0)
        taker.ask(StackRequest(slot=0, pid=pid, uid=0, start_ticks=stat.start_ticks, stopped=False, why="request",
                               request_id="1"))  # fmt: skip
        answers: list[StackAnswer] = []
        end_s = time.monotonic() + 40
        while not answers and time.monotonic() < end_s:
            answers = taker.take_finished()
            time.sleep(0.1)
        taker.close()
    more_mb = _peak_mb() - before_mb
    child_mb = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
    text = len(answers[0].text) if answers else -1
    return Outcome(held=bool(answers) and more_mb < 100 and child_mb < 320 and text < 4 * _MB,
                   measured=f"agent {more_mb:.0f} MB more, child {child_mb:.0f} MB, {text} bytes kept"
                   f"{': ' + answers[0].error if answers and answers[0].error else ''}")  # fmt: skip


@attack("A20", "a", "line ends and escape sequences in names of folders, rings, jobs and notes",
        asked="one printable line each", limit_s=60)  # fmt: skip
def unprintable_names(folder: Path) -> Outcome:
    nasty = "x\nwhichrank: FORGED\x1b]0;PWN\x07"
    with shared_node(folder) as node:
        mine = node.user_folder(EVE)

        def act() -> None:
            place = mine / nasty
            place.mkdir(mode=0o700)
            (place / f"{nasty}.ring").write_bytes(b"junk")
            (mine / "job").mkdir(mode=0o700)
            os.chmod(place, 0o700)
            _KEPT.append(ring(place, WHICHRANK_JOB_ID=nasty))
            _KEPT.append(ring(mine / "job", WHICHRANK_JOB_ID=nasty))

        lines: list[str] = []

        class Seen(logging.Handler):
            def emit(self, record: logging.LogRecord) -> None:
                lines.append(record.getMessage())

        logging.getLogger("whichrank").addHandler(Seen())
        with living_as(EVE, act):
            node.watch()
            seen = node.turn_until(lambda: len(node.events(EventName.RANK_STARTED)) >= 2)
            node.turn_for(1.0)
            kept = [path.name for path in (folder / "evidence").glob("*")]
        bad = [line for line in [*lines, *node.said, *kept] if not line.isprintable()]
        return Outcome(held=seen and not bad, measured=f"{len(lines) + len(node.said)} lines, {len(bad)} not printable")


@attack("A21", "a", "a job id with a lone surrogate", asked="node telemetry goes on", limit_s=60)
def surrogate(folder: Path) -> Outcome:
    with shared_node(folder) as node:
        mine = node.user_folder(EVE)
        with living_as(EVE, lambda: _KEPT.append(ring(mine, WHICHRANK_JOB_ID="j\ud83d"))):
            node.watch()
            node.turn_for(1.5)
            with _quiet_rank(node):
                seen = node.turn_until(lambda: _is_seen(node), 10)
        return Outcome(held=seen, measured=f"the other's job seen: {seen}")


@attack(
    "A26",
    "a",
    "one ring floods valid events, 65,536 in half a second",
    asked="a share for each owner",
    limit_s=90,
    memory_mb=LIMIT_MB,
)
def flood(folder: Path) -> Outcome:
    with shared_node(folder) as node:
        mine = node.user_folder(EVE)

        def act() -> None:
            writer = RingWriter.create(mine, rank=0, local_rank=0, world_size=1, identity={}, slots=1 << 16)
            group = writer.define_group({"name": "g", "ranks": "0", "backend": "gloo"})
            _KEPT.append(writer)

            def run() -> None:
                while True:
                    for _ in range(1000):
                        seq = writer.enqueue(group, 1, 1 << 20, 1, -1, 0)
                        writer.complete(group, seq, time.monotonic_ns(), 0)
                    time.sleep(0.002)

            threading.Thread(target=run, daemon=True).start()

        node.watch()
        with living_as(EVE, act):
            node.turn_until(lambda: node.events(EventName.RANK_STARTED))
            before, began_s = node.sent_bytes, time.monotonic()
            _, share = _slowest_turn_s(node, 6.0)
            rate = (node.sent_bytes - before) / (time.monotonic() - began_s) / _MB
            with _quiet_rank(node):
                seen = node.turn_until(lambda: _is_seen(node), 10)
        return Outcome(
            held=seen and share < 0.3 and _peak_mb() < LIMIT_MB,
            measured=f"{rate:.1f} MB/s sent, {100 * share:.0f} % of a core, the other's job seen: {seen}",
        )


@attack("A27", "a", "the folder for another user's rings is made by the attacker first",
        asked="the user finds another place, and the agent too; root refuses the attacker's", limit_s=60)  # fmt: skip
def taken_folder(folder: Path) -> Outcome:
    with shared_node(folder) as node:
        for uid in (QUINN, 0):
            run_as(EVE, partial((node.rings / f"whichrank-{uid}").mkdir, mode=0o777))
        for uid in (QUINN, 0):
            (node.rings / f"whichrank-{uid}").chmod(0o777)

        def act() -> None:
            ring_root.make_ring_root.__defaults__ = ring_root.ring_root.__defaults__ = (node.rings,)
            place = rank_identity.make_ring_directory(
                rank_identity.ring_directory_of_environment({"WHICHRANK_JOB_ID": "quiet"})
            )
            _KEPT.append(ring(place, WHICHRANK_JOB_ID="quiet"))

        refused = False
        try:
            rank_identity.make_ring_directory(node.rings / "whichrank-0" / "job")
        except PermissionError:
            refused = True
        with living_as(QUINN, act):
            node.watch()
            seen = node.turn_until(lambda: _is_seen(node), 10)
        return Outcome(held=seen and refused, measured=f"the user's job seen: {seen}, root refused: {refused}")


@attack(
    "H1",
    "a",
    "a user stops and kills his helper",
    asked="nobody else waits; the agent stays small",
    limit_s=90,
    memory_mb=LIMIT_MB,
)
def stopped_helper(folder: Path) -> Outcome:
    with shared_node(folder) as node:
        mine = node.user_folder(EVE)
        with living_as(EVE, lambda: _KEPT.append(ring(mine))):
            node.watch()
            node.turn_until(lambda: node.events(EventName.RANK_STARTED))
            for pid in POOL.pids:
                with contextlib.suppress(ChildProcessError):  # one is root's, of the folder that holds the roots
                    run_as(EVE, partial(os.kill, pid, signal.SIGSTOP))
            for number in range(5):
                run_as(EVE, (mine / f"more-{number}").mkdir)
            began_s = time.monotonic()
            with _quiet_rank(node):
                seen = node.turn_until(lambda: _is_seen(node), 15)
            took_s = time.monotonic() - began_s
            left = POOL.pids
        return Outcome(held=seen and took_s < 8 and len(left) <= 2,
                       measured=f"the other's job seen after {took_s:.1f} s, {len(left)} helpers")  # fmt: skip
