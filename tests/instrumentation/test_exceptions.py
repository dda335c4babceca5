"""Uncaught exceptions and ends of real processes: in the ring, and in every other way as without us."""

from __future__ import annotations

import signal
import sys
from pathlib import Path
from types import TracebackType

import pytest

from tests.instrumentation.jobs import run_python
from whichrank.instrumentation.exceptions import describe_exception, frames_of, frames_of_thread
from whichrank.telemetry.vocabulary import ExitState

#: What a session does for exceptions, without torch; in one line, so that tracebacks have equal line numbers.
RECORD = """\
import atexit, os; from pathlib import Path; \
from whichrank.instrumentation import exceptions, ring_writer; \
from whichrank.instrumentation.support import guard; from whichrank.instrumentation.trackers import phases; \
health = guard.HookHealth(); \
directory = Path(os.environ["WHICHRANK_DIR"]); \
writer = ring_writer.RingWriter.create(directory, rank=0, local_rank=0, world_size=1, identity={}); \
tracker = phases.PhaseTracker(writer.set_phase, guard.Guard("phases", health)); \
recorder = exceptions.ExceptionRecorder(writer, tracker, guard.Guard("exceptions", health), lambda: True); \
recorder.install(); atexit.register(recorder.mark_exit)
"""
NOTHING = "\\\n".join(["import abc; exceptions = abc; "] * RECORD.count("\n")) + "\n"


@pytest.mark.parametrize(
    ("source", "exit_code", "exit_state", "text"),
    [
        ("raise ValueError('boom')", 1, 2, "ValueError: boom"),
        ("import sys; sys.exit(7)", 7, 1, ""),
        ("raise SystemExit('bye')", 1, 1, ""),
        # As Hydra and command lines end on what they caught; and what was handled well before is none of it.
        ("import sys\ntry: 1 / 0\nexcept Exception: sys.exit(3)", 3, 2, "ZeroDivisionError: division by zero"),
        ("import sys\ntry: exceptions.EXIT_TAKES_NS = 0; 1 / 0\nexcept Exception: sys.exit(3)", 3, 1, ""),
        ("import sys\ntry: 1 / 0\nexcept Exception: sys.exit(0)", 0, 1, ""),
        ("import sys\ntry: 1 / 0\nexcept Exception: pass\nsys.exit(3)", 3, 1, ""),
        ("import sys\ntry: sys.exit(2)\nexcept SystemExit as e: sys.exit(e.code)", 2, 1, ""),
        (
            "import sys\ntry:\n    try: 1 / 0\n    except Exception: sys.exit(3)\nexcept SystemExit: pass\nsys.exit(4)",
            4,
            1,
            "",
        ),
        ("import os; os._exit(5)", 5, 0, ""),
        ("raise KeyboardInterrupt", -signal.SIGINT, 2, "KeyboardInterrupt"),
        ("import sys; sys.excepthook = sys.__excepthook__; raise ValueError('boom')", 1, 2, "ValueError: boom"),
        (
            "import threading; t = threading.Thread(target=lambda: 1 / 0); t.start(); t.join()",
            0,
            1,
            "ZeroDivisionError: division by zero",
        ),
        (
            "import threading; t = threading.Thread(target=lambda: 1 / 0); t.start(); t.join(); raise KeyError('main')",
            1,
            2,
            "KeyError: 'main'",
        ),
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", -signal.SIGKILL, 0, ""),
    ],
)
def test_how_a_process_leaves(tmp_path: Path, source: str, exit_code: int, exit_state: int, text: str) -> None:
    done = run_python(RECORD + source, tmp_path)
    without = run_python(NOTHING + source, tmp_path)
    assert done.exit_code == without.exit_code == exit_code
    assert done.output == without.output  # tracebacks too
    (ring,) = done.rings
    assert ring.words["exit_state"] == exit_state
    assert ring.exception == text
    assert ring.exception_in_main == (exit_state == ExitState.EXCEPTION)
    if exit_state == ExitState.NORMAL:
        assert ring.phases()[-1] == "exit"


CHAINED = """
import time
calls = []
def user_hook(kind, value, trace):
    calls.append(kind)
    print("user hook", kind.__name__, flush=True)
    CALL_PREVIOUS
previous = sys.excepthook
sys.excepthook = user_hook
recorder.chain_again()
recorder.chain_again()
raise ValueError("boom")
"""


@pytest.mark.parametrize("call", ["previous(kind, value, trace)", "pass"])
def test_a_users_hook_runs_once_whether_it_chains_or_not(tmp_path: Path, call: str) -> None:
    done = run_python(RECORD + "import sys\n" + CHAINED.replace("CALL_PREVIOUS", call), tmp_path)
    assert done.exit_code == 1
    assert done.output.count("user hook ValueError") == 1
    assert done.output.count("Traceback") == (call != "pass")
    (ring,) = done.rings
    assert ring.exception == "ValueError: boom"
    assert len([event for event in ring.events if event.kind.name == "EXCEPTION"]) == 1


def test_descriptions() -> None:
    class Silent(Exception):
        def __str__(self) -> str:
            raise RuntimeError

    assert describe_exception(ValueError("x")) == "ValueError: x"
    assert describe_exception(KeyboardInterrupt()) == "KeyboardInterrupt"
    assert describe_exception(__import__("json").JSONDecodeError("bad", "", 0)).startswith(
        "json.decoder.JSONDecodeError: "
    )
    assert describe_exception(Silent()).endswith("Silent: <message not readable>")


def trace_of(depth: int) -> TracebackType | None:
    try:
        if depth:
            trace_of_inner(depth - 1)
        raise ValueError
    except ValueError as error:
        return error.__traceback__


def trace_of_inner(depth: int) -> None:
    if depth:
        trace_of_inner(depth - 1)
    raise ValueError


def test_the_innermost_frames_are_kept() -> None:
    frames = frames_of(trace_of(300))
    assert len(frames) == 64
    assert frames[-1][2] == "trace_of_inner"
    assert frames_of(None) == []


def test_own_stack() -> None:
    import threading

    frames = frames_of_thread(threading.get_ident())
    assert [frame[2] for frame in frames[-2:]] == ["test_own_stack", "frames_of_thread"]
    assert frames[-1][0] == sys.modules["whichrank.instrumentation.exceptions"].__file__
    assert frames_of_thread(-1) == []
