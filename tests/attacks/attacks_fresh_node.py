"""A user of a node again: names that another's jobs will need, stopped helpers, variables and lines that lie."""

from __future__ import annotations

import contextlib
import os
import resource
import shutil
import signal
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from tests.attacks.attacks_further_node import _quinn_is_seen
from tests.attacks.node import ring, shared_node
from tests.attacks.register import Outcome, attack
from tests.attacks.users import EVE, QUINN, fork_as, living_as, run_as
from whichrank.instrumentation.rank_identity import RankPlace, job_of_environment, place_of_environment
from whichrank.telemetry.ring_root import make_ring_root

_KEPT: list[object] = []


def _own_ring(folder: Path, rank: int) -> None:
    _KEPT.append(ring(folder, rank, 8))


def _shared() -> Path:
    shared = Path(tempfile.mkdtemp(prefix="attack-shared-", dir="/dev/shm"))
    shared.chmod(0o1777)
    return shared


@attack(
    "A201",
    "a",
    "100,000 folders called whichrank-UID-* of another user's uid, and his usual name, are there before his job begins",
    asked="his job has a folder of his own, within a CPU second",
    limit_s=90,
)
def squatted_names(folder: Path) -> Outcome:
    shared, told = _shared(), folder / "told"
    told.touch()
    told.chmod(0o666)

    def squat() -> None:
        (shared / f"whichrank-{QUINN}").mkdir()
        for number in range(100_000):
            os.close(os.open(shared / f"whichrank-{QUINN}-{number:x}", os.O_CREAT | os.O_WRONLY, 0o600))

    def begin() -> None:
        began = time.thread_time()
        root = make_ring_root(shared)
        took = time.thread_time() - began
        assert root.stat().st_uid == QUINN
        again = make_ring_root(shared)
        told.write_text(f"{took:.3f} {again == root}")

    try:
        run_as(EVE, squat)
        with contextlib.suppress(ChildProcessError):
            run_as(QUINN, begin)
    finally:
        shutil.rmtree(shared, ignore_errors=True)
    took, _, same = (told.read_text() or "9 none").partition(" ")
    return Outcome(held=float(took) < 1.0 and same == "True",
                   measured=f"{took} CPU s, the same for his next rank: {same}")  # fmt: skip


@attack(
    "A202",
    "a",
    "names whichrank-UID-* of another user's uid come and go a hundred thousand times a second, while his ranks begin",
    asked="each of his ranks has a folder, and all the same",
    limit_s=60,
)
def flickering_names(folder: Path) -> Outcome:
    shared, told = _shared(), folder / "told"
    told.touch()
    told.chmod(0o666)

    def flicker() -> None:
        (shared / f"whichrank-{QUINN}").mkdir()
        names = [shared / f"whichrank-{QUINN}-{number:x}" for number in range(64)]
        while True:
            for name in names:
                os.close(os.open(name, os.O_CREAT | os.O_WRONLY, 0o600))
            for name in names:
                os.unlink(name)

    def begin() -> None:
        errors, roots = 0, set()
        for _ in range(300):
            try:
                roots.add(make_ring_root(shared))
            except OSError:
                errors += 1
        told.write_text(f"{errors} {len(roots)}")

    pid = fork_as(EVE, flicker)
    time.sleep(0.5)
    try:
        run_as(QUINN, begin)
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        shutil.rmtree(shared, ignore_errors=True)
    errors, roots = map(int, told.read_text().split())
    return Outcome(held=not errors and roots == 1, measured=f"{errors} of 300 ranks without a folder, {roots} folders")


