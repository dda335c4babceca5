"""Whoever has the agents' rights on Kafka: what they may not say, and what is large. Over the embedded bus, with the
decoder, runner and operators as `whichrank process` has them; batches as kafka-python unpacks them."""

from __future__ import annotations

import gzip
import time
from pathlib import Path

from tests.attacks.a_judge import CLUSTER, SECOND, VICTIM, Judge, forget_peak, in_judges_memory, peak_mb
from tests.attacks.register import Outcome, attack
from whichrank.commands.run_folder.labels import finding_of
from whichrank.commands.run_folder.maintenance_plans import finding_of_plan
from whichrank.commands.run_folder.people_codec import MaintenancePlan, PeopleLabel
from whichrank.telemetry.incident_document import HandlingWord, IncidentLabel
from whichrank.telemetry.records import Event, Finding, Identity, Incident
from whichrank.telemetry.vocabulary import EventName

AGENTS_TOPICS = ("whichrank.blocks", "otlp_logs", "otlp_metrics", "otlp_spans")


def _victim(rank: int = -1) -> Identity:
    return Identity(cluster=CLUSTER, job=VICTIM, attempt=f"{VICTIM}-1", node="node-victim", rank=rank)


def _died(judge: Judge, key: str = "forged", *, cleared: bool = False) -> Finding:
    now = judge.now_ns / 1e9
    body = {
        "kind": "rank_died", "bucket": "crash", "scope": "rank", "suspects": [{"rank": 1}], "confidence": 0.9,
        "times": {"onset": now, "detected": now}, "victims": {"count": 3, "ranks": "0,2-3"}, "severity": "page",
    }  # fmt: skip
    return Finding(identity=_victim(1), key=key, cleared=cleared, time_ns=judge.now_ns, body=body)


@attack("C1", "c", "agent's rights: forged Finding on each topic of agents", asked="ignored", limit_s=60)
def forged_finding(folder: Path) -> Outcome:
    judge = Judge(folder)
    judge.start_job()
    for topic in AGENTS_TOPICS:
        judge.put(_died(judge), topic=topic)
    judge.pass_time(30)
    return Outcome(
        held=not judge.incidents(None) and judge.letters >= 2,
        measured=f"{len(judge.incidents(None))} incidents, {judge.letters} dead letters",
    )


@attack("C2", "c", "the same: forged `cleared` of a true finding", asked="ignored", limit_s=60)
def forged_end(folder: Path) -> Outcome:
    judge = Judge(folder)
    judge.start_job()
    judge.kill_rank()
    told = judge.incidents()
    true = [r.payload for r in judge.outputs if isinstance(r.payload, Finding) and "kind" in r.payload.body]
    for finding in true:
        for topic in AGENTS_TOPICS:
            ended = Finding(identity=finding.identity, key=finding.key, cleared=True, time_ns=judge.now_ns,
                            body=finding.body)  # fmt: skip
            judge.put(ended, topic=topic)
    judge.pass_time(5)
    now = judge.incidents()
    return Outcome(
        held=bool(told) and now == told and all(each["state"] == "open" for each in now.values()),
        measured=f"{len(true)} true findings, states: {[each['state'] for each in now.values()]}",
    )


@attack("C3", "c", "the same: forged label (closed by root, wrong)", asked="ignored", limit_s=60)
def forged_label(folder: Path) -> Outcome:
    judge = Judge(folder)
    judge.start_job()
    judge.kill_rank()
    (told,) = judge.incidents().values()
    word = HandlingWord(by="root", time_s=judge.now_ns / 1e9, because="I say so")
    said = IncidentLabel(wrong=True, keys=("wrong", "closed"), by="root", time_s=judge.now_ns / 1e9, closed=word)
    label = finding_of(PeopleLabel(incident=told["id"], said=said), CLUSTER)
    for topic in (*AGENTS_TOPICS, "whichrank.findings"):
        judge.put(label, topic=topic)
    judge.pass_time(3)
    before = judge.incidents()[told["id"]].get("label")
    judge.put(label, topic="whichrank.words")  # so it is taken from who may say it
    judge.pass_time(3)
    after = judge.incidents()[told["id"]].get("label")
    return Outcome(held=not before and bool(after), measured=f"from agents: {before}; from people: {bool(after)}")


