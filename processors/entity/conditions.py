"""What is known of one entity: its conditions, its ranks and devices. Plain JSON data, a row of state per entity."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...diagnosis.kernel_log.recurrence import Sighting
from ..condition_document import AffectedRank
from .series_table import WIDTH, SeriesTable

#: Of one entity; the oldest that are over go first, then the oldest.
MAX_CONDITIONS = 256
MAX_RANKS = 1024
MAX_ALIASES = 256
#: Signals that are remembered for what their repeats say; the oldest go first.
MAX_SIGHTINGS = 256
#: Openings of a condition that are remembered, for how often it came.
MAX_OPENINGS = 8


@dataclass(slots=True, kw_only=True)
class Condition:
    """One condition of one device, from its first signal on. Times are Unix seconds by the entity's clock.

    text: the line or the words that show it. until: when it ended, None while it lasts. count: signals so far.
    """

    name: str
    device_kind: str
    device: str
    severity: str
    domain: str
    scope: str
    action: str | None
    explains: list[str]
    since: float
    last: float
    text: str
    source: str  # "kernel", "driver", or the metric's name
    trust: str = ""  # ``trust.Trust``: who could have written it; "": of a release that did not say
    until: float | None = None
    count: int = 1
    value: str = ""
    #: The event's own word, ``xid``; "" where no event told it; None: of a release that did not say.
    event: str | None = None
    pid: int = 0
    of_process: bool = False
    of_job: str = ""  # it concerns all ranks of this job, and no other
    opened_by: str = ""  # of those told by metrics, the series
    before_s: float = 60.0
    lag_s: float = 2.0
    lasts_s: float = 0.0  # 0: it ends by what is measured
    tolerated_s: float = 0.0
    tolerated_times: int = 0
    ends_with: str = ""
    at_once: bool = False
    planned: bool = False  # since: when it is due, which may lie ahead
    known: float = 0.0  # when it was told first
    symptom: bool = False
    ends: list[str] = field(default_factory=list)
    openings: list[float] = field(default_factory=list)
    told: int = 0  # the count when it was last told

    @property
    def key(self) -> str:
        """The key within its entity: name and device, and the pid where it is of a process.

        So each process has its own: the second that the kernel kills is not the first.
        """
        return f"{self.name}/{self.device}/{self.pid}" if self.of_process else f"{self.name}/{self.device}"

    @property
    def is_state(self) -> bool:
        """Whether it lasts until something says that it is over; else its signals are moments."""
        return bool(self.ends) or not self.lasts_s

    @property
    def gpu(self) -> str:
        """The GPU's id, also of a link of it (ID/NUMBER); "" where the device is no GPU."""
        return self.device.partition("/")[0] if self.device_kind == "gpu" else ""

    @property
    def is_tolerated(self) -> bool:
        """Whether it was over so soon, and comes so seldom, that it is no cause."""
        if self.planned or self.until is None or self.until - self.since > self.tolerated_s:
            return False
        recent = [time for time in self.openings if time > self.since - 300.0]
        return len(recent) <= max(self.tolerated_times, 1)


#: What changes only with events, and stands in a row of its own, as names of series do.
_STILL = ("ranks", "began", "devices", "aliases", "sightings")
#: What does not stand among the rest of the row.
_APART = frozenset({*_STILL, "series", "has_news", "kept_series", "rows_of_plans"})


