"""Nonsense that decodes, of every type of record, in the middle of an open incident: nothing may come of it.

For `--fuzz-s` seconds each (20); F1 and F2 for ten minutes each, in `make attacks-long`. What failed is repeated by
its seed: FUZZ_SEED=N python -m tests.attacks --only F1.
"""

from __future__ import annotations

import os
import random
import string
import time
from pathlib import Path
from typing import Any

import numpy as np

from tests.attacks.a_judge import CLUSTER, Judge, forget_peak, peak_mb
from tests.attacks.register import SHORT_FUZZ_S, Outcome, attack, fuzz_s
from whichrank.telemetry.attributes import EVENT_ATTRIBUTE_TYPES
from whichrank.telemetry.otlp import encode_payloads
from whichrank.telemetry.records import Block, Event, Finding, Group, Identity
from whichrank.telemetry.tables import TABLES
from whichrank.telemetry.topics import TOPIC_BLOCKS, TOPIC_LOGS, TOPIC_WORDS
from whichrank.telemetry.vocabulary import Bucket, EventName, Kind, Scope, Severity

MOST_RECORDS = 1_000_000
_INTEGERS = (0, 1, -1, 2, 3, 7, 63, 255, 256, 65_535, 65_536, 1 << 22, 10**9, 10**12, 1 << 40, (1 << 61), -(1 << 61))
_FLOATS = (0.0, -0.0, 1.0, -1.0, 1e-300, 1e300, -1e300, float("inf"), float("-inf"), float("nan"))
_TEXTS = (
    "",
    "a",
    "0",
    "0-3",
    "1-0",
    "5-",
    "-",
    "0-65535",
    "x" * 300,
    "\x1b]0;x\x07",
    "\n",
    "é",
    "node=n",
    "\u202e",
    "/",
    "../..",
    "*",
)
_WORDS = (
    "condition",
    "watch",
    "interval",
    "placement",
    "topology",
    "change",
    "load",
    "plan",
    "label",
    "kind",
    "bucket",
)
_FIELDS = (
    "suspects", "victims", "coverage", "first_bad", "times", "onset", "detected", "evidence", "ruled_out", "confidence",
    "severity", "scope", "job", "rank", "node", "device", "entity", "entity_kind", "name", "since", "until", "ranks",
    "others", "sees", "begin", "end", "nodes", "attempt", "labels", "what", "where", "new", "old", "time", "service",
    "operation", "rate", "usual", "jobs", "told", "by", "incident", "wrong", "cause", "count", "facts", "number",
    "world", "parts", "gpus", "step", "grew", "stalls", "always", "steps_before", "moved", "closed", "acknowledged",
    "id", "text", "value", "signal", "source", "shows", "state", "revision", "merged_into", "explains", "domain",
)  # fmt: skip


