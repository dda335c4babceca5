"""Further records that decode and make no sense: extreme columns, odd ids and times, thousands of keys set aside."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from tests.attacks.a_judge import CLUSTER, SECOND, VICTIM, Judge, forget_peak, in_judges_memory, peak_mb, steps_of
from tests.attacks.register import Outcome, attack
from whichrank.commands.embedded.embedded_operators import wanted_metrics
from whichrank.processors.job.operator import JobOperator
from whichrank.processors.operator import Context
from whichrank.telemetry.records import Block, Event, Group, Identity, Record
from whichrank.telemetry.tables import TABLES
from whichrank.telemetry.topics import TOPIC_BLOCKS, TOPIC_LOGS, TOPIC_WORDS
from whichrank.telemetry.vocabulary import EventName


def _identity(job: str = "evil", rank: int = 0, node: str = "node-evil") -> Identity:
    return Identity(cluster=CLUSTER, job=job, attempt=f"{job}-1", node=node, rank=rank)


def _verdict(judge: Judge, began: float, before: int, *, cpu_s: float = 15, mb: int = 150) -> Outcome:
    """After nonsense: whether the victim's death is told as ever, alone, and at which cost."""
    judge.kill_rank()
    told, failures = judge.told_kinds(), judge.runner.contained
    cpu, more = time.process_time() - began, peak_mb() - before
    others = [each["kind"] for each in judge.incidents(None).values() if each["kind"] not in ("rank_died", "telemetry")]
    return Outcome(
        held=told == ["rank_died"] and not failures and cpu < cpu_s and more < mb,
        measured=f"the victim's death: {told}, {failures} contained, {cpu:.1f} CPU s, +{more} MB, others: {others}"[
            :200
        ],
    )


def _begin(folder: Path) -> tuple[Judge, float, int]:
    judge = Judge(folder)
    judge.start_job()
    judge.start_job("evil", ranks=2)
    forget_peak()
    return judge, time.process_time(), peak_mb()


@attack(
    "C101",
    "c",
    "blocks of every table whose columns are all least, all greatest, all NaN or inf; and empty ones",
    asked="nothing comes of it",
    limit_s=120,
)
def extreme_columns(folder: Path) -> Outcome:
    judge, began, before = _begin(folder)
    groups = (Group(uid="g", name="0", ranks="0-1", size=2, is_default=True),)
    for name, dtype in TABLES.items():
        for extreme in ("least", "greatest", "nan", "inf", "none"):
            rows = np.zeros(0 if extreme == "none" else 3, dtype)
            for field in dtype.names or ():
                kind = dtype.fields[field][0]  # type: ignore[index]
                if kind.kind in "iu":
                    info = np.iinfo(kind)
                    rows[field] = info.min if extreme == "least" else info.max
                elif kind.kind == "f":
                    rows[field] = {"least": -np.finfo(kind).max, "nan": np.nan, "inf": -np.inf}.get(extreme, np.inf)
            for keep_rank in (True, False):
                if keep_rank and "rank" in (dtype.names or ()):
                    rows["rank"] = 0
                if keep_rank and "group" in (dtype.names or ()):
                    rows["group"] = 0
                block = Block(
                    name=name,
                    identity=_identity(),
                    rows=rows,
                    time_ns=judge.now_ns,
                    groups=groups if "group" in (dtype.names or ()) else (),
                )
                judge.put(block, pass_s=0.5)
    judge.pass_time(5)
    return _verdict(judge, began, before)


@attack(
    "C102",
    "a",
    "step numbers that go down, repeat and jump; ends before their beginnings",
    asked="survives",
    limit_s=90,
)
def steps_go_down(folder: Path) -> Outcome:
    judge, began, before = _begin(folder)
    for values in ([9, 8, 7, 6], [6, 6, 6], [1, 0], [0, -1, -(1 << 62)], [5, 1 << 40, 5], [(1 << 63) - 1, 2]):
        for rank in range(2):
            blocks = steps_of(values, job="evil", judge=judge, rank=rank)
            for block in blocks:
                assert isinstance(block, Block)
                for name in block.rows.dtype.names or ():
                    if name in ("end_ns", "done_ns"):
                        block.rows[name] -= 10**15
            judge.put(*blocks, pass_s=1.0)
    judge.pass_time(5)
    return _verdict(judge, began, before)


