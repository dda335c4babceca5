"""What the agent costs beside many owners, and a noisy owner beside a quiet one: the real agent, within its limit."""

from __future__ import annotations

import contextlib
import os
import signal
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from tests.attacks.node import forge, ring
from tests.attacks.real_agent import RealAgent, payloads_of, real_agent
from tests.attacks.register import Outcome, attack
from tests.attacks.users import EVE, QUINN, living_as
from whichrank.instrumentation.ring_writer import RingWriter
from whichrank.processors.cluster.operator import ClusterOperator
from whichrank.processors.entity.operator import EntityOperator
from whichrank.processors.job.operator import JobOperator
from whichrank.processors.operator import Operator
from whichrank.processors.runner import EmbeddedRunner
from whichrank.telemetry.incident_reading import read_incident
from whichrank.telemetry.records import Block, Event, Incident, Record
from whichrank.telemetry.topics import TOPIC_BLOCKS
from whichrank.telemetry.vocabulary import EventName, Kind
from whichrank.transport.embedded import EmbeddedBus

_KEPT: list[object] = []
_MB = 1 << 20
OWNERS = 10
_GROUP = {"name": "default_pg", "ranks": "0-1", "size": 2, "backend": "gloo", "ordinal": 0, "timeout_s": 1800}


@contextlib.contextmanager
def _rings() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="attack-node-", dir="/dev/shm", ignore_cleanup_errors=True) as folder:
        os.chmod(folder, 0o1777)
        yield Path(folder)


def _user_folder(rings: Path, uid: int, name: str = "") -> Path:
    path = rings / f"whichrank-{name or uid}"
    path.mkdir(mode=0o700)
    os.chown(path, uid, uid)
    return path


def _train(place: Path) -> None:
    """A rank that makes a step every 0.2 s, in a thread."""
    writer = ring(place)
    _KEPT.append(writer)

    def steps() -> None:
        while True:
            writer.end_step(None, None, 0)
            writer.beat()
            time.sleep(0.2)

    threading.Thread(target=steps, daemon=True).start()


def _shares(agent: RealAgent, windows: int, window_s: float) -> tuple[list[float], float]:
    """Parts of a core that it used in each window, and the most memory that was seen in between."""
    shares, most_mb = [], 0.0
    for _ in range(windows):
        began_s, used_s = time.monotonic(), agent.cpu_s()
        time.sleep(window_s)
        shares.append((agent.cpu_s() - used_s) / (time.monotonic() - began_s))
        most_mb = max(most_mb, agent.memory_mb())
    return shares, most_mb


def _wait(condition: Callable[[], object], timeout_s: float, pause_s: float = 0.1) -> bool:
    end_s = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > end_s:
            return False
        time.sleep(pause_s)
    return True


@attack(
    "H2",
    "a",
    "ten owners have a job each; the real agent with its collectors and helpers",
    asked="under 150 MB together; idle helpers end",
    limit_s=150,
    long=True,
)
def memory_of_ten_owners(folder: Path) -> Outcome:
    with _rings() as rings, real_agent(folder, rings) as agent, contextlib.ExitStack() as living:
        started: set[str] = set()
        most_mb, most_helpers = agent.memory_mb(), 0
        for number in range(OWNERS):
            uid = EVE + 100 + number
            living.enter_context(living_as(uid, partial(_train, _user_folder(rings, uid))))
        end_s = time.monotonic() + 45
        while time.monotonic() < end_s:
            most_mb = max(most_mb, agent.memory_mb())
            most_helpers = max(most_helpers, len(agent.helpers()))
            started |= _started(agent)
            time.sleep(0.5)
        idle = _wait(lambda: len(agent.helpers()) <= 1, 30)
        limit = agent.limit.describe()
    return Outcome(
        held=len(started) == OWNERS and most_mb < 150 and idle and most_helpers >= OWNERS,
        measured=f"at most {most_mb:.0f} MB with {most_helpers} helpers, {len(started)} jobs seen, "
        f"idle helpers ended: {idle}; {limit}",
    )


def _started(agent: RealAgent) -> set[str]:
    events = [each for each in payloads_of(agent.new_messages()) if isinstance(each, Event)]
    return {f"{e.identity.owner}/{e.identity.job}" for e in events if e.name is EventName.RANK_STARTED}