@attack("C4", "c", "the same: forged plan maintenance fabric=*, 20 days", asked="ignored", limit_s=60)
def forged_plan(folder: Path) -> Outcome:
    judge = Judge(folder)
    judge.start_job()
    now = judge.now_ns / 1e9
    plan = MaintenancePlan(
        id="x", what="maintenance", begin_s=now - 60, end_s=now + 20 * 86_400, told_s=now - 5, by="root",
        where={"fabric": ("*",)}, jobs=(),
    )  # fmt: skip
    for topic in (*AGENTS_TOPICS, "whichrank.findings"):
        judge.put(finding_of_plan(plan, CLUSTER), topic=topic)
    judge.pass_time(5)
    judge.kill_rank()
    judge.pass_time(60)
    severities = [each["severity"] for each in judge.incidents().values()]
    judge.put(finding_of_plan(plan, CLUSTER), topic="whichrank.words")
    judge.start_job("later")
    judge.kill_rank("later")
    judge.pass_time(60)
    planned = [each["severity"] for each in judge.incidents("later").values()]
    return Outcome(
        held=severities == ["page"] and planned == ["info"],
        measured=f"forged: {severities}; said by people: {planned}",
    )


@attack("C5", "c", "forged incident document (`merged`, id of an incident to come)", asked="ignored", limit_s=60)
def forged_document(folder: Path) -> Outcome:
    first = Judge(folder / "first")
    first.start_job()
    first.kill_rank()
    (true,) = first.incidents().values()
    judge = Judge(folder / "second")
    judge.start_job()
    for state in ("merged", "resolved", "open"):
        forged = Incident(document={**true, "state": state, "merged_into": "0" * 16, "revision": 7})
        for topic in AGENTS_TOPICS:
            judge.put(forged, topic=topic)
    judge.kill_rank()
    told = [(each["id"] == true["id"], each["state"]) for each in judge.incidents().values()]
    return Outcome(held=told == [(True, "open")], measured=f"the true one, as it is told: {told}")


@attack("C9", "c", "gzip and zstd batches that unpack to 300 MB, and one of a codec that is not here", asked="bounded",
        limit_s=120)  # fmt: skip
def large_batches(folder: Path) -> Outcome:
    import zstandard
    from kafka.record.default_records import DefaultRecordBatch
    from kafka.record.memory_records import MemoryRecords, MemoryRecordsBuilder

    import whichrank.transport.kafka_python_client  # noqa: F401  # as the service loads it

    def batch(codec: int, value: bytes, inside: bytes | None = None) -> bytes:
        builder = MemoryRecordsBuilder(magic=2, compression_type=0, batch_size=1 << 30)
        builder.append(timestamp=1, key=b"k", value=value)
        builder.close()
        plain = bytearray(builder.buffer())
        if inside is None:
            return bytes(plain)
        head = DefaultRecordBatch.HEADER_STRUCT.size
        plain[21:23] = codec.to_bytes(2, "big")
        return _sealed(bytes(plain[:head]) + inside)

    bomb = bytes(300 << 20)
    packed = [(1, gzip.compress(bomb)), (4, zstandard.ZstdCompressor().compress(bomb)), (1, b"\x1f\x8b\x08 no gzip")]
    packed += [(2, b"\x80\x80\x80\x80\x0f" + bytes(100)), (3, b"lz4"), (7, b"?")]
    del bomb
    small = batch(0, b"sound")
    log = b"".join(batch(codec, b"x", inside) for codec, inside in packed) + small
    forget_peak()
    before = peak_mb()
    records, values = MemoryRecords(log), list[bytes]()
    while (found := records.next_batch()) is not None:
        values += [record.value for record in found]
    more = peak_mb() - before
    return Outcome(
        held=values == [b"sound"] and more < 150,
        measured=f"{len(log) >> 10} kB: +{more} MB; messages behind them read: {values == [b'sound']}",
    )


