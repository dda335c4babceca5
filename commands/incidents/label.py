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
from dataclasses import replace

from ...telemetry.incident_document import HandlingWord, IncidentDocument, IncidentLabel
from ...telemetry.otlp import encode_payloads
from ...telemetry.records import Finding
from ...telemetry.topics import TOPIC_WORDS
from ...telemetry.vocabulary import IncidentState
from ...transport.kafka_client import Client, KafkaTrouble, Sent
from ..run_folder.labels import finding_of
from ..run_folder.people_codec import PeopleLabel, write_people_label
from ..run_folder.run_directory import Unusable
from ..support.stderr import say
from .chosen import IncidentSource, choose

MAX_TEXT = 300
_SEND_S = 30.0


def label_incident(source: IncidentSource, wanted: str, *, cause: str, wrong: bool, as_json: bool) -> None:
    """Keeps what a person says an incident was, and prints that. Raises Unusable, KafkaTrouble.

    wanted: id or beginning of one. cause: "node=NAME", or any word. wrong: what the incident says is not so.
    """
    if not cause and not wrong:
        raise Unusable("nothing is said: --cause WHAT (as node=NAME, application), or --wrong")
    incident = choose(source.revisions(), wanted).last
    said = "it is wrong" if wrong else ""
    words = ", ".join(part for part in (said, cause) if part)
    label = replace(_label_of(incident), cause=cause[:MAX_TEXT] or None, wrong=wrong)
    _keep(source, incident, label, words, as_json=as_json)


def acknowledge(source: IncidentSource, wanted: str, *, as_json: bool) -> None:
    """Keeps that somebody is at the incident, and prints that. Raises Unusable, KafkaTrouble.

    wanted: id or beginning of one.
    """
    incident = choose(source.revisions(), wanted).last
    label = replace(_label_of(incident), acknowledged=_handled(""), closed=None)
    _keep(
        source, incident, replace(label, keys=_named(label, "acknowledged", "closed")), "acknowledged", as_json=as_json
    )


def close(source: IncidentSource, wanted: str, *, because: str, as_json: bool) -> None:
    """Keeps that nobody needs to look at the incident any more, and prints that. Raises Unusable, KafkaTrouble.

    Whether what it tells of is over stays the operators' word (``state``). wanted: id or beginning of one.
    """
    incident = choose(source.revisions(), wanted).last
    over = "" if incident.state is not IncidentState.OPEN else "; what it tells of is not over"
    label = replace(_label_of(incident), closed=_handled(because[:MAX_TEXT]))
    _keep(source, incident, replace(label, keys=_named(label, "closed")), f"closed{over}", as_json=as_json)


def _label_of(incident: IncidentDocument) -> IncidentLabel:
    """What was said before and still holds: the newest word on an incident holds alone, so it repeats that."""
    label = incident.label or IncidentLabel(wrong=False, keys=())
    return replace(label, keys=tuple(dict.fromkeys(("cause", "wrong", *label.keys))))


def _named(label: IncidentLabel, *said: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys((*label.keys, *said)))


def _handled(because: str) -> HandlingWord:
    return HandlingWord(by=who(), time_s=round(time.time(), 3), because=because or None)


def _keep(
    source: IncidentSource, incident: IncidentDocument, said: IncidentLabel, words: str, *, as_json: bool
) -> None:
    label = PeopleLabel(incident=incident.id, said=replace(said, by=who(), time_s=round(time.time(), 3)))
    source.label(incident, label)
    if as_json:
        print(json.dumps({"schema": 1, "from": source.where, "label": write_people_label(label)}))
    else:
        say(f"{label.incident}: {words}; kept in {source.where}")


def send_label(client: Client, label: PeopleLabel, cluster: str) -> None:
    """Sends what a person says of an incident to where operators read it. Raises KafkaTrouble."""
    send_of_people(client, finding_of(label, cluster))


def send_of_people(client: Client, finding: Finding) -> None:
    """Sends a finding that a person made to where operators read it, and waits for the answer. Raises KafkaTrouble."""
    answers: list[KafkaTrouble | None] = []

    def note(sent: Sent | None, trouble: KafkaTrouble | None) -> None:
        answers.append(trouble)

    producer = client.producer()
    try:
        value = encode_payloads([finding])
        producer.send(TOPIC_WORDS, finding.identity.cluster.encode(), value, None, note)
        producer.flush(_SEND_S)
    finally:
        producer.close(1.0)
    trouble = answers[0] if answers else KafkaTrouble(f"{TOPIC_WORDS}: no answer within {_SEND_S:.0f} s")
    if trouble is not None:
        raise trouble


def who() -> str:
    """The user's name on this machine, as who says something; "uid N" where it has none."""
    try:
        return getpass.getuser()
    except (OSError, KeyError):  # a container without a user
        return f"uid {os.getuid()}"
