"""A whole job of ``whichrank run`` with secrets everywhere, and all that it leaves behind searched for them."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
import tarfile
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from tests.agents.test_no_secret_leaves import END, TEXTS, found_in
from tests.commands.incidents.documents import RING
from whichrank.commands.run.script_name import name_script
from whichrank.telemetry.redaction import redact_command

#: Of which each appears in one place only.
IN_PREFIX, IN_FLAG, IN_NAME = "hunter3prefix", "hunter4flag", "h" + "f_Fake5name5Fake5name5Fake"
IN_EXCEPTION, IN_LOG, IN_GROUP = "hunter6exception", "hunter7log", "hunter8group"
PLACES = (IN_PREFIX, IN_FLAG, IN_NAME, IN_EXCEPTION, IN_LOG, IN_GROUP)
JOB = f"""
import logging
import os
import sys
import time
import torch
import torch.distributed as dist
logging.basicConfig(format="%(asctime)s %(levelname)s %(name)s: %(message)s")
dist.init_process_group("gloo")
group = dist.new_group([0, 1], group_desc="db_password={IN_GROUP}")
for step in range(30):
    dist.all_reduce(torch.ones(4), group=group)
    time.sleep(0.02)
if dist.get_rank() == 1:
    for text in sys.argv[3:]:  # what is behind the flag
        print(text, "-----", sep="\\n", file=sys.stderr, flush=True)
    logging.getLogger("checkpoint").error(
        "could not write: OSError: [Errno 28] No space left on device: https://me:{IN_LOG}@store.example/x"
    )
    time.sleep(1.5)
    raise RuntimeError("cannot log in: password={IN_EXCEPTION}")
