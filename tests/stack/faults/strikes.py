"""What goes wrong in a run, each at a random moment: before anything, in mid-stream, or while incidents are open."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.logs.v1.logs_pb2 import LogRecord

from tests.stack.faults.world import World
from whichrank.agents.base.priority import Priority
from whichrank.telemetry.otlp import encode_payloads
from whichrank.telemetry.records import Block, Event, Identity
from whichrank.telemetry.topics import TOPIC_BLOCKS
from whichrank.telemetry.vocabulary import EventName
from whichrank.transport.kafka import make_client

#: The stream lasts 19 s; incidents are open from about the 6th second on.
FIRST_S, LAST_S = 1.0, 18.0
STEP_NS = 5_000_000_000
TMPFS_SIZE = "3m"
#: The topics of the poisoned run take it; our own clients are not told.
LARGEST_BYTES = 12_000_000
#: Of the poison; nothing, tomorrow's kind and the other key can be read.
LETTERS = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """``prepare`` sets the scene before the stream begins, ``strike`` comes at a random moment."""

    name: str
    strike: Callable[[World], None]
    prepare: Callable[[World], None] = lambda world: _one_processor(world)
    #: With a broker that nobody else uses, because it is killed.
    own_broker: bool = False
    #: Which is not there yet when the stream begins.
    broker_late: bool = False
    repeats: int = 5


def _one_processor(world: World) -> None:
    world.make_topics()
    world.start_processor()


def _kill_broker(world: World) -> None:
    world.kafka.kill()
    away_s = world.drawn.uniform(0.5, 8.0)
    world.note(f"broker killed for {away_s:.1f} s")
    time.sleep(away_s)
    world.kafka.start()
    world.note("broker answers again")


def _kill_processor(world: World) -> None:
    world.kill_processor()
    away_s = world.drawn.choice([0.0, world.drawn.uniform(0.0, 5.0)])
    world.note(f"processor killed for {away_s:.1f} s")
    time.sleep(away_s)
    world.start_processor()


def _lose_state(world: World) -> None:
    world.kill_processor()
    shutil.rmtree(world.state_folders["one"])
    world.note("processor killed, its state deleted")
    world.start_processor()


def _leader_and_standby(world: World) -> None:
    _one_processor(world)
    world.wait_for_word("processes whichrank.blocks")
    world.start_processor("two")


def _kill_leader(world: World) -> None:
    world.wait_for_word("standing by", "two")
    world.kill_processor()
    world.note("leader killed, a standby is there")


def _late_processor(world: World) -> None:
    world.make_topics()


def _start_late(world: World) -> None:
    world.start_processor()
    world.note("the first processor starts, with everything so far to catch up with")


def _late_topics(world: World) -> None:
    """The agent is there before Kafka's topics are."""


def _make_late(world: World) -> None:
    world.make_topics()
    world.start_processor()
    world.note("topics and processor come")


def _nothing_yet(world: World) -> None:
    """No broker."""


def _start_broker(world: World) -> None:
    world.kafka.start()
    world.note("the broker starts for the first time")
    _make_late(world)


def _agent_apart(world: World) -> None:
    world.agent_apart = True
    _one_processor(world)


def _kill_agent(world: World) -> None:
    world.kill_agent()
    away_s = world.drawn.choice([0.0, world.drawn.uniform(0.0, 5.0)])
    world.note(f"agent killed for {away_s:.1f} s")
    time.sleep(away_s)
    world.start_agent()


def _small_spool_disk(world: World) -> None:
    _mount_small(world.folder / "spool")
    _one_processor(world)


def _fill_spool_disk(world: World) -> None:
    """While it is needed."""
    filler = world.folder / "spool" / "filler"
    _fill(filler)
    world.note("the disk under the spool is full")
    _kill_broker(world)
    filler.unlink()
    world.note("there is room again")


def _duplicates(world: World) -> None:
    """A fifth is sent again up to 3 s later, by somebody who also sends a twentieth up to half a second late."""
    _one_processor(world)
    producer = make_client(world.settings).producer()
    drawn = world.drawn

    def later(after_s: float, send: Callable[[], None]) -> None:
        timer = threading.Timer(after_s, send)
        timer.daemon = True
        timer.start()

    def change(key: str, value: bytes, priority: Priority, send: Callable[[str, bytes, Priority], None]) -> None:
        if drawn.random() < 0.05:
            later(drawn.uniform(0.0, 0.5), lambda: send(key, value, priority))
        else:
            send(key, value, priority)
        if drawn.random() < 0.2:
            later(drawn.uniform(0.0, 3.0), lambda: producer.send(TOPIC_BLOCKS, key.encode(), value))

    world.change = change


def _nothing_more(world: World) -> None:
    world.note("duplicates and late records all the time")


def _large_topics(world: World) -> None:
    world.make_topics(largest_bytes=LARGEST_BYTES)
    world.start_processor()


