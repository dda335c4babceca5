"""The topics on Kafka: what each is for, how it must be set, and what is wrong with one that exists."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ..telemetry.topics import (
    TOPIC_BLOCKS,
    TOPIC_CLOCK,
    TOPIC_DLQ,
    TOPIC_FINDINGS,
    TOPIC_INCIDENTS,
    TOPIC_LOGS,
    TOPIC_METRICS,
    TOPIC_REQUESTS,
    TOPIC_SPANS,
    TOPIC_WORDS,
)
from .kafka_client import Admin, KafkaTrouble, TopicFacts

HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
#: Of topics whose messages are spread by key.
DEFAULT_PARTITIONS = 12
APPEND_TIME = "LogAppendTime"
_STAMP = "message.timestamp.type"
_CLEANUP = "cleanup.policy"
_RETENTION = "retention.ms"
_LARGEST = "max.message.bytes"


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicPlan:
    """How a topic is made. ``partitions`` 0: as many as the settings say.

    is_input: the processors read it, so that its stamps must be the broker's.
    """

    name: str
    partitions: int
    retention_ms: int = 0  # 0: kept for good, the newest of each key
    is_input: bool = False


#: Design section 4. The clock outlives what it orders, or a rebuild would begin in the middle.
TOPICS: tuple[TopicPlan, ...] = (
    TopicPlan(name=TOPIC_BLOCKS, partitions=0, retention_ms=6 * HOUR_MS, is_input=True),
    TopicPlan(name=TOPIC_SPANS, partitions=0, retention_ms=DAY_MS, is_input=True),
    TopicPlan(name=TOPIC_METRICS, partitions=0, retention_ms=DAY_MS, is_input=True),
    TopicPlan(name=TOPIC_LOGS, partitions=0, retention_ms=DAY_MS, is_input=True),
    TopicPlan(name=TOPIC_FINDINGS, partitions=1, retention_ms=35 * DAY_MS),
    TopicPlan(name=TOPIC_WORDS, partitions=1, retention_ms=35 * DAY_MS, is_input=True),
    TopicPlan(name=TOPIC_INCIDENTS, partitions=1),
    TopicPlan(name=TOPIC_REQUESTS, partitions=1, retention_ms=HOUR_MS),
    TopicPlan(name=TOPIC_DLQ, partitions=1, retention_ms=7 * DAY_MS),
    TopicPlan(name=TOPIC_CLOCK, partitions=1, retention_ms=25 * HOUR_MS, is_input=True),
)


def facts_of(plan: TopicPlan, *, partitions: int, replication: int, max_message_bytes: int) -> TopicFacts:
    """The topic as the brokers are asked to make it. partitions: where the plan does not say."""
    configuration = {_STAMP: APPEND_TIME, _LARGEST: str(max_message_bytes)}
    if plan.retention_ms:
        configuration |= {_CLEANUP: "delete", _RETENTION: str(plan.retention_ms)}
    else:
        configuration[_CLEANUP] = "compact"
    return TopicFacts(
        name=plan.name,
        partitions=plan.partitions or partitions,
        replication=replication,
        configuration=configuration,
    )


def wrong_with(plan: TopicPlan, facts: TopicFacts) -> tuple[list[str], list[str]]:
    """(what makes an existing topic unusable, what merely differs), one line each, with its remedy."""
    refused: list[str] = []
    differs: list[str] = []
    found = facts.configuration
    alter = f"kafka-configs.sh --alter --entity-type topics --entity-name {plan.name} --add-config"
    stamp = found.get(_STAMP)
    if plan.is_input and stamp is not None and stamp != APPEND_TIME:
        refused.append(
            f"topic {plan.name} has {_STAMP}={stamp}: order and silence are judged by the broker's clock; set it with: "
            f"{alter} {_STAMP}={APPEND_TIME}"
        )
    if plan.partitions and facts.partitions != plan.partitions:
        line = f"topic {plan.name} has {facts.partitions} partitions instead of {plan.partitions}"
        if plan.name == TOPIC_CLOCK:
            refused.append(f"{line}: it is the one order of all others; delete it and run: whichrank topics")
        else:
            differs.append(line)
    policy = found.get(_CLEANUP)
    if policy is not None and not plan.retention_ms and "compact" not in policy:
        differs.append(
            f"topic {plan.name} has {_CLEANUP}={policy}: old incidents will be gone after a while; set it with: "
            f"{alter} {_CLEANUP}=compact"
        )
    kept = found.get(_RETENTION)
    if kept is not None and plan.retention_ms and 0 <= int(kept) < plan.retention_ms:
        differs.append(
            f"topic {plan.name} keeps {int(kept) / HOUR_MS:g} h instead of {plan.retention_ms / HOUR_MS:g} h"
        )
    return refused, differs


def check_topics(admin: Admin, names: Sequence[str] | None = None) -> Mapping[str, TopicFacts]:
    """Those of our topics that exist, by name; names None: all.

    Raises KafkaTrouble, a line per topic, for what is missing or cannot be used. Without the right to see a topic's
    configuration it is taken as it is.
    """
    plans = [plan for plan in TOPICS if names is None or plan.name in names]
    found = admin.describe([plan.name for plan in plans])
    missing = [plan.name for plan in plans if plan.name not in found]
    lines = [f"topics {', '.join(missing)} are not there; make them with: whichrank topics"] if missing else []
    for plan in plans:
        if plan.name in found:
            lines += wrong_with(plan, found[plan.name])[0]
    if lines:
        raise KafkaTrouble("\n".join(lines), lasting=True)
    return found


def identity_of(admin: Admin, found: Mapping[str, TopicFacts]) -> str:
    """A text that tells this cluster and its clock from any other: positions and state belong to one of them.

    found: topics as ``check_topics`` gives them. Raises KafkaTrouble.
    """
    return f"kafka/{admin.cluster_id()}/{TOPIC_CLOCK}/{found[TOPIC_CLOCK].topic_id}"