@attack(
    "C103",
    "c",
    "events and blocks stamped 0, -2^63, 2^63 - 1, and one year ahead",
    asked="no other job's clock moves; the judge lives",
    limit_s=90,
)
def far_stamps(folder: Path) -> Outcome:
    judge, began, before = _begin(folder)
    year = judge.now_ns + 31_536_000 * SECOND
    for stamp in (0, 1, (1 << 63) - 1, year):
        for name in (
            EventName.RANK_STARTED,
            EventName.RANK_CONTINUED,
            EventName.AGENT_HEALTH,
            EventName.KERNEL_EVENT,
            EventName.SCHEDULER,
            EventName.RANK_EXCEPTION,
        ):
            attributes = {
                "pid": 1,
                "world_size": 2,
                "event": "xid",
                "code": "79",
                "severity": "fatal",
                "device": "d",
                "scheduler": "slurm",
                "what": "maintenance",
                "start_s": stamp,
                "end_s": -stamp,
                "type": "E",
                "message": "m",
            }
            judge.put(Event(name=name, identity=_identity(), time_ns=stamp, mono_ns=stamp, attributes=attributes))
        judge.put(*(b for b in steps_of([1, 2, 3], job="evil", judge=judge)), pass_s=1.0)
    judge.pass_time(10)
    return _verdict(judge, began, before)


@attack(
    "C104",
    "c",
    "ids that are empty, of 1 MB, with /, NUL, tab, newline, and a lone surrogate",
    asked="bounded; the judge lives, and after a restart",
    limit_s=120,
)
@in_judges_memory
def odd_ids(folder: Path) -> Outcome:
    judge, began, before = _begin(folder)
    for number, odd in enumerate(("", "x" * (1 << 20), "a/b", "a\0b", "a\tb", "a\nb", "\x1b]0;x\x07", "..", " ")):
        for field in ("job", "attempt", "node", "cluster", "world", "run"):
            words = {"cluster": CLUSTER, "job": f"evil-{number}", "attempt": "a", "node": "n", field: odd}
            identity = Identity(rank=0, **words)
            judge.put(
                Event(
                    name=EventName.RANK_STARTED,
                    identity=identity,
                    time_ns=judge.now_ns,
                    mono_ns=1,
                    attributes={"pid": 1, "world_size": 2},
                ),
                Event(
                    name=EventName.RANK_EXIT,
                    identity=identity,
                    time_ns=judge.now_ns,
                    mono_ns=2,
                    attributes={"pid": 1, "signal": 9, "exit_state": 2},
                ),
                pass_s=0.1,
            )
    judge.pass_time(10)
    judge.start_again()
    state_mb = sum(p.stat().st_size for p in folder.glob("state.sqlite*")) >> 20
    outcome = _verdict(judge, began, before, mb=200)
    return Outcome(held=outcome.held and state_mb < 64, measured=f"{outcome.measured}; state {state_mb} MB")