dist.barrier()
"""


@pytest.fixture
def endpoint() -> Iterator[tuple[str, list[bytes]]]:
    bodies: list[bytes] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            bodies.append(gzip.decompress(body) if self.headers.get("Content-Encoding") == "gzip" else body)
            self.send_response(200)
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_address[1]}", bodies
    server.shutdown()
    server.server_close()


def whichrank(*words: str, cwd: Path, **environ: str) -> subprocess.CompletedProcess[bytes]:
    plain = {k: v for k, v in os.environ.items() if not k.startswith(("WHICHRANK_", "OTEL_"))}
    command = [sys.executable, "-m", "whichrank.commands.main", *words]
    return subprocess.run(command, capture_output=True, cwd=cwd, env={**plain, **environ}, timeout=180)


def test_a_job_with_secrets_everywhere(tmp_path: Path, endpoint: tuple[str, list[bytes]]) -> None:
    url, exported = endpoint
    (tmp_path / "job.py").write_text(JOB)
    texts = " ".join("'" + text.replace("'", "'\\''") + "'" for text in TEXTS)
    torchrun = f"{sys.executable} -m torch.distributed.run --standalone --nproc-per-node=2 --redirects=3 --log-dir=logs"
    script = f"DB_PASSWORD={IN_PREFIX} {torchrun} job.py --api-key {IN_FLAG} {texts}"
    done = whichrank(
        *("run", "--out", "out", "--job-name", f"of {IN_NAME}", "--", "bash", "-c", script),
        cwd=tmp_path,
        OMP_NUM_THREADS="1",
        OTEL_EXPORTER_OTLP_ENDPOINT=url,
        OTEL_EXPERIMENTAL_RESOURCE_DETECTORS="process,otel",
        OTEL_BLRP_SCHEDULE_DELAY="100",
    )
    assert done.returncode == 1, done.stderr.decode()
    documents = [json.loads(line) for line in (tmp_path / "out" / "incidents.jsonl").read_text().splitlines()]
    assert {suspect["rank"] for document in documents for suspect in document["suspects"]} == {1}
    assert "rank_raised" in {document["kind"] for document in documents}
    archive = whichrank("incidents", "export", documents[0]["id"], "--from", "out", "--out", "a.tar.gz", cwd=tmp_path)
    assert archive.returncode == 0, archive.stderr.decode()
    ways = {
        "run.json": (tmp_path / "out" / "run.json").read_bytes(),
        "incidents.jsonl": (tmp_path / "out" / "incidents.jsonl").read_bytes(),
        "capture": b"".join(path.read_bytes() for path in sorted((tmp_path / "out" / "capture").iterdir())),
        "state": (tmp_path / "out" / "state.sqlite").read_bytes(),
        "evidence": b"".join(map(unpacked, sorted((tmp_path / "out" / "evidence").iterdir()))),
        "names": "\n".join(map(str, (tmp_path / "out").rglob("*"))).encode(),
        "export": b"".join(exported),
        "archive": members(tmp_path / "a.tar.gz"),
        "terminal": b"\n".join(line for line in done.stderr.splitlines() if line.startswith(b"whichrank")),
    }
    # That the texts themselves came there: what stands beside the secrets.
    assert b"--api-key" in ways["run.json"]
    for way in ("capture", "evidence", "export", "incidents.jsonl", "archive"):
        assert b"cannot log in: password=[removed]" in ways[way], way
    assert b"No space left on device" in ways["capture"]
    assert b"process.command" in ways["export"]
    assert b"wandb login --relogin [removed]" in ways["evidence"]  # the log's tail
    places = [(way, left.find(secret.encode())) for way, left in ways.items() for secret in PLACES]
    assert [(way, ways[way][max(0, at - 80) : at + 20]) for way, at in places if at >= 0] == []
    assert {way: found_in(left) for way, left in ways.items() if found_in(left)} == {}


def unpacked(path: Path) -> bytes:
    raw = path.read_bytes()
    return gzip.decompress(raw) if raw[:2] == b"\x1f\x8b" else raw


def members(path: Path) -> bytes:
    with tarfile.open(path) as archive:
        files = [archive.extractfile(member) for member in archive.getmembers()]
        contents = [file.read() for file in files if file is not None]
    return b"".join(gzip.decompress(raw) if raw[:2] == b"\x1f\x8b" else raw for raw in contents)


def test_evidence_that_an_earlier_release_has_kept(tmp_path: Path) -> None:
    from tests.commands.incidents.documents import ID, LAUNCH, document, make_run

    old = bytearray(RING)
    at = old.index(b'"host"')
    old[at - 1 : at + 20] = b"{" + b'"t":"gh' + b"p_FAKE0fake1FAKE"[:14]
    base = f"{ID}-{LAUNCH}-rank-00001-4711"
    files = {
        f"{base}-0.log": f"\n{END}".join(TEXTS).encode(),
        f"{base}-died.ring.gz": gzip.compress(bytes(old)),
        f"{base}-trace.dump.gz": gzip.compress(f"\n{END}".join(TEXTS).encode()),
    }
    run = make_run(tmp_path / "run", document(), files=files)
    done = whichrank("incidents", "export", ID, "--from", str(run), "--out", "a.tar.gz", cwd=tmp_path)
    assert done.returncode == 0, done.stderr.decode()
    left = members(tmp_path / "a.tar.gz")
    assert found_in(left) == []
    assert left.count(b"wandb login --relogin [removed]") == 2


@pytest.mark.parametrize(
    ("command", "name"),
    [
        (["bash", "-c", "KEY=hunter2 python x.py"], "x.py"),
        (["bash", "-lc", "export HF_TOKEN=hf_x; cd /job && torchrun --nproc 4 train/x.py --token hunter2"], "x.py"),
        (["/bin/sh", "-c", "API_KEY='hunter2 more' ./train"], "train"),
        (["bash", "-c", "KEY='hunter2"], "bash"),
        (["bash", "script.sh", "-c", "x"], "script.sh"),
        (["python", "password=hunter2.py"], "password=[removed]"),
    ],
)
def test_no_job_is_called_after_a_secret(command: list[str], name: str) -> None:
    assert name_script(command) == name


def test_a_command_line_argument_by_argument() -> None:
    command = [
        "sshpass",
        "-p",
        "hunter2",
        "env",
        "A_KEY=x",
        "--db-password",
        "correct horse",
        "mysql",
        "-phunter2",
        "-u",
        "me",
    ]
    assert redact_command(command) == (
        *("sshpass", "-p", "[removed]", "env", "A_KEY=x", "--db-password", "[removed]", "mysql", "-p[removed]"),
        *("-u", "me"),
    )
