"""Records that decode and make no sense: what they do to the judge of a whole cluster."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np

from tests.attacks.a_judge import (
    CLUSTER,
    SECOND,
    VICTIM,
    Judge,
    forget_peak,
    in_judges_memory,
    memory_bound,
    peak_mb,
    steps_of,
)
from tests.attacks.register import Outcome, attack
from whichrank.telemetry.otlp import encode_payloads
from whichrank.telemetry.records import Block, Event, Finding, Group, Identity
from whichrank.telemetry.tables import GROUP_PROGRESS, PROGRESS
from whichrank.telemetry.topics import TOPIC_FINDINGS
from whichrank.telemetry.vocabulary import EventName

MEGABYTE = 1 << 20


@attack(
    "A29", "a", "steps 0, 1, 2 and then 5,000,000 / 10^12 / 2^62", asked="the cluster's judge survives", limit_s=120
)
def far_steps(folder: Path) -> Outcome:
    judge = Judge(folder)
    judge.start_job()
    judge.kill_rank()
    forget_peak()
    before, told = peak_mb(), judge.incidents()
    for number, far in enumerate((5_000_000, 10**12, 1 << 62)):
        job = f"evil-{number}"
        judge.start_job(job, ranks=2)
        with memory_bound(300 * MEGABYTE):
            for values in ([0, 1, 2], [far], [far + 1, 3]):
                for rank in range(2):
                    judge.put(*steps_of(values, job=job, judge=judge, rank=rank), pass_s=1.0)
            judge.pass_time(6)
    failures, more = judge.runner.contained, peak_mb() - before
    same, lives = judge.incidents() == told, judge.lives()
    return Outcome(
        held=not failures and more < 64 and same and lives and len(told) == 1,
        measured=f"{failures} contained, +{more} MB, incident {'unchanged' if same else 'CHANGED'}, lives: {lives}",
    )


@attack(
    "A30", "a", "three rings, same rank, the second claims to be 20 s older", asked="the judge survives", limit_s=60
)
def older_launch(folder: Path) -> Outcome:
    judge = Judge(folder)
    judge.start_job()
    now = judge.now_ns
    for attempt, at in (("a1", now), ("a2", now - 20 * SECOND), ("a3", now), ("a4", now - 40 * SECOND), ("a5", now)):
        identity = Identity(cluster=CLUSTER, job="evil", attempt=attempt, node="n", rank=0)
        judge.put(
            Event(name=EventName.RANK_STARTED, identity=identity, time_ns=at, mono_ns=1, attributes={"pid": 1}),
            Event(name=EventName.LAUNCH_MET, identity=identity, time_ns=at, mono_ns=1, attributes={"token": attempt}),
        )
    judge.kill_rank()
    failures, told, lives = judge.runner.contained, judge.told_kinds(), judge.lives()
    return Outcome(
        held=not failures and told == ["rank_died"] and lives,
        measured=f"{failures} contained, the victim's death: {told}, lives: {lives}",
    )


@attack("A31", "a", "rank 4,194,303 of 4,194,304, ten jobs", asked="bounded", limit_s=120)
@in_judges_memory
def highest_rank(folder: Path) -> Outcome:
    judge = Judge(folder)
    judge.start_job()
    forget_peak()
    before, began = peak_mb(), time.process_time()
    rank = (1 << 22) - 1
    for number in range(10):
        job = f"evil-{number}"
        judge.put(judge.of_rank(EventName.RANK_STARTED, rank, job, pid=7, world_size=1 << 22))
        identity = Identity(cluster=CLUSTER, job=job, attempt=f"{job}-1", node=f"node-{job}")
        for name, dtype in ((EventName.BLOCK_PROGRESS, PROGRESS), (EventName.BLOCK_GROUP_PROGRESS, GROUP_PROGRESS)):
            rows = np.zeros(1, dtype)
            rows["rank"] = rank
            groups = (Group(uid="g", name="0", ranks="0-4194303", size=1 << 22, is_default=True),)
            group = groups if name is EventName.BLOCK_GROUP_PROGRESS else ()
            judge.put(Block(name=name, identity=identity, rows=rows, groups=group, time_ns=judge.now_ns))
        for _ in range(3):
            judge.put(*steps_of([1, 2], job=job, judge=judge, rank=rank), pass_s=1.0)
    judge.kill_rank()
    cpu, more, failures = time.process_time() - began, peak_mb() - before, judge.runner.contained
    told = judge.told_kinds()
    return Outcome(
        held=more < 64 and cpu < 15 and not failures and told == ["rank_died"],
        measured=f"+{more} MB, {cpu:.1f} CPU s for ten, {failures} contained, the victim's death: {told}",
    )


@attack("A32", "a", "4,096 process groups over 8 ranks, and 64 of a million ranks each", asked="survives", limit_s=120)
@in_judges_memory
def many_groups(folder: Path) -> Outcome:
    judge = Judge(folder)
    judge.start_job()
    judge.start_job("evil", ranks=8)
    forget_peak()
    before, began = peak_mb(), time.process_time()
    identity = Identity(cluster=CLUSTER, job="evil", attempt="evil-1", node="node-evil")
    for first in range(0, 4096, 512):
        groups = tuple(Group(uid=f"g{first + n}", name=str(n), ranks="0-7", size=8) for n in range(512))
        rows = np.zeros(512, GROUP_PROGRESS)
        rows["group"], rows["rank"] = np.arange(512), np.arange(512) % 8
        judge.put(Block(name=EventName.BLOCK_GROUP_PROGRESS, identity=identity, rows=rows, groups=groups,
                        time_ns=judge.now_ns))  # fmt: skip
    large = tuple(Group(uid=f"h{n}", name=str(n), ranks=f"{n}-999999", size=1_000_000) for n in range(64))
    rows = np.zeros(64, GROUP_PROGRESS)
    rows["group"] = np.arange(64)
    judge.put(Block(name=EventName.BLOCK_GROUP_PROGRESS, identity=identity, rows=rows, groups=large,
                    time_ns=judge.now_ns))  # fmt: skip
    judge.pass_time(5)
    judge.kill_rank()
    cpu, more, told = time.process_time() - began, peak_mb() - before, judge.told_kinds()
    return Outcome(
        held=more < 200 and cpu < 15 and told == ["rank_died"] and not judge.runner.contained,
        measured=f"{cpu:.1f} CPU s, +{more} MB, {judge.runner.contained} contained, the victim's death: {told}",
    )


@attack("C8", "c", "decoder bombs: 450,000 empty records, deep values, 100,000 attributes, an 800,000-digit number",
        asked="never raises, bounded", limit_s=120)  # fmt: skip
@in_judges_memory
def decoder_bombs(folder: Path) -> Outcome:
    judge = Judge(folder)
    judge.start_job()
    forget_peak()
    before, began, worst = peak_mb(), time.process_time(), 0.0
    identity = Identity(cluster=CLUSTER, job="evil", attempt="a", node="n", rank=0)

    def finding(text: str) -> bytes:
        plain = encode_payloads([Finding(identity=identity, key="k", cleared=False, time_ns=1, body={"x": "MARK"})])
        assert b'{"x":"MARK"}' in plain
        return plain  # the body's own length is checked below: a text in place of another of other length is no message

    bombs = [
        b"\x0a\x00" * 450_000,
        b"\x0a\x04\x12\x02\x12\x00" * 150_000,
        b"\xff" * 900_000,
        b"\x0a\x80\x80\x80\x80\x08" * 100,
        encode_payloads([Event(name=EventName.AGENT_HEALTH, identity=identity, time_ns=1,
                               attributes={f"a{n}": n for n in range(40_000)})]),
        encode_payloads([Finding(identity=identity, key="k", cleared=False, time_ns=1,
                                 body={"plan": "[" * 400_000})]),
        encode_payloads([Event(name=EventName.RANK_STARTED, identity=identity, time_ns=1,
                               attributes={"pid": 1, "script": "x" * 800_000})]),
        finding("x"),
    ]  # fmt: skip
    for bomb in bombs:
        for topic in ("whichrank.blocks", "otlp_logs", "otlp_metrics", "whichrank.words"):
            at = time.process_time()
            judge.put_bytes(bomb, topic=topic)
            worst = max(worst, time.process_time() - at)
    judge.kill_rank()
    more, told = peak_mb() - before, judge.told_kinds()
    return Outcome(
        held=told == ["rank_died"] and more < 200 and worst < 3,
        measured=f"worst {worst:.2f} CPU s, +{more} MB, {time.process_time() - began:.1f} s in all, death: {told}",
    )


@attack("B6", "b", "a finding {condition: 1}, and others that are none", asked="dead letters", limit_s=60)
def odd_findings(folder: Path) -> Outcome:
    judge = Judge(folder)
    judge.start_job()
    judge.kill_rank()
    told = judge.incidents()
    identity = Identity(cluster=CLUSTER, job=VICTIM, attempt=f"{VICTIM}-1", node="n")
    bodies: list[dict[str, Any]] = [
        {"condition": 1},
        {"watch": []},
        {"interval": 7},
        {"label": "x"},
        {"plan": []},
        {"placement": 0},
    ]
    for number, body in enumerate(bodies):
        for topic in ("whichrank.blocks", "otlp_logs", TOPIC_FINDINGS, "whichrank.words"):
            key = "people" if topic == TOPIC_FINDINGS else "k"
            odd = Finding(identity=identity, key=f"k{number}", cleared=False, time_ns=judge.now_ns, body=body)
            judge.put(odd, topic=topic, key=key)
    same, letters, lives = judge.incidents() == told, judge.letters, judge.lives()
    return Outcome(
        held=same and letters >= 20 and lives,
        measured=f"{letters} dead letters of 24, incident {'unchanged' if same else 'CHANGED'}, lives: {lives}",
    )
