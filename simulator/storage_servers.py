"""Lustre's servers as its exporter tells of them: a metadata server, and data servers that share what is read and
written. They count what ranks ask (``AskedStorage``) by job, as a server with ``jobid_var`` does.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from .asked_storage import AskedStorage
from .cluster_topology import STORAGE
from .scraped_page import Line, Page
from .shared_storage import LIMIT_BYTES, TRANSFER_BYTES

_PORT = 32221
#: How a metadata operation of a loader divides: it looks a file up, opens it, and closes it again.
_METADATA = {"open": 0.25, "getattr": 0.5, "close": 0.25}


class StorageServers:
    """Their pages, at any time. What they count goes on in ``asked``."""

    def __init__(self, asked: AskedStorage, data_servers: int) -> None:
        self._asked, self._data_servers = asked, data_servers

    def pages(self, room_bytes: float) -> Iterator[Page]:
        """A page of each server. room_bytes: left on the file system."""
        yield Page(instance=f"mds1:{_PORT}", lines=tuple(self._metadata()))
        for number in range(self._data_servers):
            lines = tuple(self._data(f"{STORAGE}-OST{number:04x}", room_bytes))
            yield Page(instance=f"oss{number + 1}:{_PORT}", lines=lines)

    def _metadata(self) -> Iterator[Line]:
        about = {"component": "mdt", "target": f"{STORAGE}-MDT0000"}
        whole = sum(asked["metadata"] for asked in self._asked.by_job.values())
        for operation, share in _METADATA.items():
            of_operation = {**about, "operation": operation}
            yield Line(name="lustre_stats_total", labels=of_operation, value=int(whole * share))
            spent_us = int(self._asked.metadata_time_s * share * 1e6)
            yield Line(name="lustre_stats_time_total", labels=of_operation, value=spent_us)
            for job, asked in self._asked.by_job.items():
                of_job = {**of_operation, "jobid": job}
                yield Line(name="lustre_job_stats_total", labels=of_job, value=int(asked["metadata"] * share))
        yield Line(name="lustre_health_healthy", labels=about, value=1)

    def _data(self, target: str, room_bytes: float) -> Iterator[Line]:
        about = {"component": "ost", "target": target}
        for kind in ("read", "write"):
            by_job = {job: asked[kind] / self._data_servers for job, asked in self._asked.by_job.items()}
            yield from _moved(kind, about, sum(by_job.values()))
            for job, operations in by_job.items():
                yield from _moved(f"job_{kind}", {**about, "jobid": job}, operations)
        yield Line(name="lustre_capacity_kilobytes", labels=about, value=LIMIT_BYTES / self._data_servers / 1024)
        free = min(room_bytes, LIMIT_BYTES) / self._data_servers / 1024
        yield Line(name="lustre_available_kilobytes", labels=about, value=free)
        yield Line(name="lustre_health_healthy", labels=about, value=1)


def _moved(kind: str, labels: Mapping[str, str], operations: float) -> Iterator[Line]:
    yield Line(name=f"lustre_{kind}_samples_total", labels=labels, value=int(operations))
    yield Line(name=f"lustre_{kind}_bytes_total", labels=labels, value=int(operations) * TRANSFER_BYTES)
