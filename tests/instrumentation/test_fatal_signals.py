"""Fatal signals: a note in the ring, and exactly the end that the process would have had without us."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from tests.instrumentation.jobs import clean_environment
from tests.instrumentation.ring_contents import RingContents, read_rings

pytest.importorskip("whichrank.instrumentation._fatal", reason="the C module is not built (no C compiler)")

PREPARE = """
import ctypes, faulthandler, os, signal, sys, time
from pathlib import Path
if len(sys.argv) > 1:
    from whichrank.instrumentation.ring_writer import RingWriter
    from whichrank.instrumentation.fatal_signals import watch_fatal_signals, unwatch_fatal_signals
    writer = RingWriter.create(Path(sys.argv[1]), rank=0, local_rank=0, world_size=1, identity={})
    def watch():
        return watch_fatal_signals(writer.path, writer.geometry.crash_offset)
else:
    def watch():
        return ()
def crash():
    ctypes.string_at(0)
"""

CASES = {
    "terminated by itself": "watch(); os.kill(os.getpid(), signal.SIGTERM)",
    "segmentation fault": "watch(); crash()",
    "segmentation fault with faulthandler before": "faulthandler.enable(); watch(); crash()",
    "segmentation fault with faulthandler after": "watch(); faulthandler.enable(); crash()",
    "abort": "watch(); os.abort()",
    "abort with faulthandler": "faulthandler.enable(); watch(); os.abort()",
    "sent fault": "watch(); os.kill(os.getpid(), signal.SIGSEGV)",
}
NUMBER = {"terminated by itself": signal.SIGTERM, "abort": signal.SIGABRT, "abort with faulthandler": signal.SIGABRT}


def run(source: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", PREPARE + textwrap.dedent(source), *arguments],
        env=clean_environment(),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def readable(text: str) -> list[str]:
    """faulthandler's output without thread addresses and without its list of loaded C modules."""
    lines = [line for line in text.splitlines() if line and not line.startswith("Extension modules")]
    return [re.sub("0x[0-9a-f]+", "0x", line) for line in lines]


def only_ring(directory: Path) -> RingContents:
    (ring,) = read_rings(directory)
    return ring


@pytest.mark.parametrize("case", list(CASES))
def test_same_end_and_a_note(tmp_path: Path, case: str) -> None:
    with_us = run(CASES[case], str(tmp_path))
    without = run(CASES[case])
    assert with_us.returncode == without.returncode < 0
    assert readable(with_us.stderr) == readable(without.stderr)
    ring = only_ring(tmp_path)
    assert ring.signal == NUMBER.get(case, signal.SIGSEGV)
    assert -with_us.returncode == ring.signal
    # A fault has no sender; a signal that the process (or faulthandler, for us) raised has the process.
    faulted = case in ("segmentation fault", "segmentation fault with faulthandler before")
    assert ring.signal_sender == (0 if faulted else ring.pid)


def test_the_sender_is_noted(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", PREPARE + "watch(); print(flush=True); time.sleep(60)", str(tmp_path)],
        env=clean_environment(),
        stdout=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        process.terminate()
        assert process.wait(30) == -signal.SIGTERM
    assert only_ring(tmp_path).signal_sender == os.getpid()


def test_handlers_of_the_program_are_left_alone(tmp_path: Path) -> None:
    source = """
        signal.signal(signal.SIGTERM, lambda *_: print("mine", flush=True))
        signal.signal(signal.SIGABRT, signal.SIG_IGN)
        print(signal.SIGTERM in watch(), signal.getsignal(signal.SIGSEGV) == signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGABRT)
    """
    done = run(source, str(tmp_path))
    assert (done.returncode, done.stdout.splitlines()) == (0, ["False True", "mine"])
    assert only_ring(tmp_path).signal == 0


def test_a_handler_set_later_wins(tmp_path: Path) -> None:
    source = """
        watch()
        print(signal.signal(signal.SIGTERM, lambda *_: print("mine", flush=True)) == signal.SIG_DFL, flush=True)
        os.kill(os.getpid(), signal.SIGTERM)
    """
    assert run(source, str(tmp_path)).stdout.splitlines() == ["True", "mine"]
    assert only_ring(tmp_path).signal == 0


def test_a_forked_child_dies_as_always_and_writes_nothing(tmp_path: Path) -> None:
    source = """
        watch()
        pid = os.fork()
        if pid == 0:
            os.kill(os.getpid(), signal.SIGTERM)
        print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
    """
    assert run(source, str(tmp_path)).stdout.strip() == str(-signal.SIGTERM)
    assert only_ring(tmp_path).signal == 0


def test_the_lock_that_says_we_live_survives_the_second_descriptor(tmp_path: Path) -> None:
    source = """
        import fcntl
        watch()
        pid = os.fork()
        if pid == 0:
            with open(writer.path, "r+b") as file:
                try:
                    fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1)
                    print("free")
                except OSError:
                    print("held")
            sys.stdout.flush()
            os._exit(0)
        os.waitpid(pid, 0)
        unwatch_fatal_signals()
    """
    done = run(source, str(tmp_path))
    assert (done.returncode, done.stdout.strip()) == (0, "held")
