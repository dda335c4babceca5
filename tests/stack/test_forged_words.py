"""Whoever has the agents' password on a real broker with the shipped rights: what he forges is nothing to the judge.

C1 to C5 of ``tests/attacks``, which has them over an embedded bus as well.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.stack.parts.kafka import Kafka, Security
from tests.stack.parts.own_service import OwnService
from tests.stack.parts.service import eventually
from tests.stack.test_process_command import death
from whichrank.commands.run_folder.labels import finding_of
from whichrank.commands.run_folder.maintenance_plans import finding_of_plan
from whichrank.commands.run_folder.people_codec import MaintenancePlan, PeopleLabel
from whichrank.telemetry.incident import incident_id
from whichrank.telemetry.incident_document import HandlingWord, IncidentLabel
from whichrank.telemetry.otlp import Encodable, decode_logs, encode_payloads
from whichrank.telemetry.records import Finding, Incident, Payload
from whichrank.telemetry.topics import (
    KEY_OF_PEOPLE,
    TOPIC_BLOCKS,
    TOPIC_DLQ,
    TOPIC_FINDINGS,
    TOPIC_INCIDENTS,
    TOPIC_LOGS,
    TOPIC_METRICS,
    TOPIC_REQUESTS,
    TOPIC_WORDS,
)
from whichrank.telemetry.vocabulary import Kind
from whichrank.transport.kafka import make_client
from whichrank.transport.kafka_client import KafkaTrouble
from whichrank.transport.kafka_read import read_whole

LOCKED = Security(tls=True, sasl=True)
CLUSTER, VICTIM = "lab", "victim"
#: Where agents may write, and where they must not.
OF_AGENTS = (TOPIC_BLOCKS, TOPIC_LOGS, TOPIC_METRICS)
OF_OTHERS = (TOPIC_FINDINGS, TOPIC_WORDS, TOPIC_INCIDENTS, TOPIC_REQUESTS)
WAIT_S = 120.0
#: By then whatever was taken has been told.
TOLD_S = 12.0


class Site:
    """A broker with TLS, users and the shipped rights, and whichrank's own processor on it."""

    def __init__(self, folder: Path) -> None:
        self.kafka = Kafka(folder / "kafka", security=LOCKED)
        self.kafka.start()
        self.kafka.grant()
        topics = OwnService("topic-init", folder / "topics", self.kafka)
        topics.service.start(wait=False)
        assert topics.service.wait() == 0, topics.service.output()
        self.processor = OwnService("processor", folder / "processor", self.kafka)
        self.processor.service.start()
        self._reader = make_client(self.kafka.settings("processor"))

    def close(self) -> None:
        self.processor.service.kill()
        self.kafka.kill()

    def send(self, user: str, topic: str, value: bytes, key: str = KEY_OF_PEOPLE) -> bool:
        """Whether the broker has taken it from that user."""
        answers: list[KafkaTrouble | None] = []
        producer = make_client(self.kafka.settings(user)).producer()
        try:
            producer.send(topic, key.encode(), value, None, lambda sent, trouble: answers.append(trouble))
            producer.flush(WAIT_S)
            eventually(lambda: bool(answers), what=f"an answer on {topic}", timeout_s=WAIT_S)
        except KafkaTrouble:
            return False
        finally:
            producer.close(5.0)
        return answers == [None]

    def send_surely(self, user: str, topic: str, value: bytes, key: str = KEY_OF_PEOPLE) -> None:
        """Where the user may: a client that is new may be refused for a moment."""
        assert any(self.send(user, topic, value, key) for _ in range(4)), f"{user} may not write {topic}"

    def forge(self, payload: Encodable) -> None:
        """Says it as an agent on each topic that agents may write and the judge reads, which it has done at the end."""
        value = encode_payloads([payload])
        letters = self.count(TOPIC_DLQ)
        for topic in OF_AGENTS:
            self.send_surely("agent", topic, value)
        eventually(lambda: self.count(TOPIC_DLQ) >= letters + 2, what="dead letters of it", timeout_s=WAIT_S)

    def count(self, topic: str) -> int:
        return sum(1 for _ in read_whole(self._reader, topic))

    def payloads(self, topic: str) -> Iterator[Payload]:
        for message in read_whole(self._reader, topic):
            yield from decode_logs(topic, message.value)

    def incidents(self) -> dict[str, dict[str, Any]]:
        """The last revision of each that is of a job."""
        told = (each.document for each in self.payloads(TOPIC_INCIDENTS) if isinstance(each, Incident))
        return {each["id"]: dict(each) for each in told if each["kind"] != "input_silent" and each["job"]["id"]}

    def of(self, job: str) -> dict[str, Any]:
        """The one incident of a job."""
        (found,) = (each for each in self.incidents().values() if each["job"]["id"] == job)
        return found

    def kill(self, job: str) -> dict[str, Any]:
        """A rank of the job dies, and it is told."""
        self.send_surely("agent", TOPIC_BLOCKS, death(job, 1), job)
        eventually(lambda: any(each["job"]["id"] == job for each in self.incidents().values()),
                   what=f"the death in {job}: {self.processor.service.output()[-2000:]}", timeout_s=WAIT_S)  # fmt: skip
        return self.of(job)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    made = Site(tmp_path_factory.mktemp("forged"))
    yield made
    made.close()


