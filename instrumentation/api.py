"""The public calls: ``init``, ``step``, ``phase``, ``on_checkpoint``, and the start that the bootstrap asks for.

None of them ever raises or prints more than one warning; without a ring they do nothing. Importing this module imports
no torch: a script may call them on a machine that has none.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
import warnings
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from ..telemetry.emergency_words import DEFAULT_LEAD_S
from ..telemetry.vocabulary import Level, Phase
from . import levels
from .rank_identity import (
    OWNER_VARIABLE,
    RankPlace,
    describe_process,
    is_helper,
    make_ring_directory,
    owner_mark,
    place_of_environment,
    ring_directory_of_environment,
)

if TYPE_CHECKING:
    from .session import Session
    from .trackers.saves import Save

_log = logging.getLogger("whichrank")
_lock = threading.RLock()
_session: Session | None = None
_said: set[str] = set()
_fork_watched = False


def init(*, level: str | None = None, directory: str | os.PathLike[str] | None = None) -> bool:
    """Start recording this rank. Call it once, at any place before or after ``init_process_group``.

    level: "off", "status" or "events"; default WHICHRANK_LEVEL, else events.
    directory: where the ring goes; default WHICHRANK_DIR, else ``/dev/shm/whichrank-UID/JOB``.
    Returns whether this process is being recorded. Where it is not a rank (no RANK in the environment and no process
    group) or no ring can be had it says so once and training goes on. Never raises.
    """
    try:
        return _start(level=level, directory=None if directory is None else Path(directory))
    except Exception as error:  # edge: the one line in somebody's training script
        _say_once(f"not recording: {type(error).__name__}: {error}")
        return False


def start_automatically() -> bool:
    """``init`` for the bootstrap: the same, but silent where there is nothing to say to a user who did not ask."""
    try:
        return _start(level=None, directory=None)
    except Exception as error:  # edge: inside somebody's ``import torch``
        _log.debug("not recording: %s: %s", type(error).__name__, error)
        return False


def is_owned_by_another() -> bool:
    """Whether an ancestor of this process records the rank that RANK names, so that this one is only its helper."""
    place = place_of_environment(os.environ)
    return place is not None and is_helper(os.environ, place.rank, ring_directory_of_environment(os.environ))


def step(*, loss: Any = None, grad_norm: Any = None) -> None:
    """Says that a training step is over; from the first call on only these calls count steps.

    Nothing where not recorded.

    loss, grad_norm: number or scalar tensor; a tensor on a device is read later, without waiting for it.
    """
    session = _session
    if session is not None:
        try:
            session.step(loss, grad_norm)
        except Exception as error:  # edge: hook
            session.health.report("step", error)


class phase:
    """Context manager: what runs inside is shown as the named phase (names as in ``Phase``, lower case)."""

    __slots__ = ("_entered", "_name", "_save")

    def __init__(self, name: str) -> None:
        self._name = name
        self._entered = 0
        self._save: Save | None = None

    def __enter__(self) -> phase:
        session = _session
        if session is not None:
            from .session import phase_number

            number = phase_number(str(self._name))
            if number is None:
                _say_once(f"unknown phase {self._name!r} is shown as other")
                number = phase_number("other") or 0
            self._entered = session.tracker.enter(number, by_hand=True)
            if number == Phase.CHECKPOINT:
                from ..telemetry.checkpoint_states import SaveWay

                self._save = session.saves.enter(SaveWay.BY_HAND)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        session = _session
        if session is not None:
            session.saves.leave(self._save, error)
            self._save = None
        if session is not None and self._entered:
            if error is not None:
                session.tracker.leave_by_exception(self._entered, error)
            else:
                session.tracker.leave(self._entered)
            self._entered = 0


def on_checkpoint(save: Callable[..., Any], *, grace_s: float = 25.0, lead_s: float = DEFAULT_LEAD_S) -> bool:
    """Have ``save`` called when the job is about to end, on all ranks after the same step. Call it once on every rank,
    in the main thread, after ``init_process_group``.

    save: called with ``(reason, seconds_left, whole)``, or fewer of them. It runs in the main thread right after the
    optimizer's step or, where the script calls ``whichrank.step()``, in there. Where ``whole`` is False other ranks are
    missing, and a collective in it would not end. What it raises is told, and training goes on.
    grace_s: between a SIGTERM to this rank and the end that comes by force, in seconds. The signal is held back until
    the save is over, for so long at most, and then does what it would have done.
    lead_s: so long before Slurm's time limit a save is asked for, in seconds; 0: never.
    Asked for by SIGTERM to any rank, by ``whichrank checkpoint-now`` and, shortly before a time limit, a preemption or
    a maintenance, by the node's whichrank. Returns whether this rank listens; it says once why not. Never raises.
    """
    try:
        if _session is None and not init():
            return False
        session = _session
        if session is None or not session.owns_rank():
            return False
        from .emergency_arming import arm

        arm(session, save, grace_s, lead_s)
        return True
    except Exception as error:  # edge: the one line in somebody's training script
        _say_once(f"no emergency saves: {type(error).__name__}: {error}")
        return False


def current_session() -> Session | None:
    """The session of this process; None if it does not record."""
    return _session


def stop() -> None:
    """Takes out all hooks and ends the recording, if there is one.

    For tests and for programs that go on after training.
    """
    global _session
    with _lock:
        session, _session = _session, None
        if session is not None:
            session.stop()
            os.environ.pop(OWNER_VARIABLE, None)


def _start(*, level: str | None, directory: Path | None) -> bool:
    global _session, _fork_watched
    with _lock:
        if _session is not None:
            return _session.owns_rank()
        place = place_of_environment(os.environ) or _place_of_process_group()
        if place is None:
            _say_once("not recording: no RANK in the environment and no process group; call init() in a torchrun job")
            return False
        if not sys.platform.startswith("linux"):
            _say_once(f"not recording: rings need Linux, this is {sys.platform}")
            return False
        folder = directory or ring_directory_of_environment(os.environ)
        if is_helper(os.environ, place.rank, folder):
            return False
        chosen = levels.parse_level(level) if level is not None else levels.level_of_environment(os.environ)
        if chosen is None:
            _say_once(f"unknown level {level!r}, using events")
            chosen = Level.EVENTS
        try:
            folder = make_ring_directory(folder)
            import torch  # here, so that programs that are no ranks never import it for us

            from .ring_writer import open_ring_writer

            writer = open_ring_writer(
                folder,
                rank=place.rank,
                local_rank=place.local_rank,
                world_size=place.world_size,
                identity=describe_process(os.environ, backend=_backend_of(torch), torch_version=str(torch.__version__)),
            )
        except (OSError, ValueError) as error:
            _say_once(f"not recording: no ring in {folder}: {error}")
            return False
        from .session import Session

        session = Session(writer, place, folder, chosen, levels.cost_limit_of_environment(os.environ))
        session.start()
        if not _fork_watched:
            os.register_at_fork(after_in_child=_forget_in_child)
            _fork_watched = True
        os.environ[OWNER_VARIABLE] = owner_mark(place.rank)
        _session = session
        return True


def _forget_in_child() -> None:
    session = _session
    if session is not None:
        session.forget_in_child()


def _place_of_process_group() -> RankPlace | None:
    """Rank and world of an initialized process group whose launcher set no RANK."""
    dist = sys.modules.get("torch.distributed")
    if dist is None or not dist.is_available() or not dist.is_initialized():
        return None
    rank = dist.get_rank()
    return RankPlace(
        rank=rank,
        local_rank=int(os.environ.get("LOCAL_RANK", os.environ.get("SLURM_LOCALID", rank))),
        world_size=dist.get_world_size(),
    )


def _backend_of(torch: Any) -> str:
    group = getattr(getattr(torch._C, "_distributed_c10d", None), "ProcessGroup", None)
    if group is None:
        return "status"
    return "hooks" if hasattr(group, "register_pre_hook") else "backend_select"


def _say_once(text: str) -> None:
    if text in _said:
        return
    _said.add(text)
    _log.debug("%s", text)
    # A filter that turns warnings into errors must not turn ours into a dead job.
    try:
        warnings.warn(f"whichrank: {text}", RuntimeWarning, stacklevel=4)
    except Exception:
        _log.warning("%s", text)
