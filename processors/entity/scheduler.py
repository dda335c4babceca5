"""What schedulers tell: ends that are planned, of a job or of a whole node, and the state in which they hold the node.

A plan is known before it is due: its condition begins when it is due, and remembers since when it was known. A plan
that is changed takes the place of the one before; the same plan told again is the same.
"""

from __future__ import annotations

import time
from typing import Any

from ...telemetry.records import Event
from .conditions import Condition, EntityState
from .job_log import Signal, only_job
from .signal_facts import SignalFacts

#: Schedulers tell seconds.
_SAME_PLAN_S = 1.0
#: What is told of a job -> the word of its rules, and the attribute with the time at which it is due.
_OF_JOBS = {"time_limit": ("time_limit", "end_s"), "preemption": ("job_preempted", "start_s")}
_OF_NODES = {"maintenance": ("maintenance", "start_s"), "preemption": ("node_preempted", "start_s")}
#: States of a job that say that somebody ends it, and that neither limit nor preemption do.
_ENDED_BY_SOMEBODY = frozenset({"CANCELLED"})
#: States of nodes that take it away from its jobs.
_GRAVE_STATES = frozenset({"down", "fail", "not_ready", "not_responding"})


def signal_of(event: Event) -> Signal | None:
    """What a scheduler's event signals, as a condition of a job or node; None where it is none (a job
    that runs, ...).
    """
    found, job = event.attributes, str(event.attributes.get("job") or "")
    what = str(found["what"])
    if what == "node_state":
        return _of_node_state(event)
    if what == "state" and job and found.get("state") in _ENDED_BY_SOMEBODY:
        return _signal(event, "cancelled", job, None)
    word, due = (_OF_JOBS if job else _OF_NODES).get(what, ("", ""))
    return _signal(event, word, job or str(found.get("name") or ""), _number(found.get(due))) if word else None


def _signal(event: Event, word: str, device: str, due_s: float | None) -> Signal:
    found, is_job = event.attributes, bool(event.attributes.get("job"))
    who = f"job {device}" if is_job else "the node"
    ends_s = _number(found.get("end_s"))
    words = {
        "time_limit": f"{who} reaches its time limit",
        "job_preempted": f"{who} makes room for another job",
        "node_preempted": f"{who} is taken away: {found.get('text') or device}",
        "maintenance": f"{who} has maintenance: {found.get('text') or device}",
        "cancelled": f"{who} was cancelled",
    }[word]
    words += f" at {_utc(due_s)}" if due_s is not None else ""
    words += f", until {_utc(ends_s)}" if word == "maintenance" and ends_s is not None else ""
    return Signal(
        word=word,
        device=device,
        facts=SignalFacts(
            device_kind="job" if is_job else "notice",
            severity="warning",
            of_job=event.identity.job if is_job else "",
            age_s=0.0 if due_s is None else event.time_ns / 1e9 - due_s,
            text=f"{found.get('scheduler') or 'the scheduler'}: {words}",
        ),
    )


def _of_node_state(event: Event) -> Signal:
    """since_s: where the scheduler says when it began."""
    found = event.attributes
    word, since_s = str(found.get("name") or ""), _number(found.get("since_s"))
    told_s = event.time_ns / 1e9
    state, reason = found.get("state") or word, found.get("reason")
    return Signal(
        word=f"node_{word}",
        device="",
        facts=SignalFacts(
            device_kind="host",
            severity="error" if word in _GRAVE_STATES else "warning",
            age_s=max(0.0, told_s - since_s) if since_s is not None else 0.0,
            text=f"{found.get('scheduler') or 'the scheduler'}: it is {state}" + (f" ({reason})" if reason else ""),
        ),
    )


def follow_plan(state: EntityState, condition: Condition) -> Condition:
    """Adds a planned condition, or counts it at the one that is known of the same plan; returns the one that stands."""
    job = condition.of_job  # of the process that it was seen at; else it is guessed, until that is known
    if condition.device_kind == "job" and not job:
        condition.of_job = _job_of(state, condition)
    known = state.conditions.get(condition.key)
    has_time = condition.since != condition.known
    if known is None or known.until is not None or (has_time and abs(known.since - condition.since) >= _SAME_PLAN_S):
        state.add(condition)
        return condition
    known.count += 1
    known.text = condition.text
    if job and known.of_job != job:
        known.of_job, known.told = job, 0
    return known


def call_off(state: EntityState, key: str, time_s: float) -> list[Condition]:
    """Ends the condition of this key at ``time_s`` (Unix); returns it in a list, [] where none lasts.

    What was not due yet will not come, and explains nothing any more.
    """
    known = state.conditions.get(key)
    if known is None or known.until is not None:
        return []
    if known.planned and time_s < known.since - known.lag_s:
        known.explains = []
    known.until = max(time_s, known.since)
    return [known]


def hear_again(state: EntityState, job: str) -> list[Condition]:
    """To be called when a rank of the job has started: plans that concern it, and had concerned none of the job.

    They count as not told, to be told again.
    """
    again = []
    for condition in state.conditions.values():
        if not condition.planned or condition.until is not None:
            continue
        if condition.device_kind == "job" and not condition.of_job:
            condition.of_job = _job_of(state, condition)
        if sum(rank.job == job for rank in state.ranks_on(condition)) == 1:  # the first
            condition.told = 0
            again.append(condition)
    return again


def _job_of(state: EntityState, condition: Condition) -> str:
    """Our name of the scheduler's job: the same, or that of the only job here."""
    if any(rank.job == condition.device for rank in state.ranks.values()):
        return condition.device
    return only_job(state)


#: Unix seconds of any plan there is; what is beyond is no time.
_LAST_S = 1e11


def _number(value: Any) -> float | None:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if is_number and 0 <= value < _LAST_S else None


def _utc(time_s: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(time_s))
