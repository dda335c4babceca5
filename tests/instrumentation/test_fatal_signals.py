"""Fatal signals: a note in the ring, and exactly the end that the process would have had without us."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import textwrap
import time
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


# --- the main thread's stack ------------------------------------------------------------------------------------------
def functions(ring: RingContents) -> list[str]:
    return [line.split("\t")[2] for line in ring.stack]


STUCK = """
    import threading
    def hold_lock():
        print(flush=True)
        lock.acquire()
    def spin():
        print(flush=True)
        while True:
            pass
    def sleep_holding_the_gil():
        print(flush=True)
        ctypes.PyDLL(None).sleep(60)
    lock = threading.Lock()
    lock.acquire()
"""


@pytest.mark.parametrize("function", ["hold_lock", "spin", "sleep_holding_the_gil"])
def test_a_terminated_process_leaves_its_stack(tmp_path: Path, function: str) -> None:
    source = PREPARE + textwrap.dedent(STUCK) + f"watch(); {function}()"
    with subprocess.Popen(
        [sys.executable, "-c", source, str(tmp_path)], env=clean_environment(), stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        time.sleep(0.05)  # into the call
        begin = time.monotonic()
        process.terminate()
        assert process.wait(30) == -signal.SIGTERM
        assert time.monotonic() - begin < 1
    ring = only_ring(tmp_path)
    assert functions(ring) == ["<module>", function]
    assert ring.stack_time_ns == ring.signal_time_ns
    place, line, _ = ring.stack[-1].split("\t")
    assert place == "<string>"
    assert source.splitlines()[int(line) - 1].strip() in ("lock.acquire()", "while True:", "pass", SLEEPS)


SLEEPS = "ctypes.PyDLL(None).sleep(60)"


@pytest.mark.parametrize("end", ["crash()", "os.abort()"])
def test_so_does_one_that_faults(tmp_path: Path, end: str) -> None:
    assert run(f"watch()\ndef fault():\n    {end}\nfault()", str(tmp_path)).returncode < 0
    assert "fault" in functions(only_ring(tmp_path))


def test_names_come_back_as_they_were_and_the_innermost_frames_stay(tmp_path: Path) -> None:
    lines = [
        "def été_漢字(n):",
        "  if n:",
        "    été_漢字(n - 1)",
        "  else:",
        "    os.kill(os.getpid(), signal.SIGTERM)",
    ]
    file = '/da\ta/é\udcff/\U0001f40d/a", line 7 in b/' + "long/" * 60 + "x.py"
    source = f"watch(); exec(compile({chr(10).join(lines)!r}, {file!r}, 'exec')); été_漢字(50)"
    assert run(source, str(tmp_path)).returncode == -signal.SIGTERM
    ring = only_ring(tmp_path)
    assert ring.stack[-1] == file.replace("\t", " ").replace("\udcff", "?") + "\t5\tété_漢字"
    assert ring.stack[-2] == ring.stack[0] == ring.stack[-1].replace("\t5\t", "\t3\t")
    assert 15 < len(ring.stack) < 40
    assert len("\n".join(ring.stack).encode()) < 8192


def test_no_stack_of_another_thread(tmp_path: Path) -> None:
    source = """
        import threading
        watch()
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
        def work():
            signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM])
            os.kill(os.getpid(), signal.SIGTERM)
        threading.Thread(target=work).start()
        time.sleep(60)
    """
    assert run(source, str(tmp_path)).returncode == -signal.SIGTERM
    ring = only_ring(tmp_path)
    assert (ring.signal, ring.stack) == (signal.SIGTERM, [])


def test_files_of_the_program_that_got_our_descriptors_are_not_written_to(tmp_path: Path) -> None:
    source = """
        watch()
        os.closerange(3, 100)
        files = [open(os.path.join(sys.argv[1], f"mine-{number}"), "w+b", buffering=0) for number in range(20)]
        os.kill(os.getpid(), signal.SIGTERM)
    """
    assert run(source, str(tmp_path)).returncode == -signal.SIGTERM
    assert only_ring(tmp_path).stack == []
    assert [file.stat().st_size for file in tmp_path.glob("mine-*")] == [0] * 20


def test_late_in_the_end_of_the_interpreter(tmp_path: Path) -> None:
    # A C function that runs after everything of Python is gone, as static destructors do.
    source = """
        watch()
        libc = ctypes.CDLL(None)
        libc.__cxa_atexit(ctypes.cast(libc.abort, ctypes.c_void_p), None, None)
    """
    done = run(source, str(tmp_path))
    assert done.returncode == run(source).returncode == -signal.SIGABRT
    assert only_ring(tmp_path).stack == []


def test_watching_again_keeps_stacks_again_and_the_borrowed_signal_is_free(tmp_path: Path) -> None:
    source = """
        watch(); unwatch_fatal_signals(); watch()
        import faulthandler as f
        status = open("/proc/self/status").read()
        caught = int(next(line for line in status.splitlines() if line.startswith("SigCgt")).split()[1], 16)
        print(any(caught >> (number - 1) & 1 for number in range(signal.SIGRTMIN, signal.SIGRTMAX + 1)), flush=True)
        os.kill(os.getpid(), signal.SIGTERM)
    """
    done = run(source, str(tmp_path))
    assert (done.returncode, done.stdout.strip()) == (-signal.SIGTERM, "False")
    assert functions(only_ring(tmp_path)) == ["<module>"]
