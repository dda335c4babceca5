"""Two real jobs on one real file system, of which one storms metadata: ``python -m benchmarks.noisy_neighbour``.

A FUSE mount whose server counts by job (``counted_storage``), scraped by the shipped intake (the Collector), which
writes to a real Kafka; two torchrun jobs of two ranks, each under ``whichrank run --kafka``; one ``whichrank process``
that judges. Cases: one job storms and the other waits; it storms and the other reads elsewhere; both storm alike; one
storms and two wait, where the server counts for nobody (pages of a kernel's NFS server and of its clients, as
node_exporter tells them, of the same operations).
Prints what was said, asked, measured, ok or SHORT; exit status 1 for SHORT. Needs root, /dev/fuse, Java, Maven and Go;
without Go ``--own-scraper`` reads the pages in place of the Collector, and writes to Kafka what that would.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.agents.collectors.stalling_fuse import unmount
from tests.ports import free_ports
from tests.processors.cluster.conftest import START_S
from tests.stack.parts.intake import Intake
from tests.stack.parts.kafka import Kafka
from tests.stack.test_process_command import Bench
from whichrank.evaluation.bench.bench_report import exit_code, in_short, print_lines
from whichrank.simulator.scoring.summary import ScoreLine
from whichrank.telemetry.topics import TOPIC_METRICS

from .exporter_pages import otlp_of

ROOT = Path(__file__).resolve().parents[1]
WHICHRANK = Path(sys.executable).with_name("whichrank")
VICTIM, STORMER, OTHER = "4711", "4712", "4713"
#: Files that each sample's loader looks up: four samples a step.
LOOKUPS = 4
#: How long jobs run before one storms, and how long something may take to be said.
QUIET_S, SAID_WITHIN_S = 40.0, 75.0
#: What is said before a shared cause is settled goes on changing for so long.
SETTLES_S = 20.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """jobs: that run. storms: which of them storm. elsewhere: which read nothing of this file system. culprit: who is
    to be named; "": nobody. counted_by: who has to say so.
    """

    name: str
    storms: tuple[str, ...]
    jobs: tuple[str, ...] = (VICTIM, STORMER)
    elsewhere: tuple[str, ...] = ()
    culprit: str = ""
    counted_by: str = "server"


CASES = (
    Case(name="one storms, the other waits", storms=(STORMER,), culprit=STORMER),
    Case(name="one storms, the other reads elsewhere", storms=(STORMER,), elsewhere=(VICTIM,)),
    Case(name="both storm alike", storms=(VICTIM, STORMER)),
    Case(
        name="one storms, two wait, the server counts for nobody",
        jobs=(VICTIM, STORMER, OTHER),
        storms=(STORMER,),
        culprit=STORMER,
        counted_by="clients",
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    case: Case
    ok: bool
    said: str


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the cases and prints the lines. The exit status is 1 where a line is SHORT."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.noisy_neighbour", description=__doc__)
    parser.add_argument("--only", default="", help="cases whose name has these words")
    parser.add_argument("--own-scraper", action="store_true", help="in place of the Collector")
    parser.add_argument("--repeats", type=int, default=1, help="of each case")
    options = parser.parse_args(arguments)
    cases = [case for case in CASES if options.only in case.name] * options.repeats
    outcomes = []
    for case in cases:
        with tempfile.TemporaryDirectory(prefix="noisy-neighbour-") as folder:
            outcomes.append(outcome_of(case, Path(folder), own_scraper=options.own_scraper))
        print(f"{'' if outcomes[-1].ok else 'WRONG: '}{case.name}: {outcomes[-1].said}", flush=True)
    lines = lines_of(outcomes)
    print_lines(lines, "two jobs on one file system")
    print(in_short(lines))
    return exit_code(lines, whole=True)


def lines_of(outcomes: Sequence[Outcome]) -> list[ScoreLine]:
    """What is asked of the cases, and what came of them."""
    named = [each for each in outcomes if each.case.culprit]
    others = [each for each in outcomes if not each.case.culprit]
    asked = (("the storming job is named, by who counted it, with its victims", named), ("no job is blamed", others))
    return [
        ScoreLine(
            name=name,
            asked="100 %",
            measured=f"{sum(each.ok for each in found) / len(found):.0%}",
            share=f"{sum(each.ok for each in found)} of {len(found)}",
            ok=all(each.ok for each in found),
        )
        for name, found in asked
        if found
    ]


def outcome_of(case: Case, folder: Path, *, own_scraper: bool = False) -> Outcome:
    """Runs one case with all its parts, and ends them. own_scraper: in place of the Collector."""
    with ExitStack() as parts:
        kafka = Kafka(folder / "kafka", is_quick=False)
        parts.callback(kafka.kill)
        kafka.start()
        bench = Bench(kafka, "", folder)
        parts.callback(_end, bench.running)
        made = bench.command("topics", "--partitions", "2")
        if made.returncode:
            raise RuntimeError(f"whichrank topics: {made.stdout}{made.stderr}")
        bench.process()
        bench.wait_until_ready()
        path, port = _mounted(folder, parts)
        if own_scraper:
            parts.enter_context(_Scraper(bench, _pages_of(case), port))
        else:
            intake = Intake(folder / "intake", kafka)
            parts.callback(intake.service.kill)
            intake.service.start()
            groups = [
                {"targets": [f"127.0.0.1:{port}"], "labels": {"node": node, "__metrics_path__": path}}
                for path, node in _pages_of(case).items()
            ]
            intake.scrape("lustre" if case.counted_by == "server" else "node_exporter", groups)
        signs = {job: folder / f"storm-{job}" for job in case.jobs}
        for job, sign in signs.items():
            where = "" if job in case.elsewhere else str(path)
            bench.running.append(_started(job, folder, kafka, (where, str(LOOKUPS), str(sign))))
        time.sleep(QUIET_S)
        for job in case.storms:
            signs[job].touch()
        documents = _said(bench, lambda found: any(_is_right(case, each) for each in found.values()))
    said = "; ".join(_in_words(each) for each in documents.values() if each["state"] != "merged") or "nothing"
    joint = [each for each in documents.values() if each["kind"] in ("storage_overload", "shared_cause")]
    if case.culprit:
        return Outcome(case=case, ok=any(_is_right(case, each) for each in joint), said=said)
    return Outcome(case=case, ok=not any(_blamed(each) for each in joint), said=said)


def _pages_of(case: Case) -> dict[str, str]:
    """By path of the page, whose it is."""
    if case.counted_by == "server":
        return {"/metrics": "mds1"}
    return {"/nfsd": "nas1", **{f"/client/{job}": f"node-{job}" for job in case.jobs}}


class _Scraper:
    """In place of the Collector: reads each page once a second, and writes OTLP to Kafka. pages: as ``_pages_of``."""

    def __init__(self, bench: Bench, pages: Mapping[str, str], port: int) -> None:
        self._pages, self._port, self._ended = pages, port, threading.Event()
        self._producer = bench.client.producer()
        self._thread = threading.Thread(target=self._scrape, daemon=True)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()
        self._producer.close(1.0)

    def _scrape(self) -> None:
        while not self._ended.wait(1.0):
            for path, node in self._pages.items():
                with urllib.request.urlopen(f"http://127.0.0.1:{self._port}{path}", timeout=10) as answer:
                    page = answer.read().decode()
                if page:
                    value = otlp_of(f"{node}:9100", page, time.time() - START_S)
                    self._producer.send(TOPIC_METRICS, node.encode(), value)
            self._producer.poll()


def _mounted(folder: Path, parts: ExitStack) -> tuple[Path, int]:
    """The mount, and the port of its server's exporter."""
    (port,) = free_ports(1)
    path = folder / "work"
    path.mkdir()
    command = [sys.executable, "-m", "benchmarks.counted_storage", str(path), str(port)]
    server = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    parts.callback(server.wait, 30)
    parts.callback(unmount, str(path))
    assert server.stdout is not None
    if server.stdout.readline() != "ready\n":
        raise RuntimeError("no FUSE file system can be mounted here")
    return path, port


