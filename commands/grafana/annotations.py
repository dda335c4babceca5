"""Incidents that wait to become annotations: the last revision of each, bounded, oldest first.

Nothing is remembered of what Grafana holds: an annotation is found again by its tag, so what is read twice, after a
restart or a failure, is written once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from ...grafana import annotate
from ...grafana.site import GrafanaRefusal, GrafanaSite
from ...telemetry.incident_document import IncidentDocument
from ...telemetry.incident_writing import write_incident
from ..incident_feeds.feeds import Revisions
from ..incident_text.incident_view import headline

#: Where more wait, the ones that have waited longest are dropped, and counted.
MOST_WAITING = 10_000


class Annotations:
    """counts: by what became of revisions: made, changed, same, old, refused, dropped."""

    def __init__(self, site: GrafanaSite, *, max_age_s: float) -> None:
        self.counts: Counter[str] = Counter()
        self.refusal = ""
        self._site = site
        self._max_age_s = max_age_s
        self._waiting: dict[str, IncidentDocument] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    def take(self, revisions: Revisions, now: float) -> None:
        """Queues each incident's newest revision to be annotated; too old ones, and those beyond the bound, are
        counted.

        now: Unix seconds.
        """
        for incident, told in revisions:
            if told < now - self._max_age_s:
                self.counts["old"] += 1
                continue
            known = self._waiting.pop(incident.id, None)
            self._waiting[incident.id] = incident if known is None or incident.revision >= known.revision else known
            if len(self._waiting) > MOST_WAITING:
                self._waiting.pop(next(iter(self._waiting)))
                self.counts["dropped"] += 1

    def put(self, most: int) -> int:
        """Writes up to ``most`` waiting incidents as annotations, the oldest first; returns how many were done with.

        Refused ones are counted. Raises GrafanaTrouble: it does not answer, try again.
        """
        done = 0
        for identifier in _first(self._waiting, most):
            incident = self._waiting[identifier]
            try:
                outcome = annotate.put(self._site, write_incident(incident), headline(incident)) or "same"
            except GrafanaRefusal as refusal:
                self.refusal, outcome = str(refusal), "refused"
            self.counts[outcome] += 1
            del self._waiting[identifier]
            done += 1
        return done


def _first(names: Iterable[str], most: int) -> list[str]:
    return [name for name, _ in zip(names, range(most), strict=False)]
