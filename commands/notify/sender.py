"""A thread per receiver: takes what is to be told there, holds to the limits, sends, and writes down what came of it.

A receiver that is slow or away holds up nobody else. Tries are repeated with growing pauses, or when the receiver has
asked for one, as long as there is something to tell.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from ..incident_service.inbox import HOUR_S
from .delivery_store import DeliveryStore, NoticeDelivery
from .messages.notices import AlertState, Notice, notice_of, withheld_notice
from .receivers import DeliveryAnswer, DeliveryContext, DeliveryOutcome, Receiver

_FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.5, 60.0
#: What a receiver may ask for.
LONGEST_RETRY_AFTER_S = 3600.0
#: Between two looks into the store, when nobody says that there is something.
_LOOK_S = 0.5
#: Changes of the word on what was withheld are told together.
_SUMMARY_PAUSE_S = 10.0
_MOST_NAMED = 20

_logger = logging.getLogger("whichrank")


@dataclass(frozen=True, slots=True, kw_only=True)
class ReceiverPolicy:
    """How one receiver is told. mark: "shadow" or ""."""

    name: str
    new_per_hour: int
    mark: str
    link: str
    cluster: str


@dataclass(slots=True)
class ReceiverStats:
    """Of one receiver since the start; written by its thread. trouble None: the last try was answered."""

    counts: Counter[str] = field(default_factory=Counter)
    trouble: str | None = None
    trouble_since_s: float = 0.0
    last_delay_s: float = 0.0


class NoticeSender:
    def __init__(
        self, manner: ReceiverPolicy, receiver: Receiver, store: DeliveryStore, clock: Callable[[], float] = time.time
    ) -> None:
        self.name = manner.name
        self.figures = ReceiverStats()
        self._manner = manner
        self._receiver = receiver
        self._store = store
        self._clock = clock
        self._paused_until = 0.0
        self._fails = 0
        self._wake = threading.Event()
        self._is_ended = False
        self._thread = threading.Thread(target=self._run, name=f"notify-{manner.name}", daemon=True)
        #: What ended the thread, which must not happen.
        self.broken: BaseException | None = None

    def start(self) -> None:
        """Starts the thread that tells the receiver."""
        self._thread.start()

    def wake(self) -> None:
        """Lets the thread look at once, as there may be something to tell."""
        self._wake.set()

    def end(self, wait_s: float) -> None:
        """Ends the thread after the try at hand; waits ``wait_s`` at most."""
        self._is_ended = True
        self._wake.set()
        if self._thread.is_alive():
            self._thread.join(wait_s)

    def _run(self) -> None:
        try:
            while not self._is_ended:
                self._wake.clear()
                if not self.turn():
                    self._wake.wait(_LOOK_S)
        except BaseException as error:  # the main thread ends the service: a page must not be lost in silence
            self.broken = error

    def turn(self) -> bool:
        """Tells one notice, or withholds it where a limit is reached. False: there is nothing to be told now."""
        now = self._clock()
        if now < self._paused_until:
            return False
        with self._store.transaction():
            delivery = self._store.next(self.name, now)
            if delivery is None:
                return False
            notice = self._notice(delivery)
            if notice is None:
                self._store.drop(delivery)
                return True
            if notice.is_new and delivery.incident and not delivery.is_unsure and self._is_over_limit(delivery, now):
                self._withhold(delivery, notice, now)
                return True
            self._store.begin(delivery, now, is_new=notice.is_new)
        telling = DeliveryContext(reference=delivery.reference, is_unsure=delivery.is_unsure, told=delivery.told)
        self._take(delivery, notice, self._receiver.send(notice, telling))
        return True

    def _notice(self, delivery: NoticeDelivery) -> Notice | None:
        """None: it is over and was never told."""
        is_new = delivery.told in (None, AlertState.CLOSED)
        manner = self._manner
        if not delivery.incident:
            count, titles, since = self._store.withheld(delivery.key, self.name, _MOST_NAMED)
            _, _, hour = delivery.key.rpartition("-")
            is_over = self._clock() > (int(hour) + 2) * HOUR_S
            standing = AlertState.CLOSED if is_over and not is_new else AlertState.OPEN
            return withheld_notice(
                delivery.key, delivery.urgency, titles, count, cluster=manner.cluster, since=since,
                standing=standing, mark=manner.mark, is_new=is_new,
            )  # fmt: skip
        incident = self._store.incident(delivery.incident)
        if incident is None:
            return None
        notice = notice_of(
            incident, key=delivery.key, link=manner.link, cluster=manner.cluster, mark=manner.mark, is_new=is_new
        )
        return None if notice.standing is AlertState.CLOSED and is_new and not delivery.is_unsure else notice

    def _is_over_limit(self, delivery: NoticeDelivery, now: float) -> bool:
        return self._store.openings(self.name, delivery.urgency, now - HOUR_S) >= self._manner.new_per_hour

    def _withhold(self, delivery: NoticeDelivery, notice: Notice, now: float) -> None:
        key = self._store.withhold(delivery, notice.title, now)
        summary = self._store.delivery(key, self.name)
        if summary is None:
            self._store.add("", self.name, delivery.urgency, now, now, key=key)
            _logger.warning(
                "%s: its limit of this hour is reached; one word is told of all others (%s)", self.name, key
            )
        else:
            self._store.say(summary, delivery.urgency, now, now + _SUMMARY_PAUSE_S)
        self.figures.counts["withheld"] += 1

    def _take(self, delivery: NoticeDelivery, notice: Notice, answer: DeliveryAnswer) -> None:
        now, reference = self._clock(), answer.reference or delivery.reference
        counts, figures = self.figures.counts, self.figures
        if answer.outcome is DeliveryOutcome.TOLD:
            again = None if answer.again_s is None else now + answer.again_s
            self._store.end(delivery, notice, notice.topic, reference, now, again)
            repeated = delivery.told is notice.standing and delivery.told_digest == notice.topic
            counts["repeated" if repeated else "opened" if notice.is_new else notice.standing.value] += 1
            if notice.is_new and not repeated:
                figures.last_delay_s = now - delivery.news
            self._fails, figures.trouble = 0, None
            return
        if figures.trouble is None:
            figures.trouble_since_s = time.monotonic()
        figures.trouble = answer.detail
        if answer.outcome is DeliveryOutcome.REFUSED:
            counts["refused"] += 1
            self._store.refuse(delivery, notice.topic)
            _logger.warning("%s does not take incident %s: %s", self.name, notice.incident, answer.detail)
            return
        counts["failed"] += 1
        self._fails += 1
        pause_s = self._pause_s(answer)
        self._paused_until = now + pause_s
        # Once nobody knows whether it has arrived, a try that surely has not does not tell.
        is_unsure = answer.is_unsure or delivery.is_unsure
        self._store.fail(delivery, reference, now + pause_s, is_unsure=is_unsure)
        _logger.warning("%s: %s; trying again", self.name, answer.detail)

    def _pause_s(self, answer: DeliveryAnswer) -> float:
        """What the receiver asks for; else twice the last one, with some chance, so that many do not come at once."""
        if answer.retry_after_s is not None:
            return min(max(0.0, answer.retry_after_s), LONGEST_RETRY_AFTER_S)
        longest = min(LONGEST_PAUSE_S, _FIRST_PAUSE_S * 2.0 ** min(self._fails, 16))
        return longest * random.uniform(0.5, 1.0)
