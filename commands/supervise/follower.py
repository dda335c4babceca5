"""The supervisor of a node that does not judge: it ends and starts its command when the judge says so.

The same calls as ``Supervisor``, in the watching thread. Decides nothing: without the judge's word, or once the judge
is out of reach, a command that has ended has ended.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path

from ...telemetry.incident_document import IncidentDocument
from ...telemetry.records import Event
from ...telemetry.response_outcomes import Outcome
from .actuator import CommandEnder
from .decision import Decision, Reason, RestartVerdict
from .job_processes import find_job_processes
from .nodes import Order, Word, read_order
from .supervisor import END_COMMAND, ENDING_SIGNALS, how_it_ended
from .trail import Trail

#: So long a command that has ended waits for the judge's word, which waits for the slowest node's end and its pause.
WORD_S = 900.0


class FollowerSupervisor:
    def __init__(
        self,
        command: Sequence[str],
        *,
        grace_s: float,
        rings: Path,
        trail: Trail,
        is_judged: Callable[[], bool],
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        """is_judged: whether the judge is connected."""
        self.next_command = tuple(command)
        self._grace_s, self._trail, self._is_judged, self._now = grace_s, trail, is_judged, now
        self._marks = (f"WHICHRANK_DIR={rings}".encode(),)
        self._count = 0
        self._was_asked = False
        self._order: Order | None = None  # to end the command, until it is started again
        self._may_start = self._is_ended = False
        self._is_stopped = False
        self._ender: CommandEnder | None = None
        self._until_s = 0.0

    def saw(self, incident: IncidentDocument) -> None:
        """Does nothing: the judge decides."""

    def heard(self, event: Event) -> None:
        """Does nothing: the judge knows its nodes."""

    def signalled(self, number: int) -> None:
        """After a signal that ends jobs nothing is started here any more."""
        if number in ENDING_SIGNALS:
            self._was_asked, self._ender, self._order = True, None, None

    def obey(self, body: bytes) -> None:
        """Takes what the judge has said; what is no order, or is of a restart that has been, changes nothing."""
        order = read_order(body)
        if order is None or self._was_asked:
            return
        if order.word is Word.STOP:
            self._is_stopped = True
        elif order.number > self._count and order.word is Word.END and self._order is None:
            text = f"the judge says: {order.text}"
            if self._trail.write(Outcome.BEGUN, _decision(order), text):
                self._order = order
        elif order.number > self._count and order.word is Word.START:
            self._may_start = self._order is not None

    @property
    def has_ended_it(self) -> bool:
        """Whether the command's end is the judge's doing."""
        return self._order is not None

    @property
    def is_waiting(self) -> bool:
        """Whether the judge's word, or an end of what the command left behind, is still to come."""
        if self._was_asked or self._is_stopped or not self._is_judged():
            return False
        return (self._order is not None and not self._is_ended) or (not self._may_start and self._now() < self._until_s)

    def turn(self, root: int, attempt: str) -> None:
        """Ends the command, a step at a time, where the judge has said so. root: its pid."""
        if self._order is None or self._is_ended:
            return
        if self._ender is None:
            self._ender = self._make_ender(root)
        ended = self._ender.turn(self._now())
        if ended is not None:
            self._ender, self._is_ended = None, True
            if ended.left:
                self._trail.write(Outcome.FAILED, _decision(self._order), how_it_ended(ended), operation=END_COMMAND)

    def _make_ender(self, root: int) -> CommandEnder:
        return CommandEnder(
            lambda: find_job_processes(root, self._marks), root, grace_s=self._grace_s, now_s=self._now()
        )

    def next(self, exit_code: int, attempt: str, *, ranks_seen: bool) -> bool:
        """After the command's end: whether the judge may have it started again."""
        if self._was_asked or self._is_stopped or (exit_code == 0 and self._order is None):
            return False
        self._until_s = self._now() + WORD_S
        return True

    def may_start(self, exit_code: int, attempt: str) -> bool:
        """Whether the judge has said so."""
        return self._may_start and not self._was_asked

    def started(self, attempt: str) -> None:
        """The command has been started again."""
        assert self._order is not None
        self._count = self._order.number
        self._trail.write(Outcome.DONE, _decision(self._order), f"started again, restart {self._count}")
        self._order, self._may_start, self._is_ended = None, False, False

    def not_started(self, why: str) -> None:
        """The command could not be started again."""
        if self._order is not None:
            self._trail.write(Outcome.FAILED, _decision(self._order), f"not started again: {why}")

    def close(self) -> None:
        """Ends the trail."""
        self._trail.close()


def _decision(order: Order) -> Decision:
    return Decision(
        verdict=RestartVerdict.RESTART,
        reason=Reason.JUDGE,
        incident=IncidentDocument(id=order.incident) if order.incident else None,
    )
