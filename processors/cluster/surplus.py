"""Incidents that are too many: each is ended before it is forgotten, and those of other jobs that it leads go on."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

from ...telemetry.records import Finding
from .case import Case
from .case_book import CaseBook
from .failures import FailureRegister
from .hearing import give_up
from .shared.memory import Memory

_TOO_MANY = "the judge keeps no more incidents, and of its owner's nothing has been heard of this one for longest"


class SurplusIncidents:
    """publish, save: the docket's."""

    def __init__(
        self,
        book: CaseBook,
        memory: Memory,
        failures: FailureRegister,
        stamp_ns: int,
        publish: Callable[[Case, Finding | None], None],
        save: Callable[[str, list[Case]], None],
    ) -> None:
        self._book, self._memory, self._failures = book, memory, failures
        self._stamp_ns = stamp_ns
        self._publish, self._save = publish, save

    def forget(self, incidents: Iterable[str], touched: set[str], now_s: float) -> None:
        """Ends, forgets and counts them, one after the other. now_s: Unix."""
        for incident in incidents:
            case = self._book.get(incident)
            cases = self._book.of_job(case.job) if case is not None else []
            for each in cases:
                if each.id == incident:
                    self._end(each, touched, now_s)
                    if len(cases) == 1:
                        self._failures.forget(each.line, each.job)
            led = [id_ for id_ in self._memory.joined.get(incident, ()) if id_ != incident]
            self._book.drop(incident, cases, self._stamp_ns)  # before others are saved, which looks for a surplus again
            self._memory.drop(incident)
            self._memory.note_problem("incident that was forgotten to make room")
            for member in led:
                self._release(member, incident, touched)

    def _end(self, case: Case, touched: set[str], now_s: float) -> None:
        give_up(case, _TOO_MANY, now_s, touched)
        if case.joint is not None and case.joint.resolved is None:
            case.joint = replace(case.joint, resolved=now_s)
        self._publish(case, None)

    def _release(self, member: str, leader: str, touched: set[str]) -> None:
        """It stands alone again, until a look says otherwise."""
        case = self._book.get(member)
        if case is None or member not in self._memory.troubles:
            return
        self._memory.join(self._memory.troubles[member], "", [])
        cases = self._book.of_job(case.job)
        for each in cases:
            if each.id == member and each.merged_into == leader:
                each.merged_into, each.has_joined = None, False
                touched.add(member)
                self._publish(each, None)
        self._save(case.job, cases)