@attack(
    "H3",
    "a",
    "the same for three minutes, beside a minute without any job",
    asked="at most 3 % of a core, helpers and collectors counted",
    limit_s=400,
    long=True,
)
def core_of_ten_owners(folder: Path) -> Outcome:
    with _rings() as rings, real_agent(folder, rings) as agent, contextlib.ExitStack() as living:
        time.sleep(10)
        alone, _ = _shares(agent, 4, 15)
        for number in range(OWNERS):
            uid = EVE + 100 + number
            living.enter_context(living_as(uid, partial(_train, _user_folder(rings, uid))))
        seen = set[str]()
        _wait(lambda: len(seen.__ior__(_started(agent))) == OWNERS, 30)
        time.sleep(10)
        beside, most_mb = _shares(agent, 9, 20)
    usual = statistics.median(beside)
    each = ", ".join(f"{100 * share:.1f}" for share in sorted(beside))
    return Outcome(
        held=len(seen) == OWNERS and usual <= 0.03,
        measured=f"median {100 * usual:.1f} % ({each}), without a job {100 * statistics.median(alone):.1f} %; "
        f"{most_mb:.0f} MB",
    )


class _JudgeOfSpool:
    """One judge that hears what the agent spools."""

    def __init__(self, folder: Path, agent: RealAgent) -> None:
        self._agent = agent
        self._bus = EmbeddedBus(folder / "capture")
        operators: list[Operator] = [JobOperator(listens=True), EntityOperator(), ClusterOperator()]
        self._runner = EmbeddedRunner(self._bus, folder / "state.sqlite", operators, self._take, live=True)
        self.payloads: list[Block | Event] = []
        self.first_ns: dict[EventName, int] = {}  # of the quiet job: when the agent first gave out such an event
        self.kinds: dict[str, float] = {}  # of the quiet job's incidents, and when each was first told

    def _take(self, record: Record) -> None:
        if isinstance(record.payload, Incident):
            document = read_incident(record.payload.document)
            if document.job.id == "quiet" and document.kind is not None:
                self.kinds.setdefault(Kind(document.kind).value, time.monotonic())

    def turn(self) -> None:
        messages = [message for message in self._agent.new_messages() if message.topic == TOPIC_BLOCKS]
        for message in messages:
            self._bus.append(message.topic, message.key, message.value)
            if message.key == "quiet":
                for each in payloads_of([message]):
                    self.payloads.append(each)
                    if isinstance(each, Event):
                        self.first_ns.setdefault(each.name, message.stamp_ns)
        self._runner.drain()

    def until(self, condition: Callable[[], object], timeout_s: float) -> bool:
        def turned() -> object:
            self.turn()
            return condition()

        return _wait(turned, timeout_s, 0.05)

    def close(self) -> None:
        self._runner.close()


def _quiet(place: Path, rank: int) -> None:
    """A step with one collective every 0.1 s; after SIGUSR1 rank 1 comes to no further one, and rank 0 waits for it."""
    identity: dict[str, str | int | float | bool | None] = {
        "WHICHRANK_JOB_ID": "quiet",
        "launcher_pid": os.getppid(),
        "launcher_start_ticks": 7,
        "host": "here",
    }
    writer = RingWriter.create(place, rank=rank, local_rank=rank, world_size=2, identity=identity)
    group = writer.define_group(_GROUP)
    hangs = threading.Event()
    signal.signal(signal.SIGUSR1, lambda number, frame: hangs.set())
    _KEPT.append(writer)

    def beat() -> None:
        while True:
            writer.beat()
            time.sleep(0.05)

    def steps() -> None:
        while not hangs.is_set():
            seq = writer.enqueue(group, 1, 1 << 20, 1, -1, 0)
            time.sleep(0.02)
            writer.complete(group, seq, time.monotonic_ns(), 0)
            writer.end_step(None, None, 0)
            time.sleep(0.08)
        if rank == 0:
            writer.enqueue(group, 1, 1 << 20, 1, -1, 0)

    for act in (beat, steps):
        threading.Thread(target=act, daemon=True).start()


def _flood(writer: RingWriter, group: int) -> None:
    while True:
        for _ in range(1000):
            seq = writer.enqueue(group, 1, 1 << 20, 1, -1, 0)
            writer.complete(group, seq, time.monotonic_ns(), 0)
        time.sleep(0.002)


def _noisy(mine: Path) -> None:
    for number in range(4096):
        (mine / f"{number:04}").mkdir()
        (mine / f"{number:04}" / "x.ring").touch()
    for number in range(80):
        place = mine / f"live-{number:02}"
        place.mkdir(mode=0o700)
        writer = ring(place, WHICHRANK_JOB_ID=f"noise-{number}")
        if number % 2:
            forge(writer.path, 31 * _MB)
        _KEPT.append(writer)
    for number in range(4):
        loud = RingWriter.create(
            mine / f"live-{number:02}", rank=1, local_rank=1, world_size=2, identity={}, slots=1 << 16
        )
        group = loud.define_group({"name": "g", "ranks": "0-1", "backend": "gloo"})
        _KEPT.append(loud)
        threading.Thread(target=_flood, args=(loud, group), daemon=True).start()


