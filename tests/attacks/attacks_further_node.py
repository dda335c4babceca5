"""Further things that a user can put where the root agent looks: odd descriptors, mounts, names, files that change."""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import shutil
import signal
import socket
import threading
import time
from functools import partial
from pathlib import Path

from tests.attacks.node import CANARY, SharedNode, ring, secret_of_root, shared_node
from tests.attacks.register import Outcome, attack
from tests.attacks.users import AGENT_LIMIT_MB as LIMIT_MB
from tests.attacks.users import EVE, QUINN, fork_as, living_as, run_as
from whichrank.agents.collectors.base.collector import Timestamps
from whichrank.agents.collectors.logs.job_logs import JobLogsCollector
from whichrank.agents.collectors.surroundings.rank_environments import RankEnvironment
from whichrank.agents.collectors.surroundings.rank_software import rank_software
from whichrank.agents.evidence.flight_dumps import find_dump_places, is_settled, read_dump
from whichrank.agents.user_files.user_files import POOL, files_of
from whichrank.telemetry.vocabulary import EventName

_KEPT: list[object] = []


def _peak_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def _append(path: Path, text: str) -> None:
    with path.open("a") as file:
        file.write(text)


def _quinn_is_seen(node: SharedNode, theirs: Path, timeout_s: float = 15) -> float:
    """Seconds until another user's rank is told; ``timeout_s`` where it is not."""
    began = time.monotonic()
    with living_as(QUINN, lambda: _KEPT.append(ring(theirs, WHICHRANK_JOB_ID="quiet"))):
        seen = node.turn_until(
            lambda: any(e.identity.job == "quiet" for e in node.events(EventName.RANK_STARTED)), timeout_s
        )
    return time.monotonic() - began if seen else timeout_s


@attack(
    "A109",
    "a",
    "stdout is a FIFO, a device, a memfd, a removed file, a socket, a sparse file of 1 TB",
    asked="nobody waits, memory is bounded, others are seen",
    limit_s=120,
    memory_mb=LIMIT_MB,
)
def odd_descriptors(folder: Path) -> Outcome:
    sorts = ("fifo", "device", "memfd", "removed", "socket", "sparse")
    with shared_node(folder) as node, contextlib.ExitStack() as living:
        mine, theirs = node.user_folder(EVE), node.user_folder(QUINN)

        def act(sort: str, rank: int) -> None:
            path = mine / f"log-{sort}"
            if sort == "fifo":
                os.mkfifo(path)
                fd = os.open(path, os.O_RDWR)
            elif sort == "device":
                fd = os.open("/dev/zero", os.O_RDWR)
            elif sort == "memfd":
                fd = os.memfd_create("x\n\x1b[31m" + "y" * 200)
                os.write(fd, b"of a memfd\n" * 20)
            elif sort == "socket":
                pair = socket.socketpair()
                _KEPT.append(pair)
                fd = pair[0].fileno()
            else:
                fd = os.open(path, os.O_CREAT | os.O_RDWR, 0o600)
                os.write(fd, b"a line\n")
                if sort == "removed":
                    path.unlink()
                else:
                    os.close(fd)
                    big = Path("/tmp") / f"attack-sparse-{os.getpid()}"
                    fd = os.open(big, os.O_CREAT | os.O_RDWR, 0o600)
                    big.unlink()
                    os.ftruncate(fd, 1 << 40)
            os.dup2(fd, 1)
            os.dup2(fd, 2)
            _KEPT.append(ring(mine, rank, len(sorts)))

        node.watch()
        for rank, sort in enumerate(sorts):
            living.enter_context(living_as(EVE, partial(act, sort, rank)))
        seen = node.turn_until(lambda: len(node.events(EventName.RANK_STARTED)) == len(sorts), 20)
        before = _peak_mb()
        for rank in range(len(sorts)):
            node.ask("log_tail", rank, rank)
        node.turn_for(3.0)
        more = _peak_mb() - before
        took = _quinn_is_seen(node, theirs)
    return Outcome(
        held=seen and took < 10 and more < 30, measured=f"+{more:.0f} MB, the other's job after {took:.1f} s"
    )