def _helpers_of(uid: int) -> list[int]:
    found = []
    for name in filter(str.isdecimal, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            if Path(f"/proc/{name}/comm").read_text() == f"helper-{uid}\n":
                found.append(int(name))
    return found


def _hunt(act: Callable[[int], None], seconds: float, count: Path) -> Callable[[], None]:
    def hunter() -> None:
        end, done, own = time.monotonic() + seconds, set[int](), os.getpid()
        while time.monotonic() < end:
            for pid in _helpers_of(EVE):
                if pid != own and pid not in done:
                    with contextlib.suppress(OSError):
                        act(pid)
                        done.add(pid)
                        count.write_text(str(len(done)))
            time.sleep(0.005)

    return hunter


@attack(
    "A203",
    "a",
    "a user stops (SIGSTOP) each of his helpers as soon as he sees it, and never lets it go on",
    asked="others are seen, their logs are told; the agent can be closed; few are left",
    limit_s=90,
)
def stopped_helpers(folder: Path) -> Outcome:
    count = folder / "count"
    count.touch()
    count.chmod(0o666)
    with shared_node(folder) as node:
        mine, theirs = node.user_folder(EVE), node.user_folder(QUINN)
        node.watch()
        pid = fork_as(EVE, _hunt(lambda pid: os.kill(pid, signal.SIGSTOP), 25, count))
        with living_as(EVE, lambda: _KEPT.append(ring(mine))):
            node.turn_for(2.0)
            for number in range(3):
                node.ask("log_tail", number)
            began = time.monotonic()
            node.turn_for(3.0)
            turns = time.monotonic() - began
            took = _quinn_is_seen(node, theirs)
            began = time.monotonic()
            assert node.agent is not None
            node.agent.close(5.0)
            closed = time.monotonic() - began
            node.agent = None
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        time.sleep(1.0)
        left = len(_helpers_of(EVE))
    stopped = int(count.read_text() or 0)
    return Outcome(
        held=took < 8 and closed < 12 and stopped > 0 and turns < 8 and left <= 1,
        measured=f"{stopped} stopped, 3 s of turns took {turns:.1f} s, the other's job after {took:.1f} s, closed in "
        f"{closed:.1f} s, {left} left",
    )


_ODD = (
    "²",
    "٣",
    "9" * 5000,
    "-1",
    "1e9",
    "0x10",
    " 7 ",
    "1_0",
    "nan",
    "",
    "\x1b[31m",
    "18446744073709551616",
    "\udcff",
)


@attack(
    "A205",
    "a",
    "RANK, MASTER_PORT, SLURM_*, PET_*, TORCHELASTIC_* of a job hold digits of other scripts, 5,000 digits",
    asked="nothing raises: the job starts, the collectors go on",
    limit_s=30,
)
def odd_variables(folder: Path) -> Outcome:
    from whichrank.commands.multi_node.launcher import find_rendezvous, first_node
    from whichrank.diagnosis.scheduler_facts import facts_of_environment, facts_of_slurm_job, parse_pairs

    raised = set()

    def tried(name: str, act: Callable[[], object]) -> None:
        try:
            act()
        except Exception as error:
            raised.add(f"{name}: {type(error).__name__}")

    sound = {
        "RANK": "1",
        "WORLD_SIZE": "4",
        "LOCAL_RANK": "1",
        "MASTER_ADDR": "h",
        "MASTER_PORT": "1",
        "PET_NNODES": "2",
        "PET_MASTER_ADDR": "h",
        "SLURM_STEP_NUM_TASKS": "4",
        "SLURM_STEP_ID": "0",
        "SLURM_PROCID": "1",
        "SLURM_JOB_ID": "1",
    }
    names = (
        *sound,
        *("PET_NODE_RANK", "PET_MASTER_PORT", "PET_RDZV_ENDPOINT", "SLURM_RESTART_COUNT", "SLURM_JOB_END_TIME"),
        *("TORCHELASTIC_RESTART_COUNT", "TORCHELASTIC_MAX_RESTARTS", "SLURM_STEP_NODELIST"),
    )
    for name in names:
        for value in _ODD:
            for base in (sound, {k: v for k, v in sound.items() if not k.startswith("PET_")},
                         {k: v for k, v in sound.items() if not k.startswith(("PET_", "SLURM_"))}):  # fmt: skip
                environ = {**base, name: value}
                tried(f"find_rendezvous {name}", lambda e=environ: find_rendezvous(["python", "x.py"], e))  # type: ignore[misc]
                tried(f"torchrun {name}", lambda e=environ: find_rendezvous(["torchrun", "x.py"], e))  # type: ignore[misc]
            tried(f"place {name}", lambda e=environ: place_of_environment(e))  # type: ignore[misc]
            tried(f"job {name}", lambda e=environ: job_of_environment(e))  # type: ignore[misc]
            tried(f"facts {name}", lambda e=environ: list(facts_of_environment(e)))  # type: ignore[misc]
    for value in _ODD:
        for option in ("--nnodes", "--node-rank", "--master-port", "--rdzv-endpoint"):
            words = ["torchrun", "--nnodes=2", "--master-addr=h", f"{option}={value}", "x.py"]
            tried(f"word {option}", lambda w=words: find_rendezvous(w, {}))  # type: ignore[misc]
        for option in ("--num_machines", "--machine_rank", "--main_process_port"):
            words = ["accelerate", "launch", "--num_machines=2", "--main_process_ip=h", f"{option}={value}", "x.py"]
            tried(f"word {option}", lambda w=words: find_rendezvous(w, {}))  # type: ignore[misc]
        tried("first_node", lambda v=value: first_node(f"n[{v}-{v}]]],[{v}"))  # type: ignore[misc]
        tried("--rdzv-endpoint", lambda v=value: find_rendezvous(["torchrun", f"--rdzv-endpoint=h:{v}", "x"], {}))  # type: ignore[misc]
        keys = ("NumNodes", "EndTime", "Restarts", "TRES=gres/gpu", "NodeList", "ExitCode", "TimeLimit")
        line = "JobId=4711 UserId=eve(12001) " + " ".join(f"{key}={value}" for key in keys)
        tried("slurm job", lambda t=line: (parse_pairs(t), list(facts_of_slurm_job(t))))  # type: ignore[misc]
    place = place_of_environment({"RANK": "9" * 30})
    odd_place = isinstance(place, RankPlace) and place.rank >= 1 << 31
    return Outcome(held=not raised, measured=f"{sorted(raised)[:8]}, rank of 30 digits taken: {odd_place}"[:300])


_N = 60_000
#: Of each some 60 kB: as long as a line may be.
_LINES = {
    "loss": "loss1" * (_N // 5),
    "grad": "grad" * (_N // 4),
    "accel": "/dev/accela" * (_N // 11),
    "device is": "device is " * (_N // 10),
    "missing": "missing rank" + " " * _N,
    "step": "step" + " " * _N + "x",
    "nccl": "NCCL mismatch" * (_N // 13),
    "syn": "synLauncha" * (_N // 10),
    "status": "status " * (_N // 7),
    "traceback": "Traceback (most recent call last) " * (_N // 34),
    "file": '  File "' * (_N // 8),
    "percent": "%(a" * (_N // 3),
    "pairs": 'a="' * (_N // 3),
    "escapes": "password=\\" * (_N // 10),
    "quotes": "token='\\" * (_N // 8),
    "brackets": "[rank0]: " * (_N // 9),
    "json": '{"message": "' * (_N // 13),
    "deep": "[" * _N,
    "json rank": '{"rank": "²", "level": "error", "message": "CUDA error: out of memory"}',
    "json digits": '{"rank": "' + "9" * 5000 + '", "level": "error", "message": "CUDA error: out of memory"}',
    "json int": '{"rank": ' + "9" * 5000 + ', "level": "error", "message": "CUDA error: out of memory"}',
    "logfmt rank": 'level=error rank=² msg="CUDA error: out of memory"',
    "logfmt digits": f'level=error rank={"9" * 5000} msg="CUDA error: out of memory"',
    "text rank": "[rank²]: RuntimeError: CUDA error: out of memory",
    "many ranks": "missing ranks: " + "9" * 5000 + ", ٣, ²",
}


@attack(
    "A206",
    "a",
    "25 lines of a rank's log, up to 60 kB each, on which regular expressions go back and numbers are none",
    asked="a second of CPU each at most, nothing raised; the next line is told",
    limit_s=120,
)
def lines_that_go_back(folder: Path) -> Outcome:
    from whichrank.diagnosis.job_log.stream import LogStream, make_gate
    from whichrank.telemetry.redaction import redact

    gate, slow, raised = make_gate(), {}, []
    for name, line in _LINES.items():
        pid = os.fork()
        if pid == 0:
            status = 0
            try:
                resource.setrlimit(resource.RLIMIT_CPU, (12, 12))
                stream = LogStream(gate)
                before = time.thread_time()
                stream.feed(f"{line}\n".encode())
                stream.flush()
                redact(line)
                took = time.thread_time() - before
                status = min(100, round(took * 10))
                if not stream.feed(b"RuntimeError: CUDA error: an illegal memory access was encountered\n"):
                    status = 102 if not stream.flush() else status
            except Exception:
                status = 101
            os._exit(status)
        _, ended = os.waitpid(pid, 0)
        if os.WIFSIGNALED(ended):
            slow[name] = "more than 12 s"
        elif os.WEXITSTATUS(ended) > 100:
            raised.append(f"{name} ({os.WEXITSTATUS(ended)})")
        elif os.WEXITSTATUS(ended) > 10:
            slow[name] = f"{os.WEXITSTATUS(ended) / 10} s"
    return Outcome(held=not slow and not raised, measured=f"slow: {slow}, raised: {raised}"[:300])