@dataclass(slots=True, kw_only=True)
class EntityState:
    """All that is known of one entity. ranks: by pid. began: by pid, Unix seconds. aliases: a device's
    bus -> its id.
    """

    conditions: dict[str, Condition] = field(default_factory=dict)
    ranks: dict[str, AffectedRank] = field(default_factory=dict)
    began: dict[str, float] = field(default_factory=dict)
    devices: dict[str, list[str]] = field(default_factory=dict)  # device -> pids that use it
    aliases: dict[str, str] = field(default_factory=dict)
    #: Signals whose repeats mean something (``signal_repeats``), by time; devices as the signals name them.
    sightings: list[Sighting] = field(default_factory=list)
    #: By rule and device: value, time and start of the last point, and since when the test holds or does not.
    series: SeriesTable = field(default_factory=SeriesTable)
    #: What others are compared with, by metric and device.
    limits: dict[str, float] = field(default_factory=dict)
    #: By collector, whether it sees its source; when that was said last; and what was told of it, and when.
    watching: dict[str, bool] = field(default_factory=dict)
    watched_at: float = 0.0
    watch_told: dict[str, list[str]] = field(default_factory=dict)
    watch_told_at: float = 0.0
    #: Of services that others use too (``loads``): what was counted last, and what is usual, by service and operation.
    load_series: dict[str, list[float]] = field(default_factory=dict)
    loads: dict[str, dict[str, float]] = field(default_factory=dict)
    #: What a server counts of jobs (``server_loads``): value and time by series, loads, and when a job was seen.
    job_series: dict[str, list[float]] = field(default_factory=dict)
    job_loads: dict[str, dict[str, float]] = field(default_factory=dict)
    jobs_seen: dict[str, float] = field(default_factory=dict)
    #: What is usual of a series (``past``): mean, looks, time of the last, since when it is beyond; and of counters by
    #: whose growth others' is divided: value and time, growth and seconds.
    usual: dict[str, list[float]] = field(default_factory=dict)
    counted: dict[str, list[float]] = field(default_factory=dict)
    #: Whether an event came since ``pack_still`` was put, and how many series it had: not kept.
    has_news: bool = field(default=True, compare=False)
    kept_series: int = field(default=-1, compare=False)
    #: By plan, and with it: where its series stand in the table. Not kept.
    rows_of_plans: dict[int, tuple[object, NDArray[np.intp]]] = field(default_factory=dict, compare=False)

    def pack(self) -> bytes:
        """The entity's row that changes with each look: a line of JSON, and the numbers of its series, which as text
        cost more.
        """
        content = {f.name: getattr(self, f.name) for f in fields(self) if f.name not in _APART}
        content["conditions"] = [{f.name: getattr(c, f.name) for f in fields(c)} for c in self.conditions.values()]
        return b"\n".join([_encode(content), self.series.numbers.astype("<f8").tobytes()])

    def pack_still(self) -> bytes:
        """The row of what changes only with events: a line of JSON, and one with the names of the series."""
        ranks = {pid: _written_rank(rank) for pid, rank in self.ranks.items()}
        told = {"ranks": ranks, "sightings": [_written_sighting(each) for each in self.sightings]}
        content = {name: getattr(self, name) for name in _STILL} | told
        return b"\n".join([_encode(content), _encode(list(self.series))])

    @classmethod
    def unpack(cls, row: bytes, still: bytes | None = None) -> EntityState:
        """The entity from the rows that ``pack`` and ``pack_still`` made; without the latter, of schema 9."""
        if still is not None:
            head, _, packed = row.partition(b"\n")
            rest, _, names = still.partition(b"\n")
            content = json.loads(head) | json.loads(rest)
            content["series"] = _series_of(json.loads(names), packed)
        else:
            head, names, packed = row.split(b"\n", 2)
            content = json.loads(head) | {"series": _series_of(json.loads(names), packed)}
        known = {f.name for f in fields(Condition)}
        conditions = [Condition(**{k: v for k, v in c.items() if k in known}) for c in content.pop("conditions")]
        if "ranks" in content:
            of_rank = {f.name for f in fields(AffectedRank)}
            content["ranks"] = {
                pid: AffectedRank(**{k: v for k, v in rank.items() if k in of_rank})
                for pid, rank in content["ranks"].items()
            }
        content["sightings"] = [_read_sighting(row) for row in content.get("sightings", ())]
        state = cls(**{f.name: content[f.name] for f in fields(cls) if f.name in content})
        state.conditions = {condition.key: condition for condition in conditions}
        return state

    def device_of(self, name: str) -> str:
        """The id of a device that is named by its PCI bus or otherwise; the name itself where it is not known."""
        return self.aliases.get(canonical_pci(name) or name, name)

    def add(self, condition: Condition) -> None:
        """Keeps a condition in place of one of the same key; beyond MAX_CONDITIONS one that is over is
        dropped first.
        """
        self.conditions[condition.key] = condition
        if len(self.conditions) > MAX_CONDITIONS:
            order = sorted(self.conditions.values(), key=lambda c: (c.until is None, c.last))
            del self.conditions[order[0].key]

    def ranks_on(self, condition: Condition) -> list[AffectedRank]:
        """Ranks that a condition concerns: the process or job it names, else users of the GPU, else all
        of the entity.
        """
        if condition.of_job or condition.device_kind == "job":
            return [rank for rank in self.ranks.values() if rank.job == condition.of_job]
        if condition.pid and str(condition.pid) in self.ranks:
            return [self.ranks[str(condition.pid)]]
        if condition.of_process:
            return []
        if condition.device_kind == "gpu" and self.devices:
            users = [self.ranks[pid] for pid in self.devices.get(condition.gpu, ()) if pid in self.ranks]
            return [user for user in users if user.attempt == self._attempt_at(condition.since, user)]
        return list(self.ranks.values())

    def _attempt_at(self, time: float, user: AffectedRank) -> str:
        """Which attempt of a user's job ran at ``time`` (Unix seconds): after a restart a rank may be elsewhere.

        The last that had begun; what was before all that are known is of the first of them.
        """
        begun: dict[str, float] = {}
        for pid, rank in self.ranks.items():
            if (rank.job, rank.world) == (user.job, user.world):
                attempt = rank.attempt
                begun[attempt] = min(begun.get(attempt, math.inf), self.began.get(pid, 0.0))
        earlier = [attempt for attempt, began in begun.items() if began <= time]
        return max(earlier, key=begun.__getitem__) if earlier else min(begun, key=begun.__getitem__)


