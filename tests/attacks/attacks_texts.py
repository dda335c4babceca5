"""Attacks with texts: names, ids and files that reach terminals, logs, archives, chats and dashboards."""

from __future__ import annotations

import contextlib
import gzip
import io
import json
import os
import pickle
import socket
import struct
import subprocess
import sys
import tarfile
import threading
import time
from pathlib import Path

from rich.console import Console

from tests.attacks.cluster import two_nodes
from tests.attacks.register import Outcome, attack
from tests.attacks.users import EVE, living_as
from whichrank.agents.reduction.group_identity import group_from_definition
from whichrank.commands.incident_text.incident_panel import incident_panel
from whichrank.commands.incidents.chosen import KeptFile
from whichrank.commands.incidents.contents import without_floods, without_secrets
from whichrank.commands.notify.receivers.http import Http
from whichrank.commands.support.stderr import say
from whichrank.diagnosis.flight_recorder.pickle_values import BadPickle, load_pickle
from whichrank.grafana.annotate import text_of
from whichrank.instrumentation.ring_writer import RingWriter
from whichrank.telemetry.incident import check_document, complete_document
from whichrank.telemetry.incident_reading import read_incident
from whichrank.telemetry.incident_writing import write_incident

EVIL = "\x1b]0;PWN\x07\nwhichrank: FORGED"
PROGRAM = (sys.executable, "-c", "from whichrank.commands.entry import main; main()")


def _said(*lines: str) -> str:
    """What is on stderr after whichrank has said these lines."""
    kept, sys.stderr = sys.stderr, io.StringIO()
    try:
        for line in lines:
            say(line)
        return sys.stderr.getvalue()
    finally:
        sys.stderr = kept


def _document(**fields: object) -> dict[str, object]:
    return complete_document(
        {"id": "0123456789abcdef", "revision": 1, "change": "opened", "state": "open", "severity": "page",
         "bucket": "immediate_crash", "kind": "rank_died", "scope": "rank", "times": {"onset": 1.0, "detected": 1.0},
         **fields}
    )  # fmt: skip


@attack("A20b", "a", "newline, ESC and OSC in folder name, ring name, job id and notes",
        asked="one printable line, names of folders that are safe", limit_s=60)  # fmt: skip
def names_of_folders(folder: Path) -> Outcome:
    lines: list[str] = []
    with two_nodes(folder) as cluster:
        rings = cluster.node("node-a")
        agent = cluster.agents["node-a"]
        agent._report._report = lines.append  # noqa: SLF001  (what a person would read)
        agent._evidence_directory = folder / "evidence"  # noqa: SLF001
        job = rings / f"x{EVIL}"
        job.mkdir()
        os.chown(job, EVE, EVE)

        def act() -> None:
            (job / f"y{EVIL}.ring").write_bytes(b"no ring")
            claims: dict[str, str | int | float | bool | None] = {"launcher_pid": os.getppid(), "host": EVIL}
            claims |= {"WHICHRANK_JOB_ID": f"job{EVIL}", "script": EVIL}
            globals()["_kept"] = RingWriter.create(job, rank=0, local_rank=0, world_size=1, identity=claims)

        with living_as(EVE, act):
            cluster.until(lambda: cluster.started())
            said = _said(*lines, str(job))
            names = [event.identity.job for event in cluster.started()]
            hosts = [str(event.attributes.get("host")) for event in cluster.started()]
            kept = [each.name for each in (folder / "evidence").iterdir()] if (folder / "evidence").exists() else []
    texts = [*names, *hosts, *kept, *said.splitlines()]
    forged = [line for line in said.splitlines() if line.startswith("whichrank: FORGED")]
    return Outcome(held=bool(names) and all(text.isprintable() for text in texts) and not forged,
                   measured=f"{len(texts)} names and lines, {sum(not t.isprintable() for t in texts)} not printable, "
                            f"{len(forged)} forged")  # fmt: skip