class Nonsense:
    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.numbers = np.random.default_rng(seed)

    def integer(self) -> int:
        return (
            self.random.choice(_INTEGERS) if self.random.random() < 0.6 else self.random.randrange(-(1 << 61), 1 << 61)
        )

    def text(self) -> str:
        if self.random.random() < 0.7:
            return self.random.choice(_TEXTS)
        return "".join(self.random.choices(string.printable, k=self.random.randrange(40)))

    def value(self, deep: int = 0) -> Any:
        sort = self.random.randrange(6 if deep > 3 else 9)
        if sort == 0:
            return self.integer()
        if sort == 1:
            return self.random.choice(_FLOATS)
        if sort == 2:
            return self.text()
        if sort == 3:
            return self.random.random() < 0.5
        if sort == 4:
            return None
        if sort == 5:
            return self.random.choice((*Kind, *Bucket, *Scope, *Severity)).value
        if sort == 6:
            return [self.value(deep + 1) for _ in range(self.random.randrange(4))]
        return self.object(deep + 1)

    def object(self, deep: int = 0) -> dict[str, Any]:
        names = self.random.choices(_FIELDS + _WORDS, k=self.random.randrange(8))
        return {name: self.value(deep) for name in names}

    def identity(self, job: str) -> Identity:
        pick = self.random.choice
        return Identity(
            cluster=CLUSTER, job=job, attempt=pick((f"{job}-1", "a1", "a2", "", self.text())),
            world=pick(("", "w", self.text())), node=pick((f"node-{job}", "n1", "", self.text())),
            rank=pick((-1, 0, 1, 2, 3, 7, 65_535, (1 << 22) - 1)),
        )  # fmt: skip

    def event(self, job: str, now_ns: int) -> Event:
        names = [n for n in EventName if n not in TABLES and n not in (EventName.FINDING, EventName.INCIDENT)]
        known = list(EVENT_ATTRIBUTE_TYPES)
        attributes: dict[str, Any] = {}
        for name in self.random.choices(known, k=self.random.randrange(14)):
            sort = EVENT_ATTRIBUTE_TYPES[name]
            sorts = sort if isinstance(sort, tuple) else (sort,)
            attributes[name] = self.of_sort(self.random.choice(sorts))
        for name in ("pid", "exit_code", "type", "message", "signal", "token", "checkpoint", "read", "step", "phase",
                     "group", "seq", "seqs", "sites", "point_to_point", "event", "what", "mount", "class"):  # fmt: skip
            if self.random.random() < 0.5:
                known_sort, any_sort = EVENT_ATTRIBUTE_TYPES.get(name), self.random.choice((int, str, tuple))
                attributes[name] = self.of_sort(known_sort if isinstance(known_sort, type) else any_sort)
        at = self.random.choice((now_ns, now_ns - 20 * 10**9, now_ns + 10**9, 0, 1, (1 << 62) - 1))
        return Event(name=self.random.choice(names), identity=self.identity(job), time_ns=at,
                     mono_ns=self.random.choice((0, 1, at, (1 << 61))), attributes=attributes)  # fmt: skip

    def of_sort(self, sort: type) -> Any:
        if sort is bool:
            return self.random.random() < 0.5
        if sort is int:
            return self.integer()
        if sort is float:
            return self.random.choice(_FLOATS)
        if sort is tuple:
            return tuple(self.random.choice((self.integer(), self.text())) for _ in range(self.random.randrange(5)))
        return self.text()

    def block(self, job: str, now_ns: int) -> Block:
        name = self.random.choice(list(TABLES))
        count = self.random.choice((0, 1, 2, 5, 40))
        rows = np.zeros(count, TABLES[name])
        groups = tuple(self.group() for _ in range(self.random.randrange(1, 4)))
        for column in rows.dtype.names or ():
            field = rows[column]
            sound = column in ("rank", "group") or self.random.random() < 0.4
            if field.dtype.kind == "f":
                field[...] = self.numbers.choice(_FLOATS, field.shape)
            elif sound:
                field[...] = self.numbers.integers(0, len(groups) if column == "group" else 4, field.shape)
            else:
                most = np.iinfo(field.dtype)
                chosen = self.numbers.choice([v for v in _INTEGERS if most.min <= v <= most.max], field.shape)
                field[...] = chosen
        if count and self.random.random() < 0.1:
            rows["rank"][0] = self.random.choice((65_535, 20_000, (1 << 22) - 1))
        return Block(
            name=name,
            identity=self.identity(job),
            rows=rows,
            time_ns=now_ns,
            groups=groups if "group" in (rows.dtype.names or ()) else (),
            clock_offset_ns=self.random.choice((0, now_ns, (1 << 61), -(1 << 61))),
        )

    def group(self) -> Group:
        pick = self.random.choice
        return Group(
            uid=f"g{self.random.randrange(9)}",
            name=self.text(),
            ranks=pick(("0-3", "0-7", "0-65535", "")),
            size=pick((0, 4, 8, 1 << 20)),
            backend=pick(("nccl", "gloo", "")),
            timeout_s=pick((0.0, 1.0, 1e300)),
            is_default=self.random.random() < 0.5,
        )

    def finding(self, job: str, now_ns: int) -> Finding:
        body = self.object()
        if self.random.random() < 0.6:
            body |= {"kind": self.random.choice(list(Kind)).value, "bucket": self.random.choice(list(Bucket)).value}
        else:
            word = self.random.choice(_WORDS)
            body = {word: self.value() if self.random.random() < 0.3 else self.object()}
        return Finding(
            identity=self.identity(job),
            key=self.random.choice(("k1", "k2", self.text() or "k")),
            body=body,
            cleared=self.random.random() < 0.3,
            time_ns=self.random.choice((now_ns, 1)),
        )