@attack(
    "A110",
    "a",
    "his folder of rings is a FUSE mount of his, whose daemon never answers (allow_other)",
    asked="others are seen, the agent can be closed",
    limit_s=60,
)
def mount_that_never_answers(folder: Path) -> Outcome:
    libc = ctypes.CDLL(None, use_errno=True)
    with shared_node(folder) as node:
        theirs = node.user_folder(QUINN)
        mine = node.rings / f"whichrank-0-{EVE}"
        mine.mkdir(mode=0o755)
        os.chown(mine, EVE, EVE)
        run_as(EVE, lambda: (mine / "job").mkdir())
        device = os.open("/dev/fuse", os.O_RDWR)
        options = f"fd={device},rootmode=40755,user_id={EVE},group_id={EVE},allow_other".encode()
        mounted = []
        try:
            for place in (mine / "job", mine):
                if libc.mount(b"eve", os.fsencode(place), b"fuse.x", 6, options) == 0:
                    mounted.append(place)
                    break
            closed = threading.Event()
            slowest = [0.0]

            def watch() -> None:
                node.watch()
                slowest[0] = _quinn_is_seen(node, theirs, 12)
                closed.set()

            thread = threading.Thread(target=watch, daemon=True)
            thread.start()
            thread.join(25)
        finally:
            os.close(device)  # which ends what waits
            for place in mounted:
                libc.umount2(os.fsencode(place), 2)
        thread.join(10)
    return Outcome(
        held=bool(mounted) and slowest[0] < 8 and closed.is_set(),
        measured=f"mounted: {len(mounted)}, the other's job after {slowest[0]:.1f} s, turns go on: {closed.is_set()}",
    )


@attack(
    "A111",
    "a",
    "a ring is truncated, grown and filled with noise while it is read, 2,000 times a second",
    asked="others are seen; bounded",
    limit_s=60,
    memory_mb=LIMIT_MB,
    long=True,
)
def ring_that_changes(folder: Path) -> Outcome:
    with shared_node(folder) as node:
        mine, theirs = node.user_folder(EVE), node.user_folder(QUINN)

        def act() -> None:
            writer = ring(mine)
            _KEPT.append(writer)
            size = writer.geometry.file_bytes
            path = os.open(writer.path, os.O_RDWR)

            def noise() -> None:
                while True:
                    os.ftruncate(path, int.from_bytes(os.urandom(3), "little") % size)
                    time.sleep(0.0005)
                    os.ftruncate(path, size)
                    os.pwrite(path, os.urandom(64), int.from_bytes(os.urandom(3), "little") % size)

            threading.Thread(target=noise, daemon=True).start()

        node.watch()
        with living_as(EVE, act):
            node.turn_for(3.0)
            node.ask("ring")
            before = _peak_mb()
            node.turn_for(2.0)
            took = _quinn_is_seen(node, theirs)
            more = _peak_mb() - before
    return Outcome(held=took < 8 and more < 60, measured=f"the other's job after {took:.1f} s, +{more:.0f} MB")


@attack(
    "A112",
    "a",
    "a rank calls itself `x) Z 0 (`, with a newline and ESC, while it lives",
    asked="it lives; its end is told when it ends",
    limit_s=60,
)
def name_like_a_state(folder: Path) -> Outcome:
    with shared_node(folder) as node:
        mine = node.user_folder(EVE)

        def act() -> None:
            ctypes.CDLL(None).prctl(15, b"x) Z 0 (\n\x1b[1m", 0, 0, 0)
            _KEPT.append(ring(mine))

        node.watch()
        with living_as(EVE, act):
            seen = node.turn_until(lambda: node.events(EventName.RANK_STARTED))
            node.turn_for(2.0)
            early = len(node.events(EventName.RANK_EXIT))
        ended = node.turn_until(lambda: node.events(EventName.RANK_EXIT), 5)
        raw = [line for line in node.said if not line.isprintable()]
    return Outcome(
        held=bool(seen) and not early and bool(ended) and not raw,
        measured=f"seen: {bool(seen)}, {early} ends too early, told then: {bool(ended)}, {len(raw)} raw lines",
    )


@attack(
    "A113",
    "a",
    "a user looks into his helper: memory, descriptors, variables, ptrace, limits",
    asked="the kernel refuses each",
    limit_s=60,
)
def into_the_helper(folder: Path) -> Outcome:
    said = folder / "said"
    said.touch()
    said.chmod(0o666)
    place = os.open("/tmp", os.O_RDONLY)
    with contextlib.suppress(OSError):
        files_of(EVE).open_folder(place, "none")
    (pid,) = POOL.pids

    def act() -> None:
        got = []
        for name in ("mem", "environ", "maps", "fd/0", "root/etc", "cwd", "auxv", "stack"):
            with contextlib.suppress(OSError):
                fd = os.open(f"/proc/{pid}/{name}", os.O_RDWR if name == "mem" else os.O_RDONLY)
                got.append(name)
                os.close(fd)
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.ptrace(16, pid, 0, 0) == 0:
            got.append("ptrace")
        if libc.syscall(438, libc.syscall(434, pid, 0), 0, 0) >= 0:
            got.append("pidfd_getfd")
        with contextlib.suppress(OSError):
            resource.prlimit(pid, resource.RLIMIT_AS, (1 << 40, 1 << 40))
            got.append("prlimit")
        said.write_text(",".join(got))

    run_as(EVE, act)
    got = said.read_text()
    return Outcome(held=not got, measured=f"he gets: {got or 'nothing'}")


