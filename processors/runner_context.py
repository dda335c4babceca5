"""What an operator gets from its runner: its tables, its timers, and a place for what it emits."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from ..telemetry.otlp import encode_payloads
from ..telemetry.records import Broken, Event, Finding, Flush, Incident, Record, Samples
from ..telemetry.vocabulary import EventName
from ..transport.bus import TOPIC_FINDINGS, TOPIC_INCIDENTS, TOPIC_LOGS, TOPIC_REQUESTS
from .job_owners import JobOwners
from .runner_containment import Containment, OperatorFailure, failure_of, part_of
from .runner_rows import RunnerRows
from .runner_tables import KeyTables


@dataclass(frozen=True, slots=True, kw_only=True)
class Emission:
    """What an operator emitted. record: as other operators get it; shown and value: as everybody else reads it."""

    record: Record
    shown: Record
    value: bytes


class RunnerContext:
    """``Context`` of one operator and key. failures: of ``attempt``, until the runner takes them."""

    __slots__ = (
        "_containment",
        "_key",
        "_operator",
        "_owners",
        "_runner_state",
        "_tables",
        "emitted",
        "failures",
        "now_ns",
    )

    def __init__(
        self, runner_state: RunnerRows, owners: JobOwners, containment: Containment, operator: str, key: str
    ) -> None:
        self._runner_state = runner_state
        self._owners = owners
        self._containment = containment
        self._operator = operator
        self._key = key
        self._tables = KeyTables(runner_state.open_table, operator, key)
        self.now_ns = 0
        self.emitted: list[Emission] = []
        self.failures: list[OperatorFailure] = []

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
        """Adds a record to ``emitted``, which the runner takes after this call of the operator.

        Raises what encoding it raises, and TypeError for what no operator emits.
        """
        payload = record.payload
        if isinstance(payload, Broken | Samples | Flush):
            raise TypeError(f"an operator emitted {type(payload).__name__}")
        topic, key = destination_of(record)
        record = Record(topic=topic, key=key, stamp_ns=self.now_ns, payload=payload)
        key.encode()  # what no broker and no file can hold is refused here, where it can still be contained
        shown = self._owners.shown(payload)
        value = encode_payloads([shown])
        self.emitted.append(Emission(record=record, shown=replace(record, payload=shown), value=value))

    def set_timer(self, name: str, at_ns: int) -> None:
        """Sets or moves the timer ``name`` to ``at_ns`` (Unix), or just after ``now`` where that is past."""
        # Never due in the past: a timer that sets itself again makes time advance.
        due_ns = max(at_ns, self.now_ns + 1)
        self._runner_state.timers.set(self._operator, self._key, name, due_ns, self.now_ns)

    def clear_timer(self, name: str) -> None:
        """Clears the timer ``name``; does nothing where it is not set."""
        self._runner_state.timers.clear(self._operator, self._key, name)

    def owner_of(self, job: str) -> str:
        """Who owns the job of this key; "" where nobody has said it."""
        return self._owners.owner_of(job)

    def attempt(self, act: Callable[[], None], about: Record | str) -> bool:
        """Calls ``act``; takes back what it did where it raises (``Context.attempt``)."""
        part = part_of(about)
        if self._containment.is_muted(self._operator, self._key, part, self.now_ns):
            self._containment.dropped += 1
            return False
        emitted, state = len(self.emitted), self._runner_state
        state.begin_trial()
        try:
            act()
            state.end_trial(keep=True)
        except Exception as error:  # whatever it is, it concerns this part alone
            state.end_trial(keep=False)
            del self.emitted[emitted:]
            self.failures.append(failure_of(self._operator, self._key, part, error))
            return False
        return True


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