@attack("B4b", "b", "a node's name with ESC and newline reaches the judge's stderr", asked="one printable line")
def node_name(folder: Path) -> Outcome:
    said = _said(f"node {EVIL} has joined")
    return Outcome(held=said.count("\n") == 1 and said[:-1].isprintable(), measured=repr(said)[:80])


@attack("D3", "d", "process group's name, suspect's node, notes in live view, line view and panel", asked="printable")
def group_names(folder: Path) -> Outcome:
    group = group_from_definition({"name": "dp", "desc": EVIL, "ranks": "0-1", "ordinal": 0, "backend": EVIL})
    suspects = [
        {"scope": "rank", "id": "1", "rank": 1, "node": EVIL, "where": {"file": EVIL, "line": 1, "phase": EVIL}}
    ]
    first_bad = {"step": 1, "group": EVIL, "sequence": 1, "operation": f"[link=http://evil]{EVIL}"}
    hostile = read_incident(_document(suspects=suspects, first_bad=first_bad, cluster=EVIL, severity=f"page{EVIL}"))
    out = io.StringIO()
    Console(file=out, force_terminal=True, width=120).print(incident_panel(hostile))
    shown = out.getvalue()
    osc, links = shown.count("\x1b]"), shown.count("\x1b]8;")
    forged = sum(line.startswith("whichrank: FORGED") for line in shown.splitlines())
    return Outcome(held=group.label.isprintable() and group.backend.isprintable() and not osc and not forged,
                   measured=f"{osc} OSC, {links} links, {forged} forged lines")  # fmt: skip


@attack("D4", "d", "id x/../../.. in incidents.jsonl, then `incidents export`", asked="refused, nothing outside",
        limit_s=90)  # fmt: skip
def export_outside(folder: Path) -> Outcome:
    run, work = folder / "run", folder / "a" / "b" / "work"
    run.mkdir()
    work.mkdir(parents=True)
    evil = "x/../../../escaped"
    (run / "incidents.jsonl").write_text(json.dumps(_document(id=evil)) + "\n" + json.dumps(_document()) + "\n")
    (run / "run.json").write_text("{}")
    words = ("incidents", "export", evil, "--from", str(run), "--out", "bad.tar.gz")
    bad = subprocess.run([*PROGRAM, *words], cwd=work, capture_output=True,
                         text=True, timeout=60, check=False)  # fmt: skip
    subprocess.run([*PROGRAM, "incidents", "export", "0123456789abcdef", "--from", str(run)], cwd=work,
                   capture_output=True, timeout=60, check=False)  # fmt: skip
    archives = sorted(folder.rglob("*.tar.gz"))
    members: list[str] = []
    for path in archives:
        with tarfile.open(path) as archive:
            members += archive.getnames()
    outside = [name for name in members if ".." in name or name.startswith("/")]
    is_here = len(archives) == 1 and archives[0].parent == work
    measured = f"status {bad.returncode}, {len(archives)} archive, {len(outside)} members outside"
    return Outcome(held=bad.returncode != 0 and is_here and not outside, measured=measured)


@attack("D8", "d", "mentions, links and HTML in an incident's id", asked="escaped in Slack, annotation, links")
def ids(folder: Path) -> Outcome:
    bad = ["<!channel>", '"><img src=x onerror=1>', "http://evil/?a=b", "x\ny", "é", "..", "a" * 65, ""]
    refused = sum(bool(check_document(_document(id=each))) for each in bad)
    texts = [text_of(write_incident(read_incident(_document(id=each))), "about") for each in bad]
    raw = text_of(_document(id=bad[1]), "about")
    live = sum("<img" in each or "<!channel" in each for each in [*texts, raw])
    good = not check_document(_document())
    return Outcome(held=refused == len(bad) and not live and good,
                   measured=f"{refused} of {len(bad)} refused, {live} live in annotations")  # fmt: skip


