"""Uncaught exceptions and the way the process leaves, written to the ring while it still can be.

Chains ``sys.excepthook`` and ``threading.excepthook``: ours first (the ring must have it before teardown frees what the
peers wait for), then whatever was there. A user's hook that replaces ours without calling it is chained again by the
heartbeat thread; what still slips through is read from ``sys.last_value`` at exit. ``SystemExit`` is not an exception,
but one that is raised while another exception is handled is how scripts and their wrappers (Hydra, command lines) end
on it: ``sys.exit`` keeps what it says, and the end of the process makes it true.
Never raises, never changes what is printed or the exit code.
"""

from __future__ import annotations

import functools
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from time import monotonic_ns
from types import TracebackType
from typing import Any, NoReturn

from ..telemetry.vocabulary import ExitState, Phase
from .ring_writer import RankRecorder
from .support.guard import Guard
from .trackers.phases import Phases

Frame = tuple[str, int, str]
MAX_FRAMES = 64
#: After ``sys.exit`` a script cleans up for so long; one that lives longer has caught it and gone on.
EXIT_TAKES_NS = 60_000_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class _Handled:
    """What a ring needs of an exception; of the exception itself nothing is held, its frames have tensors.

    phase: in which it was raised, None as the process is in now. noted_ns: monotonic.
    """

    text: str
    frames: list[Frame]
    phase: int | None
    noted_ns: int = field(default_factory=monotonic_ns)


