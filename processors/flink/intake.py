"""Stage one: a message of the bus is decoded, bounded and divided by shard. Any of several may do it. Pure; no Flink.

What agents say of one job goes on as it came: where it is a flush of a large job's node to the node's range, where it
is joined with others (``node_range``). Of metrics only what a rule asks for goes on, in our words. An empty message is
a beat (``beats``): it says that the partition was read up to its stamp, and nothing else.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Sequence

from ...telemetry.flushes_alone import flushes_alone
from ...telemetry.otlp_encode import Encodable, encode_payloads
from ...telemetry.records import Block, Broken, Event, Finding, Flush, Identity, Payload, Samples
from ...telemetry.vocabulary import EventName
from ...transport.bus import TOPIC_DLQ, Message
from ..cluster.operator import UNKNOWN_CLUSTER
from ..runner_decode import MessageDecoder
from ..runner_letters import dead_letter
from .idleness import HEARD, ONE_SHARD
from .samples_codec import write_samples
from .stage_elements import (
    CLUSTER_SHARDS,
    ENTITY_SHARDS,
    JOB_SHARDS,
    PHASE_MESSAGE,
    Element,
    ElementSort,
    KafkaOutput,
    Stage,
    StageOutput,
    StreamPlace,
    range_of,
    shard_of,
)

#: Of the marks for the detector one per sort and so long is enough.
MARK_NS = 100_000_000
MAX_BUCKETS = 4096
#: In keys of jobs, never in their names (``job_owners``).
_MARK = "\x1f"

Where = tuple[Stage, str]


class Intake:
    """Takes messages one by one. metrics: names of ours that are wanted. report: takes one line for people."""

    def __init__(self, metrics: Collection[str], report: Callable[[str], None]) -> None:
        self._decoder = MessageDecoder(metrics, report, with_flushes=True)
        self._report = report
        self._marked: dict[tuple[int, bool], None] = {}
        #: Messages taken, and records that could not be read, in this process.
        self.messages = self.broken = 0

    @property
    def nameless(self) -> int:
        """How many points of other people's exporters were left out, as they name no host."""
        return self._decoder.nameless

    def take(self, message: Message) -> list[StageOutput]:
        """What the message is for later stages. message.place: its partition and offset."""
        self.messages += 1
        payloads = self._decode(message) if message.value else []
        if (
            len(payloads) == 1
            and isinstance(flush := payloads[0], Flush)
            and flush.identity.job
            and flush.identity.rank < 0
        ):
            where = (Stage.RANGES, range_of(flush.identity.job, flush.identity.node))
            alone = self._element(where, ElementSort.MESSAGE, message, message.value, 1)
            return [*self._marks(message, is_heard=True), alone]
        out: list[StageOutput] = []
        parts: dict[Where, list[Encodable]] = {}
        flushes: dict[Where, int] = {}
        index = 0
        for payload in payloads:
            if isinstance(payload, Broken):
                out.append(self._letter(message, payload))
            elif isinstance(payload, Samples):
                index += 1
                where = (Stage.ENTITIES, shard_of(payload.identity.node, ENTITY_SHARDS))
                out.append(self._element(where, ElementSort.SAMPLES, message, write_samples(payload), index))
            elif isinstance(payload, Flush):
                flushes[where_of(payload)] = flushes.get(where_of(payload), 0) + 1
            else:
                parts.setdefault(where_of(payload), []).append(payload)
                if (about := _job_of_scheduler_event(payload)) and isinstance(payload, Event):
                    index += 1
                    claim = encode_payloads([payload])
                    out.append(self._element((Stage.JOBS, about), ElementSort.CLAIM, message, claim, index))
        for where in {**flushes, **parts}:
            for value in _values(message.value, where, parts.get(where, []), flushes.get(where, 0), len(payloads)):
                index += 1
                out.append(self._element(where, ElementSort.MESSAGE, message, value, index))
        return self._marks(message, bool(payloads)) + out

    def _decode(self, message: Message) -> Sequence[Payload]:
        try:
            return self._decoder.decode(message.topic, message.value)
        except Exception as error:  # whatever bytes make a decoder do, MemoryError included, ends one message
            reason = f"decoding failed: {type(error).__name__}: {error}"[:300]
            return [Broken(topic=message.topic, reason=reason, value=message.value)]

    def _letter(self, message: Message, broken: Broken) -> KafkaOutput:
        self.broken += 1
        if self.broken == 1:
            self._report(f"{message.topic}, partition and offset {message.place}: {broken.reason}; kept on {TOPIC_DLQ}")
        return letter(message, broken)

    def _element(self, where: Where, sort: ElementSort, message: Message, value: bytes, index: int) -> Element:
        partition, offset = message.place or (0, message.position)
        return Element(
            stage=where[0],
            shard=where[1],
            sort=sort,
            place=StreamPlace(message.stamp_ns, PHASE_MESSAGE, message.topic, partition, offset, "", index),
            topic=message.topic,
            key=message.key,
            value=value,
        )

    def _marks(self, message: Message, is_heard: bool) -> list[StageOutput]:
        bucket = message.stamp_ns // MARK_NS
        if (bucket, True) in self._marked or (bucket, is_heard) in self._marked:
            return []
        if len(self._marked) >= MAX_BUCKETS:
            self._marked.clear()
        self._marked[(bucket, is_heard)] = None
        place = StreamPlace(stamp_ns=message.stamp_ns, phase=PHASE_MESSAGE)
        key = HEARD if is_heard else ""
        return [Element(stage=Stage.IDLENESS, shard=ONE_SHARD, sort=ElementSort.MARK, place=place, key=key)]


def _values(value: bytes, where: Where, those: Sequence[Encodable], flushes: int, payloads: int) -> list[bytes]:
    """What of a message of so many payloads goes to a shard: so many flushes, and ``those``."""
    if len(those) + flushes == payloads:  # what goes on whole goes on as it came
        return [value]
    found = [flushes_alone(value, lambda identity: where_of_identity(identity) == where)] if flushes else []
    return found + ([encode_payloads(those)] if those else [])


def letter(message: Message, broken: Broken) -> KafkaOutput:
    """What is published of a record that cannot be read."""
    kept, headers = dead_letter(message, broken)
    return KafkaOutput(topic=TOPIC_DLQ, key=message.key, value=kept.value, headers=json.loads(headers))


def where_of(payload: Block | Flush | Event | Finding | Encodable) -> Where:
    """Stage and shard that see a payload first: where it has a job the job's, which knows whose that is."""
    if isinstance(payload, Finding):
        return Stage.CLUSTERS, shard_of(payload.identity.cluster or UNKNOWN_CLUSTER, CLUSTER_SHARDS)
    identity = payload.identity if isinstance(payload, Block | Flush | Event) else None
    if identity is None:
        return Stage.CLUSTERS, shard_of(UNKNOWN_CLUSTER, CLUSTER_SHARDS)
    return where_of_identity(identity)


def where_of_identity(identity: Identity) -> Where:
    """As ``where_of``, of what the operators of jobs and entities take."""
    if identity.job:
        return Stage.JOBS, shard_of(identity.job.replace(_MARK, ""), JOB_SHARDS)
    return Stage.ENTITIES, shard_of(identity.node, ENTITY_SHARDS)


def _job_of_scheduler_event(payload: Payload) -> str:
    """The shard of the job that a scheduler's word is about, which comes under its node's name; "" for all else."""
    if not isinstance(payload, Event) or payload.name is not EventName.SCHEDULER or payload.identity.job:
        return ""
    job = payload.attributes.get("job")
    return shard_of(str(job).replace(_MARK, ""), JOB_SHARDS) if job else ""
