"""What one owner has much of beside another one who has little, in the judge that all share."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from tests.attacks.a_judge import CLUSTER, JUDGE_BYTES, START_NS, Judge, forget_peak, peak_mb
from tests.attacks.register import Outcome, attack
from tests.attacks.users import own_memory_limited
from tests.processors.job.synthetic_job import FOREVER, SyntheticJob
from whichrank.processors.job.operator import JobOperator
from whichrank.processors.operator import Context
from whichrank.processors.runner_containment import FAILED
from whichrank.telemetry.records import Block, Event, Identity, Incident, Record
from whichrank.telemetry.topics import TOPIC_BLOCKS, TOPIC_FINDINGS, TOPIC_INCIDENTS
from whichrank.telemetry.vocabulary import EventName, Phase

QUIET, NOISY = "12002", "12001"
GUILTY, STEP = 1, 20


def _of(owner: str, job: str, name: EventName, judge: Judge, rank: int = 0, **attributes: int) -> Event:
    identity = Identity(cluster=CLUSTER, job=job, attempt=f"{job}-1", node=f"node-{job}", rank=rank, owner=owner)
    return Event(name=name, identity=identity, time_ns=judge.now_ns, mono_ns=judge.ns + 1, attributes=attributes)


def _told_after_s(folder: Path, floods: Sequence[Callable[[Judge], None]]) -> tuple[list[str], float, list[str]]:
    """Of a quiet owner's job one rank hangs: the kinds that are told of it, how long after it, all states it ever had.

    floods: before it hangs, and once it was told.
    """
    job = SyntheticJob(steps=40, delays=[
        lambda rank, step, phase: FOREVER if (rank, step, phase) == (GUILTY, STEP, Phase.FORWARD) else 0
    ])  # fmt: skip
    records = job.records()
    named = {record.payload.identity.job for record in records if isinstance(record.payload, Block | Event)}
    judge = Judge(folder, keeps=named)
    left = list(floods)
    middle = records[len(records) // 4].stamp_ns
    for record in records:
        payload = record.payload
        assert isinstance(payload, Block | Event)
        judge.ns = max(judge.ns, record.stamp_ns - START_NS)
        judge.put(replace(payload, identity=replace(payload.identity, owner=QUIET, cluster=CLUSTER)), pass_s=0.0)
        is_time = record.stamp_ns > middle if len(left) == len(floods) else bool(judge.outputs)
        if left and is_time:
            left.pop(0)(judge)
    judge.pass_time(1)
    told = judge.incidents(None)
    kinds = [each["kind"] for each in told.values()]
    states = sorted({r.payload.document["state"] for r in judge.outputs if isinstance(r.payload, Incident)})
    after_s = min((each["times"]["detected"] - each["times"]["onset"] for each in told.values()), default=-1.0)
    return kinds, after_s, states


@attack("C113", "a", "an owner's 40,000 jobs beside another owner's one, of which a rank hangs", limit_s=400,
        asked="told as without them, and stays open", long=True)  # fmt: skip
def jobs_of_one_owner(folder: Path) -> Outcome:
    count = 0

    def flood(judge: Judge) -> None:
        nonlocal count
        for first in range(0, 20_000, 250):
            judge.put(
                *(_of(NOISY, f"tiny-{count + first + n}", EventName.RANK_STARTED, judge, pid=1, world_size=1)
                  for n in range(250)), pass_s=0.005)  # fmt: skip
        count += 20_000

    kinds, alone_s, _ = _told_after_s(folder / "alone", [])
    with own_memory_limited(JUDGE_BYTES) as words:
        with_them, after_s, states = _told_after_s(folder / "beside", [flood, flood])
        return Outcome(
            held=with_them == kinds and len(kinds) == 1 and states == ["open"] and after_s < alone_s + 0.5,
            measured=f"alone {kinds} after {alone_s:.1f} s; beside {count} jobs {with_them} after {after_s:.1f} s, "
            f"{states}; {words()}",
        )


@attack("C114", "a", "20,000 jobs of one owner lose a rank each; before that one of another owner's did",
        asked="bounded; the other's stays open, new ones of others are told", limit_s=900, long=True)  # fmt: skip
def incidents_of_one_owner(folder: Path) -> Outcome:
    with own_memory_limited(JUDGE_BYTES) as words:
        judge = Judge(folder, keeps={"quiet", "later"})
        began = time.process_time()
        _dies(judge, QUIET, ["quiet"])
        forget_peak()
        before = peak_mb()
        for first in range(0, 20_000, 100):
            _dies(judge, NOISY, [f"tiny-{first + n}" for n in range(100)])
        _dies(judge, QUIET, ["later"])
        rows = sum(1 for _ in judge.runner.rows("cluster", "incidents"))
        states = [each["state"] for each in judge.incidents(None).values()]
        kept = sum(b'"quiet"' in row or b'"later"' in row for _, row in judge.runner.rows("cluster", "incidents"))
        more, cpu_s = peak_mb() - before, time.process_time() - began
        return Outcome(
            held=states == ["open", "open"] and kept == 2 and rows <= 16_400 and more < 900,
            measured=f"the other's: {states}, {kept} kept of {rows}, +{more} MB, {cpu_s:.0f} CPU s; {words()}",
        )


def _dies(judge: Judge, owner: str, jobs: Sequence[str]) -> None:
    for name, more in (
        (EventName.RANK_STARTED, {"world_size": 2}),
        (EventName.RANK_EXIT, {"signal": 9, "exit_state": 2}),
    ):
        ranks = (0, 1) if name is EventName.RANK_STARTED else (1,)
        judge.put(*(_of(owner, job, name, judge, rank, pid=100 + rank, **more) for job in jobs for rank in ranks))
    judge.pass_time(8)


@attack("C115", "c", "600 nodes tell of 250 conditions each, which last", asked="bounded; the victim's is kept",
        limit_s=900, long=True)  # fmt: skip
def conditions_of_many_nodes(folder: Path) -> Outcome:
    with own_memory_limited(JUDGE_BYTES) as words:
        judge = Judge(folder, keeps={"victim"})
        judge.start_job()
        forget_peak()
        before, began = peak_mb(), time.process_time()
        _xids(judge, "node-victim", ["gpu-of-victim"])
        for node in range(600):
            _xids(judge, f"evil-{node}", [f"d{n}" for n in range(250)])
        judge.kill_rank()
        rows = sum(len(row) for _, row in judge.runner.rows("cluster", "conditions")) >> 20
        kept = any(b"gpu-of-victim" in row for _, row in judge.runner.rows("cluster", "conditions"))
        told, more, cpu_s = judge.told_kinds(), peak_mb() - before, time.process_time() - began
        return Outcome(
            held=told == ["rank_died"] and kept and rows <= 130 and more < 1200,
            measured=f"rows {rows} MB, the victim's kept: {kept}, death: {told}, +{more} MB, {cpu_s:.0f} CPU s; "
            f"{words()}",
        )


def _xids(judge: Judge, node: str, devices: Sequence[str]) -> None:
    identity = Identity(cluster=CLUSTER, node=node)
    judge.put(*(
        Event(name=EventName.KERNEL_EVENT, identity=identity, time_ns=judge.now_ns, mono_ns=1,
              attributes={"event": "xid", "code": "79", "severity": "fatal", "device": device, "device_kind": "gpu",
                          "domain": "hardware", "text": "x" * 500})
        for device in devices
    ))  # fmt: skip


class _Fails(JobOperator):
    """As a defect would be that nobody knows yet: it fails on ends of jobs of some names."""

    def process(self, records: Sequence[Record], ctx: Context) -> None:
        """Raises RuntimeError for jobs whose names begin with `bad`."""
        ends = (r.payload for r in records if isinstance(r.payload, Event) and r.payload.name is EventName.RANK_EXIT)
        if any(each.identity.job.lstrip("\x1f").startswith("bad") for each in ends):
            raise RuntimeError("a defect")
        super().process(records, ctx)


def _failing_judge(folder: Path) -> Judge:
    import tests.attacks.a_judge as a_judge

    vars(a_judge)["JobOperator"] = _Fails
    return Judge(folder)


@attack("C116", "a", "an unknown defect meets 5,000 jobs of one owner and then one of another",
        asked="the other's is told by its name; it stays set aside and muted", limit_s=300, long=True)  # fmt: skip
def failures_of_one_owner(folder: Path) -> Outcome:
    judge = _failing_judge(folder)

    def fail(owner: str, jobs: Sequence[str]) -> None:
        for name in (EventName.RANK_STARTED, EventName.RANK_EXIT):
            judge.put(*(_of(owner, job, name, judge, 0, pid=1, world_size=1) for job in jobs), pass_s=0.2)

    fail(QUIET, ["bad-first"])
    fail(QUIET, ["bad-first"])
    for first in range(0, 5_000, 250):
        fail(NOISY, [f"bad-tiny-{first + n}" for n in range(250)])
    fail(QUIET, ["bad-last"])
    dropped = judge.runner.muted
    fail(QUIET, ["bad-first"])
    is_muted = judge.runner.muted == dropped + 2
    told = _doubts(judge)
    aside = _aside(judge)
    both = {"bad-first", "bad-last"}
    return Outcome(
        held=is_muted and any("bad-first" in each for each in told) and both <= set(aside) and len(told) < 80,
        measured=f"muted: {is_muted}, {len(told)} told, set aside of the other: {sorted(both & set(aside))} of "
        f"{len(aside)}; {judge.runner.contained} contained",
    )


def _doubts(judge: Judge) -> set[str]:
    return {
        row["source"]
        for each in judge.incidents(None).values()
        for row in each["evidence"]
        if row.get("value") == FAILED
    }


def _aside(judge: Judge) -> list[str]:
    import sqlite3

    judge.runner.close()
    with sqlite3.connect(judge.folder / "state.sqlite") as database:
        return [key for (key,) in database.execute("SELECT DISTINCT key FROM aside WHERE operator = 'job'")]


@attack("C117", "a", "a defect sets the state of a job aside that has an open incident",
        asked="the incident ends, and says why; another one is told", limit_s=60)  # fmt: skip
def open_incident_of_what_is_aside(folder: Path) -> Outcome:
    judge = _failing_judge(folder)
    for job in ("bad", "sound"):
        judge.start_job(job)
        judge.put(judge.of_rank(EventName.RANK_EXCEPTION, 1, job, type="ValueError", message="x", exit_state=0))
    judge.pass_time(8)
    before = {each["job"]["id"]: each["state"] for each in judge.incidents(None).values() if each["job"]["id"]}
    judge.put(judge.of_rank(EventName.RANK_EXIT, 0, "bad", signal=9, pid=100, exit_state=2))
    judge.pass_time(2)
    ended = {each["job"]["id"]: each["state"] for each in judge.incidents(None).values() if each["job"]["id"]}
    told = _doubts(judge)
    return Outcome(
        held=before == {"bad": "open", "sound": "open"}
        and ended == {"bad": "resolved", "sound": "open"}
        and len(told) == 1,
        measured=f"before {before}, then {ended}, {len(told)} telemetry incident",
    )


class _Refuses:
    """A bus that raises at one output what no bus is said to raise."""

    def __init__(self, judge: Judge) -> None:
        self._publish = judge.bus.publish
        self.refused = 0

    def __call__(self, outputs: Sequence[object], until: int) -> None:
        """Raises KeyError where an output is of the victim's incident."""
        for output in outputs:
            if b"victim" in output.value and output.topic == TOPIC_INCIDENTS:  # type: ignore[attr-defined]
                self.refused += 1
                raise KeyError("a defect")
        self._publish(outputs, until)  # type: ignore[arg-type]


@attack("C118", "c", "the bus raises at one conclusion what it is not said to raise",
        asked="left out, counted, told; all else is published", limit_s=60)  # fmt: skip
def bus_that_raises(folder: Path) -> Outcome:
    judge = Judge(folder)
    judge.bus.publish = refuses = _Refuses(judge)  # type: ignore[method-assign]
    judge.start_job()
    judge.kill_rank()
    judge.start_job("other")
    judge.kill_rank("other")
    published = [topic for topic in _outputs_on(judge) if topic == TOPIC_FINDINGS]
    lines = [line for line in judge.said if "cannot be published" in line]
    return Outcome(
        held=refuses.refused > 0 and bool(published) and judge.runner.contained > 0 and len(lines) == 1
        and judge.runner.outbox_size == 0,
        measured=f"{judge.runner.contained} counted, {len(lines)} line, {len(published)} others published, "
        f"{judge.runner.outbox_size} left in the outbox",
    )  # fmt: skip


def _outputs_on(judge: Judge) -> Iterator[str]:
    after = 0
    while messages := judge.bus.read(after, 500):
        for message in messages:
            if message.topic != TOPIC_BLOCKS:
                yield message.topic
        after = messages[-1].position
