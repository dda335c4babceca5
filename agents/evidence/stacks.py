"""Stacks of stuck ranks by py-spy, taken in one helper thread so that polling never waits for a subprocess.

``ask`` and ``take_finished`` are called by the polling thread; the helper thread runs one dump at a time with a
time-out. Without py-spy, or without the right to trace, the answer says so and the ring's own stack is used instead.
"""

from __future__ import annotations

import json
import os
import queue
import shutil
import subprocess
import sys
import sysconfig
import threading
from dataclasses import dataclass
from pathlib import Path

from ...telemetry.ring_layout import cut_text
from ..base.user_frames import MAX_FRAMES, UserFrame

_QUEUE = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class StackRequest:
    slot: int
    pid: int
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
    for place, thread in enumerate(threads):
        frames = tuple(
            UserFrame(str(frame.get("filename", "")), int(frame.get("line") or 0), str(frame.get("name", "")))
            for frame in reversed(thread.get("frames", [])[:MAX_FRAMES])
        )
        is_main = thread.get("os_thread_id") == pid or thread.get("thread_name") == "MainThread"
        if is_main or (place == 0 and not main):
            main = frames
        state = "holds the GIL" if thread.get("owns_gil") else "active" if thread.get("active") else "idle"
        lines.append(f"thread {thread.get('os_thread_id')} {thread.get('thread_name') or ''} ({state})")
        lines.extend(f"    {frame.function} ({frame.file}:{frame.line})" for frame in reversed(frames))
    return main, "\n".join(lines) + "\n"


class StackTaker:
    """At most one dump at a time on the node; the thread starts with the first request and is a daemon."""

    def __init__(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._py_spy = find_py_spy()
        self._asked: queue.Queue[StackRequest | None] = queue.Queue(_QUEUE)
        self._finished: queue.SimpleQueue[StackAnswer] = queue.SimpleQueue()
        self._under_way: set[int] = set()
        self._thread: threading.Thread | None = None

    def ask(self, request: StackRequest) -> bool:
        """Queue a dump. False if one of that rank is under way or the queue is full."""
        if request.slot in self._under_way:
            return False
        try:
            self._asked.put_nowait(request)
        except queue.Full:
            return False
        self._under_way.add(request.slot)
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="whichrank-stacks", daemon=True)
            self._thread.start()
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
        """Whether an asked stack is still to come."""
        return bool(self._under_way)

    def close(self) -> None:
        """Ends the helper thread, which may take as long as one py-spy is given."""
        if self._thread is not None:
            self._asked.put(None)
            self._thread.join(self._timeout_s + 1)
            self._thread = None

    def _run(self) -> None:
        while (request := self._asked.get()) is not None:
            self._finished.put(self._dump(request))

    def _dump(self, request: StackRequest) -> StackAnswer:
        if self._py_spy is None:
            return StackAnswer(request=request, frames=(), text="", error="py-spy is not installed")
        # A stopped process never answers a blocking attach; a running one is paused for a moment so that frames agree.
        modes = (["--nonblocking"],) if request.stopped else ([], ["--nonblocking"])
        error = ""
        for mode in modes:
            command = [self._py_spy, "dump", "--json", *mode, "--pid", str(request.pid)]
            try:
                done = subprocess.run(
                    command,
                    stdin=subprocess.DEVNULL,
                    capture_output=True,
                    timeout=self._timeout_s,
                    check=False,
                    text=True,
                    errors="replace",
                )
                if done.returncode == 0:
                    frames, text = parse_dump(done.stdout, request.pid)
                    if frames:
                        return StackAnswer(request=request, frames=frames, text=text, error="")
                    error = "no frames in the dump"
                else:
                    error = (done.stderr.strip().splitlines() or [f"py-spy exit code {done.returncode}"])[-1]
            except (OSError, subprocess.SubprocessError, ValueError, TypeError, AttributeError) as failure:
                error = f"{type(failure).__name__}: {failure}"
        return StackAnswer(request=request, frames=(), text="", error=cut_text(error, 200))
