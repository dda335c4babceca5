"""Packed flushes of some senders, as they came, of a message with more in it: a Collector has put them together.

They are taken out as records, not written anew: of its groups a flush may tell no more than a uid of their list.
"""

from __future__ import annotations

from collections.abc import Callable

from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest

from .otlp import read_identity
from .packed_flush import PACKED
from .records import Identity


def flushes_alone(value: bytes, is_wanted: Callable[[Identity], bool]) -> bytes:
    """A message of the flushes alone whose sender is wanted. Raises DecodeError for what is no logs request."""
    request = ExportLogsServiceRequest.FromString(value)
    kept = ExportLogsServiceRequest()
    for part in request.resource_logs:
        if not is_wanted(read_identity(part.resource.attributes)):
            continue
        for scope in part.scope_logs:
            records = [record for record in scope.log_records if record.event_name == PACKED]
            del scope.log_records[:]
            scope.log_records.extend(records)
        kept.resource_logs.append(part)
    return kept.SerializeToString()
