"""What a Flink cluster says of our job, through its REST interface. Raises OSError where it does not answer."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass

ANSWER_S = 5.0
#: States in which a job is there, or comes back by itself.
LIVING = frozenset({"INITIALIZING", "CREATED", "RUNNING", "FAILING", "RESTARTING", "CANCELLING", "RECONCILING"})


@dataclass(frozen=True, slots=True, kw_only=True)
class FlinkJob:
    """Our job at a moment. watermark_ms: up to which stamp everything was judged, Unix; None: of nothing yet."""

    id: str
    state: str
    watermark_ms: int | None = None
    checkpoints: int = 0
    failed_checkpoints: int = 0
    #: Of the last one: when it was complete (Unix), how long it took, how large the state is.
    checkpoint_ms: int | None = None
    checkpoint_took_ms: int = 0
    state_bytes: int = 0
    restarts: int = 0


class FlinkCluster:
    """address: HOST:PORT of a JobManager."""

    def __init__(self, address: str) -> None:
        self._url = f"http://{address}"

    def find(self, name: str) -> str | None:
        """Id of the living job of this name; None where there is none. Raises OSError."""
        jobs = self._get("/jobs/overview").get("jobs", [])
        return next((str(job["jid"]) for job in jobs if job["name"] == name and job["state"] in LIVING), None)

    def look(self, job: str, last_stage: str) -> FlinkJob:
        """The job now. last_stage: name of the operator whose watermark counts. Raises OSError."""
        about = self._get(f"/jobs/{job}")
        counts = self._get(f"/jobs/{job}/checkpoints")
        last = (counts.get("latest") or {}).get("completed") or {}
        restarts = self._get(f"/jobs/{job}/metrics?get=numRestarts")
        return FlinkJob(
            id=job,
            state=str(about.get("state")),
            watermark_ms=self._watermark_ms(job, about, last_stage),
            checkpoints=int((counts.get("counts") or {}).get("completed", 0)),
            failed_checkpoints=int((counts.get("counts") or {}).get("failed", 0)),
            checkpoint_ms=last.get("latest_ack_timestamp"),
            checkpoint_took_ms=int(last.get("end_to_end_duration") or 0),
            state_bytes=int(last.get("state_size") or 0),
            restarts=int(float(restarts[0]["value"])) if restarts else 0,
        )

    def _watermark_ms(self, job: str, about: object, last_stage: str) -> int | None:
        assert isinstance(about, dict)
        found: list[int] = []
        for vertex in about.get("vertices", []):
            if str(vertex["name"]).startswith(last_stage):
                marks = self._get(f"/jobs/{job}/vertices/{vertex['id']}/watermarks")
                found += [int(mark["value"]) for mark in marks]
        return min(found) if found and min(found) > 0 else None

    def _get(self, path: str):  # type: ignore[no-untyped-def]
        try:
            with urllib.request.urlopen(self._url + path, timeout=ANSWER_S) as answer:
                return json.load(answer)
        except urllib.error.HTTPError as error:
            raise OSError(f"{self._url}{path}: {error.code} {error.reason}") from error
        except ValueError as error:
            raise OSError(f"{self._url}{path}: no JSON ({error})") from error


def figures_of(job: FlinkJob, now_ms: int) -> Iterator[tuple[str, str, float]]:
    """(name, meaning, value) of the gauges that a job has, for Prometheus."""
    yield "running", "1 while the job runs", float(job.state == "RUNNING")
    yield "restarts", "how often it was restarted", float(job.restarts)
    yield "checkpoints_failed", "checkpoints that failed", float(job.failed_checkpoints)
    yield "checkpoint_duration_seconds", "how long the last checkpoint took", job.checkpoint_took_ms / 1e3
    yield "state_bytes", "size of the last checkpoint", float(job.state_bytes)
    if job.checkpoint_ms is not None:
        yield "checkpoint_age_seconds", "since the last checkpoint", max(0.0, (now_ms - job.checkpoint_ms) / 1e3)
    if job.watermark_ms is not None:
        yield "lag_seconds", "age of the newest time up to which all is judged", (now_ms - job.watermark_ms) / 1e3
