"""From incidents to deliveries: who has to be told what. The main thread's; it sends nothing.

Who was told of an incident is told what changes until it is over, whoever would be told of it now. An incident that
merges into another closes; where only the merged one was told, what was told goes on as the leader, so that nobody is
called twice for one cause.
"""

from __future__ import annotations

from collections import Counter

from ...telemetry.incident_document import IncidentDocument
from ...telemetry.vocabulary import IncidentState
from ..incident_feeds.incident_times import held_until
from ..incident_service.inbox import HOUR_S
from .delivery_store import REFUSED, TOLD, WITHHELD, DeliveryStore, NoticeDelivery, WaitingNews
from .messages.notices import AlertState, digest_of, standing_of
from .messages.routes import Routing, Urgency, receivers_of, urgency_of

#: A hold ends at its ``until``, and in any case after so long: clocks differ, and no page waits for a dead process.
LONGEST_HOLD_S = 120.0
#: Changes of one incident are told together, so far apart at least. Its end waits for nothing.
CHANGES_APART_S = 5.0
#: At the first start of all, older news is of before.
FIRST_AGE_S = 900.0
#: Where so many wait for one receiver, new ones are withheld.
MOST_WAITING = 1000


class DeliveryPlanner:
    def __init__(self, store: DeliveryStore, routing: Routing, *, max_age_s: float) -> None:
        self._store = store
        self._routing = routing
        self._max_age_s = max_age_s
        #: By reason, what nobody is told.
        self.passed_over: Counter[str] = Counter()

    def turn(self, now: float, *, is_first: bool = False) -> bool:
        """Looks at the incidents that have come, and plans who is told what. True: there may be something to send.

        now: Unix seconds. is_first: nothing was ever read before, so what is old is told to nobody.
        """
        waiting = self._store.waiting(now)
        max_age_s = min(FIRST_AGE_S, self._max_age_s) if is_first else self._max_age_s
        if waiting:
            with self._store.transaction():
                for each in waiting:
                    self._settle(each, now, max_age_s)
        self._close_summaries(now)
        return bool(waiting)

    def _settle(self, waiting: WaitingNews, now: float, max_age_s: float) -> None:
        document = waiting.incident
        incident = document.id
        urgency = urgency_of(document)
        if document.state is IncidentState.MERGED:
            self._hand_over(incident, document.merged_into or "", now)
        told = self._store.deliveries(incident)
        if standing_of(document) is AlertState.CLOSED or urgency is None:
            for delivery in told.values():
                self._close(delivery, waiting.news, now)
            self._store.look_again(incident, None)
            return
        digest = digest_of(document)
        held = _held_until(document, waiting.held_since)
        wanted = receivers_of(document, self._routing)
        for name, delivery in told.items():
            if delivery.status == WITHHELD and not _is_louder(urgency, delivery.urgency):
                continue
            if delivery.told is AlertState.CLOSED and (name not in wanted or held > now):
                continue
            self._change(delivery, standing_of(document), digest, urgency, waiting.news, now)
        new = [name for name in wanted if name not in told]
        if new and held > now:
            self._store.look_again(incident, held)
            return
        for name in new:
            self._open(incident, name, urgency, waiting.news, now, max_age_s)
        self._store.look_again(incident, None)

    def _open(self, incident: str, name: str, urgency: Urgency, news: float, now: float, max_age_s: float) -> None:
        if news < now - max_age_s:
            self.passed_over["too_old"] += 1
        elif self._store.waiting_at(name) >= MOST_WAITING:
            self.passed_over["queue_full"] += 1
        else:
            self._store.add(incident, name, urgency, news, now)

    def _change(
        self, delivery: NoticeDelivery, standing: AlertState, digest: str, urgency: Urgency, news: float, now: float
    ) -> None:
        if delivery.status == TOLD and (delivery.told, delivery.told_digest) == (standing, digest):
            return
        if delivery.status == REFUSED and delivery.told_digest == digest:
            return
        if delivery.told == standing and delivery.told_digest == digest and not delivery.is_unsure:
            self._store.need_not_say(delivery)
            return
        is_known = delivery.told in (AlertState.OPEN, AlertState.ACKNOWLEDGED)
        is_urgent = not is_known or _is_louder(urgency, delivery.urgency)
        self._store.say(delivery, urgency, news, now if is_urgent else now + CHANGES_APART_S)

    def _close(self, delivery: NoticeDelivery, news: float, now: float) -> None:
        if delivery.is_open:
            self._store.say(delivery, delivery.urgency, news, now)
        elif delivery.told is None:
            self._store.drop(delivery)

    def _hand_over(self, merged: str, leader: str, now: float) -> None:
        """What receivers know of ``merged`` goes on as ``leader``, where they do not know that and would be told it."""
        document = self._store.incident(leader)
        if document is None or standing_of(document) is AlertState.CLOSED:
            return
        wanted, known = receivers_of(document, self._routing), self._store.deliveries(leader)
        moved = False
        for name, delivery in self._store.deliveries(merged).items():
            its = known.get(name)
            if not delivery.is_open or name not in wanted or (its is not None and its.is_open):
                continue
            if its is not None and its.told is None:
                self._store.drop(its)
            elif its is not None:
                continue  # it was told and is over there: it is opened again under its own name
            self._store.hand_over(delivery, leader)
            moved = True
        if moved:
            self._store.look_again(leader, now)

    def _close_summaries(self, now: float) -> None:
        """An hour without anything that was withheld."""
        for summary in self._store.summaries():
            _, _, hour = summary.key.rpartition("-")
            if summary.is_open and now > (int(hour) + 2) * HOUR_S and summary.status == TOLD:
                self._store.say(summary, summary.urgency, now, now)


def _is_louder(urgency: Urgency, than: Urgency) -> bool:
    return urgency is Urgency.PAGE and than is Urgency.TICKET


def _held_until(incident: IncidentDocument, held_since: float | None) -> float:
    """Unix seconds; 0.0: it is not on hold."""
    return 0.0 if held_since is None else min(held_until(incident), held_since + LONGEST_HOLD_S)
