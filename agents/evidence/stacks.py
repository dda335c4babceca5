"""Stacks of stuck ranks by py-spy, taken in shared threads so that polling never waits for a subprocess.

``ask`` and ``take_finished`` are called by the polling thread; one dump at a time is taken of each owner's ranks, by a
child that has the owner's rights and bounds in memory, time and output: it parses what he has written. Without py-spy,
or without the right to trace, the answer says so and the ring's own stack is used instead.
"""

from __future__ import annotations

import json
import os
import queue
import shutil
import sys
import sysconfig
import time
from dataclasses import dataclass
from pathlib import Path

from ...telemetry.ring_layout import cut_text
from ..base.owner_workers import STACKS
from ..base.user_frames import MAX_FRAMES, UserFrame
from ..processes.processes import read_stat
from ..user_files.user_files import run_as_user

_MOST_UNDER_WAY = 64
#: More is no stack for people; it is kept in memory several times while it is parsed.
_MOST_BYTES = 4 << 20
_MOST_NAME = 1024
_MOST_THREADS = 256
_MOST_TEXT = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class StackRequest:
    """start_ticks: tells the process from a later one of its pid."""

    slot: int
    pid: int
    uid: int
    start_ticks: int
    stopped: bool  # state T: only a non-blocking dump works
    why: str
    request_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StackAnswer:
    request: StackRequest
    frames: tuple[UserFrame, ...]  # main thread, innermost last; empty if it failed
    text: str  # all threads, for the evidence file
    error: str


def find_py_spy() -> str | None:
    """Path of py-spy, None without one. Looked for beside this interpreter first: PATH belongs to the training job."""
    for folder in (sysconfig.get_path("scripts"), os.path.dirname(sys.executable)):
        candidate = Path(folder) / "py-spy"
        if os.access(candidate, os.X_OK):
            return str(candidate)
    return shutil.which("py-spy")


def parse_dump(raw: str, pid: int) -> tuple[tuple[UserFrame, ...], str]:
    """(main thread's frames, innermost last; readable text of all threads) of ``py-spy dump --json``.

    Raises ValueError for what is no such dump.
    """
    threads = json.loads(raw)
    if not isinstance(threads, list) or not threads:
        raise ValueError("no threads in the dump")
    main: tuple[UserFrame, ...] = ()
    lines: list[str] = []
    size = 0
    for place, thread in enumerate(threads[:_MOST_THREADS]):
        frames = tuple(
            UserFrame(
                str(frame.get("filename", ""))[:_MOST_NAME],
                int(frame.get("line") or 0),
                str(frame.get("name", ""))[:_MOST_NAME],
            )
            for frame in reversed(thread.get("frames", [])[:MAX_FRAMES])
        )
        is_main = thread.get("os_thread_id") == pid or thread.get("thread_name") == "MainThread"
        if is_main or (place == 0 and not main):
            main = frames
        state = "holds the GIL" if thread.get("owns_gil") else "active" if thread.get("active") else "idle"
        lines.append(f"thread {thread.get('os_thread_id')} {thread.get('thread_name') or ''} ({state})")
        for frame in reversed(frames) if size < _MOST_TEXT else ():
            lines.append(f"    {frame.function} ({frame.file}:{frame.line})")
            size += len(lines[-1])
    return main, "\n".join(lines) + "\n"


class StackTaker:
    """At most one dump of an owner at a time on the node."""

    def __init__(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._py_spy = find_py_spy()
        self._finished: queue.SimpleQueue[StackAnswer] = queue.SimpleQueue()
        self._under_way: set[int] = set()
        self._is_closed = False

    def ask(self, request: StackRequest) -> bool:
        """Queue a dump. False if one of that rank is under way or too many are."""
        if request.slot in self._under_way or len(self._under_way) >= _MOST_UNDER_WAY:
            return False
        self._under_way.add(request.slot)
        STACKS.submit(request.uid, lambda: self._take(request))
        return True

    def take_finished(self) -> list[StackAnswer]:
        """Stacks, or the reasons why there is none, that arrived since the last call. Never waits."""
        answers: list[StackAnswer] = []
        while not self._finished.empty():
            answer = self._finished.get()
            self._under_way.discard(answer.request.slot)
            answers.append(answer)
        return answers

    @property
    def busy(self) -> bool:
        """Whether a stack that was asked for is still being taken."""
        return bool(self._under_way)

    def close(self) -> None:
        """Waits for what is under way, as long as one py-spy is given; what waits behind it is not taken any more."""
        self._is_closed = True
        deadline_s = time.monotonic() + self._timeout_s + 1
        while self._finished.qsize() < len(self._under_way) and time.monotonic() < deadline_s:
            time.sleep(0.01)

    def _take(self, request: StackRequest) -> None:
        if self._is_closed:
            self._finished.put(StackAnswer(request=request, frames=(), text="", error="the agent ends"))
            return
        self._finished.put(self._dump(request))

    def _dump(self, request: StackRequest) -> StackAnswer:
        if self._py_spy is None:
            return StackAnswer(request=request, frames=(), text="", error="py-spy is not installed")
        # A stopped process never answers a blocking attach; a running one is paused for a moment so that frames agree.
        modes = (["--nonblocking"],) if request.stopped else ([], ["--nonblocking"])
        error = ""
        for mode in modes:
            words = ["dump", "--json", *mode, "--pid", str(request.pid)]
            try:
                if not _is_there(request):
                    return StackAnswer(request=request, frames=(), text="", error="the process has ended")
                status, out, errors = run_as_user(
                    self._py_spy, words, request.uid, request.pid, self._timeout_s, _MOST_BYTES
                )
                if status == 0:
                    frames, text = parse_dump(out.decode("utf-8", "replace"), request.pid)
                    if frames and _is_there(request):
                        return StackAnswer(request=request, frames=frames, text=text, error="")
                    error = "no frames in the dump"
                else:
                    said = errors.decode("utf-8", "replace").strip().splitlines()
                    error = (said or [f"py-spy exit code {status}"])[-1]
            except (OSError, ValueError, TypeError, AttributeError) as failure:
                error = f"{type(failure).__name__}: {failure}"
        return StackAnswer(request=request, frames=(), text="", error=cut_text(error, 200))


def _is_there(request: StackRequest) -> bool:
    stat = read_stat(request.pid)
    return stat is not None and stat.start_ticks == request.start_ticks
