"""``whichrank incidents label``: what a person knows of an incident. It stands in it, and counts in the history.

Over Kafka it is a finding that the processors read; in a run's folder a line of labels.jsonl, which a run that goes on
reads as well. The newest word on an incident holds.
"""

from __future__ import annotations

import getpass
import json
import os
import time
from collections.abc import Mapping
from typing import Any

from ...telemetry.otlp import encode_payloads
from ...telemetry.records import Finding
from ...telemetry.topics import KEY_OF_PEOPLE, TOPIC_FINDINGS
from ...transport.kafka_client import Client, KafkaTrouble, Sent
from ..labels import finding_of
from ..run import say
from ..run_directory import Unusable
from .chosen import Source, choose

MAX_TEXT = 300
_SEND_S = 30.0


def label_incident(source: Source, wanted: str, *, cause: str, wrong: bool, as_json: bool) -> None:
    """cause: "node=NAME", or any word. wrong: what the incident says is not so. Raises Unusable, KafkaTrouble."""
    if not cause and not wrong:
        raise Unusable("nothing is said: --cause WHAT (as node=NAME, application), or --wrong")
    document = choose(source.revisions(), wanted).last
    label = {
        "incident": str(document["id"]),
        "cause": cause[:MAX_TEXT] or None,
        "wrong": wrong,
        "by": who(),
        "time": round(time.time(), 3),
    }
    source.label(document, label)
    if as_json:
        print(json.dumps({"schema": 1, "from": source.where, "label": label}))
    else:
        said = "it is wrong" if wrong else ""
        say(f"{label['incident']}: {', '.join(part for part in (said, cause) if part)}; kept in {source.where}")


def send_label(client: Client, label: Mapping[str, Any], cluster: str) -> None:
    """Raises KafkaTrouble."""
    send_of_people(client, finding_of(label, cluster))


def send_of_people(client: Client, finding: Finding) -> None:
    """What a person says, to where operators read it. Raises KafkaTrouble."""
    answers: list[KafkaTrouble | None] = []

    def note(sent: Sent | None, trouble: KafkaTrouble | None) -> None:
        answers.append(trouble)

    producer = client.producer()
    try:
        value = encode_payloads([finding])
        producer.send(TOPIC_FINDINGS, KEY_OF_PEOPLE.encode(), value, None, note)
        producer.flush(_SEND_S)
    finally:
        producer.close(1.0)
    trouble = answers[0] if answers else KafkaTrouble(f"{TOPIC_FINDINGS}: no answer within {_SEND_S:.0f} s")
    if trouble is not None:
        raise trouble


def who() -> str:
    """Who says it: the user's name on this machine."""
    try:
        return getpass.getuser()
    except (OSError, KeyError):  # a container without a user
        return f"uid {os.getuid()}"