def _sealed(batch: bytes) -> bytes:
    """With its length and checksum right."""
    from kafka.record.util import calc_crc32c

    batch = batch[:8] + (len(batch) - 12).to_bytes(4, "big") + batch[12:]
    checksum: int = calc_crc32c(batch[21:])
    return batch[:17] + checksum.to_bytes(4, "big") + batch[21:]


@attack("C10", "c", "40,000 job ids", asked="bounded; who is busy stays", limit_s=900, long=True)
@in_judges_memory
def many_jobs(folder: Path) -> Outcome:
    judge = Judge(folder, keeps={VICTIM})
    judge.start_job()
    forget_peak()
    before, peaks = peak_mb(), list[int]()
    for first in range(0, 40_000, 200):
        events = [judge.of_rank(EventName.RANK_STARTED, 0, f"evil-{first + n}", pid=1) for n in range(200)]
        judge.put(*events, judge.of_rank(EventName.RANK_CONTINUED, 0), pass_s=1.0)
        if first % 5_000 == 0:
            peaks.append(peak_mb() - before)
    last, forgotten = peak_mb() - before, judge.runner.forgotten
    judge.kill_rank()
    return Outcome(
        held=last < 700 and forgotten > 20_000 and judge.told_kinds() == ["rank_died"],
        measured=f"+{last} MB at the end, {forgotten} forgotten, the victim's death: {judge.told_kinds()}; "
        f"every 5,000: {peaks}",
    )


@attack("C11", "c", "8,000 nodes, 4,000 attempts, 4,000 clusters", asked="bounded", limit_s=300, long=True)
@in_judges_memory
def many_names(folder: Path) -> Outcome:
    judge = Judge(folder, keeps={VICTIM})
    judge.start_job()
    forget_peak()
    before = peak_mb()
    for first in range(0, 8_000, 200):
        events = []
        for n in range(first, first + 200):
            node = Identity(cluster=CLUSTER, node=f"evil-{n}")
            events.append(Event(name=EventName.KERNEL_EVENT, identity=node, time_ns=judge.now_ns,
                                attributes={"event": "oom_kill", "severity": "error"}))  # fmt: skip
            attempt = Identity(cluster=CLUSTER, job="evil", attempt=f"a{n % 4000}", node="n", rank=n % 64)
            events.append(Event(name=EventName.RANK_STARTED, identity=attempt, time_ns=judge.now_ns + n * SECOND,
                                attributes={"pid": n + 1}))  # fmt: skip
            cluster = Identity(cluster=f"evil-{n % 4000}", job=f"j{n}", node=f"m{n}")
            events.append(Event(name=EventName.KERNEL_EVENT, identity=cluster, time_ns=judge.now_ns,
                                attributes={"event": "oom_kill", "severity": "error"}))  # fmt: skip
        judge.put(*events, judge.of_rank(EventName.RANK_CONTINUED, 0), pass_s=0.5)
    more = peak_mb() - before
    judge.kill_rank()
    return Outcome(
        held=more < 300 and judge.told_kinds() == ["rank_died"],
        measured=f"+{more} MB, {judge.runner.contained} contained, the victim's death: {judge.told_kinds()}",
    )


@attack("C12", "c", "pathological texts of 128 kB through the redaction", asked="linear", limit_s=60)
def slow_texts(folder: Path) -> Outcome:
    from whichrank.telemetry.redaction import redact

    size, worst, slowest = 128 << 10, 0.0, ""
    parts: tuple[str, ...] = (
        "a",
        "=",
        "password=",
        "-----BEGIN ",
        "://",
        "@",
        "\\",
        '"',
        "{",
        " ",
        "\n",
        "A1b2",
        "eyJ",
        ".",
        "AKIA",
    )
    parts += ("--token ", "Bearer ", "key: ", "x:y@", "0", "=\n", "'\"", "é")
    for part in parts:
        began = time.process_time()
        redact((part * size)[:size])
        took = time.process_time() - began
        if took > worst:
            worst, slowest = took, part
    return Outcome(held=worst < 1.0, measured=f"{len(parts)} texts, {worst:.2f} CPU s at most ({slowest!r})")
