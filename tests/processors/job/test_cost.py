"""What a message costs, counted in calls: a throughput that is lost shows here on any machine, however busy."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from types import FrameType
from typing import Any

import numpy as np

from tests.processors.job.synthetic_job import MemoryContext, SyntheticJob
from whichrank.processors.job.operator import JobOperator
from whichrank.processors.operator import Timer
from whichrank.telemetry.otlp import decode_logs
from whichrank.telemetry.otlp_encode import encode_payloads
from whichrank.telemetry.records import Block, Record
from whichrank.telemetry.vocabulary import EventName
from whichrank.transport.bus import TOPIC_BLOCKS

#: Calls of Python and C functions for one block, on average; half as many again as were measured.
MOST_CALLS_TO_DECODE = 45
MOST_CALLS_TO_TAKE = 200


def count_calls(work: Callable[[], Any]) -> int:
    calls = 0

    def note(_frame: FrameType, event: str, _argument: object) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    sys.setprofile(note)
    try:
        work()
    finally:
        sys.setprofile(None)
    return calls


def sound_job() -> tuple[list[Record], list[Record]]:
    """Records of a sound job: those until it is known how long its steps take, and those after."""
    records = SyntheticJob(steps=120).records()
    middle = len(records) * 2 // 3
    return records[:middle], records[middle:]


def feed(operator: JobOperator, context: MemoryContext, records: Sequence[Record]) -> None:
    for record in records:
        for name, due_ns in list(context.timers.items()):
            if due_ns <= record.stamp_ns:
                del context.timers[name]
                operator.on_timer(Timer(name, due_ns), context)
        context.now = record.stamp_ns
        operator.process([record], context)


def test_decoding_a_block_takes_few_calls() -> None:
    blocks = [record.payload for record in sound_job()[1] if isinstance(record.payload, Block)]
    messages = [encode_payloads([block]) for block in blocks]
    for message in messages:  # names, groups and identities are read once
        decode_logs(TOPIC_BLOCKS, message)
    calls = count_calls(lambda: [decode_logs(TOPIC_BLOCKS, message) for message in messages])
    assert calls / len(blocks) < MOST_CALLS_TO_DECODE


def test_taking_a_block_takes_few_calls() -> None:
    """Closing of steps included."""
    before, records = sound_job()
    operator, context = JobOperator(), MemoryContext()
    feed(operator, context, before)
    calls = count_calls(lambda: feed(operator, context, records))
    assert calls / len(records) < MOST_CALLS_TO_TAKE


def test_more_rows_in_a_block_take_no_more_calls() -> None:
    before, records = sound_job()
    some = next(record for record in records if is_collectives(record))
    assert isinstance(some.payload, Block)
    rows = np.concatenate([some.payload.rows] * 20)
    many = replace(some, payload=replace(some.payload, rows=rows))
    calls = []
    for record in (some, many):
        operator, context = JobOperator(), MemoryContext()
        feed(operator, context, before)
        calls.append(count_calls(partial(feed, operator, context, [record])))
    assert calls[1] <= calls[0] * 1.1


def is_collectives(record: Record) -> bool:
    return isinstance(record.payload, Block) and record.payload.name is EventName.BLOCK_COLLECTIVES