@attack(
    "A114",
    "a",
    "a user kills each of his helpers as soon as he sees it",
    asked="others are seen; few are started",
    limit_s=60,
)
def killed_helpers(folder: Path) -> Outcome:
    counted = folder / "count"
    counted.touch()
    counted.chmod(0o666)
    with shared_node(folder) as node:
        mine, theirs = node.user_folder(EVE), node.user_folder(QUINN)

        def hunter() -> None:
            end, killed, own = time.monotonic() + 12, set[str](), os.getpid()
            while time.monotonic() < end:
                for name in filter(str.isdecimal, os.listdir("/proc")):
                    with contextlib.suppress(OSError):
                        if int(name) != own and Path(f"/proc/{name}/comm").read_text() == f"helper-{EVE}\n":
                            os.kill(int(name), signal.SIGKILL)
                            killed.add(name)
                            counted.write_text(str(len(killed)))
                time.sleep(0.01)

        node.watch()
        pid = fork_as(EVE, hunter)
        with living_as(EVE, lambda: _KEPT.append(ring(mine))):
            node.turn_for(3.0)
            took = _quinn_is_seen(node, theirs)
            node.turn_for(2.0)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    killed = int(counted.read_text() or 0)
    return Outcome(held=took < 8 and 0 < killed < 40, measured=f"{killed} killed; the other's job after {took:.1f} s")


@attack(
    "A115",
    "a",
    ".git/HEAD and packed-refs of 1 GB, a `gitdir:` that leads to itself, a folder that was removed",
    asked="bounded, in a second or two",
    limit_s=60,
    memory_mb=LIMIT_MB,
)
def git_without_end(folder: Path) -> Outcome:
    home = folder / "eve"
    home.mkdir()
    os.chown(home, EVE, EVE)

    def act() -> None:
        os.makedirs(home / "a/.git/refs/heads")
        os.makedirs(home / "b")
        os.makedirs(home / "c")
        (home / "a/.git/HEAD").write_text("ref: refs/heads/" + "x/" * 500 + "\n")
        (home / "a/.git/packed-refs").touch()
        os.truncate(home / "a/.git/packed-refs", 1 << 30)
        os.truncate(home / "a/.git/HEAD", 1 << 30)
        (home / "b/.git").write_text("gitdir: " + "../b/" * 700)

    run_as(EVE, act)
    before, worst, found = _peak_mb(), 0.0, {}
    for name in ("a", "b", "c"):
        with living_as(EVE, partial(os.chdir, home / name)) as pid:
            if name == "c":
                shutil.rmtree(home / "c")
            began = time.monotonic()
            found[name] = rank_software(Path("/proc"), RankEnvironment(pid, {})).get("code")
            worst = max(worst, time.monotonic() - began)
    more = _peak_mb() - before
    return Outcome(
        held=worst < 5 and more < 40 and not any(found.values()), measured=f"{worst:.1f} s, +{more:.0f} MB, {found}"
    )


@attack(
    "A116",
    "a",
    "a rank becomes a setuid-root program with its ring's lock, and a file of root's as its stdout",
    asked="nothing of it is read",
    limit_s=60,
)
def rank_becomes_setuid(folder: Path) -> Outcome:
    secret = secret_of_root(folder)
    program = folder / "tool"
    shutil.copy("/bin/sleep", program)
    program.chmod(0o4755)
    with shared_node(folder) as node:
        mine = node.user_folder(EVE)

        def act() -> None:
            writer = ring(mine)
            writer.record_exception("builtins.ValueError: x", [("x.py", 1, "f")], True)
            for fd in map(int, os.listdir("/proc/self/fd")):
                with contextlib.suppress(OSError):
                    os.set_inheritable(fd, True)
            os.dup2(os.open(secret, os.O_PATH), 1)
            os.execv(program, ["tool", "30"])

        node.watch(take_stacks=True)
        pid = fork_as(EVE, act)
        node.turn_for(3.0)
        for action in ("log_tail", "stack", "flight_recorder"):
            node.ask(action)
        node.turn_for(3.0)
        status = Path(f"/proc/{pid}/status").read_text()
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    uids = next(line.split()[1:] for line in status.splitlines() if line.startswith("Uid"))
    leaked = node.has_sent(CANARY) or node.has_sent("clock_nanosleep")
    return Outcome(held=not leaked and uids[1] == "0", measured=f"uids {'/'.join(uids)}, told of it: {leaked}")