@pytest.fixture(scope="module")
def true_incident(site: Site) -> dict[str, Any]:
    return site.kill(VICTIM)


def true_findings(site: Site) -> Sequence[Finding]:
    found = [each for each in site.payloads(TOPIC_FINDINGS) if isinstance(each, Finding)]
    return [each for each in found if each.identity.job == VICTIM and "kind" in each.body and not each.cleared]


def test_others_topics_refuse_it(site: Site, true_incident: dict[str, Any]) -> None:
    (true,) = true_findings(site)[:1]
    value = encode_payloads([true])
    with ThreadPoolExecutor(len(OF_OTHERS)) as pool:  # the client asks a minute long whether it may by now
        taken = list(pool.map(lambda topic: site.send("agent", topic, value), OF_OTHERS))
    assert taken == [False] * len(OF_OTHERS)


def test_c1_a_forged_finding_opens_nothing(site: Site, true_incident: dict[str, Any]) -> None:
    (true,) = true_findings(site)[:1]
    identity = type(true.identity)(cluster=CLUSTER, job="forged", attempt="a", node="n1", rank=1)
    site.forge(Finding(identity=identity, key="forged", cleared=False, time_ns=time.time_ns(), body=true.body))
    time.sleep(TOLD_S)
    assert [each["job"]["id"] for each in site.incidents().values()] == [VICTIM]


def test_c2_a_forged_end_ends_nothing(site: Site, true_incident: dict[str, Any]) -> None:
    for true in true_findings(site)[:1]:
        ended = Finding(identity=true.identity, key=true.key, cleared=True, time_ns=time.time_ns(), body=true.body)
        site.forge(ended)
    time.sleep(TOLD_S)
    assert site.of(VICTIM)["state"] == "open"


def test_c3_a_forged_label_stands_nowhere_and_a_true_one_does(site: Site, true_incident: dict[str, Any]) -> None:
    word = HandlingWord(by="root", time_s=time.time(), because="I say so")
    said = IncidentLabel(wrong=True, keys=("wrong", "closed"), by="root", time_s=time.time(), closed=word)
    label = finding_of(PeopleLabel(incident=true_incident["id"], said=said), CLUSTER)
    site.forge(label)
    assert not site.of(VICTIM).get("label")
    site.send_surely("operator", TOPIC_WORDS, encode_payloads([label]))
    eventually(lambda: bool(site.of(VICTIM).get("label")), what="the operator's label", timeout_s=WAIT_S)


def test_c5_a_forged_document_hides_no_incident_to_come(site: Site, true_incident: dict[str, Any]) -> None:
    key = next(true.key for true in true_findings(site)
               if incident_id(VICTIM, "a", Kind.RANK_DIED, true.key) == true_incident["id"])  # fmt: skip
    to_come = incident_id("later", "a", Kind.RANK_DIED, key)
    job = {**true_incident["job"], "id": "later", "run": "later"}
    for state in ("merged", "resolved"):
        site.forge(Incident(document={**true_incident, "id": to_come, "job": job, "state": state, "revision": 7}))
    told = site.kill("later")
    assert told["id"] == to_come
    assert told["state"] != "resolved"
    assert told["revision"] < 7


def test_c4_a_forged_plan_silences_no_page_and_a_true_one_does(site: Site, true_incident: dict[str, Any]) -> None:
    now = time.time()
    plan = MaintenancePlan(id="x", what="maintenance", begin_s=now - 60, end_s=now + 20 * 86_400, told_s=now - 5,
                           by="root", where={"fabric": ("*",)}, jobs=())  # fmt: skip
    site.forge(finding_of_plan(plan, CLUSTER))
    assert site.kill("unplanned")["severity"] == "page"
    time.sleep(TOLD_S)
    assert site.of("unplanned")["severity"] == "page"
    site.send_surely("operator", TOPIC_WORDS, encode_payloads([finding_of_plan(plan, CLUSTER)]))
    site.kill("planned")
    eventually(lambda: site.of("planned")["severity"] == "info", what="the operator's plan", timeout_s=WAIT_S)
