"""``whichrank respond`` as people start it, on the folder of a run: dry by default, and what it says of itself."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.commands.incidents.documents import make_run
from tests.commands.respond.parts import SECRET, FakeSlurm, Receiver, incident
from tests.ports import free_ports
from whichrank.commands.incident_service.audit import AUDIT_FILE
from whichrank.telemetry.incident import Document, canonical_line

WHICHRANK = Path(sys.executable).with_name("whichrank")
WAIT_S = 90.0
N = 4


class Bench:
    """Folders, a PATH with scontrol, and the command."""

    def __init__(self, folder: Path, slurm: FakeSlurm, receiver: Receiver) -> None:
        self.folder = folder
        self.run = folder / "run"
        self.state = folder / "state"
        self.slurm = slurm
        self.environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("WHICHRANK_")},
            "PATH": f"{slurm.folder}:{os.environ['PATH']}",
            "WHICHRANK_RESPOND_STATE": str(self.state),
            "WHICHRANK_RESPOND_WEBHOOK_URL": receiver.url,
            "WHICHRANK_RESPOND_WEBHOOK_SECRET": SECRET,
            "WHICHRANK_RESPOND_CLUSTER_NODES": "1000",
            "WHICHRANK_RESPOND_NODES_PER_HOUR": str(N),
            "WHICHRANK_RESPOND_ACTS_PER_HOUR": "10000",
            "PYTHONWARNINGS": "ignore",
        }
        self.started: list[subprocess.Popen[bytes]] = []

    def command(self, *words: str | Path, **environment: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [WHICHRANK, "respond", *words],
            env={**self.environment, **environment},
            cwd=self.folder,
            capture_output=True,
            text=True,
            timeout=WAIT_S,
            check=False,
        )

    def once(self, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
        return self.command("--from", self.run, "--once", *words, **environment)

    def service(self, *words: str) -> subprocess.Popen[bytes]:
        with (self.folder / "service.log").open("ab") as log:
            started = subprocess.Popen(
                [WHICHRANK, "respond", "--from", self.run, "--set", "respond_settle_s=0", *words],
                env=self.environment,
                cwd=self.folder,
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        self.started.append(started)
        return started

    def said(self) -> str:
        return (self.folder / "service.log").read_text()

    def audit(self) -> list[dict[str, Any]]:
        path = self.state / AUDIT_FILE
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def append(self, *documents: Document) -> None:
        with (self.run / "incidents.jsonl").open("ab") as file:
            file.write(b"".join(map(canonical_line, documents)))


@pytest.fixture
def bench(tmp_path: Path, slurm: FakeSlurm, receiver: Receiver) -> Iterator[Bench]:
    made = Bench(tmp_path, slurm, receiver)
    yield made
    for process in made.started:
        process.kill()
        process.wait()


def until(question: Callable[[], bool], what: Callable[[], str]) -> None:
    deadline = time.monotonic() + WAIT_S
    while not question():
        assert time.monotonic() < deadline, what()
        time.sleep(0.05)


def storm(count: int) -> list[Document]:
    return [incident(number, node=f"node-{number}") for number in range(1, count + 1)]


def test_without_being_told_to_act_it_only_says_what_it_would_do(bench: Bench, receiver: Receiver) -> None:
    make_run(bench.run, incident(1), incident(2, by="human", action="fix_code"))
    done = bench.once("--json", "--hooks", "slurm,webhook")
    assert done.returncode == 0, done.stderr
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert [(line["outcome"], line.get("operation") or line["why"]) for line in lines] == [
        ("would", "drain_node"),
        ("would", "restart_job"),
        ("would", "tell"),
        ("refused", "human"),
    ]
    assert {line["mode"] for line in lines} == {"dry"}
    assert "dry run" in done.stderr
    assert (bench.slurm.calls(), receiver.requests) == ([], 0)
    assert lines == bench.audit()


def test_it_acts_when_told_to_and_once(bench: Bench, receiver: Receiver) -> None:
    make_run(bench.run, incident())
    for _ in range(3):
        done = bench.once("--act", "--hooks", "slurm,webhook")
        assert done.returncode == 0, done.stderr
    assert [words[0] for words in bench.slurm.calls()] == ["show", "update", "requeue"]
    assert (len(receiver.good), receiver.bad) == (1, [])


def test_a_failure_is_told_by_the_exit_status(bench: Bench) -> None:
    make_run(bench.run, incident())
    bench.slurm.fail()
    done = bench.once("--act", "--hooks", "slurm")
    assert done.returncode == 1
    assert "Unable to contact slurm controller" in done.stderr


def test_a_storm_opens_the_breaker_until_a_person_resets_it(bench: Bench, receiver: Receiver) -> None:
    make_run(bench.run, *storm(300))
    done = bench.once("--act", "--hooks", "slurm,webhook")
    assert done.returncode == 3
    assert "ends with an open breaker" in done.stderr
    assert len(bench.slurm.calls("update")) == len(receiver.good) == N
    assert sum(line["outcome"] == "refused" and line["why"] == "breaker_open" for line in bench.audit()) == 300 - N

    status = bench.command("status", "--json")
    assert status.returncode == 3
    found = json.loads(status.stdout)
    assert len(found["live"]["nodes_out"]) == N
    assert f"{N} are allowed" in found["live"]["breaker"]
    assert "OPEN since" in bench.command("status").stdout

    bench.append(incident(900, node="node-900"))
    assert bench.once("--act", "--hooks", "slurm").returncode == 3
    assert len(bench.slurm.calls("update")) == N

    reset = bench.command("reset-breaker", "--why", "looked at the switch")
    assert reset.returncode == 0
    assert bench.command("status").returncode == 0
    bench.append(incident(901, node="node-901"))
    assert bench.once("--act", "--hooks", "slurm").returncode == 0
    assert len(bench.slurm.calls("update")) == N + 1
    (word, _) = [line for line in bench.audit() if line["outcome"] == "breaker_reset"]
    assert (word["detail"], bool(word["by"])) == ("looked at the switch", True)


def test_as_a_service_it_follows_the_file_and_tells_of_its_health(bench: Bench, receiver: Receiver) -> None:
    make_run(bench.run, incident(1, node="node-1"))
    address = f"127.0.0.1:{free_ports(1)[0]}"
    service = bench.service("--act", "--hooks", "webhook", "--health", address)
    until(lambda: len(receiver.good) == 1, bench.said)
    bench.append(incident(2, node="node-2"))
    until(lambda: len(receiver.good) == 2, bench.said)
    until(lambda: _ask(address, "/readyz")[0] == 200, bench.said)
    counted = 'whichrank_respond_acts_total{hook="webhook",operation="tell",outcome="done"} 2.0'
    until(lambda: counted in _ask(address, "/metrics")[1], bench.said)
    assert "whichrank_respond_nodes_out 2.0" in _ask(address, "/metrics")[1]

    bench.append(*storm(9)[2:])
    until(lambda: _ask(address, "/readyz")[0] == 503, bench.said)
    until(lambda: len(receiver.good) == N, bench.said)
    assert "would be node" in json.loads(_ask(address, "/readyz")[1])["breaker"]
    assert _ask(address, "/healthz")[0] == 200, "it lives, and does nothing on purpose"
    assert "whichrank_respond_breaker_open 1.0" in _ask(address, "/metrics")[1]
    assert bench.command("reset-breaker").returncode == 0
    until(lambda: _ask(address, "/readyz")[0] == 200, bench.said)
    bench.append(incident(50, node="node-50"))
    until(lambda: len(receiver.good) == N + 1, bench.said)
    service.send_signal(signal.SIGTERM)
    assert service.wait(timeout=WAIT_S) == 0


def test_killed_while_it_acts_it_does_not_act_again(bench: Bench) -> None:
    make_run(bench.run, incident())
    bench.slurm.slow(2.0)
    first = bench.service("--act", "--hooks", "slurm", "--health", "")
    until(lambda: bool(bench.slurm.calls("show")), bench.said)
    first.kill()
    first.wait()
    bench.service("--act", "--hooks", "slurm", "--health", "")
    until(lambda: any(line["outcome"] == "refused" for line in bench.audit()), bench.said)
    assert [line["outcome"] for line in bench.audit()] == ["begun", "unfinished", "refused"]
    assert bench.audit()[2]["why"] == "drain_failed"
    assert bench.slurm.calls("requeue") == bench.slurm.calls("update") == []
    assert len(bench.slurm.calls("show")) == 1


def test_a_second_service_of_the_same_folder_is_refused(bench: Bench) -> None:
    make_run(bench.run, incident())
    bench.service("--health", "")
    until(lambda: "audit:" in bench.said(), bench.said)
    second = bench.once()
    assert second.returncode == 2
    assert "another whichrank respond uses it" in second.stderr


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--hooks", "webhok"], "webhok: there are webhook, slurm, kubernetes"),
        (["--act", "--hooks", "slurm", "--set", "respond_cluster_nodes=0"], "respond_cluster_nodes is needed"),
        (["--hooks", "webhook", "--set", "respond_webhook_secret="], "the webhook needs"),
        (["--set", "respond_slurm_drain=scontrol {nodes}"], "{nodes}: there are {node}, {job}, {reason}"),
        (["--set", "respond_slurm_drain={node} x"], "the command itself is fixed"),
        (["--set", "respond_kubernetes_job=/jobs/{job}"], "the path of a job has {namespace} and {name}"),
        (["--set", "respond_nodes_per_hours=1"], "did you mean 'respond_nodes_per_hour'?"),
        (["--set", "respond_actions=fix_code"], "fix_code: there are retry"),
    ],
)
def test_a_wrong_setting_is_one_line(bench: Bench, words: list[str], said: str) -> None:
    make_run(bench.run, incident())
    refused = bench.once(*words)
    assert refused.returncode == 2
    assert said in refused.stderr
    assert "Traceback" not in refused.stderr


def test_nothing_there_is_one_line_each(bench: Bench) -> None:
    assert "is it the folder of a run" in bench.command("--from", "nowhere", "--once").stderr.replace("nowhere", "it")
    assert "a source is needed" in bench.command("--once").stderr
    assert bench.command("status", WHICHRANK_RESPOND_STATE="nowhere").returncode == 2


def test_secrets_are_not_printed(bench: Bench) -> None:
    make_run(bench.run, incident())
    shown = bench.once("--hooks", "webhook", "--print-config")
    assert shown.returncode == 0
    assert SECRET not in shown.stdout


def _ask(address: str, page: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"http://{address}{page}", timeout=5) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()
    except OSError:
        return 0, ""