@attack(
    "A117",
    "a",
    "the flight recorder's path has `..`, %, newline, 200 kB, a FIFO or a device at its end",
    asked="only his own regular file; nobody waits",
    limit_s=60,
    long=True,
)
def odd_dump_paths(folder: Path) -> Outcome:
    secret = secret_of_root(folder)
    home = folder / "eve"
    home.mkdir()
    os.chown(home, EVE, EVE)

    def act() -> None:
        os.mkfifo(home / "fifo0")
        (home / "link0").symlink_to(secret)
        (home / "zero0").symlink_to("/dev/zero")
        (home / "own\n%s0").write_text("his own dump")

    run_as(EVE, act)
    found, began = {}, time.monotonic()
    names = (
        f"{home}/fifo",
        f"{home}/link",
        f"{home}/zero",
        f"{home}/x/../../secret",
        "../" * 40 + "proc/self/environ",
        "/proc/1/environ",
        "/proc/self/fd/0",
        "x" * 100_000,
        f"{home}/own\n%s",
    )
    for name in names:
        pid = os.fork()
        if pid == 0:
            os.setgroups([])
            os.setresgid(EVE, EVE, EVE)
            os.setresuid(EVE, EVE, EVE)
            os.execve(
                "/bin/sleep", ["sleep", "30"], {"TORCH_FR_DUMP_TEMP_FILE": name, "TORCH_FR_DUMP_DYNAMIC_FILE_NAME": "0"}
            )
        time.sleep(0.3)
        places = find_dump_places(pid, 0, EVE, 0)
        content = b""
        for path in places.paths if places else ():
            assert places is not None
            with contextlib.suppress(OSError):
                is_settled(places, path, time.time_ns())
                content += read_dump(places, path)
        found[name[-12:]] = content
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    took = time.monotonic() - began
    own = b"".join(found.values())
    return Outcome(
        held=own in (b"", b"his own dump") and took < 20, measured=f"read: {own[:40]!r}, {took:.1f} s for {len(names)}"
    )


@attack(
    "A118",
    "a",
    "3,000 logs of a user's match the pattern, in folders 30 deep, newest first; another user has one",
    asked="the other's is followed; a bounded look",
    limit_s=120,
    memory_mb=LIMIT_MB,
)
def many_logs(folder: Path) -> Outcome:
    home = folder / "home"
    for uid in (EVE, QUINN):
        (home / str(uid)).mkdir(parents=True)
        os.chown(home / str(uid), uid, uid)

    def noisy() -> None:
        place = home / str(EVE)
        for deep in range(30):
            place = place / f"d{deep}"
            place.mkdir()
            for number in range(100):
                (place / f"{number}.log").write_text("noise\n" * 50)

    own = home / str(QUINN) / "own.log"
    run_as(QUINN, lambda: _append(own, "a line of mine\n"))
    run_as(EVE, noisy)
    lines: list[str] = []

    def classify(found: object, now: Timestamps) -> list[object]:
        lines.extend(line.text for line in found)  # type: ignore[attr-defined]
        return []

    collector = JobLogsCollector(classify, tuple, [str(home / "**/*.log")])  # type: ignore[arg-type]
    worst, fds = 0.0, len(os.listdir("/proc/self/fd"))
    for second in range(4):
        began = time.process_time()
        collector.collect(Timestamps(wall_ns=time.time_ns(), mono_ns=time.monotonic_ns() + second * 31_000_000_000))
        worst = max(worst, time.process_time() - began)
    more = len(os.listdir("/proc/self/fd")) - fds
    run_as(QUINN, lambda: _append(own, "a second line\n"))
    for second in range(4, 7):
        collector.collect(Timestamps(wall_ns=time.time_ns(), mono_ns=time.monotonic_ns() + second * 31_000_000_000))
    collector.close()
    seen = "a line of mine" in lines or "a second line" in lines
    return Outcome(
        held=seen and worst < 3 and more < 1100, measured=f"his line: {seen}, {worst:.2f} CPU s, {more} files open"
    )