def _started(job: str, folder: Path, kafka: Kafka, words: Sequence[str]) -> subprocess.Popen[bytes]:
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    command = [
        *(WHICHRANK, "run", "--kafka", kafka.address, "--out", folder / f"run-{job}", "--view", "none", "--"),
        *(*torchrun, ROOT / "benchmarks" / "loading_job.py", *words),
    ]
    environment = {
        **os.environ,
        "SLURM_JOB_ID": job,
        "WHICHRANK_JOB_ID": job,
        "WHICHRANK_NODE_ID": f"node-{job}",
        "OMP_NUM_THREADS": "1",
        "PYTHONWARNINGS": "ignore",
    }
    with (folder / f"job-{job}.log").open("wb") as log:
        return subprocess.Popen(list(map(str, command)), env=environment, cwd=folder, stdout=log, stderr=log)


def _said(bench: Bench, is_said: Callable[[Mapping[str, Any]], bool]) -> dict[str, dict[str, Any]]:
    """The last revision of each incident: ``SETTLES_S`` after it is said, or when the time for it is over."""
    until_s = time.monotonic() + SAID_WITHIN_S
    while time.monotonic() < until_s and not is_said(bench.incidents()):
        time.sleep(1.0)
    time.sleep(SETTLES_S)
    return bench.incidents()


def _is_right(case: Case, document: Mapping[str, Any]) -> bool:
    cause = document.get("cause") or {}
    victims = [job["id"] for job in document["jobs"] if job["role"] == "victim"]
    said = document["kind"], _blamed(document), cause.get("counted_by")
    waiting = {job for job in case.jobs if job not in case.storms}
    return (
        bool(case.culprit) and said == ("storage_overload", [case.culprit], case.counted_by) and waiting <= set(victims)
    )


def _blamed(document: Mapping[str, Any]) -> list[str]:
    return [str(job["id"]) for job in document["jobs"] if job["role"] == "culprit"]


def _in_words(document: Mapping[str, Any]) -> str:
    cause = document.get("cause") or {}
    jobs = ", ".join(f"{job['id']} {job['role']}" for job in document["jobs"])
    return f"{document['kind']} ({jobs}; counted by {cause.get('counted_by') or 'nobody'})"


def _end(running: Sequence[subprocess.Popen[bytes]]) -> None:
    for process in reversed(running):
        process.terminate()
    for process in reversed(running):
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


if __name__ == "__main__":
    sys.exit(main())
