"""What is on its way to Kafka, in which order: memory first, disk for what waited, drops where neither has room.

One lane per topic, because Kafka keeps an order only there. A lane hands its messages over by ascending number: what
came back, then what lies in the spool, then what waits in memory; a number in memory is always beyond those on disk.
Whatever is older than ``spool_after_s`` is on disk too, so a kill loses no more than that. No clock, no thread, no
Kafka in here: time and answers come from the caller, who is one thread.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator
from dataclasses import dataclass, field

from ..base.priority import Priority
from .spool import Outgoing, Spool

_SECOND_NS = 1_000_000_000
#: A topic that refuses is tried again after so long, doubled each time, at most so long.
_FIRST_RETRY_S, _LONGEST_RETRY_S = 0.25, 10.0
#: A disk that refused is tried again this often.
_DISK_RETRY_NS = 10 * _SECOND_NS
#: How finely it is known when a message was taken.
_MARK_NS = 50_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class OutboxSettings:
    #: All that is in memory: waiting and handed over.
    memory_bytes: int = 32 << 20
    #: Handed over and not answered, per topic.
    window_messages: int = 512
    window_bytes: int = 4 << 20
    spool_after_s: float = 1.0

    def __post_init__(self) -> None:
        if self.window_messages < 1 or self.window_bytes < 1 or self.memory_bytes < 1:
            raise ValueError("windows and memory must have room for something")


class WaitingMessages:
    """Messages in memory by priority, each in order; the first of all, or the least worth keeping."""

    def __init__(self) -> None:
        self._by_priority: dict[Priority, deque[Outgoing]] = {priority: deque() for priority in Priority}
        self.size = 0

    def __len__(self) -> int:
        return sum(map(len, self._by_priority.values()))

    def __iter__(self) -> Iterator[Outgoing]:
        for messages in self._by_priority.values():
            yield from messages

    def put(self, message: Outgoing) -> None:
        """Adds a message at the end of its priority's queue."""
        self._by_priority[message.priority].append(message)
        self.size += message.size

    def first(self) -> Outgoing | None:
        """The waiting message with the lowest number; it is not removed. None: nothing waits."""
        heads = [messages[0] for messages in self._by_priority.values() if messages]
        return min(heads, key=lambda message: message.number, default=None)

    def take(self, message: Outgoing) -> None:
        """Removes the message that ``first`` or ``least`` has given."""
        messages = self._by_priority[message.priority]
        assert messages[0] is message
        messages.popleft()
        self.size -= message.size

    def least(self) -> Outgoing | None:
        """The oldest message of the lowest priority, not removed: the one to give up first. None: nothing waits."""
        return next((self._by_priority[p][0] for p in reversed(Priority) if self._by_priority[p]), None)


@dataclass(slots=True, kw_only=True)
class _Held:
    """A message in the client's hands or back from them. ``saved``: it is on disk as well."""

    message: Outgoing
    saved: bool


@dataclass(slots=True, kw_only=True)
class _Lane:
    topic: str
    waiting: WaitingMessages = field(default_factory=WaitingMessages)
    in_flight: dict[int, _Held] = field(default_factory=dict)  # ascending
    in_flight_bytes: int = 0
    back: deque[_Held] = field(default_factory=deque)  # failed, ascending
    #: Something failed: what else is under way is waited for, so that nothing overtakes what will be sent again.
    settling: bool = False
    highest_sent: int = 0
    not_before_ns: int = 0
    retry_s: float = _FIRST_RETRY_S


