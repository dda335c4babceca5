"""``whichrank run`` as a person types it: whatever of ours fails, the command's streams and exit status are its own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.commands.incidents.documents import written_documents

RAISING_JOB = """
import os
import time
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
value = torch.ones(4)
for step in range(20):
    dist.all_reduce(value)
    time.sleep(0.02)
waits_for = os.environ.get("JOB_WAITS_FOR")
while waits_for and not os.path.exists(waits_for):
    dist.all_reduce(value)
    time.sleep(0.02)
    flag = torch.tensor([float(os.path.exists(waits_for))])
    dist.all_reduce(flag, dist.ReduceOp.MIN)
    if flag.item():
        break
if dist.get_rank() == 1:
    raise KeyError("no such sample")
dist.all_reduce(value)
dist.barrier()
"""


def whichrank(*words: str, **options: Any) -> subprocess.CompletedProcess[bytes]:
    environ = {k: v for k, v in os.environ.items() if not k.startswith(("WHICHRANK_", "OTEL_"))}
    environ.update(OMP_NUM_THREADS="1", **options.pop("environ", {}))
    argv = [sys.executable, "-m", "whichrank.commands.main", *words]
    return subprocess.run(argv, capture_output=True, env=environ, timeout=120, **options)


def ring_folders(job: str) -> list[Path]:
    return list(Path(f"/dev/shm/whichrank-{os.getuid()}").glob(f"{job}*"))


@pytest.fixture(scope="module")
def raised(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, subprocess.CompletedProcess[bytes]]:
    """One real two-rank job in which rank 1 raises, watched to its end with ``--json``."""
    folder = tmp_path_factory.mktemp("raised")
    script = folder / "job_that_raises.py"
    script.write_text(RAISING_JOB)
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", str(script)]
    return folder / "run", whichrank("run", "--json", "--out", str(folder / "run"), "--", *torchrun)


def test_a_real_job_ends_in_one_incident_that_names_rank_and_line(raised: Any) -> None:
    run, done = raised
    assert done.returncode == 1, done.stderr.decode()
    documents = written_documents(run / "incidents.jsonl")
    last = {document["id"]: document for document in documents}
    assert len(last) == 1, [(d["kind"], d["change"]) for d in documents]
    (incident,) = last.values()
    assert incident["kind"] == "rank_raised"
    (suspect,) = incident["suspects"]
    assert suspect["rank"] == 1
    assert RAISING_JOB.splitlines()[suspect["where"]["line"] - 1].strip().startswith("raise KeyError")


def test_json_lines_on_stderr_are_the_file(raised: Any) -> None:
    run, done = raised
    lines = [line + b"\n" for line in done.stderr.splitlines() if line.startswith(b'{"schema"')]
    assert b"".join(lines) == (run / "incidents.jsonl").read_bytes()
    assert done.stdout == b"", "stdout belongs to the command"


def test_the_job_has_the_name_of_its_script(raised: Any) -> None:
    run, _ = raised
    assert json.loads((run / "run.json").read_text())["name"] == "job_that_raises.py"
    captured = b"".join(path.read_bytes() for path in (run / "capture").glob("segment*"))
    assert b"whichrank.job.name" in captured


@pytest.mark.parametrize(
    ("words", "environ", "name"),
    [
        (("--job-name", "a \n b"), {"WHICHRANK_JOB_NAME": "other"}, "a b"),
        ((), {"WHICHRANK_JOB_NAME": "mine", "SLURM_JOB_ID": "1", "SLURM_JOB_NAME": "slurm"}, "mine"),
        ((), {"SLURM_JOB_ID": "1", "SLURM_JOB_NAME": "slurm"}, "slurm"),
    ],
)
def test_whoever_names_the_job_is_heard(
    tmp_path: Path, words: tuple[str, ...], environ: dict[str, str], name: str
) -> None:
    whichrank("run", "--out", str(tmp_path / "out"), *words, "--", "true", environ=environ)
    assert json.loads((tmp_path / "out" / "run.json").read_text())["name"] == name


@pytest.mark.parametrize(
    ("environ", "job"),
    [
        ({"SLURM_JOB_ID": "4711"}, "4711"),
        ({"SLURM_JOB_ID": "4711", "SLURM_ARRAY_JOB_ID": "4711", "SLURM_ARRAY_TASK_ID": "3"}, "4711_3"),
        ({"SLURM_JOB_ID": "4711", "WHICHRANK_JOB_ID": "mine"}, "mine"),
    ],
)
def test_a_job_of_slurm_has_its_id_unless_somebody_gives_another(
    tmp_path: Path, environ: dict[str, str], job: str
) -> None:
    """As on several nodes, as the agent calls it, and the same when Slurm starts it again."""
    shown = 'echo "$WHICHRANK_JOB_ID $WHICHRANK_RUN_ID"'
    done = whichrank("run", "--out", str(tmp_path / "out"), "--", "sh", "-c", shown, environ=environ)
    assert done.stdout.decode().split() == [job, job]
    assert json.loads((tmp_path / "out" / "run.json").read_text())["job"] == job


def test_rings_are_gone_after_a_normal_end_and_run_json_tells_of_it(raised: Any) -> None:
    run, _ = raised
    description = json.loads((run / "run.json").read_text())
    assert description["exit_code"] == 1
    assert description["ended"] > description["started"]
    assert not Path(description["ring_directory"]).exists()


def test_replay_is_equal_byte_for_byte_and_overwrites_nothing(raised: Any) -> None:
    run, _ = raised
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file() and "replay-" not in str(path)}
    for number in (1, 2):
        done = whichrank("replay", str(run), "--json")
        assert done.returncode == 0, done.stderr.decode()
        report = json.loads(done.stdout)
        assert (report["compared"], report["problems"]) == ("equal", [])
        assert (run / f"replay-{number}" / "incidents.jsonl").read_bytes() == (run / "incidents.jsonl").read_bytes()
    assert {path: path.read_bytes() for path in before} == before


def test_a_killed_run_is_concluded_from_its_capture_and_the_rings_left_behind(tmp_path: Path) -> None:
    script, go, run = tmp_path / "job_that_raises.py", tmp_path / "go", tmp_path / "run"
    script.write_text(RAISING_JOB)
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", str(script)]
    argv = [sys.executable, "-m", "whichrank.commands.main", "run", "--out", str(run), "--", *torchrun]
    environ = {**os.environ, "OMP_NUM_THREADS": "1", "JOB_WAITS_FOR": str(go)}
    with (tmp_path / "err").open("wb") as errors:
        watcher = subprocess.Popen(argv, env=environ, stderr=errors)
    _until(lambda: (run / "run.json").exists())
    description = json.loads((run / "run.json").read_text())
    rings = Path(description["ring_directory"])
    _until(lambda: len(list(rings.glob("*.ring"))) == 2)
    _until(lambda: b"whichrank.collectives" in b"".join(p.read_bytes() for p in (run / "capture").glob("segment*")))
    watcher.kill()
    watcher.wait()
    go.touch()
    _until(lambda: not Path(f"/proc/{description['pid']}").exists())
    assert (run / "incidents.jsonl").read_bytes() == b""
    report = json.loads(whichrank("replay", str(run), "--json").stdout)
    assert (report["compared"], report["rings_left"]) == ("continued", 2), report["problems"]
    (incident,) = report["incidents"]
    assert (incident["kind"], [s["rank"] for s in incident["suspects"]]) == ("rank_raised", [1])
    again = json.loads(whichrank("replay", str(run), "--json").stdout)
    assert again["incidents"] == report["incidents"]
    subprocess.run(["rm", "-r", str(rings)], check=True)


def test_replay_of_a_tampered_run_says_where_it_differs(raised: Any, tmp_path: Path) -> None:
    run, _ = raised
    copy = tmp_path / "copy"
    subprocess.run(["cp", "-r", str(run), str(copy)], check=True)
    lines = (copy / "incidents.jsonl").read_bytes().splitlines(keepends=True)
    lines[0] = lines[0].replace(b'"rank":1', b'"rank":0')
    (copy / "incidents.jsonl").write_bytes(b"".join(lines))
    done = whichrank("replay", str(copy))
    assert done.returncode == 1
    assert b"DIFFERS from incidents.jsonl at line 1" in done.stdout


def test_a_capture_of_which_nothing_can_be_read_is_not_replayed(raised: Any, tmp_path: Path) -> None:
    run, _ = raised
    copy = tmp_path / "copy"
    subprocess.run(["cp", "-r", str(run), str(copy)], check=True)
    for path in (copy / "capture").glob("segment*"):
        path.write_bytes(b"no segment")
    before = sorted(copy.glob("replay-*"))
    done = whichrank("replay", str(copy))
    assert done.returncode == 2
    (line,) = done.stderr.decode().splitlines()
    assert "holds no message that can be read; nothing to replay" in line
    assert sorted(copy.glob("replay-*")) == before


#: One rank that needs no torch: it writes its ring as the hooks would, so fast that a small capture overflows.
FAST_RANK = """
import os, sys, time
from pathlib import Path
from whichrank.instrumentation.ring_writer import RingWriter
from whichrank.telemetry.vocabulary import HookState, Level, Phase
identity = {"launcher_pid": os.getppid(), "launcher_start_ticks": 1, "restart_count": 0}
writer = RingWriter.create(
    Path(os.environ["WHICHRANK_DIR"]), rank=0, local_rank=0, world_size=1, identity=identity
)
group = writer.define_group(
    {"name": "0", "ranks": "0", "size": 1, "backend": "gloo", "ordinal": 0, "timeout_s": 1800, "default": True}
)
writer.track_completion(True)
writer.set_level(Level.EVENTS, HookState.COLLECTIVES_HOOKED | HookState.COMPLETION_HOOKED)
for step in range(30):
    writer.set_phase(Phase.FORWARD)
    for _ in range(100):
        writer.complete(group, writer.enqueue(group, 1, 4096, 6, -1, 0), 0, 0)
    writer.end_step(1.0, None, 0)
    writer.beat()
    time.sleep(0.1)
