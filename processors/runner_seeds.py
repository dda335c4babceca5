"""What an earlier life has published, for a runner whose state is new: so that no incident is opened twice."""

from __future__ import annotations

from ..telemetry.otlp import decode_logs
from ..telemetry.records import Incident, Record
from ..telemetry.vocabulary import IncidentState
from ..transport.bus import TOPIC_INCIDENTS
from ..transport.kafka_client import Client
from ..transport.kafka_read import read_whole

#: Incidents that ended longer ago than blocks are kept are not taken over where the state is new.
KNOWN_NS = 24 * 3_600_000_000_000


def published_incidents(client: Client) -> list[Record]:
    """The last revision of every incident on Kafka that may be heard of again. Raises KafkaTrouble.

    What ended more than a day before the newest word cannot be: its blocks are gone.
    """
    last: dict[str, Record] = {}
    newest_ns = 0
    for message in read_whole(client, TOPIC_INCIDENTS):
        for payload in decode_logs(TOPIC_INCIDENTS, message.value):
            if isinstance(payload, Incident):
                key = str(payload.document.get("id"))
                last[key] = Record(topic=TOPIC_INCIDENTS, key=key, stamp_ns=message.stamp_ns, payload=payload)
                newest_ns = max(newest_ns, message.stamp_ns)
    return [record for record in last.values() if _is_open(record) or newest_ns - record.stamp_ns < KNOWN_NS]


def _is_open(record: Record) -> bool:
    return isinstance(record.payload, Incident) and record.payload.document.get("state") == IncidentState.OPEN.value
