"""What travels between the stages of the Flink job, and how it is written. Pure; knows no Flink.

The order of elements is that of the embedded engine inside a cut: stamp, topic, partition, offset. What a stage
concludes from a message carries the message's place, so that later stages put it where the embedded engine has it.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

#: Keys are spread over so many shards, each of which is one key of Flink's. Never changed: state lies under them.
JOB_SHARDS = 128
ENTITY_SHARDS = 128
CLUSTER_SHARDS = 16
RANGE_SHARDS = 128
#: A job's nodes are in so many ranges: of fewer each has more to do, of more the job's shard gets smaller records.
RANGES_OF_A_JOB = 4
#: Shards work at most this often: what a state's writing costs, against what a conclusion waits for.
GRAIN_MS = 200


class Stage(Enum):
    """Where an element goes."""

    IDLENESS = "idleness"  # keeps time for all
    RANGES = "ranges"  # joins what nodes of a large job tell
    JOBS = "jobs"
    ENTITIES = "entities"
    CLUSTERS = "clusters"


class ElementSort(Enum):
    """What an element is."""

    MESSAGE = "message"  # payloads of one message of the bus, as encoded there
    JOINED = "joined"  # flushes of many nodes of one shard's jobs (``joined_flushes``)
    SAMPLES = "samples"  # metrics of one entity (``samples_codec``)
    CARRIED = "carried"  # what an earlier stage hands on: under its job's key already
    CLAIM = "claim"  # a message that is read for whose a job is, and for nothing else
    PAUSE = "pause"  # from its stamp on time stands still
    RESUME = "resume"  # until this one
    MARK = "mark"  # something stands in the input at its stamp; ``key``: "heard" where it is more than a beat


#: At one stamp: time goes on, then timers are due, then messages, then time stands still.
PHASE_RESUME, PHASE_TIMER, PHASE_MESSAGE, PHASE_PAUSE = range(4)


@dataclass(frozen=True, slots=True, order=True)
class StreamPlace:
    """Where an element stands among others, after its stamp. source, index: tell elements of one place apart.

    topic, partition, offset: of the message that it came from; of a timer its key and name as topic.
    """

    stamp_ns: int
    phase: int
    topic: str = ""
    partition: int = 0
    offset: int = 0
    source: str = ""
    index: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Element:
    """One thing for one shard. claims: rows of ``JobOwners`` by name that its jobs' names rest on."""

    stage: Stage
    shard: str
    sort: ElementSort
    place: StreamPlace
    topic: str = ""
    key: str = ""
    value: bytes = b""
    claims: Mapping[str, str] = field(default_factory=dict)

    def packed(self) -> bytes:
        """As bytes, without the stage and shard, which are Flink's key."""
        place = self.place
        head = [
            self.sort.value,
            [place.stamp_ns, place.phase, place.topic, place.partition, place.offset, place.source, place.index],
            self.topic,
            self.key,
            dict(self.claims),
        ]
        return json.dumps(head, separators=(",", ":")).encode() + b"\n" + self.value


@dataclass(frozen=True, slots=True, kw_only=True)
class KafkaOutput:
    """What is published. headers: texts."""

    topic: str
    key: str
    value: bytes
    headers: Mapping[str, str] = field(default_factory=dict)


StageOutput = Element | KafkaOutput


def unpacked(stage: Stage, shard: str, packed: bytes) -> Element:
    """The element of ``Element.packed``. Raises ValueError or TypeError for anything else."""
    head, newline, value = packed.partition(b"\n")
    if not newline:
        raise ValueError("an element without a head")
    sort, place, topic, key, claims = json.loads(head)
    return Element(
        stage=stage,
        shard=shard,
        sort=ElementSort(sort),
        place=StreamPlace(*place),
        topic=topic,
        key=key,
        value=value,
        claims=claims,
    )


def shard_of(name: str, shards: int) -> str:
    """The shard that a name belongs to, the same in every process and release."""
    return str(zlib.crc32(name.encode("utf-8", "replace")) % shards)


def range_of(job: str, node: str) -> str:
    """The shard of the range of the job's nodes that a node is in."""
    return shard_of(f"{job}\x1f{zlib.crc32(node.encode('utf-8', 'replace')) % RANGES_OF_A_JOB}", RANGE_SHARDS)


def all_shards() -> list[tuple[Stage, str]]:
    """Every shard that keeps time."""
    sizes = {Stage.JOBS: JOB_SHARDS, Stage.ENTITIES: ENTITY_SHARDS, Stage.CLUSTERS: CLUSTER_SHARDS}
    return [(stage, str(number)) for stage, size in sizes.items() for number in range(size)]


def wake_of(wake_ms: int) -> int:
    """The grain at whose end a shard works that has something to do then."""
    return -(-wake_ms // GRAIN_MS) * GRAIN_MS


def whole_until(watermark_ms: int) -> int:
    """Up to which time a shard may go at a watermark: what earlier stages have to say of a grain comes at its end."""
    return watermark_ms // GRAIN_MS * GRAIN_MS
