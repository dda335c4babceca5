"""Whose stack is taken, when and how often: the agent's own wish in a hang, and evidence requests from above.

Polling thread. A process is touched only while its own ring shows no progress; per node and minute there is a limit;
a request is answered once, by its id, within its lifetime. The dump itself runs in one of ``StackTaker``'s threads.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ...telemetry.records import Event
from ...telemetry.vocabulary import EventName, ProcessState
from ..base.health import AgentHealth
from ..base.settings import AgentSettings
from ..base.user_frames import format_stack
from ..privacy.privacy_options import STACKS
from ..ranks.local_verdicts import StackWanted, no_progress, oldest_open_age_ns, stacks_wanted, to_ns
from ..ranks.rank_events import frame_attributes, where_attributes
from ..ranks.watched_rank import WatchedRank, requested_rank
from ..rings.crash_area import read_stack
from .stacks import StackAnswer, StackRequest, StackTaker

_MAX_REQUESTS = 256
_OUT_OF_REACH = "its process is in another PID namespace"
_REMEMBERED_IDS = 1024
_MINUTE_NS = 60_000_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class StackReport:
    """A stack of a rank: attributes of RANK_STACK, and readable text for the evidence folder."""

    rank: WatchedRank
    why: str
    attributes: dict[str, Any]
    text: str


class StackDesk:
    def __init__(self, settings: AgentSettings, health: AgentHealth, node: str) -> None:
        self._settings = settings
        self._takes_stacks = settings.take_stacks and STACKS not in settings.withheld
        self._health = health
        self._node = node
        self._taker = StackTaker(settings.stack_timeout_s)
        self._requests: deque[tuple[int, Event]] = deque()
        self._ids: deque[str] = deque(maxlen=_REMEMBERED_IDS)
        self._times_ns: deque[int] = deque()
        self._own: list[StackReport] = []  # stacks that ranks out of reach have left in their rings

    def rename_node(self, node: str) -> None:
        """Takes the node's new name: from now on only requests for it are served."""
        self._node = node

    def request(self, event: Event, now_ns: int) -> None:
        """Queues a request for a stack; one for another node, or an id seen before, is passed over. now_ns: monotonic.

        What is unreadable, withheld or too much is only counted.
        """
        request_id = event.attributes.get("id")
        if event.name is not EventName.EVIDENCE_REQUEST or not isinstance(request_id, str):
            self._health.drop("requests_unreadable")
        elif request_id in self._ids or event.attributes.get("node") not in (None, "", self._node):
            return
        elif event.attributes.get("action") != "stack":
            self._health.drop("requests_of_unknown_action")
        elif len(self._requests) >= _MAX_REQUESTS or not self._takes_stacks:
            self._health.drop("requests_refused")
        else:
            self._ids.append(request_id)
            self._requests.append((now_ns, event))

    @property
    def busy(self) -> bool:
        """Whether a stack has been asked for and has not come in yet."""
        return self._taker.busy

    def finished(self, ranks: Sequence[WatchedRank]) -> list[StackReport]:
        """Takes away reports of the stacks that came in since the last call.

        ranks: those watched now; stacks of others are dropped.
        """
        reports, self._own = self._own, []
        for answer in self._taker.take_finished():
            rank = next((rank for rank in ranks if rank.slot == answer.request.slot), None)
            if rank is not None and rank.pid == answer.request.pid:
                report = self._report(rank, answer)
                if report is not None:
                    reports.append(report)
        return reports

    def ask_for_stacks(
        self, ranks: Sequence[WatchedRank], longest_ns: Callable[[], dict[int, int]], now_ns: int
    ) -> None:
        """Asks for the stacks that are wanted now: queued requests first, then those of ranks in a hang.

        longest_ns: by slot; called only if an operation is slow. now_ns: monotonic. Nothing where stacks are withheld.
        """
        if not self._takes_stacks:
            return
        if self._requests:
            self._serve(ranks, now_ns)
        limit_ns = to_ns(self._settings.stack_operation_s)
        if any(oldest_open_age_ns(rank, now_ns) > limit_ns for rank in ranks):
            for want in stacks_wanted(ranks, longest_ns(), now_ns, self._settings):
                self._ask(want, "", now_ns)

    def close(self) -> None:
        """Finish what was asked for and end the thread; ``finished`` may be called once more."""
        self._taker.close()

    def _serve(self, ranks: Sequence[WatchedRank], now_ns: int) -> None:
        waiting: deque[tuple[int, Event]] = deque()
        for asked_ns, event in self._requests:
            rank = requested_rank(ranks, event)
            if rank is None or not rank.alive:
                self._health.drop("requests_for_nobody")
            elif now_ns - asked_ns > to_ns(self._settings.request_lifetime_s):
                self._health.drop("requests_expired")
            elif not no_progress(rank, now_ns, self._settings) or not self._ask(
                StackWanted(rank, "request"), str(event.attributes["id"]), now_ns
            ):
                # A rank that moves may not be touched; it may yet stand still before the request expires.
                waiting.append((asked_ns, event))
        self._requests = waiting

    def _ask(self, want: StackWanted, request_id: str, now_ns: int) -> bool:
        times, rank = self._times_ns, want.rank
        while times and times[0] < now_ns - _MINUTE_NS:
            times.popleft()
        if len(times) >= self._settings.stacks_per_minute:
            return False
        if not rank.pid:
            return self._take_own(want, request_id)
        stopped = rank.stopped or (rank.process is not None and rank.process.state is ProcessState.STOPPED)
        request = _request(want, request_id, pid=rank.pid, stopped=stopped)
        if not self._taker.ask(request):
            return False
        times.append(now_ns)
        rank.told.stack_at_head = rank.hot.event_head
        return True

    def _take_own(self, want: StackWanted, request_id: str) -> bool:
        """Of a process that cannot be reached (another PID namespace): the stack that it keeps in its ring itself."""
        request = _request(want, request_id, pid=0, stopped=False)
        report = self._report(want.rank, StackAnswer(request=request, frames=(), text="", error=_OUT_OF_REACH))
        if report is None:
            return False  # it may yet write one: asked again with the next look
        self._own.append(report)
        want.rank.told.stack_at_head = want.rank.hot.event_head
        return True

    def _report(self, rank: WatchedRank, answer: StackAnswer) -> StackReport | None:
        method, frames = "py-spy", answer.frames
        if frames:
            self._health.stacks_taken += 1
        else:
            if answer.error is not _OUT_OF_REACH:  # that was said when the ring was found
                self._health.stacks_failed += 1
                self._health.report(f"rank {rank.rank} (pid {rank.pid}): no stack by py-spy: {answer.error}")
            own = read_stack(rank.ring)
            if own is None or own.time_ns < rank.moved_ns - to_ns(self._settings.look_period_s):
                return None  # from before it came to stand still
            method, frames = "ring", own.frames
        attributes: dict[str, Any] = {
            **where_attributes(rank),
            "method": method,
            "stack": format_stack(frames),
            "why": answer.request.why,
            "stopped": answer.request.stopped,
            **frame_attributes(frames),
        }
        if answer.request.request_id:
            attributes["request_id"] = answer.request.request_id
        return StackReport(
            rank=rank, why=answer.request.why, attributes=attributes, text=answer.text or format_stack(frames)
        )


def _request(want: StackWanted, request_id: str, *, pid: int, stopped: bool) -> StackRequest:
    rank = want.rank
    return StackRequest(
        slot=rank.slot,
        pid=pid,
        uid=rank.ring.uid,
        start_ticks=rank.start_ticks,
        stopped=stopped,
        why=want.why,
        request_id=request_id,
    )
