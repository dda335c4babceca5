"""A rank's saves of checkpoints, from their begin until they are durable or failed: SAVE events of its ring.

The outermost call of a thread is the save; what it calls on the way (``torch.save`` within a framework's own) is a
part of it. A save whose call returns before everything is written is handed over: whoever completes it (a future, a
queue, a thread of its own) says ``durable`` or ``failed`` later. A save in a thread of the job's own holds up nobody.

Any thread may call; never raises: callers need no guard. Standard library only.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from time import monotonic_ns
from typing import Any

from ...telemetry.checkpoint_states import SaveState, SaveWay, Tier, pack_save_extra, pack_save_head
from ...telemetry.ring_layout import DEFINITION_SAVE_FAILED, cut_text
from ...telemetry.vocabulary import EventKind
from ..support.guard import Guard
from .copied_states import CopiedStates

#: RankSaves that are handed over and not complete; more are forgotten, the oldest first: nobody completes them.
MOST_PENDING = 64
#: Texts of failures that a ring takes: its definitions have other guests.
MOST_TEXTS = 16
_LONGEST_ERROR = 400


class Save:
    """One save of this rank. Owned by ``RankSaves``; whoever completes it holds it in between."""

    __slots__ = (
        "begin_ns",
        "is_over",
        "is_pending",
        "is_staged",
        "number",
        "place",
        "size_bytes",
        "step",
        "tier",
        "unwritten",
        "way",
        "with_upload",
    )

    def __init__(self, number: int, way: SaveWay, place: int, tier: Tier, step: int, size_bytes: int) -> None:
        self.number = number
        self.way = way
        #: Which checkpoint (``checkpoint_number``); 0: not known.
        self.place = place
        self.tier = tier
        #: Steps of the attempt that the state holds.
        self.step = step
        self.size_bytes = size_bytes
        self.begin_ns = monotonic_ns()
        #: Handed over: complete only when somebody says so.
        self.is_pending = False
        #: It is over when the call that writes to its place in another thread returns.
        self.with_upload = False
        self.is_staged = False
        self.is_over = False
        #: By place, what raised when it was last written, and was caught within the save.
        self.unwritten: dict[int, BaseException] = {}

    def note_part(self, place: int, error: BaseException | None) -> None:
        """Another call of the save has ended. place: that it wrote; 0 not known, of which nothing is told."""
        if error is not None:
            if place and len(self.unwritten) < MOST_PENDING:
                self.unwritten[place] = error
            return
        # Elsewhere it may have been written in another way instead, in another format; without room there is none.
        self.unwritten = {
            at: raised
            for at, raised in self.unwritten.items()
            if at != place and (at == self.place or isinstance(raised, OSError))
        }


class _Here(threading.local):
    """What the calling thread is saving. depth: calls inside of each other. is_upload: another thread began it."""

    save: Save | None = None
    depth = 0
    is_upload = False


class RankSaves:
    """append: the ring writer's. define: the same, for the text of a failure. steps_held: steps of the attempt that the
    weights hold now.
    """

    def __init__(
        self,
        append: Callable[..., None],
        define: Callable[[int, int, dict[str, Any]], bool],
        steps_held: Callable[[], int],
        guard: Guard,
    ) -> None:
        self._append, self._define, self._steps_held, self._guard = append, define, steps_held, guard
        #: Of a state that a thread of the script's own writes.
        self.copied = CopiedStates(steps_held)
        self._main_thread = threading.main_thread().ident
        self._here = _Here()
        self._lock = threading.Lock()
        self._count = self._texts = 0
        self._pending: dict[int, Save] = {}

    def enter(
        self, way: SaveWay, place: int = 0, tier: Tier = Tier.UNKNOWN, size_bytes: int = 0, step: int | None = None
    ) -> Save | None:
        """Begins a save, or goes on with the one that this thread is in; None where nothing is recorded.

        To be ended by ``leave`` in the same thread. place: ``checkpoint_number`` of what is written; 0 not known.
        step: steps of the attempt that the state holds; None: what the weights hold now.
        """
        if not self._guard.enabled:
            return None
        try:
            here = self._here
            if here.save is not None:
                here.depth += 1
                return here.save
            is_main = threading.get_ident() == self._main_thread
            save = None if is_main else self._pending_at(place)
            here.is_upload = save is not None
            if save is None:
                save = self._begin(way, place, tier, size_bytes, step)
                if not is_main:
                    self.staged(save)  # training goes on meanwhile
            here.save, here.depth = save, 1
            return save
        except Exception as error:  # edge: hook
            self._guard.fail(error)
            return None

    def leave(
        self, save: Save | None, error: BaseException | None = None, *, place: int = 0, size_bytes: int = 0
    ) -> None:
        """Ends a call that ``enter`` began.

        error: what it raised. place, size_bytes: what it wrote, if that was not told before. A save is failed too where
        it caught what a part of it raised, and did not write that part after all.
        """
        if save is None or not self._guard.enabled:
            return
        try:
            here = self._here
            here.depth -= 1
            save.size_bytes = save.size_bytes or size_bytes
            if place and place != save.place and error is None:
                self._tell(save, SaveState.PART, place)
            if here.depth:
                save.note_part(place, error)
                return  # the call around it goes on
            here.save = None
            if here.is_upload and not save.with_upload:
                return  # whoever waits for it says what came of it
            error = error or next(iter(save.unwritten.values()), None)
            if error is not None:
                self.failed(save, error)
            elif save.is_pending and not here.is_upload:
                self.staged(save)
            else:
                self.durable(save)
        except Exception as failure:  # edge: hook
            self._guard.fail(failure)

    def hand_over(self, *, place: int = 0, with_upload: bool = False) -> Save | None:
        """The save that this thread is in goes on after its call has returned: somebody says when it is over.

        None where this thread is in none. place: of what is written, by which a call in another thread is known as its.
        with_upload: nobody says it; that call's end is the save's.
        """
        save = self._here.save
        if save is not None and not save.is_over and not self._here.is_upload:
            save.is_pending, save.with_upload, save.place = True, with_upload, place or save.place
            with self._lock:
                self._pending[save.number] = save
                while len(self._pending) > MOST_PENDING:
                    del self._pending[next(iter(self._pending))]
        return save

    def staged(self, save: Save) -> None:
        """The state was copied: training goes on. Told once."""
        if not save.is_staged and not save.is_over:
            save.is_staged = True
            self._tell(save, SaveState.STAGED, save.begin_ns)

    def durable(self, save: Save) -> None:
        """All of this rank's part is written."""
        self._end(save, SaveState.DURABLE)

    def left_out(self, save: Save) -> None:
        """Another rank has nothing of this step, so that this part is of no use."""
        self._end(save, SaveState.LEFT_OUT)

    def failed(self, save: Save, error: BaseException) -> None:
        """It was not written, and will not be."""
        if save.is_over or not self._guard.enabled:
            return
        if self._texts < MOST_TEXTS:
            self._texts += 1
            try:
                text = cut_text(f"{type(error).__name__}: {error}", _LONGEST_ERROR)
            except Exception:  # __str__ of a foreign exception may raise
                text = type(error).__name__
            try:
                self._define(DEFINITION_SAVE_FAILED, save.number & 0xFFFF, {"error": text})
            except Exception as failure:  # edge: hook
                self._guard.fail(failure)
        self._end(save, SaveState.FAILED)

    def _begin(self, way: SaveWay, place: int, tier: Tier, size_bytes: int, step: int | None) -> Save:
        with self._lock:
            self._count += 1
            number = self._count
        save = Save(number, way, place, tier, self._steps_held() if step is None else step, size_bytes)
        self._tell(save, SaveState.BEGUN, place)
        return save

    def _end(self, save: Save, state: SaveState) -> None:
        with self._lock:
            if save.is_over:
                return
            save.is_over = True
            self._pending.pop(save.number, None)
        self._tell(save, state, save.begin_ns)

    def _pending_at(self, place: int) -> Save | None:
        with self._lock:
            return next((each for each in self._pending.values() if each.place == place), None)

    def _tell(self, save: Save, state: SaveState, value: int) -> None:
        if not self._guard.enabled:
            return
        try:
            self._append(
                EventKind.SAVE,
                group=pack_save_head(state, save.tier, save.way),
                seq=save.number,
                value=value,
                extra=pack_save_extra(save.step, save.size_bytes),
            )
        except Exception as error:  # edge: hook
            self._guard.fail(error)
