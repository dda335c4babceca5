"""A court for findings: the operator's contract held in memory, strict about what a runner would do."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest

from whichrank.processors.cluster.operator import ClusterOperator
from whichrank.processors.operator import Timer
from whichrank.telemetry.incident import canonical_line, check_document
from whichrank.telemetry.records import Event, Finding, Identity, Incident, Record
from whichrank.telemetry.vocabulary import Bucket, Kind, Severity

START_S = 1_700_000_000.0

BUCKETS = {
    Kind.RANK_DIED: Bucket.IMMEDIATE_CRASH,
    Kind.RANK_RAISED: Bucket.IMMEDIATE_CRASH,
    Kind.RANK_SLOW: Bucket.SPEED_REGRESSION,
    Kind.SLOW_TOGETHER: Bucket.SPEED_REGRESSION,
    Kind.NUMERIC_FIRST_RANK: Bucket.NUMERIC,
    Kind.NUMERIC_ALL: Bucket.NUMERIC,
    Kind.PLANNED_STOP: Bucket.PLANNED,
    Kind.INPUT_SILENT: Bucket.TELEMETRY,
}


class MemoryTable:
    """As the runner's: what is put later is made when somebody reads it."""

    def __init__(self) -> None:
        self._rows: dict[str, bytes] = {}
        self._later: dict[str, Callable[[], bytes]] = {}

    def get(self, row: str) -> bytes | None:
        if row in self._later:
            self._rows[row] = self._later.pop(row)()
        return self._rows.get(row)

    def put(self, row: str, value: bytes) -> None:
        assert isinstance(value, bytes)
        self._later.pop(row, None)
        self._rows[row] = value

    def put_later(self, row: str, make: Callable[[], bytes]) -> None:
        self._later[row] = make

    def delete(self, row: str) -> None:
        self._later.pop(row, None)
        self._rows.pop(row, None)

    def rows(self) -> Iterator[tuple[str, bytes]]:
        for row in list(self._later):
            self.get(row)
        yield from sorted(self._rows.items())


class Court:
    """Feeds findings to a fresh ClusterOperator instance each time, so that nothing lives outside the state."""

    def __init__(self) -> None:
        self.disabled: frozenset[Kind] = frozenset()
        self.owners: dict[str, str] = {}
        self.asks_for_files = False
        self.tables: dict[str, MemoryTable] = {}
        self.emitted: list[Record] = []
        self.timers: dict[str, int] = {}
        self.now = 0

    @property
    def key(self) -> str:
        return "local"

    @property
    def state(self) -> Court:
        return self

    def table(self, name: str) -> MemoryTable:
        return self.tables.setdefault(name, MemoryTable())

    def emit(self, record: Record) -> None:
        self.emitted.append(record)

    def set_timer(self, name: str, at_ns: int) -> None:
        self.timers[name] = at_ns

    def clear_timer(self, name: str) -> None:
        raise AssertionError("there are no timers")

    def owner_of(self, job: str) -> str:
        return self.owners.get(job, "")

    def attempt(self, act: Callable[[], None], about: Record | str) -> bool:
        act()
        return True

    def hear(self, *findings: Finding, batch: bool = False) -> None:
        records = [
            Record(topic="whichrank.findings", key="local", stamp_ns=finding.time_ns, payload=finding)
            for finding in findings
        ]
        for group in [records] if batch else [[record] for record in records]:
            self.now = group[-1].stamp_ns
            operator = ClusterOperator(self.disabled, asks_for_files=self.asks_for_files)
            assert {operator.key_of(record) for record in group} == {"local"}
            operator.process(group, self)

    def pass_time(self, until_s: float) -> None:
        """Timers fire up to so long after START_S."""
        until_ns = round((START_S + until_s) * 1e9)
        while self.timers and min(self.timers.values()) <= until_ns:
            name = min(self.timers, key=self.timers.__getitem__)
            self.now = self.timers.pop(name)
            ClusterOperator(self.disabled).on_timer(Timer(name, self.now), self)

    def lose_state(self) -> None:
        """The state is gone; what was published is read back, each incident's last revision."""
        last = {document["id"]: document for document in self.revisions}
        self.tables.clear()
        for document in last.values():
            record = Record(
                topic="whichrank.incidents", key="local", stamp_ns=self.now, payload=Incident(document=document)
            )
            assert ClusterOperator().key_of(record) == "local"
            ClusterOperator().process([record], self)

    @property
    def revisions(self) -> list[Mapping[str, Any]]:
        documents = [record.payload.document for record in self.emitted if isinstance(record.payload, Incident)]
        for document in documents:
            assert check_document(document) == []
        return documents

    @property
    def lines(self) -> list[bytes]:
        return [canonical_line(document) for document in self.revisions]

    @property
    def requests(self) -> list[Event]:
        return [record.payload for record in self.emitted if isinstance(record.payload, Event)]

    @property
    def incidents(self) -> dict[str, Mapping[str, Any]]:
        return {document["id"]: document for document in self.revisions}

    @property
    def pages(self) -> list[Mapping[str, Any]]:
        """Incidents that stand: not merged away."""
        return [document for document in self.incidents.values() if document["state"] != "merged"]


def make_finding(
    kind: Kind,
    rank: int | None = None,
    *,
    at: float,
    onset: float | None = None,
    key: str | None = None,
    cleared: bool = False,
    attempt: str = "a1",
    step: int | None = 30,
    severity: Severity | None = None,
    evidence: list[dict[str, Any]] | None = None,
    **body: Any,
) -> Finding:
    """A finding as JobOperator makes it. at, onset: seconds after START_S."""
    onset = at if onset is None else onset
    suspects = [] if rank is None else [_suspect(rank)]
    shown = {
        "signal": f"rank.{kind.value}",
        "source": f"rank {rank}",
        "time": START_S + onset,
        "value": "",
        "shows": "",
    }
    return Finding(
        identity=Identity(cluster="local", run="r", job="j", attempt=attempt, node="n1"),
        key=key if key is not None else f"{kind.value}:{step}:{rank}",
        cleared=cleared,
        time_ns=round((START_S + at) * 1e9),
        body={
            "bucket": BUCKETS.get(kind, Bucket.COMMUNICATION_HANG).value,
            "kind": kind.value,
            "scope": "rank",
            "suspects": suspects,
            "victims": {"count": 3, "ranks": "0-3"},
            "coverage": {"ranks_seen": 4, "ranks_expected": 4},
            "first_bad": {"step": step, "group": "default", "sequence": 97, "operation": "all_reduce"},
            "times": {"onset": START_S + onset, "detected": START_S + at, "attributed": START_S + at},
            "evidence": evidence if evidence is not None else [shown],
            "ruled_out": [],
            "confidence": 0.9,
            **({"severity": severity.value} if severity else {}),
            **body,
        },
    )


def _suspect(rank: int) -> dict[str, Any]:
    return {"scope": "rank", "id": str(rank), "rank": rank, "node": "n1", "pid": 100 + rank, "probability": 0.9}


@pytest.fixture
def court() -> Court:
    return Court()


@pytest.fixture
def finding() -> Any:
    return make_finding


@pytest.fixture
def new_court() -> Any:
    return Court
