"""``whichrank incidents label``, ``ack`` and ``close``: what a person says of an incident. It stands in it; what it was
counts in the history.

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

from ...telemetry.incident import Document
from ...telemetry.otlp import encode_payloads
from ...telemetry.records import Finding
from ...telemetry.topics import KEY_OF_PEOPLE, TOPIC_FINDINGS
from ...transport.kafka_client import Client, KafkaTrouble, Sent
from ..run_folder.labels import finding_of
from ..run_folder.run_directory import Unusable
from ..support.stderr import say
from .chosen import Source, choose

MAX_TEXT = 300
_SEND_S = 30.0


def label_incident(source: Source, wanted: str, *, cause: str, wrong: bool, as_json: bool) -> None:
    """cause: "node=NAME", or any word. wrong: what the incident says is not so. Raises Unusable, KafkaTrouble."""
    if not cause and not wrong:
        raise Unusable("nothing is said: --cause WHAT (as node=NAME, application), or --wrong")
    document = choose(source.revisions(), wanted).last
    said = "it is wrong" if wrong else ""
    words = ", ".join(part for part in (said, cause) if part)
    _keep(source, document, {"cause": cause[:MAX_TEXT] or None, "wrong": wrong}, words, as_json=as_json)


def acknowledge(source: Source, wanted: str, *, as_json: bool) -> None:
    """Somebody is at it. Raises Unusable, KafkaTrouble."""
    document = choose(source.revisions(), wanted).last
    said = {"by": who(), "time": round(time.time(), 3)}
    _keep(source, document, {"acknowledged": said, "closed": None}, "acknowledged", as_json=as_json)


def close(source: Source, wanted: str, *, because: str, as_json: bool) -> None:
    """Nobody needs to look any more. Whether what it tells of is over stays the operators' word (``state``).

    Raises Unusable, KafkaTrouble.
    """
    document = choose(source.revisions(), wanted).last
    said = {"by": who(), "time": round(time.time(), 3)} | ({"because": because[:MAX_TEXT]} if because else {})
    over = "" if document.get("state") != "open" else "; what it tells of is not over"
    _keep(source, document, {"closed": said}, f"closed{over}", as_json=as_json)


def _keep(source: Source, document: Document, said: Mapping[str, Any], words: str, *, as_json: bool) -> None:
    """The newest word on an incident holds, so it repeats what was said before and still holds."""
    label = {
        "cause": None,
        "wrong": False,
        **(document.get("label") or {}),
        **said,
        "incident": str(document["id"]),
        "by": who(),
        "time": round(time.time(), 3),
    }
    source.label(document, label)
    if as_json:
        print(json.dumps({"schema": 1, "from": source.where, "label": label}))
    else:
        say(f"{label['incident']}: {words}; kept in {source.where}")


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
