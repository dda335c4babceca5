"""What tells a process that is at work from one that stands still: real processes, as their own user sees them."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from whichrank.agents.base.user_frames import UserFrame
from whichrank.agents.processes.socket_bytes import SocketBytes, inodes_of, socket_bytes
from whichrank.agents.ranks import motion as motion_module
from whichrank.agents.ranks.motion import LOOK_NS, RankMotion
from whichrank.agents.rings.crash_area import RingStack

SECOND_NS = 1_000_000_000


@pytest.fixture
def started() -> Iterator[list[subprocess.Popen[bytes]]]:
    processes: list[subprocess.Popen[bytes]] = []
    yield processes
    for process in processes:
        os.killpg(process.pid, signal.SIGKILL)  # with its children
        process.wait()


def start(started: list[subprocess.Popen[bytes]], script: str, *arguments: str) -> int:
    """The process once it has come to what it does."""
    code = "import sys\nprint('there', flush=True)\n" + textwrap.dedent(script)
    command = [sys.executable, "-c", code, *arguments]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, start_new_session=True)
    started.append(process)
    assert process.stdout is not None
    assert process.stdout.readline() == b"there\n"
    time.sleep(0.3)
    return process.pid


def look(pid: int, *, seconds: float = 3.0, stack: RingStack | None = None) -> RankMotion:
    """At one process, twice a second."""
    motion, carried, since_ns = RankMotion(), SocketBytes(), time.monotonic_ns()
    until_ns = since_ns + int(seconds * 1e9)
    while (now_ns := time.monotonic_ns()) < until_ns:
        motion.look(pid, os.getuid(), since_ns, 0, stack, partial(carried.at, now_ns), now_ns)
        time.sleep(LOOK_NS / 1e9)
    return motion


STANDS = {
    "asleep": "import time; time.sleep(60)",
    "polls a flag": "import time, os\nwhile not os.path.exists('/nowhere'): time.sleep(0.1)",
    "waits for a lock": "import threading; lock = threading.Lock(); lock.acquire(); lock.acquire()",
    "reads what does not come": "import os; r, w = os.pipe(); os.read(r, 1)",
    "waits for a server of this node": "import socket; a, b = socket.socketpair(); a.recv(1)",
    "waits for a child that sleeps": "import subprocess; subprocess.run(['sleep', '60'])",
}
MOVES = {
    "computes": "while True: pass",
    "computes in a thread": "import threading\ndef run():\n  while True: pass\nthreading.Thread(target=run).start()",
    "writes": "import time\nf = open(sys.argv[1], 'wb')\nwhile True: f.write(b'x' * 8192); f.flush(); time.sleep(0.2)",
    "sends to a server of this node": """
        import socket, threading, time
        a, b = socket.socketpair()
        def take():
            while b.recv(1 << 14):
                time.sleep(0.05)
        threading.Thread(target=take).start()
        while True:
            a.sendall(b"x" * (1 << 14))
        """,
    "waits for a child that computes": "import subprocess; subprocess.run([sys.executable, '-c', 'while True: pass'])",
}


@pytest.mark.parametrize("what", STANDS)
def test_who_does_nothing_stands_still(started: list[subprocess.Popen[bytes]], what: str) -> None:
    motion = look(start(started, STANDS[what]))
    assert motion.still_since_ns > 0
    assert time.monotonic_ns() - motion.still_since_ns >= SECOND_NS
    assert motion.is_in_io == (what in ("reads what does not come", "waits for a server of this node"))


@pytest.mark.parametrize("what", MOVES)
def test_who_is_at_work_does_not(started: list[subprocess.Popen[bytes]], what: str, tmp_path: Path) -> None:
    assert look(start(started, MOVES[what], str(tmp_path / "file")), seconds=3.0).still_since_ns == 0


def test_an_upload_moves_as_long_as_the_other_end_takes_it(started: list[subprocess.Popen[bytes]]) -> None:
    """send() is in no counter of /proc: the kernel's own of the connection tells."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        script = """
            import socket
            connection = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
            while True:
                connection.send(b"x" * 4096)
            """
        pid = start(started, script, str(port))
        taker, _ = server.accept()
        taking = threading.Event()
        taking.set()

        def take() -> None:
            while taking.is_set():
                taker.recv(16_384)
                time.sleep(0.05)

        thread = threading.Thread(target=take)
        thread.start()
        try:
            assert look(pid, seconds=2.5).still_since_ns == 0
        finally:
            taking.clear()
            thread.join()
        time.sleep(0.5)
        assert look(pid).still_since_ns > 0
        taker.close()


@pytest.mark.parametrize(("share", "is_loop"), [(0.98, True), (0.5, False)])
def test_a_loop_at_one_place_of_the_code_is_no_work_for_ever(
    monkeypatch: pytest.MonkeyPatch, share: float, is_loop: bool
) -> None:
    """CPU time alone counts for half a minute, however crowded the machine is; the stack is what the rank itself
    leaves in its ring. One that sleeps in between is always found where it sleeps: it may do anything."""
    # Not this process: it is the agent's here, and talks with its helper.
    rank, frame = subprocess.Popen(["sleep", "60"]), UserFrame("train.py", 10, "wait")
    time.sleep(0.3)  # it has begun
    motion = RankMotion()
    began_ns = time.monotonic_ns()

    def look(second: int, stack: RingStack) -> None:
        now_ns = began_ns + second * SECOND_NS
        times_ns = int(0.3 * share * second * SECOND_NS), int(0.7 * share * second * SECOND_NS)
        monkeypatch.setattr(motion_module, "_read_main_ns", lambda pid: times_ns)
        motion.look(rank.pid, os.getuid(), began_ns, 0, stack, dict, now_ns)

    for second in range(40):
        look(second, RingStack(time_ns=0, frames=(UserFrame("train.py", 90, "main"), frame)))
        if second == 25:
            assert motion.still_since_ns == 0
    assert motion.still_since_ns == (began_ns if is_loop else 0)
    look(41, RingStack(time_ns=0, frames=(UserFrame("train.py", 50, "save"),)))
    assert motion.still_since_ns == 0
    rank.kill()
    rank.wait()


def test_a_loop_that_calls_now_this_now_that_is_at_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """As one that samples text does: its own line stays, what it calls does not."""
    motion, began_ns = RankMotion(), time.monotonic_ns()
    for second in range(60):
        awake_ns = int(0.95 * second * SECOND_NS), 0
        monkeypatch.setattr(motion_module, "_read_main_ns", lambda pid, awake_ns=awake_ns: awake_ns)
        inner = UserFrame(
            "/usr/lib/python3.11/site-packages/torch/nn/functional.py", 5, ("linear", "tanh")[second // 9 % 2]
        )
        stack = RingStack(time_ns=0, frames=(UserFrame("train.py", 10, "sample"), inner))
        motion.look(os.getpid(), os.getuid(), began_ns, 0, stack, dict, began_ns + second * SECOND_NS)
    assert motion.still_since_ns == 0


def test_a_process_that_is_gone_or_may_not_be_read_is_not_told_to_stand_still() -> None:
    process = subprocess.Popen(["sleep", "0"])
    process.wait()
    assert look(process.pid, seconds=1.2).still_since_ns == 0


def test_bytes_of_a_connection_are_counted_by_its_inode() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as client:
        peer, _ = server.accept()
        inode = os.fstat(client.fileno()).st_ino
        assert inode in inodes_of(os.getpid(), os.getuid(), 512)
        before = socket_bytes().get(inode, 0)
        client.sendall(b"x" * 5000)
        assert len(peer.recv(5000, socket.MSG_WAITALL)) == 5000
        time.sleep(0.05)
        assert socket_bytes()[inode] - before >= 5000
        peer.close()
