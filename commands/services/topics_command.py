"""``whichrank topics``: makes the topics that are missing, and says what is wrong with those that are there."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict, dataclass, replace

from rich.console import Console
from rich.table import Table

from ...transport.kafka import make_client
from ...transport.kafka_client import Admin, KafkaTrouble
from ...transport.kafka_topics import TOPICS, TopicPlan, facts_of, wrong_with
from ..settings.settings import TopicsOptions
from ..support.stderr import say

EXIT_USAGE = 2
#: Room for what surrounds a message's content.
OVERHEAD_BYTES = 64 << 10


def topics(options: TopicsOptions, *, dry_run: bool, as_json: bool) -> int:
    """Makes topics that are missing, unless ``dry_run``, and prints the state of all.

    The exit status: 0 all topics can be used, 1 some cannot, 2 Kafka could not be asked.
    """
    try:
        client = make_client(options.kafka_settings())
        admin = client.admin()
    except KafkaTrouble as trouble:
        say(str(trouble))
        return EXIT_USAGE
    try:
        rows = [_see_to(plan, admin, options, dry_run=dry_run) for plan in TOPICS]
    except KafkaTrouble as trouble:
        say(str(trouble))
        return EXIT_USAGE
    finally:
        admin.close()
    _print(rows, as_json=as_json)
    return 0 if all(row.ok for row in rows) else 1


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicState:
    """ok: it can be used. did: what was found or done, in words; says: what is wrong with it, a line each."""

    topic: str
    ok: bool = True
    did: str = "is there"
    partitions: int | None = None
    says: str = ""


def _see_to(plan: TopicPlan, admin: Admin, options: TopicsOptions, *, dry_run: bool) -> TopicState:
    found = admin.describe([plan.name]).get(plan.name)
    if found is None:
        wanted = facts_of(
            plan,
            partitions=options.kafka_partitions,
            replication=options.kafka_replication,
            max_message_bytes=int(options.kafka_max_message) + OVERHEAD_BYTES,
        )
        made = TopicState(topic=plan.name, did="made", partitions=wanted.partitions)
        if dry_run:
            return replace(made, ok=False, did="is missing")
        try:
            admin.create(wanted)
        except KafkaTrouble as trouble:
            return replace(made, ok=False, did="cannot be made", says=str(trouble))
        return made
    refused, differs = wrong_with(plan, found)
    if not found.configuration:
        differs = [*differs, "its settings may not be seen by this user: taken as they are"]
    return TopicState(
        topic=plan.name,
        ok=not refused,
        did="cannot be used" if refused else "is there",
        partitions=found.partitions,
        says="\n".join([*refused, *differs]),
    )


def _print(rows: list[TopicState], *, as_json: bool) -> None:
    if as_json:
        sys.stdout.write(
            json.dumps({"ok": all(row.ok for row in rows), "topics": [asdict(row) for row in rows]}) + "\n"
        )
        return
    table = Table(box=None, pad_edge=False)
    for heading in ("topic", "partitions", "", "note"):
        table.add_column(heading, justify="right" if heading == "partitions" else "left", overflow="fold")
    for row in rows:
        table.add_row(row.topic, str(row.partitions or ""), row.did, row.says)
    Console(width=None if sys.stdout.isatty() else 160, soft_wrap=False).print(table)