def _poison(world: World) -> None:
    """One of each kind, on the keys of the jobs, of no job, and on the wrong one."""
    good = encode_payloads(
        [Event(name=EventName.RANK_CONTINUED, identity=Identity(job="hangs", rank=1), time_ns=time.time_ns())]
    )
    lacking = Event(name=EventName.RANK_STARTED, identity=Identity(job="hangs", rank=1), time_ns=1, attributes={})
    block = next(world.payload(each) for each in world.sendables if isinstance(each.payload, Block))
    kinds = {
        "random bytes": os.urandom(500),
        "nothing": b"",
        "a truncated message": good[: len(good) // 2],
        "an event without what it needs": encode_payloads([lacking]),
        "text": b"GET / HTTP/1.1\r\n\r\n" * 50,
        "10 MB of noise": os.urandom(10_000_000),
        "a block with its end cut off": _with_record(block, _cut_rows),
        "a block of an unknown kind": _with_record(block, _rename),
        "a block on another job's key": encode_payloads([block]),
    }
    producer = make_client(replace(world.settings, max_message_bytes=LARGEST_BYTES, queue_bytes=64 << 20)).producer()
    for name, value in kinds.items():
        keys = [each for each in (b"hangs", b"is well", b"\xff\xfe", b"") if each != block.identity.job.encode()]
        producer.send(TOPIC_BLOCKS, world.drawn.choice(keys), value)
        world.note(f"poison: {name}")
    producer.flush(10.0)
    producer.close(1.0)
    world.wait_for_letters(LETTERS)


def _with_record(payload: Block | Event, change: Callable[[LogRecord], None]) -> bytes:
    request = ExportLogsServiceRequest.FromString(encode_payloads([payload]))
    change(request.resource_logs[0].scope_logs[0].log_records[0])
    return request.SerializeToString()


def _cut_rows(record: LogRecord) -> None:
    record.body.bytes_value = record.body.bytes_value[:-7]


def _rename(record: LogRecord) -> None:
    record.event_name = "whichrank.block.of_tomorrow"


def _small_state_disk(world: World) -> None:
    folder = world.folder / "one"
    _mount_small(folder)
    world.state_folders["one"] = folder
    _one_processor(world)


def _fill_state_disk(world: World) -> None:
    folder = world.state_folders["one"]
    filler = folder / "filler"
    _fill(filler)
    world.note("the disk under the state is full")
    time.sleep(world.drawn.uniform(2.0, 12.0))
    if world.drawn.random() < 0.5:
        world.kill_processor()
        world.note("processor killed meanwhile")
        filler.unlink()
        world.start_processor()
    else:
        filler.unlink()
    world.note("there is room again")


def _mount_small(folder: Path) -> None:
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={TMPFS_SIZE}", "tmpfs", folder], check=True)


def _fill(filler: Path) -> None:
    """Whatever the disk has left."""
    with contextlib.suppress(OSError), filler.open("wb", buffering=0) as file:
        while True:
            file.write(b"x" * 4096)


def _clock_steps(world: World) -> None:
    """The wall clock of the node of one job jumps by 5 s, forwards or back; its monotonic clock does not."""
    _one_processor(world)
    job = world.drawn.choice(["hangs", "crashes", "skips", "is well"])
    step_ns, from_s = world.drawn.choice([-STEP_NS, STEP_NS]), world.drawn.uniform(FIRST_S, LAST_S)
    world.clock_step_ns = lambda each, after_s: step_ns if each.job == job and after_s >= from_s else 0
    world.note(f"at {from_s:.1f} s the clock of the node of the job that {job} steps by {step_ns / 1e9:+.0f} s")


FAULTS: tuple[Fault, ...] = (
    Fault(name="processor killed -9 and started again", strike=_kill_processor, repeats=20),
    Fault(name="processor's state deleted", strike=_lose_state),
    Fault(name="leader killed -9 beside a standby", strike=_kill_leader, prepare=_leader_and_standby),
    Fault(name="broker killed -9 and started again", strike=_kill_broker, own_broker=True),
    Fault(name="agent killed -9 and started again", strike=_kill_agent, prepare=_agent_apart),
    Fault(name="Kafka absent at start", strike=_start_broker, prepare=_nothing_yet, own_broker=True, broker_late=True),
    Fault(name="disk full under the spool", strike=_fill_spool_disk, prepare=_small_spool_disk, own_broker=True),
    Fault(name="processor starts late and catches up", strike=_start_late, prepare=_late_processor),
    Fault(name="topics made after the agent began", strike=_make_late, prepare=_late_topics),
    Fault(name="duplicated and reordered records", strike=_nothing_more, prepare=_duplicates),
    Fault(name="poison of each kind", strike=_poison, prepare=_large_topics),
    Fault(name="disk full under the state", strike=_fill_state_disk, prepare=_small_state_disk),
    Fault(name="clock stepped by 5 s on one node", strike=_nothing_more, prepare=_clock_steps),
)


def unmount(folder: Path) -> None:
    """What ``_small_state_disk`` has mounted there, if anything."""
    for path in folder.glob("*"):
        if path.is_mount():
            subprocess.run(["umount", "-l", path], check=False)
