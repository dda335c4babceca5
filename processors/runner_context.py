"""What an operator gets from the embedded runner: its tables, its timers, and a place for what it emits."""

from __future__ import annotations

from ..telemetry.records import Event, Finding, Incident, Record
from ..telemetry.vocabulary import EventName
from ..transport.bus import TOPIC_FINDINGS, TOPIC_INCIDENTS, TOPIC_LOGS, TOPIC_REQUESTS
from .runner_state import KeyTables, RunnerState


class RunnerContext:
    """``Context`` of one operator and key."""

    __slots__ = ("_key", "_operator", "_runner_state", "_tables", "emitted", "now_ns")

    def __init__(self, runner_state: RunnerState, operator: str, key: str) -> None:
        self._runner_state = runner_state
        self._operator = operator
        self._key = key
        self._tables = KeyTables(runner_state, operator, key)
        self.now_ns = 0
        self.emitted: list[Record] = []

    @property
    def key(self) -> str:
        """The key of the records or timer that are processed now."""
        return self._key

    @property
    def now(self) -> int:
        """The stamp of the message or timer at hand (Unix ns)."""
        return self.now_ns

    @property
    def state(self) -> KeyTables:
        """The tables of this operator and key."""
        return self._tables

    def emit(self, record: Record) -> None:
        """Adds a record to ``emitted``, which the runner takes after this call of the operator."""
        self.emitted.append(record)

    def set_timer(self, name: str, at_ns: int) -> None:
        """Sets or moves the timer ``name`` to ``at_ns`` (Unix), or just after ``now`` where that is past."""
        # Never due in the past: a timer that sets itself again makes time advance.
        due_ns = max(at_ns, self.now_ns + 1)
        self._runner_state.set_timer(self._operator, self._key, name, due_ns, self.now_ns)

    def clear_timer(self, name: str) -> None:
        """Clears the timer ``name``; does nothing where it is not set."""
        self._runner_state.clear_timer(self._operator, self._key, name)


def destination_of(record: Record) -> tuple[str, str]:
    """Topic and key of what an operator emitted (``transport.bus`` names the topics)."""
    payload = record.payload
    if isinstance(payload, Finding):
        return TOPIC_FINDINGS, payload.identity.cluster
    if isinstance(payload, Incident):
        return TOPIC_INCIDENTS, str(payload.document.get("id", ""))
    if isinstance(payload, Event) and payload.name is EventName.EVIDENCE_REQUEST:
        return TOPIC_REQUESTS, str(payload.attributes.get("node", payload.identity.node))
    return record.topic or TOPIC_LOGS, record.key
