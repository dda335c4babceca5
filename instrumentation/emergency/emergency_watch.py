"""Emergency saves of one rank: a thread that hears of requests, and the boundaries at which the main thread saves.

Asked for by SIGTERM, a file in the ring folder (an agent, a person) or another rank. Costs the main thread one look at
an attribute per step while nobody asks. Fails open: what goes wrong is told, SIGTERM is passed on, training goes on.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path
from time import monotonic, sleep, time

from ...telemetry.emergency_words import (
    BOARD_FOLDER,
    LISTENS,
    MAX_REQUEST_BYTES,
    REQUEST_FILE,
    EmergencyState,
    MissedWhy,
    SaveReason,
)
from .agreement import ANSWER_S, Agreement, SaveRequest, request_key
from .emergency_saving import EmergencySaving
from .term_signal import TermSignal
from .word_board import WordBoard

#: Between looks while nobody asks, and while somebody has.
IDLE_S, BUSY_S = 0.5, 0.02
#: Ranks that are not the first of their node ask a store that is not near once in so many looks.
_STORE_TURNS = 2
#: At a boundary nobody waits longer than this for the decision.
_GATE_S = 3.0 * ANSWER_S
#: Where ranks are missing the others may be stuck with them: a boundary then counts as out of reach after so many
#: seconds, or so many of the last step.
_STUCK_S, _STUCK_STEPS = 5.0, 3.0
#: A rank that leaves because a peer is gone is told to end by its launcher a moment later: that is waited for.
_LEAVING_S = 2.0
#: What several ask for by one plan within so long is one request.
_PLANNED = frozenset({SaveReason.TIME_LIMIT.value, SaveReason.PREEMPTION.value, SaveReason.MAINTENANCE.value})
_ONCE_S = 120.0


class EmergencyWatch:
    """find_board: where to agree, None while that is not known. updates: how often the weights were
    updated. may_save_now: whether an exception leaves nothing half done. directory: of the ring. end_s:
    the job's time limit, Unix; 0: none is known. lead_s: so long before it a save is asked for; 0: never.
    """

    def __init__(
        self,
        saving: EmergencySaving,
        *,
        rank: int,
        local_rank: int,
        world_size: int,
        directory: Path,
        find_board: Callable[[], WordBoard | None],
        updates: Callable[[], int],
        may_save_now: Callable[[BaseException], bool],
        start_thread: Callable[[str, Callable[[], None]], object],
        grace_s: float,
        end_s: float,
        lead_s: float,
        on_error: Callable[[BaseException], None],
    ) -> None:
        self._saving, self._rank, self._local_rank, self._world_size = saving, rank, local_rank, world_size
        self._file = directory / REQUEST_FILE
        self._start_thread = start_thread
        self._find_board, self._updates, self._may_save_now = find_board, updates, may_save_now
        self._grace_s, self._end_s, self._lead_s, self._on_error = grace_s, end_s, lead_s, on_error
        self._asked: dict[str, float] = {}
        self._signal = TermSignal()
        self._lock = threading.Lock()
        self._board: WordBoard | None = None
        self._number = self._turn = 0
        self._seen_file = _stamp_of(self._file)
        self._is_over = False
        #: The request that is under way: the gate. Written by the watching thread, read by the main thread.
        self._round: Agreement | None = None
        self._is_saving = False
        self._passed, self._saved_step, self._updates_then = 0, -1, 0
        self._passed_s, self._step_s = monotonic(), 0.0

    # --- main thread --------------------------------------------------------------------------------------------------
    def start(self, step: int) -> None:
        """Begins to hold SIGTERM and to listen. step: steps made so far. Raises OSError, RuntimeError, ValueError."""
        self._passed = step
        folder = self._file.with_name(BOARD_FOLDER)
        folder.mkdir(mode=0o700, exist_ok=True)
        (folder / f"{LISTENS}{self._rank}.{os.getpid()}").touch()
        self._signal.install()
        self._start_thread("whichrank-emergency", self._run)

    def at_boundary(self, step: int) -> None:
        """The weights hold so many steps, whole. Saves here if that was agreed on. Never raises."""
        self._passed = step  # before the look at the gate, which the other thread does the other way round
        self._updates_then = self._updates()
        now_s = monotonic()
        self._passed_s, self._step_s = now_s, now_s - self._passed_s
        agreed = self._round
        if agreed is None or self._is_saving:
            return
        try:
            self._meet(agreed, step)
        except Exception as error:  # edge: hook
            self._on_error(error)

    def at_exception(self, error: BaseException) -> None:
        """The main thread is about to leave. If a save is asked for, the state that it holds is saved. Never raises."""
        try:
            if isinstance(error, RuntimeError) and self._world_size > 1:
                end_s = monotonic() + _LEAVING_S
                while self._round is None and monotonic() < end_s and not self._signal.is_pending:
                    sleep(BUSY_S)
            end_s = monotonic() + ANSWER_S
            while self._round is None and self._signal.is_pending and monotonic() < end_s:
                sleep(BUSY_S)
            agreed = self._round
            if agreed is not None:
                self._save_what_is_held(agreed, error)
            self._is_over |= self._signal.is_pending  # it ends by its exception, as it would have
            self._signal.release()
        except Exception as failure:  # edge: hook
            self._on_error(failure)

    def at_exit(self) -> None:
        """The process ends: a save that is still asked for does not come."""
        self._is_over = True
        agreed = self._round
        if agreed is not None and self._claim(agreed):
            self._saving.tell(agreed, EmergencyState.MISSED, why=MissedWhy.ENDED)
        self._signal.release()

    def forget_in_child(self) -> None:
        """In a forked child."""
        self._is_over = True
        self._round = None
        self._signal.forget_in_child()

    def stop(self) -> None:
        """Listens no longer; SIGTERM is as it was before."""
        self._is_over = True
        self._signal.remove()

    def _meet(self, agreed: Agreement, step: int) -> None:
        agreed.is_decided.wait(min(_GATE_S, max(0.0, agreed.deadline_s - monotonic())))
        if agreed.step is None:
            self._end(agreed, MissedWhy.NO_AGREEMENT, in_main=True)
        elif step > agreed.step:
            self._end(agreed, MissedWhy.OTHER_STEP, in_main=True)
        elif step == agreed.step:
            self._save(agreed, step, whole=not agreed.missing)
            self._signal.pass_on(in_main=True)

    def _save_what_is_held(self, agreed: Agreement, error: BaseException) -> None:
        step = self._passed
        if self._saved_step == step:
            if self._claim(agreed):
                self._saving.tell(agreed, EmergencyState.SAVED, step=step)
        elif not self._holds_whole_weights(error) or agreed.held(step) != step:
            if self._claim(agreed):
                self._saving.tell(agreed, EmergencyState.MISSED, why=MissedWhy.OTHER_STEP, step=step)
        else:
            self._save(agreed, step, whole=False)

    def _holds_whole_weights(self, error: BaseException) -> bool:
        return self._passed > 0 and self._updates() == self._updates_then and self._may_save_now(error)

    def _save(self, agreed: Agreement, step: int, *, whole: bool) -> None:
        if not self._claim(agreed, keeps_gate=True):
            return
        self._is_saving = True
        try:
            if self._saving.save(agreed, step, whole=whole):
                self._saved_step = step
        finally:
            self._is_saving = False
            self._round = None

    # --- both threads -------------------------------------------------------------------------------------------------
    def _claim(self, agreed: Agreement, *, keeps_gate: bool = False) -> bool:
        """Whether the caller is the one who ends this request; once only."""
        with self._lock:
            if self._number != agreed.number:
                return False
            self._number += 1
        if not keeps_gate:
            self._round = None
        return True

    def _end(self, agreed: Agreement, why: MissedWhy, *, in_main: bool) -> None:
        if self._claim(agreed):
            agreed.give_up()
            self._saving.tell(agreed, EmergencyState.MISSED, why=why, step=agreed.step or 0)
            self._signal.pass_on(in_main)

    # --- watching thread ----------------------------------------------------------------------------------------------
    def _run(self) -> None:
        self._skip_old()
        while not self._is_over:
            try:
                came = self._signal.wait(IDLE_S if self._round is None else BUSY_S)
                agreed = self._round
                if self._is_over:
                    return
                if self._is_saving:
                    self._watch_saving(agreed)
                    continue
                if agreed is None:
                    self._listen(came or self._signal.is_pending)
                else:
                    self._follow(agreed)
            except Exception as error:  # edge: the board is the network's affair
                self._fail(error)

    def _skip_old(self) -> None:
        """Requests of an earlier attempt are not this one's."""
        try:
            board = self._find_board()
            while board is not None and board.get(request_key(self._number)) is not None:
                self._number += 1
        except Exception as error:  # edge: as in ``_run``
            self._on_error(error)

    def _listen(self, is_signalled: bool) -> None:
        if is_signalled and self._saved_step == self._passed:
            self._signal.pass_on(in_main=False)  # what the weights hold is saved
            return
        if is_signalled:
            wanted: SaveRequest | None = SaveRequest(SaveReason.SIGTERM.value, self._rank, self._grace_s)
        else:
            wanted = self._look_at_file() or self._look_at_clock()
        self._board = board = self._board or self._find_board()
        if board is None:
            if wanted is not None:
                raise ConnectionError("no process group yet: nobody to agree with")
            return
        if wanted is not None:
            self._begin(board, board.put(request_key(self._number), wanted.as_word()))
            return
        self._turn += 1
        if self._local_rank == 0 or self._turn % _STORE_TURNS == 0 or board.is_near:
            word = board.get(request_key(self._number))
            if word is not None:
                self._begin(board, word)

    def _look_at_file(self) -> SaveRequest | None:
        stamp = _stamp_of(self._file)
        if stamp is None or stamp == self._seen_file:
            return None
        self._seen_file = stamp
        with open(self._file, encoding="utf-8", errors="replace") as file:
            said = SaveRequest.of_word(file.read(MAX_REQUEST_BYTES))
        if said.reason in _PLANNED and monotonic() - self._asked.get(said.reason, -_ONCE_S) < _ONCE_S:
            return None  # each node's whichrank asks
        return SaveRequest(said.reason, self._rank, said.seconds)

    def _look_at_clock(self) -> SaveRequest | None:
        now_s = time()
        if not self._end_s - self._lead_s < now_s < self._end_s or not self._lead_s:
            return None
        left_s, self._end_s = self._end_s - now_s, 0.0
        if monotonic() - self._asked.get(SaveReason.TIME_LIMIT.value, -_ONCE_S) < _ONCE_S:
            return None
        return SaveRequest(SaveReason.TIME_LIMIT.value, self._rank, left_s)

    def _begin(self, board: WordBoard, word: str) -> None:
        agreed = Agreement(board, self._number, self._rank, self._world_size, SaveRequest.of_word(word))
        self._asked[agreed.request.reason] = monotonic()
        self._saving.tell(agreed, EmergencyState.ASKED)
        self._round = agreed  # the gate, before the look at where the main thread is
        agreed.answer(self._passed + 1)

    def _follow(self, agreed: Agreement) -> None:
        if not agreed.has_answered:
            agreed.answer(self._passed + 1)
        agreed.look()
        now_s = monotonic()
        if now_s > agreed.deadline_s:
            self._end(
                agreed, MissedWhy.NOT_REACHED if agreed.step is not None else MissedWhy.NO_AGREEMENT, in_main=False
            )
        elif agreed.step is not None and agreed.missing and self._saved_step == self._passed:
            if self._claim(agreed):  # stuck with those who are missing, and nothing is lost
                self._saving.tell(agreed, EmergencyState.SAVED, step=self._passed)
                self._signal.pass_on(in_main=False)
        elif agreed.step is not None and agreed.missing:
            stuck_s = max(_STUCK_S, _STUCK_STEPS * self._step_s)
            if now_s - max(agreed.decided_s, self._passed_s) > stuck_s:
                self._end(agreed, MissedWhy.NOT_REACHED, in_main=False)

    def _watch_saving(self, agreed: Agreement | None) -> None:
        """The time is over, and a signal must not be held back for ever by a save that does not end."""
        if agreed is not None and self._signal.is_pending and monotonic() > agreed.deadline_s:
            self._saving.tell(agreed, EmergencyState.MISSED, why=MissedWhy.NOT_REACHED, step=agreed.step or 0)
            self._signal.pass_on(in_main=False)

    def _fail(self, error: BaseException) -> None:
        self._on_error(error)
        agreed = self._round
        self._board = None
        if agreed is not None:
            self._end(agreed, MissedWhy.NO_AGREEMENT, in_main=False)
        elif self._signal.is_pending:
            self._signal.pass_on(in_main=False)


def _stamp_of(path: Path) -> tuple[int, int, int] | None:
    try:
        state = os.stat(path)
    except OSError:
        return None
    return state.st_ino, state.st_mtime_ns, state.st_size
