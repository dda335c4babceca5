"""What the rank's ring is told of saves and of what was read: as for any other way of saving. Nothing where this
process is not recorded.
"""

from __future__ import annotations

import os
from types import TracebackType

from ..instrumentation.api import current_session
from ..instrumentation.session import Session
from ..instrumentation.trackers.checkpoint_identity import checkpoint_number, checkpoint_tier
from ..instrumentation.trackers.saves import Save
from ..telemetry.checkpoint_states import SaveWay
from ..telemetry.ring_layout import CHECKPOINT_READ
from ..telemetry.vocabulary import EventKind, Phase


def near_place(name: str, step: int) -> str:
    """What a checkpoint near the job is known by, equal on all nodes."""
    return f"near://{name}/step-{step}"


def _session() -> Session | None:
    session = current_session()
    return session if session is not None and session.owns_rank() else None


class SaveInRing:
    """Context manager around the copy of a state: its phase, and the save near the job, which goes on after it; later,
    for some, the save to the storage that stays.
    """

    def __init__(self, place: str, folder: str, size_bytes: int) -> None:
        self._session = _session()
        self._place, self._folder, self._size_bytes = place, folder, size_bytes
        self._near: Save | None = None
        self._persistent: Save | None = None
        self._entered = 0

    def __enter__(self) -> SaveInRing:
        if self._session is not None:
            self._entered = self._session.tracker.enter(int(Phase.CHECKPOINT), by_hand=True)
            self._near = self._begin(self._session, SaveWay.WHICHRANK, self._place, self._folder, None)
        return self

    def _begin(self, session: Session, way: SaveWay, place: str, folder: str, step: int | None) -> Save | None:
        number, tier = checkpoint_number(place), checkpoint_tier(os.path.join(folder, "step"))
        save = session.saves.enter(way, number, tier, self._size_bytes, step)
        session.saves.hand_over(place=number)
        return save

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._session is not None:
            self._session.saves.leave(self._near)
            if error is not None and self._near is not None:
                self._session.saves.failed(self._near, error)
            if self._entered:
                self._session.tracker.leave(self._entered)

    def carry(self, place: str, folder: str) -> None:
        """The same state goes on to the storage that stays. Any thread."""
        if self._session is not None and self._near is not None:
            self._persistent = self._begin(self._session, SaveWay.WHICHRANK_STORAGE, place, folder, self._near.step)
            self._session.saves.leave(self._persistent)

    def near_is_left_out(self) -> None:
        """Another rank has none of this step. Any thread."""
        if self._near is not None and self._session is not None:
            self._session.saves.left_out(self._near)

    def near_is_over(self, problem: str) -> None:
        """What became of the save near the job: "" for the best. Any thread."""
        self._end(self._near, problem)

    def carried(self, problem: str) -> None:
        """What became of the other. Any thread."""
        self._end(self._persistent, problem)

    def _end(self, save: Save | None, problem: str) -> None:
        if save is not None and self._session is not None:
            if problem:
                self._session.saves.failed(save, OSError(problem))
            else:
                self._session.saves.durable(save)


class ReadInRing:
    """Context manager around a restore."""

    def __init__(self) -> None:
        self._session = _session()
        self._entered = 0

    def __enter__(self) -> ReadInRing:
        if self._session is not None:
            self._entered = self._session.tracker.enter(int(Phase.RESTORE), by_hand=True)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._session is not None and self._entered:
            self._session.tracker.leave(self._entered)

    def read(self, place: str) -> None:
        """Which checkpoint the job goes on from."""
        if self._session is not None:
            self._session.writer.append_event(
                EventKind.CHECKPOINT, value=checkpoint_number(place), extra=CHECKPOINT_READ
            )