class Outbox:
    def __init__(self, settings: OutboxSettings, spool: Spool | None = None) -> None:
        self._settings = settings
        self._lanes: dict[str, _Lane] = {}
        self._spool: Spool | None = None
        self._disk_retry_ns = 0
        self._marks: deque[tuple[int, int]] = deque()  # (time, last number taken about then)
        self._old = 0  # all numbers up to here are older than ``spool_after_s``
        #: What the disk said when it refused last; "" while it takes what it is given.
        self.disk_problem = ""
        #: Drops by priority and reason since the spool was made, or without one since the start.
        self._dropped: Counter[tuple[Priority, str]] = Counter()
        self.sent = 0
        self.sent_bytes = 0
        #: Given back by the client and sent again.
        self.failed = 0
        #: Taken by Kafka after a later message of their topic: the client had given up on one and not on the other.
        self.sent_late = 0
        if spool is not None:
            self.use_spool(spool)

    def use_spool(self, spool: Spool) -> None:
        """Uses this spool from now on. Set it before the first message: what lies in it must be older than all here."""
        spool.dropped.update(self._dropped)
        self._spool, self._dropped = spool, spool.dropped
        for topic in spool.topics():
            self._lane(topic)

    @property
    def spool(self) -> Spool | None:
        """The part on disk; None where there is none or it could not be opened."""
        return self._spool

    @property
    def dropped(self) -> Counter[tuple[Priority, str]]:
        """Messages given up so far, by priority and reason."""
        return self._dropped

    @property
    def memory_bytes(self) -> int:
        """Bytes of all messages in memory now: what waits, is in flight, or was read ahead of the spool."""
        return sum(lane.waiting.size + _held_bytes(lane) for lane in self._lanes.values())

    @property
    def in_flight(self) -> int:
        """Messages that the producer has and has not answered for."""
        return sum(len(lane.in_flight) for lane in self._lanes.values())

    @property
    def in_memory(self) -> Iterator[Outgoing]:
        """Messages that are in memory alone, not on disk: a kill would lose them."""
        for lane in self._lanes.values():
            yield from (held.message for held in (*lane.back, *lane.in_flight.values()) if not held.saved)
            yield from lane.waiting

    @property
    def unsent(self) -> int:
        """Messages of which Kafka has not said that it has them."""
        held = sum(len(lane.waiting) + len(lane.in_flight) + len(lane.back) for lane in self._lanes.values())
        return held + (self._spool.waiting if self._spool is not None else 0)

    # --- in ---------------------------------------------------------------------------------------------------------
    def put(self, message: Outgoing, now_ns: int) -> None:
        """Takes a new message; its number must be above all before. now_ns: monotonic.

        Beyond the bound of memory what waits goes to disk, or the least worth keeping is dropped.
        """
        self._lane(message.topic).waiting.put(message)
        since_ns = self._marks.pop()[0] if self._marks and now_ns - self._marks[-1][0] < _MARK_NS else now_ns
        self._marks.append((since_ns, message.number))
        if self.memory_bytes > self._settings.memory_bytes:
            self.save(now_ns)
        while self.memory_bytes > self._settings.memory_bytes and self._drop_least():
            pass

    def _lane(self, topic: str) -> _Lane:
        return self._lanes.setdefault(topic, _Lane(topic=topic))

    def _drop_least(self) -> bool:
        heads = [(lane, least) for lane in self._lanes.values() if (least := lane.waiting.least()) is not None]
        if not heads:
            return False
        lane, least = min(heads, key=lambda head: (-head[1].priority, head[1].number))
        lane.waiting.take(least)
        self._dropped[least.priority, "memory_full"] += 1
        return True

    # --- out --------------------------------------------------------------------------------------------------------
    def next(self, now_ns: int) -> Outgoing | None:
        """The next message to hand to the client, None: none may be sent now. now_ns: monotonic.

        It is in flight until ``sent_well``, ``given_back``, ``refused`` or ``take_back``.
        """
        for lane in self._lanes.values():
            if lane.settling or now_ns < lane.not_before_ns or self._window_full(lane):
                continue
            held = self._take_first(lane)
            if held is not None:
                lane.in_flight[held.message.number] = held
                lane.in_flight_bytes += held.message.size
                if self._spool is not None:
                    self._spool.hand_over(lane.topic, held.message.number)
                self._lanes[lane.topic] = self._lanes.pop(lane.topic)  # the others first, next time
                return held.message
        return None

    def _window_full(self, lane: _Lane) -> bool:
        settings = self._settings
        return len(lane.in_flight) >= settings.window_messages or lane.in_flight_bytes >= settings.window_bytes

    def _take_first(self, lane: _Lane) -> _Held | None:
        if lane.back:
            return lane.back.popleft()
        message = self._spool.next(lane.topic) if self._spool is not None else None
        if message is not None:
            return _Held(message=message, saved=True)
        message = lane.waiting.first()
        if message is None:
            return None
        lane.waiting.take(message)
        return _Held(message=message, saved=False)

    def take_back(self, message: Outgoing) -> None:
        """Undoes ``next``: the client did not take the message, which stays the first of its topic."""
        lane = self._lanes[message.topic]
        held = self._land(lane, message.number)
        if held is not None:
            lane.back.appendleft(held)

    def sent_well(self, message: Outgoing) -> None:
        """The broker has the message: it is forgotten and counted, and the topic's wait after failures begins anew."""
        lane = self._lanes[message.topic]
        if self._land(lane, message.number) is None:
            return
        self.sent += 1
        self.sent_bytes += len(message.value)
        self.sent_late += message.number < lane.highest_sent
        lane.highest_sent = max(lane.highest_sent, message.number)
        if not lane.settling:
            lane.retry_s = _FIRST_RETRY_S
        self._go_on(lane)

    def given_back(self, message: Outgoing, now_ns: int) -> None:
        """The client gave up on the message: it goes out again before later ones, and its topic is held (``hold``)."""
        lane = self._lanes[message.topic]
        held = self._land(lane, message.number)
        if held is None:
            return
        self.failed += 1
        place = sum(1 for other in lane.back if other.message.number < message.number)
        lane.back.insert(place, held)
        self.hold(message.topic, now_ns)

    def refused(self, message: Outgoing, reason: str) -> None:
        """No broker will ever take the message: it is dropped, and counted under ``reason``."""
        lane = self._lanes[message.topic]
        if self._land(lane, message.number) is not None:
            self._dropped[message.priority, reason] += 1
        self._go_on(lane)

    def hold(self, topic: str, now_ns: int) -> None:
        """Send nothing to a topic until all that is under way is answered and its back-off is over."""
        lane = self._lanes[topic]
        if not lane.settling:
            lane.settling = True
            lane.not_before_ns = now_ns + int(lane.retry_s * _SECOND_NS)
            lane.retry_s = min(2 * lane.retry_s, _LONGEST_RETRY_S)
        self._go_on(lane)

    @staticmethod
    def _go_on(lane: _Lane) -> None:
        if not lane.in_flight:
            lane.settling = False

    def give_back_all(self, now_ns: int) -> None:
        """The client is gone: all messages in flight are treated as ``given_back``. now_ns: monotonic."""
        for lane in self._lanes.values():
            for held in list(lane.in_flight.values()):
                self.given_back(held.message, now_ns)

    def _land(self, lane: _Lane, number: int) -> _Held | None:
        """Take out of flight; None: it was answered before."""
        held = lane.in_flight.pop(number, None)
        if held is not None:
            lane.in_flight_bytes -= held.message.size
        return held

    # --- to disk ----------------------------------------------------------------------------------------------------
    def tidy(self, now_ns: int) -> None:
        """Writes to disk what has waited too long, and removes from it what is answered. To be called often.

        now_ns: monotonic.
        """
        while self._marks and now_ns - self._marks[0][0] > self._settings.spool_after_s * _SECOND_NS:
            self._old = self._marks.popleft()[1]
        if any(message.number <= self._old for message in self.in_memory):
            self.save(now_ns, self._old)
        if self._spool is not None:
            for lane in self._lanes.values():
                self._settle(lane, self._spool)

    def save(self, now_ns: int, up_to: int | None = None, *, last_chance: bool = False) -> bool:
        """Writes messages that are only in memory to disk, up to number ``up_to`` (None: all).

        False: there is no disk, or it refuses (see ``disk_problem``). last_chance: try one that has just refused all
        the same.
        """
        if self._spool is None or (now_ns < self._disk_retry_ns and not last_chance):
            return False
        try:
            for lane in self._lanes.values():
                _save_lane(lane, self._spool, up_to)
        except OSError as error:
            self._disk_retry_ns = now_ns + _DISK_RETRY_NS
            self.disk_problem = f"{self._spool.directory}: {error.strerror or error}"
            return False
        self.disk_problem = ""
        return True

    def _settle(self, lane: _Lane, spool: Spool) -> None:
        first = min((*lane.in_flight, *(held.message.number for held in lane.back)), default=None)
        handed = spool.handed(lane.topic)
        spool.settle(lane.topic, handed if first is None else min(first - 1, handed))


def _save_lane(lane: _Lane, spool: Spool, up_to: int | None) -> None:
    """Raises OSError; what was written by then is on disk and counts as such."""
    for held in sorted((*lane.back, *lane.in_flight.values()), key=lambda each: each.message.number):
        if not held.saved:
            if up_to is not None and held.message.number > up_to:
                return
            spool.append(held.message)
            held.saved = True
    while (message := lane.waiting.first()) is not None and (up_to is None or message.number <= up_to):
        spool.append(message)
        lane.waiting.take(message)


def _held_bytes(lane: _Lane) -> int:
    return lane.in_flight_bytes + sum(held.message.size for held in lane.back)