def first_seed() -> int:
    """The same in each short run; another one each time in a long one, which may find more."""
    return int(os.environ.get("FUZZ_SEED") or (7 if fuzz_s() <= SHORT_FUZZ_S else time.time()))


def _fuzz(folder: Path, what: str) -> Outcome:
    seconds, seed = fuzz_s(), first_seed()
    nonsense, judge = Nonsense(seed), Judge(folder)
    judge.start_job()
    judge.kill_rank()
    judge.pass_time(60)  # what is told of it later is told
    told = judge.incidents()
    forget_peak()
    before, began, count, refused = peak_mb(), time.process_time(), 0, 0
    same = True
    while time.process_time() - began < seconds and count < MOST_RECORDS:
        job = f"evil-{nonsense.random.randrange(40)}"
        for _ in range(50):
            now = judge.now_ns
            if what == "findings":
                judge.runner.seed([_as_concluded(judge, nonsense.finding(job, now))])
                payload: Any = nonsense.finding(job, now)
                topic = TOPIC_WORDS
            else:
                payload = nonsense.event(job, now) if nonsense.random.random() < 0.5 else nonsense.block(job, now)
                topic = nonsense.random.choice((TOPIC_BLOCKS, TOPIC_LOGS))
            try:
                value = encode_payloads([payload])
            except (ValueError, TypeError, OverflowError, UnicodeError):
                refused += 1  # it could not be sent either
                continue
            judge.put_bytes(value, topic=topic, pass_s=nonsense.random.choice((0.0, 0.01, 0.3)))
            count += 1
        same = same and judge.incidents() == told
        del judge.outputs[2_000:-2_000]
        if nonsense.random.random() < 0.02:
            judge.start_again()
    more, contained = peak_mb() - before, judge.runner.contained
    lives = judge.lives()
    first = next((line for line in judge.said if "contained" in line), "").replace("\n", " / ")[-300:]
    is_right = same and lives and more < 400 and bool(told) and (what == "findings" or not contained)
    return Outcome(
        held=is_right,
        measured=f"seed {seed}: {count} {what}, {contained} contained, {judge.letters} dead letters, +{more} MB, "
        f"incident {'unchanged' if same else 'CHANGED'}, lives: {lives}{'' if is_right else f'; {first}'}",
    )


def _as_concluded(judge: Judge, finding: Finding) -> Any:
    """As an operator's finding reaches the next operator: no topic lets it in from outside."""
    from whichrank.telemetry.records import Record

    return Record(topic="", key="", stamp_ns=judge.now_ns, payload=finding)


@attack("C6", "c", "nonsense findings, as if an operator had concluded them",
        asked="the judge survives, the incident is unchanged", limit_s=120, fuzz=True)  # fmt: skip
def nonsense_findings(folder: Path) -> Outcome:
    return _fuzz(folder, "findings")


@attack("C7", "c", "nonsense events and blocks that decode", asked="nothing raises", limit_s=120, fuzz=True)
def nonsense_events(folder: Path) -> Outcome:
    return _fuzz(folder, "events")