time.sleep(2.0)  # all that it did has been sent: its end is told after that, on a busy machine, too
sys.exit(3)
"""


@pytest.fixture(scope="module")
def overflowed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, subprocess.CompletedProcess[bytes]]:
    run = tmp_path_factory.mktemp("overflowed") / "run"
    words = ["run", "--capture-limit", "64KiB", "--out", str(run), "--", sys.executable, "-c", FAST_RANK]
    # What the node's collectors tell would fill what is left, and push out of it what the rank has told.
    return run, whichrank(*words, environ={"WHICHRANK_COLLECT": "none"})


def test_the_capture_keeps_its_bound_and_what_went_is_said(overflowed: Any) -> None:
    run, done = overflowed
    assert done.returncode == 3
    assert sum(path.stat().st_size for path in (run / "capture").iterdir()) <= 80 << 10
    said = done.stderr.decode().splitlines()
    assert sum("the capture has reached its limit of 65536 bytes" in line for line in said) == 1
    (line,) = [line for line in said if "oldest messages were dropped" in line]
    losses = json.loads((run / "run.json").read_text())["losses"]
    assert set(losses) == {"trimmed_messages", "capture_begins_s"}, losses
    assert f"its {losses['trimmed_messages']} oldest messages were dropped" in line
    assert f"begins {losses['capture_begins_s']:.0f} s after" in line


def test_a_replay_of_what_is_left_says_where_it_begins_and_judges_it(overflowed: Any) -> None:
    run, _ = overflowed
    done = whichrank("replay", str(run))
    assert done.returncode == 0, done.stderr.decode()
    (line,) = done.stderr.decode().splitlines()
    assert line.endswith("s after the job's start: what came before is not judged again")
    report = json.loads(whichrank("replay", str(run), "--json").stdout)
    assert report["compared"] == "partial"
    assert report["begins"] > json.loads((run / "run.json").read_text())["started"]
    live = {d["id"]: d for d in written_documents(run / "incidents.jsonl")}
    assert [d["kind"] for d in live.values()] == ["rank_died"]
    assert [d["kind"] for d in report["incidents"]] == ["rank_died"]
    assert (report["live_later"], report["same_later"]) == (1, 1)


@pytest.mark.parametrize("code", [0, 3])
def test_exit_status_and_output_are_the_commands_own(tmp_path: Path, code: int) -> None:
    done = whichrank("run", "--out", str(tmp_path / "out"), "--", "sh", "-c", f"echo out; echo err >&2; exit {code}")
    assert (done.returncode, done.stdout) == (code, b"out\n")
    assert b"err\n" in done.stderr
    assert b"no incident; no rank was seen" in done.stderr


EARLY_RANK = """
import os
from pathlib import Path
from whichrank.instrumentation.ring_writer import RingWriter
identity = {"launcher_pid": os.getppid(), "launcher_start_ticks": 7, "restart_count": 0, "host": "here"}
folder = Path(os.environ["WHICHRANK_DIR"])
RingWriter.create(folder, rank=0, local_rank=0, world_size=1, identity=identity, slots=None).beat()
os.kill(os.getpid(), 9)
"""


def test_a_rank_that_died_before_we_had_loaded_is_told_and_one_of_an_earlier_run_is_not(tmp_path: Path) -> None:
    """The watch loads numpy and the rest only after the command has begun."""
    argv = [sys.executable, "-c", EARLY_RANK]
    rings = tmp_path / "rings"
    done = whichrank("run", "--ring-root", str(rings), "--keep-rings", "--out", str(tmp_path / "first"), "--", *argv)
    assert done.returncode == -signal.SIGKILL
    assert b"1 incident; 1 rank seen" in done.stderr, done.stderr.decode()
    documents = written_documents(tmp_path / "first" / "incidents.jsonl")
    assert {document["kind"] for document in documents if document is not None} == {"rank_died"}

    (old,) = rings.glob("*/*.ring")
    script = f'cp "{old}" "$WHICHRANK_DIR"'
    done = whichrank("run", "--ring-root", str(rings), "--out", str(tmp_path / "second"), "--", "sh", "-c", script)
    assert b"no incident; no rank was seen" in done.stderr, done.stderr.decode()


def test_a_terminated_run_ends_by_the_signal_and_tells_the_bus(tmp_path: Path) -> None:
    argv = [sys.executable, "-m", "whichrank.commands.main", "run", "--out", str(tmp_path / "out"), "--", "sleep", "60"]
    child = subprocess.Popen(argv, stderr=subprocess.DEVNULL)
    _until(lambda: (tmp_path / "out" / "state.sqlite").exists())
    child.send_signal(signal.SIGTERM)
    assert child.wait(timeout=30) == -signal.SIGTERM
    assert json.loads((tmp_path / "out" / "run.json").read_text())["exit_code"] == 128 + signal.SIGTERM
    captured = b"".join(path.read_bytes() for path in (tmp_path / "out" / "capture").iterdir())
    assert b"whichrank.job.signalled" in captured


@pytest.mark.parametrize("place", ["/proc/nowhere/run", "/etc/hostname/run"])
def test_an_out_that_cannot_be_written_costs_one_line(place: str) -> None:
    done = whichrank("run", "--out", place, "--", "sh", "-c", "echo out; exit 5")
    assert (done.returncode, done.stdout) == (5, b"out\n")
    (line,) = [line for line in done.stderr.decode().splitlines() if place in line]
    assert "this run is kept in" in line


def test_a_used_out_is_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / "incidents.jsonl").write_text("precious\n")
    done = whichrank("run", "--out", str(tmp_path), "--", "true")
    assert done.returncode == 0
    assert b"holds another run already" in done.stderr
    assert (tmp_path / "incidents.jsonl").read_text() == "precious\n"


def test_without_a_place_for_rings_the_command_runs_unwatched(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    words = ["run", "--ring-root", str(tmp_path / "file" / "rings"), "--out", str(tmp_path / "out")]
    done = whichrank(*words, "--", "sh", "-c", "echo ${WHICHRANK_AUTO-none}; exit 4")
    assert (done.returncode, done.stdout) == (4, b"none\n")
    assert done.stderr.decode().count("unwatched") == 1


def test_no_command_is_a_usage_error() -> None:
    done = whichrank("run", "--json")
    assert done.returncode == 2
    assert b"no command to watch" in done.stderr


def test_the_environment_of_the_command_is_ours_plus_what_makes_ranks_record(tmp_path: Path) -> None:
    script = "import os, json; print(json.dumps(dict(os.environ)))"
    words = ["run", "--out", str(tmp_path / "out"), "--", sys.executable, "-S", "-c", script]
    environ = json.loads(whichrank(*words, environ={"PYTHONPATH": "/a:/b", "MINE": "x"}).stdout)
    assert environ["MINE"] == "x"
    bootstrap, _, rest = environ["PYTHONPATH"].partition(":")
    assert bootstrap.endswith("instrumentation/bootstrap")
    assert rest == "/a:/b"
    assert environ["WHICHRANK_AUTO"] == "1"


def test_an_unknown_scenario_and_a_folder_that_is_no_run_are_said_in_one_line(tmp_path: Path) -> None:
    done = whichrank("demo", "--scenario", "earthquake")
    assert done.returncode == 2
    assert b"sleep_in_forward" in done.stderr
    done = whichrank("replay", str(tmp_path / "nothing"))
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1


def _until(condition: Callable[[], bool], timeout_s: float = 60.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)