class ExceptionRecorder:
    """Owns the two exception hooks and ``sys.exit`` of one session, and writes how the process leaves."""

    def __init__(self, writer: RankRecorder, tracker: Phases, guard: Guard, is_owner: Callable[[], bool]) -> None:
        self._writer = writer
        self._tracker = tracker
        self._guard = guard
        self._is_owner = is_owner
        self._previous: Any = None
        self._put_back: Any = None
        self._previous_thread_hook: Any = None
        self._previous_exit: Any = None
        self._main_recorded = False
        #: Called with the main thread's uncaught exception, once it is recorded and before anybody prints it.
        self.before_leaving: Callable[[BaseException], None] | None = None
        self._left = False
        #: The exception that was being handled when the script last asked for its end with an error.
        self._handled: _Handled | None = None
        # One object each: a bound method is a new object at every access, so identity could not be told.
        self._hook = self._on_exception
        self._thread_hook = self._on_thread_exception
        self._exit = self._make_exit(sys.exit)

    def install(self) -> None:
        """Put our hooks before ``sys.excepthook``, ``threading.excepthook`` and ``sys.exit``, which they call."""
        self._previous = self._put_back = sys.excepthook
        sys.excepthook = self._hook
        self._previous_thread_hook = threading.excepthook
        threading.excepthook = self._thread_hook
        self._previous_exit = sys.exit
        sys.exit = self._exit

    def uninstall(self) -> None:
        """Put the hooks back where nobody has put another on top."""
        if sys.excepthook == self._hook:
            sys.excepthook = self._put_back
        if threading.excepthook == self._thread_hook:
            threading.excepthook = self._previous_thread_hook
        if sys.exit is self._exit:
            sys.exit = self._previous_exit

    def chain_again(self) -> None:
        """Puts our exception hook in front of one that was set since and may not call ours.

        For the heartbeat thread.
        """
        current = sys.excepthook
        if current is not self._hook and self._guard.enabled:
            # A hook that does chain to ours calls us twice; the second call finds the exception recorded.
            before = self._previous

            def call_user_hook(kind: type[BaseException], value: BaseException, trace: TracebackType | None) -> None:
                self._previous = before  # ends the cycle if the user's hook calls ours
                current(kind, value, trace)

            self._previous = call_user_hook
            self._put_back = current
            sys.excepthook = self._hook

    def _on_exception(self, kind: type[BaseException], value: BaseException, trace: TracebackType | None) -> None:
        self.record(value, trace, in_main=True)
        if self.before_leaving is not None and self._is_owner():
            self.before_leaving(value)
        self._previous(kind, value, trace)

    def _on_thread_exception(self, args: Any) -> None:
        if args.exc_value is not None and args.exc_type is not SystemExit:
            self.record(args.exc_value, args.exc_traceback, in_main=False)
        self._previous_thread_hook(args)

    def _make_exit(self, original: Callable[..., NoReturn]) -> Callable[..., NoReturn]:
        @functools.wraps(original)
        def exit_(*arguments: Any) -> NoReturn:
            self._note_exit(arguments[0] if arguments else None)
            original(*arguments)

        return exit_

    def _note_exit(self, status: Any) -> None:
        if not self._guard.enabled or threading.current_thread() is not threading.main_thread():
            return
        try:
            value = sys.exc_info()[1]
            if status in (None, 0) or value is None or isinstance(value, SystemExit):
                self._handled = None
                return
            phase = self._tracker.phase_of_exception(value)
            self._handled = _Handled(text=describe_exception(value), frames=frames_of(value.__traceback__), phase=phase)
        except Exception as error:  # edge: hook
            self._guard.fail(error)

    def record(self, value: BaseException, trace: TracebackType | None, *, in_main: bool) -> None:
        """Writes an uncaught exception into the ring, with text, stack and its phase; of the main thread the first
        only.

        Nothing in a forked child.
        """
        if not self._guard.enabled or not self._is_owner() or (in_main and self._main_recorded):
            return
        try:
            text = describe_exception(value)
            if not in_main:
                self._writer.record_exception(text, frames_of(trace), False)
                return
            phase = self._tracker.phase_of_exception(value)
            self._record_main(_Handled(text=text, frames=frames_of(trace), phase=phase))
        except Exception as error:  # edge: hook
            self._guard.fail(error)

    def _record_main(self, ended_by: _Handled) -> None:
        self._main_recorded = True
        if ended_by.phase is not None:
            self._tracker.force(ended_by.phase)
        self._writer.record_exception(ended_by.text, ended_by.frames, True)
        self._writer.record_exit(ExitState.EXCEPTION)

    def mark_exit(self) -> None:
        """Writes, once, that the process leaves in an orderly way, or the exception that ended it; to be called at
        exit.

        ``os._exit`` and signals never come here.
        """
        if self._left or not self._is_owner():
            return
        self._left = True
        try:
            last = getattr(sys, "last_value", None)
            if last is not None and not self._main_recorded and not hasattr(sys, "ps1"):
                self.record(last, last.__traceback__, in_main=True)
            ended_by = self._handled
            if ended_by is not None and not self._main_recorded and monotonic_ns() - ended_by.noted_ns < EXIT_TAKES_NS:
                self._record_main(ended_by)
            if not self._main_recorded:
                self._tracker.force(Phase.EXIT)
                self._writer.record_exit(ExitState.NORMAL)
        except Exception as error:  # edge: hook
            self._guard.fail(error)


def describe_exception(value: BaseException) -> str:
    """``module.Type: message``, as tracebacks have it."""
    kind = type(value)
    name = (
        kind.__qualname__ if kind.__module__ in ("builtins", "__main__") else f"{kind.__module__}.{kind.__qualname__}"
    )
    try:
        message = str(value)
    except Exception:  # a foreign __str__
        message = "<message not readable>"
    return f"{name}: {message}" if message else name


def frames_of(trace: TracebackType | None) -> list[Frame]:
    """Frames of a traceback, innermost last; the outermost are left out beyond MAX_FRAMES."""
    frames: list[Frame] = []
    while trace is not None:
        code = trace.tb_frame.f_code
        frames.append((code.co_filename, trace.tb_lineno, code.co_name))
        if len(frames) > 2 * MAX_FRAMES:
            del frames[:MAX_FRAMES]
        trace = trace.tb_next
    return frames[-MAX_FRAMES:]


def frames_of_thread(thread_id: int) -> list[Frame]:
    """Current stack of a thread, innermost last. Costs a few microseconds and holds the GIL for them."""
    frame = sys._current_frames().get(thread_id)
    frames: list[Frame] = []
    while frame is not None and len(frames) < MAX_FRAMES:
        code = frame.f_code
        frames.append((code.co_filename, frame.f_lineno or 0, code.co_name))
        frame = frame.f_back
    frames.reverse()
    return frames