@attack(
    "C105",
    "c",
    "evidence requests and answers, lost peers and responses sent as if by the judge or respond",
    asked="no agent is asked, nothing is told",
    limit_s=60,
)
def requests_from_an_agent(folder: Path) -> Outcome:
    judge, began, before = _begin(folder)
    count = len(judge.outputs)
    for name in EventName:
        if name in TABLES or not name.value.split(".")[-1].startswith(
            ("evidence", "peer", "respon", "action", "incident")
        ):
            continue
        for topic in (TOPIC_BLOCKS, TOPIC_LOGS):
            attributes = {
                "id": "x",
                "action": "stack",
                "rank": 0,
                "node": "node-victim",
                "piece": -1,
                "pieces": 1 << 31,
                "incident": "0" * 16,
                "role": "judge",
                "why": "silent",
                "silent_ns": 10**12,
                "outcome": "done",
                "operation": "restart_job",
            }
            try:
                judge.put(
                    Event(
                        name=name,
                        identity=_identity(VICTIM, 1, f"node-{VICTIM}"),
                        time_ns=judge.now_ns,
                        mono_ns=1,
                        attributes=attributes,
                    ),
                    topic=topic,
                )
            except (TypeError, ValueError):  # it has no such event on the wire
                continue
    judge.pass_time(5)
    sent = [r for r in judge.outputs[count:] if isinstance(r.payload, Event) and "request" in r.payload.name.value]
    outcome = _verdict(judge, began, before)
    return Outcome(held=outcome.held and not sent, measured=f"{len(sent)} requests sent on; {outcome.measured}")


@attack(
    "C106",
    "c",
    "metrics: 200,000 points in one message, names and attributes without end, NaN, 2^63 stamps",
    asked="bounded",
    limit_s=120,
)
@in_judges_memory
def many_metrics(folder: Path) -> Outcome:
    from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
    from opentelemetry.proto.metrics.v1.metrics_pb2 import MetricsData

    judge, began, before = _begin(folder)
    wanted = sorted(wanted_metrics())[:3]
    worst = 0.0
    for number, name in enumerate([*wanted, "x" * 100_000, ""]):
        data = MetricsData()
        scope = data.resource_metrics.add().scope_metrics.add()
        metric = scope.metrics.add(name=name)
        for n in range(6_000):
            point = metric.gauge.data_points.add(
                as_double=float("nan") if n % 3 else 1e308, time_unix_nano=(1 << 64) - 1
            )
            for key in ("gpu", "Hostname", "device", f"k{n}"):
                value = AnyValue(string_value=f"v{number}-{n}")
                point.attributes.append(KeyValue(key=key, value=value))
        wide = scope.metrics.add(name=wanted[0]).gauge.data_points.add(as_double=1.0)
        wide.attributes.extend(KeyValue(key=f"a{n}", value=AnyValue(string_value="v")) for n in range(30_000))
        at = time.process_time()
        judge.put_bytes(data.SerializeToString()[: 4 << 20], topic="otlp_metrics")
        worst = max(worst, time.process_time() - at)
    judge.pass_time(3)
    outcome = _verdict(judge, began, before, cpu_s=25, mb=250)
    return Outcome(held=outcome.held and worst < 4, measured=f"worst {worst:.1f} s; {outcome.measured}")


@attack(
    "C107",
    "c",
    "what people say: a plan that ends before it begins, at 1e18, NaN, inf; texts of 100 kB",
    asked="no page is silenced by nonsense, the judge lives",
    limit_s=90,
)
def odd_plans(folder: Path) -> Outcome:
    from whichrank.telemetry.records import Finding

    judge, began, before = _begin(folder)
    for number, (begin, end) in enumerate(
        ((1e18, -1e18), (5.0, 1.0), (float("nan"), float("nan")), (float("inf"), float("-inf")), (-1e308, 1e308))
    ):
        plan = {
            "id": f"p{number}",
            "what": "maintenance",
            "begin": begin,
            "end": end,
            "told": begin,
            "by": "x" * 100_000,
            "where": {"fabric": ["*"] if number < 4 else []},
        }
        try:
            judge.put(
                Finding(
                    identity=Identity(cluster=CLUSTER),
                    key=f"p{number}",
                    cleared=False,
                    time_ns=judge.now_ns,
                    body={"plan": plan},
                ),
                topic=TOPIC_WORDS,
            )
        except ValueError:  # no JSON of NaN
            continue
    judge.pass_time(3)
    outcome = _verdict(judge, began, before)
    severities = [each["severity"] for each in judge.incidents().values()]
    return Outcome(held=outcome.held and severities == ["page"], measured=f"{severities}; {outcome.measured}")


