"""What was told and cannot be so, or cannot be taken: said once, as a telemetry incident that is over, and passed over.

A name that two systems write differently, a place that is no name, an attempt whose end was lost, a rank on two nodes:
nothing of it is a fault of a job, but whoever looks for shared causes sees less for it, and somebody should know.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Sequence
from dataclasses import dataclass

from ..telemetry.records import Finding, Identity
from ..telemetry.vocabulary import Bucket, Kind, Scope, Severity

UNREADABLE = "finding that cannot be read"
UNREADABLE_INCIDENT = "incident that cannot be read"
TWO_NODES, MOVED = "rank on two nodes", "rank that two nodes tell of"
NO_END = "attempt without end"
NO_NAME = "place that is no name"
UNKNOWN_NODE = "node of which no place is known"
NO_SUCH_RANK = "rank beyond its job"
#: Body of a finding on a job or entity whose state was set aside: what was told of it is over for all that is known.
SET_ASIDE = "set_aside"
MOST_NAMED = 8
MAX_WORDS = 300


@dataclass(frozen=True, slots=True, kw_only=True)
class Doubt:
    """Something that was told and cannot be so. what: one of the words above. entity: the job or node that it is about.

    words: a sentence.
    """

    what: str
    entity: str
    words: str

    @property
    def key(self) -> str:
        """The key by which it is known that it was told before."""
        return f"{self.what}\t{self.entity}"


def unreadable(finding: Finding, error: Exception) -> Doubt:
    """The doubt about a finding that raised ``error`` when it was read."""
    said = f"{type(error).__name__}: {error}"[:MAX_WORDS]
    return Doubt(
        what=UNREADABLE, entity=finding.key[:MAX_WORDS], words=f"{finding.key[:MAX_WORDS]} is passed over: {said}"
    )


def unreadable_incident(incident: str, error: Exception) -> Doubt:
    """The doubt about an incident that was published, and raised ``error`` when it was read back."""
    said = f"{type(error).__name__}: {error}"[:MAX_WORDS]
    words = f"incident {incident[:64]} was published by another release and is not known here any more: {said}"
    return Doubt(what=UNREADABLE_INCIDENT, entity=incident[:64], words=words[:MAX_WORDS])


def refused_labels(node: str, refused: Sequence[str]) -> Iterator[Doubt]:
    """A doubt about labels of ``node`` that could not be taken as names of places; none for none."""
    if refused:
        words = f"of node {node} the places {', '.join(refused[:MOST_NAMED])} are no names; they are passed over"
        yield Doubt(what=NO_NAME, entity=node, words=words)


def unknown_nodes(job: str, nodes: Iterable[str], placed: Container[str]) -> Iterator[Doubt]:
    """One doubt for a job on nodes of which no place is known, while places of others are (placed); none otherwise."""
    unknown = sorted(node for node in nodes if node not in placed)
    if unknown and placed:
        named = ", ".join(unknown[:MOST_NAMED]) + (" and others" if len(unknown) > MOST_NAMED else "")
        words = f"job {job} runs on {named}, of which no place is known; what they share with others cannot be seen"
        yield Doubt(what=UNKNOWN_NODE, entity=job, words=words)


def doubt_findings(doubts: Iterable[Doubt], cluster: str, now_ns: int) -> Iterator[Finding]:
    """For each doubt a telemetry finding, opened and cleared at once: it is a word, and nothing that lasts. now_ns:
    Unix.
    """
    for doubt in doubts:
        body = {
            "bucket": Bucket.TELEMETRY.value,
            "kind": Kind.TELEMETRY_FAULT.value,
            "scope": Scope.CLUSTER.value,
            "severity": Severity.INFO.value,
            "suspects": [],
            "victims": {"count": 0, "ranks": ""},
            "times": {"onset": now_ns / 1e9, "detected": now_ns / 1e9, "attributed": now_ns / 1e9},
            "evidence": [
                {
                    "signal": f"input.{doubt.what.replace(' ', '_')}",
                    "source": doubt.entity,
                    "time": now_ns / 1e9,
                    "value": doubt.what,
                    "shows": doubt.words,
                }
            ],
            "ruled_out": [],
            "confidence": 0.9,
        }
        for cleared in (False, True):
            key = f"doubt/{doubt.what}/{doubt.entity}"
            yield Finding(identity=Identity(cluster=cluster), key=key, cleared=cleared, time_ns=now_ns, body=body)
