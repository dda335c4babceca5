"""What a Flink cluster says of our job, through its REST interface. Raises OSError where it does not answer."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from http import HTTPStatus
from typing import TypeVar

import urllib3
from pydantic import BaseModel, FiniteFloat, RootModel
from urllib3.util import Retry

from ..support.bounded_http import ask, bounded_pool

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


# --- answers of Flink's REST interface, as far as they are read ---
class _JobOverview(BaseModel):
    jid: str
    name: str
    state: str


class _Overview(BaseModel):
    jobs: list[_JobOverview]


class _Vertex(BaseModel):
    id: str
    name: str


class _Job(BaseModel):
    state: str
    vertices: list[_Vertex] = []


class _Counts(BaseModel):
    completed: int = 0
    failed: int = 0


class _Checkpoint(BaseModel):
    latest_ack_timestamp: int | None = None
    end_to_end_duration: int = 0
    state_size: int = 0


class _Latest(BaseModel):
    completed: _Checkpoint | None = None


class _Checkpoints(BaseModel):
    counts: _Counts | None = None
    latest: _Latest | None = None


class _Value(BaseModel):
    value: FiniteFloat


class _Values(RootModel[list[_Value]]):
    """Of metrics and watermarks: texts of numbers."""


A = TypeVar("A", bound=BaseModel)


class FlinkCluster:
    """address: HOST:PORT of a JobManager."""

    def __init__(self, address: str) -> None:
        self._url = f"http://{address}"
        self._pool = bounded_pool(timeout_s=ANSWER_S, retries=Retry(False))

    def find(self, name: str) -> str | None:
        """Id of the living job of this name; None where there is none. Raises OSError."""
        jobs = self._ask("/jobs/overview", _Overview).jobs
        return next((job.jid for job in jobs if job.name == name and job.state in LIVING), None)

    def look(self, job: str, last_stage: str) -> FlinkJob:
        """The job now. last_stage: name of the operator whose watermark counts. Raises OSError."""
        about, checkpoints = self._ask(f"/jobs/{job}", _Job), self._ask(f"/jobs/{job}/checkpoints", _Checkpoints)
        counts = checkpoints.counts or _Counts()
        last = (checkpoints.latest or _Latest()).completed or _Checkpoint()
        restarts = self._ask(f"/jobs/{job}/metrics?get=numRestarts", _Values).root
        return FlinkJob(
            id=job,
            state=about.state,
            watermark_ms=self._watermark_ms(job, about, last_stage),
            checkpoints=counts.completed,
            failed_checkpoints=counts.failed,
            checkpoint_ms=last.latest_ack_timestamp,
            checkpoint_took_ms=last.end_to_end_duration,
            state_bytes=last.state_size,
            restarts=int(restarts[0].value) if restarts else 0,
        )

    def _watermark_ms(self, job: str, about: _Job, last_stage: str) -> int | None:
        found: list[float] = []
        for vertex in about.vertices:
            if vertex.name.startswith(last_stage):
                found += [
                    mark.value for mark in self._ask(f"/jobs/{job}/vertices/{vertex.id}/watermarks", _Values).root
                ]
        return int(min(found)) if found and min(found) > 0 else None

    def _ask(self, path: str, answered: type[A]) -> A:
        try:
            answer, content = ask(self._pool, "GET", self._url + path)
        except urllib3.exceptions.HTTPError as error:
            raise OSError(f"{self._url}{path}: {error}") from error
        if answer.status != HTTPStatus.OK:
            raise OSError(f"{self._url}{path}: {answer.status}")
        try:
            return answered.model_validate_json(content)
        except ValueError as error:
            raise OSError(f"{self._url}{path}: not what Flink answers ({str(error).splitlines()[0]})") from error


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
