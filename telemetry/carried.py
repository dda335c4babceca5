"""What each topic carries, and nothing else: rights on Kafka are per topic, and a type taken everywhere undoes them.

Agents tell what they see, processors what they conclude, people what they say; each on topics that only they may write.
"""

from __future__ import annotations

from collections.abc import Mapping

from .records import Block, Event, Finding, Flush, Payload, Samples
from .topics import TOPIC_BLOCKS, TOPIC_CLOCK, TOPIC_FINDINGS, TOPIC_LOGS, TOPIC_METRICS, TOPIC_WORDS
from .vocabulary import EventName

#: What people say, by the word that a finding's body has for it.
WORDS = frozenset({"label", "plan"})
#: In a "plan" that stands for a line of a folder's file that nobody can read: why.
UNREADABLE_WORD = "unreadable"
#: What the runner itself writes, of time.
_OF_TIME = frozenset({EventName.TICK, EventName.INPUT_SILENT})
#: What no agent says: a processor's words, and those of a judge about its followers.
_NOT_OF_AGENTS = _OF_TIME | {
    EventName.FINDING,
    EventName.INCIDENT,
    EventName.EVIDENCE_REQUEST,
}
#: What a run's own instance says of those on other nodes.
OF_PEERS = frozenset({EventName.PEER_CONNECTED, EventName.PEER_CLOCK, EventName.PEER_LOST})
_BY_TOPIC: Mapping[str, str] = {
    TOPIC_BLOCKS: "what agents see",
    TOPIC_LOGS: "what agents see",
    TOPIC_METRICS: "metrics",
    TOPIC_CLOCK: "marks of time",
    TOPIC_WORDS: "what people say",
    TOPIC_FINDINGS: "what people say",  # of a run's folder, where captures of older releases have it
}


def is_carried(topic: str, payload: Payload) -> bool:
    """Whether a topic that is read may carry this. Operators must get nothing else from it."""
    sort = _BY_TOPIC.get(topic)
    if sort == "what agents see":
        return isinstance(payload, Block | Flush) or (isinstance(payload, Event) and payload.name not in _NOT_OF_AGENTS)
    if sort == "metrics":
        return isinstance(payload, Samples)
    if sort == "marks of time":
        return isinstance(payload, Event) and payload.name in _OF_TIME
    if sort == "what people say":
        return isinstance(payload, Finding) and len(payload.body) == 1 and WORDS.issuperset(payload.body)
    return False


def why_not(topic: str, payload: Payload) -> str:
    """A sentence for people: why a topic does not take this payload. Call it where ``is_carried`` is False."""
    what = payload.name.value if isinstance(payload, Event | Block) else type(payload).__name__.lower()
    return f"a {what} on {topic}, which carries {_BY_TOPIC.get(topic, 'nothing that is read')} only"
