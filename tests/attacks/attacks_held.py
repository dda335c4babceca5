"""Attacks of the table that held from the first: floods of peers, texts, what is private."""

from __future__ import annotations

import http.server
import io
import os
import stat
import subprocess
import sys
import tarfile
import threading
import time
from pathlib import Path
from typing import Any

from rich.console import Console

from tests.attacks.a_judge import Judge, forget_peak, peak_mb
from tests.attacks.attacks_peers import Hub
from tests.attacks.attacks_texts import EVIL, PROGRAM
from tests.attacks.register import Outcome, attack
from whichrank.agents.publish.spool import Spool
from whichrank.commands.incident_text.incident_panel import incident_panel
from whichrank.commands.incidents.chosen import KeptFile, choose
from whichrank.commands.incidents.contents import arrange
from whichrank.commands.incidents.export import pack
from whichrank.commands.notify.receivers.http import Http
from whichrank.telemetry.incident import complete_document
from whichrank.telemetry.incident_reading import read_incident

_ESCAPE = "\x1b"


def _hostile_document() -> dict[str, Any]:
    shows = [f"rank 1 raised {EVIL}", "<script>alert(1)</script>", "a" * 10_000]
    return complete_document(
        {"id": "0123456789abcdef", "revision": 1, "change": "opened", "state": "open", "severity": "page",
         "bucket": "immediate_crash", "kind": "rank_raised", "scope": "rank", "times": {"onset": 1.0, "detected": 1.0},
         "job": {"id": EVIL, "name": EVIL}, "suspects": [{"rank": 1, "node": EVIL, "where": f"/x/{EVIL}.py:3"}],
         "evidence": [{"signal": "rank.exception", "shows": each} for each in shows]}
    )  # fmt: skip


@attack("D2", "d", "ESC, OSC and line ends in exception, path and job name, in the panel", asked="printable")
def panel(folder: Path) -> Outcome:
    out = io.StringIO()
    Console(file=out, width=100).print(incident_panel(read_incident(_hostile_document())))
    said = out.getvalue()
    forged = sum(line.startswith("whichrank: FORGED") for line in said.splitlines())
    return Outcome(held=_ESCAPE not in said and not forged and bool(said),
                   measured=f"{said.count(_ESCAPE)} ESC, {forged} forged lines")  # fmt: skip


@attack("B7", "b", "3,000 authenticated connections", asked="bounded", limit_s=120, long=True)
def many_followers(folder: Path) -> Outcome:
    hub = Hub()
    forget_peak()
    before = peak_mb()
    connections = []
    for _ in range(3000):
        try:
            connections.append(hub.speak())
        except OSError:
            break
    (took,) = hub.joins_within(5.0)
    more = peak_mb() - before
    for connection in connections:
        connection.close()
    measured = f"{len(connections)} joined, +{more} MB with theirs, a true follower in {took:.2f} s"
    return Outcome(held=took < 5.0 and more < 200, measured=measured)


@attack("B8", "b", "265 MB of junk messages", asked="bounded, dead letters", limit_s=120, long=True)
def junk(folder: Path) -> Outcome:
    judge = Judge(folder)
    judge.start_job()
    before = peak_mb()
    for number in range(294):
        judge.put_bytes(os.urandom(900_000), key=f"k{number}")
    more = peak_mb() - before
    judge.kill_rank()
    told = judge.told_kinds()
    return Outcome(held=told == ["rank_died"] and judge.letters > 0 and more < 500,
                   measured=f"{judge.letters} dead letters, +{more} MB, the victim's death: {told}")  # fmt: skip


@attack("D5", "d", "18 hostile names of evidence, into an archive", asked="all stay inside")
def archive_names(folder: Path) -> Outcome:
    names = ["../x", "/etc/x", "a/../../x", "..", ".", "", "x\0y", "x\ny", EVIL, "a" * 300, "-rf", "~root", "C:\\x",
             "\\\\host\\x", "x/", "./x", "\u202e txt.exe", "con"]  # fmt: skip
    chosen = choose([read_incident(_hostile_document())], "0123456789abcdef")
    entries = arrange((KeptFile(name=name, content=b"x") for name in names), chosen)
    with tarfile.open(fileobj=io.BytesIO(pack("incident-0123456789abcdef", entries, 1))) as tar:
        members = tar.getnames()
    outside = [name for name in members if name.startswith("/") or ".." in Path(name).parts or not name.isprintable()]
    return Outcome(held=not outside, measured=f"{len(outside)} of {len(members)} members outside: {outside}"[:160])


