"""One key's trouble is one key's trouble: what is known of keys, and of parts of keys, on which an operator has failed.

A key that fails again within a day is muted for an hour of the bus's time: its records are dropped and counted. Kept in
the runner's state and told by the bus's clock alone, so that a restart and a replay agree.
"""

from __future__ import annotations

import json
import traceback
from dataclasses import dataclass

from ..telemetry.records import Finding, Incident, Record
from .doubts import MAX_WORDS, Doubt
from .fair_share import FairShare
from .runner_notices import PendingNotices
from .runner_rows import RunnerRows

_HOUR_NS = 3_600_000_000_000
MUTED_NS = _HOUR_NS
REMEMBERED_NS = 24 * _HOUR_NS
#: Keys and parts that are remembered; beyond that the oldest failures are forgotten.
MAX_FAILED = 4096
#: So many are told of one by one in an hour, and the rest as one; of an owner of whom nothing was told in the hour the
#: first one, while there are not too many owners.
MOST_TOLD, MOST_FIRST_TOLD = 32, 128
MAX_TRACEBACK = 8_000
MAX_PART = 300
FAILED = "record that an operator fails on"
_OTHERS = "others"


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorFailure:
    """What an operator raised. part: of the key, where that was all that was concerned; "" the whole key."""

    operator: str
    key: str
    part: str
    reason: str
    traceback: str

    @property
    def name(self) -> str:
        """The failure's name, the same each time: its operator, key and part in one string."""
        return _name(self.operator, self.key, self.part)


@dataclass(slots=True, kw_only=True)
class _Failed:
    first_ns: int
    last_ns: int
    muted_until_ns: int = 0
    times: int = 0
    owner: str = ""
    is_untold: bool = False


def failure_of(operator: str, key: str, part: str, error: Exception) -> OperatorFailure:
    """What is kept of an exception: one line, and its frames as far as they fit into a header."""
    frames = traceback.extract_tb(error.__traceback__)
    reason = f"{type(error).__name__}: {error}"[:MAX_WORDS]
    lines = [f"{frame.filename.rpartition('/')[2]}:{frame.lineno} {frame.name}: {frame.line}" for frame in frames]
    text = "\n".join([*lines, reason])[-MAX_TRACEBACK:]
    return OperatorFailure(operator=operator, key=key, part=part[:MAX_PART], reason=reason, traceback=text)


def part_of(about: Record | str) -> str:
    """Of a key that holds much, the part that a record concerns; "" for a record of which that cannot be said."""
    if isinstance(about, str):
        return about
    payload = about.payload
    if isinstance(payload, Finding):
        return f"{payload.identity.job}\t{payload.key}"
    return str(payload.document.get("id", "")) if isinstance(payload, Incident) else ""


class Containment:
    """Remembers failures, says what is muted, and adds what has to be reported of them to the notices."""

    def __init__(self, state: RunnerRows, notices: PendingNotices) -> None:
        self._table = state.open_table(("runner", "", "failed"))
        known = [(name, failed) for name, row in self._table.rows() if (failed := _read_failed(row)) is not None]
        self._failed = dict(sorted(known, key=lambda each: each[1].last_ns))
        for name in [name for name, _ in self._table.rows() if name not in self._failed]:
            self._table.delete(name)  # a key is then as one that has never failed
        self._shares = FairShare((name, each.owner) for name, each in self._failed.items())
        self._notices = notices
        #: Calls of operators that have raised, and records that were dropped as their key is muted, in this process.
        self.failures = self.dropped = 0

    def is_muted(self, operator: str, key: str, part: str, now_ns: int) -> bool:
        """Whether what concerns this part of the key ("": any of it) is to be dropped."""
        if not self._failed:
            return False
        failed = self._failed.get(_name(operator, key, part))
        return failed is not None and now_ns < failed.muted_until_ns

    def note(self, failure: OperatorFailure, now_ns: int, owner: str = "") -> bool:
        """Notes a failure; mutes what has failed before. Whether it is told by itself. owner: of the job."""
        self.failures += 1
        self._forget_old(now_ns)
        failed = self._failed.pop(failure.name, None) or _Failed(first_ns=now_ns, last_ns=now_ns, owner=owner)
        is_new = not failed.times
        failed.times, failed.last_ns = failed.times + 1, now_ns
        if not is_new:
            failed.muted_until_ns = now_ns + MUTED_NS
        recent = [each for each in (*self._failed.values(), failed) if now_ns - each.first_ns < _HOUR_NS]
        is_first = sum(each.owner == failed.owner for each in recent) == 1
        is_told = len(recent) <= MOST_TOLD or (is_first and len(recent) <= MOST_FIRST_TOLD)
        entity = f"{failure.operator}/{failure.key}" if is_told else _OTHERS
        if is_told or (is_new and not any(each.is_untold for each in recent)):
            self._notices.add_doubt(Doubt(what=FAILED, entity=entity[:MAX_WORDS], words=_words(failure, failed)))
        failed.is_untold = not is_told
        self._failed[failure.name] = failed
        self._shares.touch(failure.name, failed.owner)
        row = {name: getattr(failed, name) for name in _Failed.__slots__}
        self._table.put(failure.name, json.dumps(row).encode())
        return is_told

    def _forget_old(self, now_ns: int) -> None:
        """What is too old; of too many one of the owner who has most, so that his never unmute another one's."""
        for name in list(self._failed):
            if now_ns - self._failed[name].last_ns < REMEMBERED_NS:
                break  # they are in the order of their last failure
            self._forget(name)
        while len(self._failed) >= MAX_FAILED:
            self._forget(self._shares.first_to_go())

    def _forget(self, name: str) -> None:
        del self._failed[name]
        self._shares.remove(name)
        self._table.delete(name)


def _read_failed(row: bytes) -> _Failed | None:
    """What this release or another one has written; None for what is nothing of that."""
    try:
        said = json.loads(row)
        times = {name: int(said.get(name, 0)) for name in ("first_ns", "last_ns", "muted_until_ns", "times")}
        return _Failed(**times, owner=str(said.get("owner", "")), is_untold=bool(said.get("is_untold")))
    except (ValueError, TypeError, AttributeError, OverflowError):
        return None


def _words(failure: OperatorFailure, failed: _Failed) -> str:
    what = f"{failure.part!r} of {failure.key}" if failure.part else failure.key
    done = (
        "its state was set aside and its open incidents ended"
        if not failure.part
        else "what it had changed was taken back"
    )
    if failed.muted_until_ns:
        done += ", and it is muted for an hour"
    return f"operator {failure.operator} failed on {what[:120]}: {failure.reason[:100]}; {done}"[:MAX_WORDS]


def _name(operator: str, key: str, part: str) -> str:
    return "\t".join((operator, key, part[:MAX_PART])).encode("utf-8", "replace").decode()