class _Fails(JobOperator):
    """As a defect would be that nobody knows yet: it fails on jobs of one name."""

    def process(self, records: Sequence[Record], ctx: Context) -> None:
        """Raises for jobs whose names hold `evil`."""
        if any("evil" in record.payload.identity.job for record in records if isinstance(record.payload, Event)):
            raise RuntimeError("a defect " + "x" * 10_000)
        super().process(records, ctx)


@attack(
    "C108",
    "c",
    "an unknown defect sets aside 6,000 keys, twice each; then the judge is started again",
    asked="bounded memory, state and letters; the victim is judged",
    limit_s=300,
)
@in_judges_memory
def many_keys_aside(folder: Path) -> Outcome:
    import tests.attacks.a_judge as a_judge

    vars(a_judge)["JobOperator"] = _Fails
    judge = Judge(folder)
    judge.start_job()
    forget_peak()
    began, before = time.process_time(), peak_mb()
    for first in range(0, 6000, 200):
        for _ in range(2):
            judge.put(
                *(judge.of_rank(EventName.RANK_STARTED, 0, f"evil-{first + n}", pid=1) for n in range(200)), pass_s=0.5
            )
    failures, letters = judge.runner.contained, judge.letters
    judge.start_again()
    judge.put(judge.of_rank(EventName.RANK_STARTED, 0, "evil-5999", pid=1))
    still_muted = judge.letters == letters
    more = peak_mb() - before
    state_mb = sum(p.stat().st_size for p in folder.glob("state.sqlite*")) >> 20
    judge.kill_rank()
    told = judge.told_kinds()
    incidents = [each["kind"] for each in judge.incidents(None).values()]
    return Outcome(
        held=failures > 0
        and more < 200
        and state_mb < 200
        and told == ["rank_died"]
        and still_muted
        and len(incidents) < 80,
        measured=f"{failures} contained, {letters} letters, +{more} MB, state {state_mb} MB, muted after the restart: "
        f"{still_muted}, {len(incidents)} incidents, the victim's death {told}, {time.process_time() - began:.0f} s",
    )


@attack("C109", "c", "20,000 owners of jobs, told as if by Slurm", asked="bounded", limit_s=180)
@in_judges_memory
def many_owners(folder: Path) -> Outcome:
    judge, began, before = _begin(folder)
    for first in range(0, 20_000, 500):
        judge.put(
            *(
                Event(
                    name=EventName.SCHEDULER,
                    identity=_identity(),
                    time_ns=judge.now_ns,
                    mono_ns=1,
                    attributes={"scheduler": "slurm", "what": "owner", "job": str(first + n), "owner_uid": 7},
                )
                for n in range(500)
            )
        )
    return _verdict(judge, began, before, cpu_s=30, mb=80)


@attack(
    "C110",
    "c",
    "conditions of 3,000 devices that are over before they began, and begin again at once",
    asked="bounded; the victim is judged",
    limit_s=120,
)
@in_judges_memory
def many_conditions(folder: Path) -> Outcome:
    judge, began, before = _begin(folder)
    for first in range(0, 3_000, 200):
        events = []
        for n in range(200):
            for over, at in (
                (True, judge.now_ns - 9 * SECOND),
                (False, judge.now_ns),
                (True, judge.now_ns - 99 * SECOND),
            ):
                events.append(
                    Event(
                        name=EventName.KERNEL_EVENT,
                        identity=_identity(),
                        time_ns=at,
                        mono_ns=1,
                        attributes={
                            "event": "xid",
                            "code": "79",
                            "severity": "fatal",
                            "device": f"d{first + n}",
                            "device_kind": "gpu",
                            "domain": "hardware",
                            "over": over,
                            "text": "x" * 500,
                        },
                    )
                )
        judge.put(*events, pass_s=0.2)
    judge.pass_time(3)
    return _verdict(judge, began, before, cpu_s=60, mb=200)
