"""All evidence that is asked of a job's ranks: stacks, lines of calls, files, NCCL's RAS; and how it is told."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ...telemetry.evidence_pieces import encode_evidence, split_evidence
from ...telemetry.records import Event
from ...telemetry.vocabulary import EventName
from ..base.health import AgentHealth
from ..base.settings import AgentSettings
from ..privacy.privacy_options import STACKS
from ..ranks.pending_events import PendingEvents
from ..ranks.watched_rank import WatchedRank
from .call_site_desk import ACTION as CALLS_ACTION
from .call_site_desk import CallDesk
from .evidence_desk import ACTIONS as FILE_ACTIONS
from .evidence_desk import EvidenceDesk
from .evidence_store import EvidenceStore, kept_name
from .exit_reporter import ExitReporter
from .ras_desk import ACTION as RAS_ACTION
from .ras_desk import RasDesk
from .stack_desk import StackDesk


class EvidenceAnswers:
    """Owned by the polling thread. send: takes a piece of evidence that is ready for the bus."""

    def __init__(
        self,
        settings: AgentSettings,
        health: AgentHealth,
        node: str,
        *,
        pending: PendingEvents,
        store: EvidenceStore,
        endings: ExitReporter,
        send: Callable[[bytes], None],
        wall_ns: Callable[[], int],
        owner_uid: int,
    ) -> None:
        self.stacks = StackDesk(settings, health, node)
        self.files = EvidenceDesk(settings, health, wall_ns, owner_uid)
        self._calls = CallDesk(health, is_refused=STACKS in settings.withheld)
        self._ras = RasDesk(health, is_on=self.files.is_on)
        self._settings = settings
        self._pending, self._store, self._endings = pending, store, endings
        self._send = send

    def request(self, event: Event, now_ns: int) -> None:
        """Hands an EVIDENCE_REQUEST to the desk for its action: calls, RAS, files or stacks. now_ns: monotonic.

        Bounded, idempotent by id, answered within its lifetime or dropped.
        """
        action = event.attributes.get("action")
        if action == CALLS_ACTION:
            self._calls.request(event)
            return
        if action == RAS_ACTION:
            self._ras.request(event, now_ns)
            return
        desk = self.files if action in FILE_ACTIONS else self.stacks
        desk.request(event, now_ns)

    def tell_stacks(self, ranks: Sequence[WatchedRank], now_ns: int) -> None:
        """Tells stacks that came in since the last call as RANK_STACK with the next flush, and saves them as files."""
        for report in self.stacks.finished(ranks):
            self._pending.tell(report.rank, EventName.RANK_STACK, now_ns, report.attributes)
            self._endings.save_stack(report)

    def tell_calls(self, ranks: Sequence[WatchedRank], now_ns: int) -> None:
        """Tells the lines of calls that were asked for as RANK_CALLS, and what RAS said as NCCL_RAS, with the next
        flush."""
        self._ras.serve(ranks)
        for rank, said in self._ras.answers():
            self._pending.tell(rank, EventName.NCCL_RAS, now_ns, said)
        for rank, attributes in self._calls.answers(ranks):
            self._pending.tell(rank, EventName.RANK_CALLS, now_ns, attributes)

    def tell_files(self, now_ns: int) -> None:
        """Saves files that are ready, if settings say so, and sends them in pieces.

        At once, not with a flush: they may soon be all that is left of a node. What dumps hold that were found unasked
        is told with the next flush (RANK_FLIGHT_RECORDER). now_ns: monotonic.
        """
        self._tell_dumps(now_ns)
        for whole in self.files.finished():
            if self._settings.keeps_answers:
                self._store.save(kept_name(whole), whole.content)
            if self._settings.ships_answers:
                for piece in split_evidence(whole):
                    self._send(encode_evidence(piece))

    def close(self) -> None:
        """Ends the threads that take stacks and read files."""
        self.stacks.close()
        self.files.close()

    def _tell_dumps(self, now_ns: int) -> None:
        for told in self.files.told_dumps():
            self._pending.behind_blocks(EventName.RANK_FLIGHT_RECORDER, told.identity, now_ns, told.attributes)
            self._pending.urgent = True