class _Rude(http.server.BaseHTTPRequestHandler):
    """Redirects, or answers more than anybody wants to read."""

    asked = 0

    def do_POST(self) -> None:
        if self.path == "/away":
            self.send_response(307)
            self.send_header("Location", "/asked")
            self.end_headers()
        elif self.path == "/asked":
            type(self).asked += 1
        else:
            self.send_response(200)
            self.end_headers()
            try:
                for _ in range(300):
                    self.wfile.write(bytes(1 << 20))
            except OSError:
                pass

    def log_message(self, format: str, *args: object) -> None: ...


@attack("D9", "d", "a receiver redirects, and answers 300 MB", asked="not followed, bounded", limit_s=60)
def rude_receivers(folder: Path) -> Outcome:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Rude)
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    forget_peak()
    before, began = peak_mb(), time.monotonic()
    for path in ("away", "flood"):
        Http(f"http://127.0.0.1:{server.server_port}/{path}", timeout_s=5.0).post(b"{}", {})
    more, took = peak_mb() - before, time.monotonic() - began
    server.shutdown()
    return Outcome(held=not _Rude.asked and more < 32 and took < 12,
                   measured=f"{_Rude.asked} followed, +{more} MB, {took:.1f} s")  # fmt: skip


@attack("D14", "d", "diagnose: lines of 64 MB, NULs, random bytes, 3 million `[`, a million lines", asked="bounded",
        limit_s=180)  # fmt: skip
def large_logs(folder: Path) -> Outcome:
    logs = {
        "line": b"x" * (64 << 20), "nul": bytes(32 << 20), "random": os.urandom(8 << 20), "open": b"[" * 3_000_000,
        "lines": b'  File "/a/b.py", line 3, in f\n' * 1_000_000,
    }  # fmt: skip
    worst, trouble = 0, []
    for name, content in logs.items():
        (folder / name).write_bytes(content)
        measured = (
            "import resource, subprocess, sys; done = subprocess.run(sys.argv[1:], capture_output=True, text=True);"
            "print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss // 1024, 'Traceback' in done.stderr)"
        )
        words = [*PROGRAM, "diagnose", "job-log", str(folder / name)]
        said = subprocess.run([sys.executable, "-c", measured, *words], capture_output=True, text=True, check=True)
        peak, is_trace = said.stdout.split()
        worst = max(worst, int(peak))
        trouble += [name] if is_trace == "True" else []
    return Outcome(held=worst < 300 and not trouble, measured=f"at most {worst} MB, tracebacks: {trouble}")


@attack("E3", "e", "--print-config with a secret in a variable and in a file", asked="masked")
def printed_settings(folder: Path) -> Outcome:
    secret = "hunter2-hunter2"
    file = folder / "whichrank.toml"
    file.write_text(f'kafka = "a:1"\nkafka_password = "{secret}"\n')
    file.chmod(0o600)
    words = ["agent", "--config", str(file), "--print-config"]
    done = subprocess.run([*PROGRAM, *words], env={**os.environ, "WHICHRANK_JUDGE_SECRET": secret}, capture_output=True,
                          text=True, check=False)  # fmt: skip
    said = done.stdout + done.stderr
    return Outcome(held=secret not in said and "kafka_password" in said and done.returncode == 0,
                   measured=f"status {done.returncode}, the secret {said.count(secret)} times")  # fmt: skip


@attack("E6", "e", "who may read the agent's spool", asked="its user")
def spool_rights(folder: Path) -> Outcome:
    os.umask(0)
    place = folder / "agent" / "spool"
    spool = Spool(place, 1 << 20, lambda line: None)
    spool.close()
    found = [place, *place.rglob("*")]
    loose = [path.name for path in found if stat.S_IMODE(path.stat().st_mode) & 0o077]
    return Outcome(held=not loose, measured=f"{len(loose)} of {len(found)} are open to others")
