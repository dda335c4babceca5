"""What logs say, put together: repeats of one fault are one group, and what repeats say by their number is concluded.

Bounded, whatever the logs' length: so many groups, of so many nodes a history; what is beyond is counted.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from .event import Domain, EventSeverity, KernelEvent
from .hung_task import HUNG_TASK
from .recurrence import Conclusion, Sighting, conclusions, parameters, sighting_of
from .several_lines import CGROUP_OOM_KILL, OOM_KILL
from .xid import SXID, XID

#: Distinct faults kept; more are counted.
MOST_GROUPS = 5_000
#: Groups that a repeat is looked for in: the longest silent are forgotten first.
OPEN_GROUPS = 4096
#: Of one node, for its repeats, and of how many nodes.
HISTORY = 256
NODES = 64


@dataclass(slots=True)
class RepeatedEvent:
    """Repeats of one event on one device: the first of them, how many, and when the last was.

    is_kept: one of the first ``MOST_GROUPS``; of the others only how many events they are is told.
    """

    event: KernelEvent
    count: int = 1
    last_s: float | None = None
    is_kept: bool = True


#: Each of these is the end of one process.
_ENDS = frozenset({OOM_KILL, CGROUP_OOM_KILL})
_HARMLESS = frozenset({EventSeverity.WARNING, EventSeverity.INFO})
Key = tuple[str, ...]


@dataclass(slots=True)
class Findings:
    """``left_out``: events beyond the first ``MOST_GROUPS`` groups. ``concluded``: by node, rule and device."""

    groups: list[RepeatedEvent] = field(default_factory=list)
    concluded: dict[tuple[str, str, str], Conclusion] = field(default_factory=dict)
    events: int = 0
    left_out: int = 0
    driver: int | None = None
    _open: OrderedDict[Key, RepeatedEvent] = field(default_factory=OrderedDict)
    _histories: OrderedDict[str, deque[Sighting]] = field(default_factory=OrderedDict)

    def collect(self, events: Iterable[KernelEvent]) -> None:
        """Adds all events, which must be in the order of the log."""
        for event in events:
            self.add(event)

    def add(self, event: KernelEvent) -> None:
        """Counts the event in its open group, or opens a new group, and concludes what its repeats say.

        Events must come in the order of the log.
        """
        self.events += 1
        key = _key(event)
        when_s = when_of(event)
        group = self._open.get(key)
        if group is not None and (event.event == HUNG_TASK or is_repeat(group, when_s) or is_slow(group, when_s)):
            is_soon = is_repeat(group, when_s)
            self.repeat(group, when_s)
            if event.event in parameters().uncoalesced or not is_soon:
                self._conclude(event)
            if event.event == HUNG_TASK and _knows_more(event, group.event):
                told = replace(event, time_s=group.event.time_s, monotonic_s=group.event.monotonic_s)
                group.event = told
            elif event.process and not group.event.process:
                group.event = replace(group.event, process=event.process, pid=event.pid)
            return
        group = RepeatedEvent(event, last_s=when_s, is_kept=not self.is_full)
        if group.is_kept:
            self.groups.append(group)
            self._conclude(event)
        else:
            self.left_out += 1
        self._open[key] = group
        self._open.move_to_end(key)
        if len(self._open) > OPEN_GROUPS:
            self._open.popitem(last=False)

    @property
    def is_full(self) -> bool:
        """Whether new groups are only counted from here on."""
        return len(self.groups) >= MOST_GROUPS

    def repeat(self, group: RepeatedEvent, when_s: float | None) -> None:
        """Counts one more event in the group. when_s: its time, None where the log has no times."""
        group.last_s = when_s
        group.count += 1
        self.left_out += not group.is_kept

    def group_of(self, event: KernelEvent) -> RepeatedEvent | None:
        """The open group that a repeat of this event would be counted in; None where there is none any more."""
        return self._open.get(_key(event))

    def _conclude(self, event: KernelEvent) -> None:
        sighting = sighting_of(event, event.host)
        if sighting is None:
            return
        history = self._histories.setdefault(event.host, deque(maxlen=HISTORY))
        history.append(sighting)
        if len(self._histories) > NODES:
            self._histories.popitem(last=False)
        for conclusion in conclusions(tuple(history)):
            self.concluded[(event.host, conclusion.rule, conclusion.device)] = conclusion


def when_of(event: KernelEvent) -> float | None:
    """The event's time: Unix seconds, or seconds since boot where only those are told; None without any."""
    return event.monotonic_s if event.time_s is None else event.time_s


def is_repeat(group: RepeatedEvent, when_s: float | None) -> bool:
    """Whether an event at ``when_s`` comes so soon after the group's last that it is the same fault.

    Without times all repeats are.
    """
    if when_s is None or group.last_s is None:
        return when_s is group.last_s
    return 0 <= when_s - group.last_s <= parameters().coalesce_s


def is_slow(group: RepeatedEvent, when_s: float | None) -> bool:
    """Whether a harmless event of this group comes again within the hour: a line of its own each time says no more.

    Xids are told apart by the minute whatever they say: rules count their bursts, and people their lines.
    """
    if when_s is None or group.last_s is None or group.event.event in (XID, SXID):
        return False
    return group.event.severity in _HARMLESS and 0 <= when_s - group.last_s <= parameters().slow_s


def _key(event: KernelEvent) -> Key:
    """A task that hangs is one thing however often and long it is said: by its process."""
    if event.event == HUNG_TASK:
        return (event.host, event.event, event.process, str(event.pid))
    who = str(event.pid) if event.event in _ENDS else ""
    return (event.host, event.event, event.code, event.device, event.role.value, event.facts.get("unit", ""), who)


def _knows_more(event: KernelEvent, first: KernelEvent) -> bool:
    """What the task waits for, where the first of them had no stack, or one that told less."""
    if "waits_for" not in event.facts:
        return False
    return "waits_for" not in first.facts or (first.domain is Domain.HOST and event.domain is not Domain.HOST)