@attack("D10", "d", "a receiver drips a byte a second", asked="a time-out for the whole", limit_s=60)
def drip(folder: Path) -> Outcome:
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        while True:
            client, _ = listener.accept()
            threading.Thread(target=_drip, args=(client,), daemon=True).start()

    threading.Thread(target=serve, daemon=True).start()
    began = time.monotonic()
    reply = Http(f"http://127.0.0.1:{listener.getsockname()[1]}", timeout_s=1.0).post(b"{}", {})
    took = time.monotonic() - began
    return Outcome(held=took < 6 and reply.trouble is not None, measured=f"{took:.1f} s with a time-out of 1 s")


def _drip(client: socket.socket) -> None:
    try:
        for byte in b"HTTP/1.1 200 OK\r\nContent-Length: 400\r\n\r\n" + b"x" * 400:
            client.send(bytes([byte]))
            time.sleep(0.3)
    except OSError:
        pass


@attack("D13", "d", "a pickle of 60,000 ints that hash alike", asked="bounded", limit_s=60)
def pickle_of_ints(folder: Path) -> Outcome:
    times = []
    for width in (14, 9):
        body = io.BytesIO(b"")
        body.write(b"\x80\x02}(")
        for number in range(1, 60_001):
            value = number * (2**61 - 1) if width > 9 else (number % 1023 + 1) * (2**61 - 1)
            body.write(b"\x8a" + struct.pack("B", width) + value.to_bytes(width, "little", signed=True) + b"K\x01")
        body.write(b"u.")
        began = time.process_time()
        with contextlib.suppress(BadPickle):
            load_pickle(body.getvalue())
        times.append(time.process_time() - began)
    plain = load_pickle(pickle.dumps({"ns": 2**64 - 1}, protocol=2)) == {"ns": 2**64 - 1}
    return Outcome(held=max(times) < 2 and plain, measured=f"at most {max(times):.2f} CPU s")


@attack("D15", "d", "diagnose steps: a rank of 4,000 digits; job-log of a .gz", asked="one line", limit_s=90)
def diagnose(folder: Path) -> Outcome:
    (folder / "steps.csv").write_text(f"rank,step,forward\n{'9' * 4000},1,1.0\n0,{'9' * 4000},1.0\n")
    rows = (f'{{"rank": {rank}, "step": 1, "forward": 1}}' for rank in ("1e400", "NaN", "9" * 400, "9" * 4000))
    (folder / "steps.jsonl").write_text("\n".join(rows))
    (folder / "log.gz").write_bytes(gzip.compress(b"Traceback (most recent call last):\nValueError: bad\n" * 3))
    words = (["steps", "steps.csv"], ["steps", "steps.jsonl"], ["job-log", "log.gz"])
    done = [subprocess.run([*PROGRAM, "diagnose", *each], cwd=folder, capture_output=True, text=True, timeout=60,
                           check=False) for each in words]  # fmt: skip
    traces = sum("Traceback" in each.stderr for each in done)
    is_read = "ValueError" in done[2].stdout or len(done[2].stderr.strip().splitlines()) == 1
    lines = [len(each.stderr.strip().splitlines()) for each in done]
    return Outcome(held=not traces and is_read and max(lines) <= 1, measured=f"{traces} tracebacks, lines {lines}")


@attack("D6", "d", "gzip evidence of 47 kB that unpacks to 32 MB, forty times, through export's redaction",
        asked="bounded", limit_s=90)  # fmt: skip
def floods_of_evidence(folder: Path) -> Outcome:
    flood = gzip.compress(bytes(32 << 20))
    names = [f"launch-rank-{rank:05}-7.dump.gz" for rank in range(40)]
    files = [KeptFile(name=name, content=flood) for name in names]
    files.append(KeptFile(name="launch-rank-00041-7.stack.txt", content=b"main train.py:7"))
    began = time.process_time()
    kept = [without_secrets(file) for file in without_floods(files)]
    took = time.process_time() - began
    return Outcome(held=took < 10 and not any(file.content for file in kept[:40]) and bool(kept[40].content),
                   measured=f"{took:.1f} CPU s, {sum(not file.content for file in kept)} of 41 left out")  # fmt: skip