class _Run:
    """Of one quiet job: seconds until it was seen, its hang and its end were told; what was lost; what it cost."""

    def __init__(self) -> None:
        self.seen_s = self.hang_s = self.end_s = -1.0
        self.lost = self.gaps = -1
        self.share = self.judge_share = self.memory_mb = 0.0
        self.kinds = ""
        self.limit = ""

    @property
    def words(self) -> str:
        return (
            f"seen after {self.seen_s:.1f} s, hang told after {self.hang_s:.1f} s, end after {self.end_s:.1f} s "
            f"({self.kinds}), {self.lost} lost, {self.gaps} gaps, {100 * self.share:.1f} % of a core, "
            f"{self.memory_mb:.0f} MB, the judge {100 * self.judge_share:.0f} %"
        )


def _quiet_run(folder: Path, *, with_noise: bool) -> _Run:
    run = _Run()
    folder.mkdir()
    with _rings() as rings, real_agent(folder, rings) as agent, contextlib.ExitStack() as living:
        if with_noise:
            living.enter_context(living_as(EVE, partial(_noisy, _user_folder(rings, EVE, "0-first"))))
        judge = _JudgeOfSpool(folder, agent)
        living.callback(judge.close)
        judge.until(lambda: False, 10.0)
        place = _user_folder(rings, QUINN) / "job"
        place.mkdir(mode=0o700)
        os.chown(place, QUINN, QUINN)
        began_ns = time.time_ns()
        pids = [living.enter_context(living_as(QUINN, partial(_quiet, place, rank))) for rank in (0, 1)]
        if judge.until(lambda: len(_named(judge.payloads, EventName.RANK_STARTED)) >= 2, 30):
            run.seen_s = (judge.first_ns[EventName.RANK_STARTED] - began_ns) / 1e9
        used_s, since_s = agent.cpu_s(), time.monotonic()
        judge.until(lambda: False, 15.0)
        run.share = (agent.cpu_s() - used_s) / (time.monotonic() - since_s)
        began_s = time.monotonic()
        for pid in reversed(pids):
            os.kill(pid, signal.SIGUSR1)
            time.sleep(0.3)
        used_s = time.process_time()
        if judge.until(lambda: judge.kinds, 60):
            run.hang_s = min(judge.kinds.values()) - began_s
        run.judge_share = (time.process_time() - used_s) / (time.monotonic() - began_s)
        began_ns = time.time_ns()
        os.kill(pids[1], signal.SIGKILL)
        if judge.until(lambda: _named(judge.payloads, EventName.RANK_EXIT), 30):
            run.end_s = (judge.first_ns[EventName.RANK_EXIT] - began_ns) / 1e9
        judge.until(lambda: False, 6.0)
        run.memory_mb, run.limit = agent.memory_mb(), agent.limit.describe()
        health = [each.attributes for each in _named(judge.payloads, EventName.AGENT_HEALTH)]
        names = ("events_lost", "events_torn", "drops.publish_refused")
        run.lost = sum(int(health[-1].get(name, 0)) for name in names) if health else -1
        run.gaps = _gaps(judge.payloads)
        run.kinds = ", ".join(sorted(judge.kinds))
    return run


def _named(payloads: list[Block | Event], name: EventName) -> list[Event]:
    return [each for each in payloads if isinstance(each, Event) and each.name is name]


def _gaps(payloads: list[Block | Event]) -> int:
    """Numbers of collectives that are missing between the first and the last of each rank; -1: there are none."""
    seen: dict[int, set[int]] = {}
    for each in payloads:
        if isinstance(each, Block) and each.name is EventName.BLOCK_COLLECTIVES:
            for rank, seq in zip(each.rows["rank"].tolist(), each.rows["seq"].tolist(), strict=True):
                seen.setdefault(rank, set()).add(seq)
    if len(seen) != 2 or min(map(len, seen.values())) < 50:
        return -1
    return sum(max(numbers) - min(numbers) + 1 - len(numbers) for numbers in seen.values())


@attack(
    "N1",
    "a",
    "a noisy owner: 4,096 folders, 80 jobs, sparse rings, 4 floods; beside him a quiet job of two ranks hangs and ends",
    asked="hang and end are told when they are without him, none of its records is lost; the agent keeps to its limits",
    limit_s=400,
    long=True,
)
def noisy_beside_quiet(folder: Path) -> Outcome:
    alone, beside = (_quiet_run(folder / name, with_noise=name == "beside") for name in ("alone", "beside"))
    in_time = (
        0 < beside.seen_s < alone.seen_s + 3
        and 0 < beside.hang_s < 1.5 * alone.hang_s + 2
        and 0 < beside.end_s < alone.end_s + 2
    )
    return Outcome(
        held=in_time and beside.lost == beside.gaps == 0 and beside.share < 0.5 and beside.memory_mb < 400,
        measured=f"alone: {alone.words}; beside him: {beside.words}, {beside.limit}",
    )