def _written_rank(rank: AffectedRank) -> dict[str, str | int]:
    return {"job": rank.job, "attempt": rank.attempt, "world": rank.world, "rank": rank.rank, "pid": rank.pid}


def _written_sighting(each: Sighting) -> list[object]:
    """Without the node, which is the entity."""
    return [each.time_s, each.code, each.device, each.place, each.link, list(each.registers), each.is_fatal,
            each.was_repaired, each.job]  # fmt: skip


def _read_sighting(row: Sequence[Any]) -> Sighting:
    time_s, code, device, place, link, registers, is_fatal, was_repaired, job = row
    return Sighting(time_s=time_s, node="", code=code, device=device, place=place, link=link,
                    registers=tuple(registers), is_fatal=is_fatal, was_repaired=was_repaired, job=job)  # fmt: skip


def _series_of(names: list[str], packed: bytes) -> SeriesTable:
    numbers = np.frombuffer(packed[: len(packed) // (8 * WIDTH) * 8 * WIDTH], "<f8").reshape(-1, WIDTH)
    # A row that was written later than the names has more.
    return SeriesTable(names, numbers[: len(names)])


def _encode(content: object) -> bytes:
    return json.dumps(content, separators=(",", ":")).encode()


def canonical_pci(text: str) -> str:
    """The bus address as ``0000:5d:00``, of 00000000:5D:00.0, 5d:00.0 and the like; "" of what is none."""
    words = text.strip().lower().removeprefix("pci:").split(".")[0].split(":")
    if len(words) == 2:
        words = ["0", *words]
    if len(words) != 3 or not all(_is_hex(word) for word in words):
        return ""
    return f"{int(words[0], 16):04x}:{int(words[1], 16):02x}:{int(words[2], 16):02x}"


def _is_hex(word: str) -> bool:
    return bool(word) and len(word) <= 8 and all(letter in "0123456789abcdef" for letter in word)
