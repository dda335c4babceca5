"""A real job whose rank hangs, watched by ``whichrank run``: all that is known of it comes into one archive."""

from __future__ import annotations

import gzip
import json
import os
import pickle
import subprocess
import sys
import tarfile
import time
from pathlib import Path

import pytest

from whichrank.agents.rings.ring_events import decode_slots
from whichrank.telemetry import ring_layout as L

JOB = """
import os
import time
from datetime import timedelta
import torch
import torch.distributed as dist
from torch._C import _distributed_c10d as c10d
dist.init_process_group("gloo", timeout=timedelta(seconds=5))
rank = dist.get_rank()
value = torch.ones(16)
for step in range(40):
    dist.all_reduce(value)
    time.sleep(0.01)
print("token=abcdefgh1234 the last words of rank", rank, flush=True)
if rank == 1:
    time.sleep(60)  # MARK: hangs here
try:
    dist.all_reduce(value)
except RuntimeError:
    # What the watchdog of NCCL does by itself when a collective times out.
    if hasattr(c10d, "_dump_fr_trace_file"):
        c10d._dump_fr_trace_file(rank)
    else:
        dump = getattr(c10d, "_dump_fr_trace", None) or c10d._dump_nccl_trace
        with open(os.environ["TORCH_FR_DUMP_TEMP_FILE"] + str(rank), "wb") as file:
            file.write(dump())
    raise
"""


#: Of whichrank beyond the command's own end. It was 2.1 s, and 7.1 s where nobody listened at the endpoint.
AFTER_THE_END_S = 1.5
#: Notes when the launcher has ended, and ends as it did.
NOTES_ITS_END = ["sh", "-c", '"$@"; status=$?; date +%s.%N >"$0"; exit $status']


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, bytes], Path]:
    """Files of the exported archive by their paths in it, and the run's folder."""
    folder = tmp_path_factory.mktemp("hanging")
    script = folder / "job_that_hangs.py"
    script.write_text(JOB)
    environ = {k: v for k, v in os.environ.items() if not k.startswith(("WHICHRANK_", "OTEL_", "TORCH_"))}
    environ.update(OMP_NUM_THREADS="1", TORCH_FR_DUMP_TEMP_FILE=str(folder / "trace_"), TORCH_FR_BUFFER_SIZE="2000")
    environ.update(OTEL_EXPORTER_OTLP_ENDPOINT="http://127.0.0.1:9")  # the discard port: nothing listens there
    whichrank = [sys.executable, "-m", "whichrank.commands.main"]
    launch = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "--redirects=3"]
    ended = folder / "ended"
    job = [*NOTES_ITS_END, str(ended), sys.executable, *launch, f"--log-dir={folder / 'logs'}", str(script)]
    began = time.monotonic()
    watched = subprocess.run(
        [*whichrank, "run", "--json", "--out", str(folder / "run"), "--", *job],
        capture_output=True,
        env=environ,
        timeout=120,
        check=False,
    )
    print(f"the job took {time.monotonic() - began:.1f} s")
    after_s = time.time() - float(ended.read_text())
    print(f"whichrank ended {after_s:.2f} s after its command")
    assert after_s < AFTER_THE_END_S
    assert watched.returncode == 1, watched.stderr.decode()
    (last,) = {
        document["id"]: document
        for document in map(json.loads, (folder / "run" / "incidents.jsonl").read_text().splitlines())
        if document["state"] != "merged"
    }.values()
    assert (last["kind"], last["suspects"][0]["rank"]) == ("rank_not_entered", 1)
    done = subprocess.run(
        [
            *whichrank,
            "incidents",
            "export",
            last["id"],
            "--from",
            str(folder / "run"),
            "--out",
            str(folder / "a.tar.gz"),
        ],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    with tarfile.open(folder / "a.tar.gz") as opened:
        opened.extractall(folder / "unpacked", filter="data")
    root = folder / "unpacked" / f"incident-{last['id']}"
    return {str(p.relative_to(root)): p.read_bytes() for p in root.rglob("*") if p.is_file()}, folder / "run"


def of(files: dict[str, bytes], begin: str, end: str) -> bytes:
    (found,) = (content for path, content in files.items() if path.startswith(begin) and path.endswith(end))
    return found


def test_the_recorders_dump_of_the_rank_that_waited_is_in_it(archive: tuple[dict[str, bytes], Path]) -> None:
    files, _ = archive
    assert [path for path in files if path.startswith("flight-recorder/")] == ["flight-recorder/trace_0"]
    dump = pickle.loads(files["flight-recorder/trace_0"])
    names = [entry["profiling_name"] for entry in dump["entries"]]
    assert len(names) >= 41
    assert set(names) == {"gloo:all_reduce"}
    manifest = json.loads(files["manifest.json"])
    assert ("flight_recorder", "rank 1") in {(row["what"], row["who"]) for row in manifest["missing"]}


def test_rings_stacks_logs_and_the_kernel_log_are_in_it(archive: tuple[dict[str, bytes], Path]) -> None:
    files, run = archive
    assert b"token=[removed] the last words of rank 1" in of(files, "rank-00001/", "-0.log")
    events = decode_slots(gzip.decompress(of(files, "rank-00001/", "-history.ring-events.gz")))
    assert len(events) >= 80
    assert gzip.decompress(of(files, "rank-00001/", "-not_entered.ring.gz"))[:8] == L.MAGIC
    line = next(number for number, text in enumerate(JOB.splitlines(), 1) if "MARK" in text)
    stacks = b"".join(content for path, content in files.items() if path.endswith(".stack.txt"))
    assert f"job_that_hangs.py:{line}" in stacks.decode()
    (kernel,) = (content for path, content in files.items() if path.startswith("kernel-log/"))
    assert kernel.startswith((b"# kernel log from ", b"# the kernel log cannot be read: "))
    text = files["README.txt"].decode()
    assert "rank 1 (pid " in text
    assert f"job_that_hangs.py:{line}" in text
    assert sum(path.stat().st_size for path in (run / "evidence").iterdir()) < 20 << 20


def test_what_was_kept_is_not_in_the_capture_as_well(archive: tuple[dict[str, bytes], Path]) -> None:
    _, run = archive
    captured = b"".join(path.read_bytes() for path in (run / "capture").glob("segment*"))
    assert b"whichrank.rank.started" in captured
    assert b"whichrank.evidence.piece" not in captured
