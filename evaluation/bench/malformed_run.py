"""One run in which the surroundings are told wrongly: each of it is reported, and a real fault beside it is found.

Four jobs on a node each. Of one the node's places are no names; of one nobody tells where its node stands; one ends
without a word; of one a second node says that it has its ranks. A rank of the first is killed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from ...simulator.faults.catalogue import CATALOGUE
from ...simulator.program import Recipe
from ...simulator.scenarios.layouts import four_jobs
from ...simulator.scenarios.scenarios import Scenario
from ...simulator.scoring.run_score import score_run
from ...simulator.scoring.summary import ScoreLine
from ...simulator.sent import SentMessage
from ...telemetry.incident_document import IncidentDocument
from ...telemetry.incident_reading import read_incident
from ...telemetry.otlp import decode_logs
from ...telemetry.records import Block, Event
from ...telemetry.topics import TOPIC_BLOCKS
from ...telemetry.vocabulary import Bucket, EventName, IncidentState, Severity
from ..simulate.judge import Judge

RANKS, SEED = 32, 1
KILLED_S, END_S = 75.0, 95.0
#: From then on nothing comes of the second job's node; nothing tells that the job has ended.
VANISHES_S = 30.0
NAMELESS, VANISHED, UNPLACED, TWICE = (f"node-{number:05}" for number in range(4))
STRANGER = "node-99999"
#: What is wrong, and the signal of the evidence that says so.
ASKED: Mapping[str, str] = {
    "malformed topology": "input.place_that_is_no_name",
    "unknown node": "input.node_of_which_no_place_is_known",
    "job without an end": "peer.silent",
    "contradictory placement": "input.rank_that_two_nodes_tell_of",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Malformed:
    """reported: by what is wrong, the words of the telemetry incident that says it. pages: of incidents that are told
    beside it, the job; is_found: the killed rank is named."""

    reported: Mapping[str, str]
    pages: Sequence[str]
    is_found: bool
    broken: int


def malformed_lines() -> list[ScoreLine]:
    """Simulates a run with four false inputs (bad topology, unknown node, job without an end, a rank on two nodes).

    A line for each, whether it was reported, and one for whether a rank that is killed was found and all else held.

    As ``make faultbench`` prints them.
    """
    result = run()
    lines = []
    for what in ASKED:
        is_told = what in result.reported
        share = f"{int(is_told)} of 1"
        words = "a telemetry incident" if is_told else "nothing"
        lines.append(ScoreLine(name=f"{what}: reported", asked="yes", measured=words, share=share, ok=is_told))
    works = result.is_found and len(result.pages) == 1 and not result.broken
    measured = "found, nothing else paged" if works else f"found: {result.is_found}, pages {', '.join(result.pages)}"
    name = "malformed surroundings: the rest works"
    lines.append(ScoreLine(name=name, asked="yes", measured=measured, share=f"{int(works)} of 1", ok=works))
    return lines


def run() -> Malformed:
    """Simulates the malformed run once, on a fixed seed, and judges it with the real operators."""
    scenario = Scenario(
        name="malformed", sentence="", layout=four_jobs, faults=(CATALOGUE["process_killed"],), at_s=KILLED_S,
        recipe=Recipe(backend="gloo"),
    )  # fmt: skip
    world = scenario.build(RANKS, SEED)
    judge = Judge(start_unix_ns=world.start_unix_ns)
    for until_s, sent in world.run(END_S):
        judge.take(until_s, [wrong for message in sent for wrong in _spoiled(message)])
    judge.close()
    score = score_run(world.settle().as_json(), [revision.document for revision in judge.revisions])
    incidents = [read_incident(revision.document) for revision in judge.revisions]
    told = {
        row.signal: row.shows
        for incident in incidents
        if incident.bucket is Bucket.TELEMETRY
        for row in incident.evidence
    }
    return Malformed(
        reported={what: told[signal] for what, signal in ASKED.items() if signal in told},
        pages=sorted({str(incident.job.id) for incident in incidents if _is_page(incident)}),
        is_found=all(fault.top_1 for fault in score.faults),
        broken=judge.runner.broken,
    )


def _is_page(incident: IncidentDocument) -> bool:
    is_out = incident.state is IncidentState.OPEN and incident.hold is None
    return is_out and incident.severity is Severity.PAGE


def _spoiled(message: SentMessage) -> Iterator[SentMessage]:
    if message.node == VANISHED and message.at_s > VANISHES_S:
        return
    known = message.payloads
    if message.topic == TOPIC_BLOCKS and message.value:
        known = tuple(each for each in decode_logs(message.topic, message.value) if isinstance(each, Block | Event))
    payloads = tuple(payload for each in known for payload in _misplaced(each))
    if payloads:
        yield replace(message, payloads=payloads, value=b"")
    elif not known:
        yield message
    if message.node == TWICE:
        second = tuple(_of_the_stranger(payload) for payload in payloads if payload.name is EventName.BLOCK_PROGRESS)
        if second:
            yield replace(message, node=STRANGER, payloads=second)


def _misplaced(payload: Block | Event) -> Iterator[Block | Event]:
    """Places that are lists, or nothing, instead of names; or no word of where a node stands."""
    if not isinstance(payload, Event) or payload.name is not EventName.NODE_TOPOLOGY:
        yield payload
    elif payload.identity.node == NAMELESS:
        yield replace(payload, attributes={"leaf": ["leaf-0000", "leaf-0001"], "rack": True, "pdu": ""})
    elif payload.identity.node != UNPLACED:
        yield payload


def _of_the_stranger(payload: Block | Event) -> Block | Event:
    return replace(payload, identity=replace(payload.identity, node=STRANGER))
