"""The documents' commands that speak to Kafka, executed as they stand there: a job, its judge, and what people ask."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from tests.docs_commands.collect import all_commands
from tests.docs_commands.coverage import InStack, cover_of
from tests.docs_commands.room import Said, environment, run_shell
from tests.newcomer import script
from tests.stack.parts.kafka import Kafka
from tests.stack.parts.service import eventually

ROOT = Path(__file__).parents[2]
WHICHRANK = Path(sys.executable).with_name("whichrank")
TORCHRUN = Path(sys.executable).with_name("torchrun")
#: They go on until they are told to end.
SERVICES = ("agent", "process")
#: A name alone takes its broker from the variable.
WAIT_S = 120.0


class Commands:
    """On a broker of all tests, under a prefix of its own. done: texts of the documents that were executed."""

    def __init__(self, kafka: Kafka, prefix: str, folder: Path) -> None:
        self.folder, self.address = folder, kafka.address
        self.environ = {
            **environment(folder),
            "WHICHRANK_KAFKA": kafka.address,
            "WHICHRANK_KAFKA_TOPIC_PREFIX": prefix,
            "WHICHRANK_STATE": str(folder / "state"),
            "WHICHRANK_DATA": str(folder / "data"),
            "WHICHRANK_RINGS": str(folder / "rings"),
            "WHICHRANK_HEALTH": "",
        }
        self.texts = [each.text for each in all_commands() if isinstance(cover_of(each.text), InStack)]
        self.done: set[str] = set()
        self.running: list[subprocess.Popen[bytes]] = []

    def run(self, text: str, **places: str) -> Said:
        """text: as it stands in a document. places: what stands for its words in capitals."""
        assert text in self.texts, text
        self.done.add(text)
        typed = text.replace("HOST:PORT", self.address).replace("localhost:9092", self.address)
        for placeholder, place in places.items():
            typed = re.sub(rf"\b{placeholder}\b", place, typed)
        return run_shell(typed, self.folder, self.environ)

    def start(self, text: str) -> subprocess.Popen[bytes]:
        assert text in self.texts, text
        self.done.add(text)
        words = shlex.split(text.replace("HOST:PORT", self.address))[1:]
        with (self.folder / f"{words[0]}.log").open("ab") as log:
            started = subprocess.Popen([WHICHRANK, *words], cwd=self.folder, env=self.environ, stdout=log, stderr=log)
        self.running.append(started)
        return started

    def said(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text()

    def left(self) -> Sequence[str]:
        return sorted(set(self.texts) - self.done)


@pytest.fixture
def commands(kafka: Kafka, topic_prefix: str, tmp_path: Path) -> Iterator[Commands]:
    made = Commands(kafka, topic_prefix, tmp_path)
    (tmp_path / "rings").mkdir(mode=0o700)
    (tmp_path / "train.py").write_text(script((ROOT / "README.md").read_text(encoding="utf-8")), encoding="utf-8")
    yield made
    for process in made.running:
        process.kill()
        process.wait()


def test_from_topics_to_a_report_as_the_documents_have_it(commands: Commands) -> None:
    made = commands.run("whichrank topics --kafka HOST:PORT")
    assert made.status == 0, made.output
    again = commands.run("whichrank topics")
    assert again.status == 0, again.output
    services = [
        commands.start("whichrank process --kafka HOST:PORT"),
        commands.start("whichrank agent --kafka HOST:PORT"),
    ]
    job = f"{TORCHRUN} --nproc-per-node=4 train.py"
    watched = commands.run("whichrank run --kafka HOST:PORT -- COMMAND", COMMAND=job)
    assert "who         rank 2" in watched.output, watched.output[-2000:]

    listed = "whichrank incidents list --kafka HOST:PORT"
    eventually(
        lambda: "rank_raised" in commands.run(listed).output,
        what="the incident of the job is listed",
        timeout_s=WAIT_S,
    )
    incident = str(_documents(commands)[0]["id"])
    archive = commands.run("whichrank incidents export ID --kafka HOST:PORT", ID=incident)
    assert archive.status == 0, archive.output
    assert (commands.folder / f"incident-{incident}.tar.gz").is_file()
    job_id = str(dict(_documents(commands)[0]["job"])["id"])  # type: ignore[call-overload]
    report = commands.run("whichrank report --kafka HOST:PORT --job ID", ID=job_id)
    assert report.status == 0, report.output
    goodput = "whichrank goodput --kafka localhost:9092"
    eventually(lambda: commands.run(goodput).status == 0, what="seconds are accounted for", timeout_s=WAIT_S)

    for text in [text for text in commands.texts if text.startswith("whichrank plan announce")]:
        announced = commands.run(text)
        # The document's maintenance was announced for a day that has passed.
        assert announced.status == 0 or "2026-05-01" in text, announced.output
    plans = commands.run("whichrank plan list --kafka HOST:PORT")
    assert plans.status == 0, plans.output
    assert "drain" in plans.output
    plan = _plan(commands)
    cancelled = commands.run("whichrank plan cancel ID --kafka HOST:PORT", ID=plan)
    assert cancelled.status == 0, cancelled.output
    letters = commands.run("whichrank dlq list")
    assert letters.status == 0, letters.output

    for service in services:
        assert service.poll() is None, (commands.said("process"), commands.said("agent"))
        service.terminate()
        assert service.wait(30) == 0, (commands.said("process"), commands.said("agent"))
    # A name alone, with the broker from the variable, is the same command.
    names = {text for text in commands.left() if text in ("whichrank agent", "whichrank process")}
    names |= {text for text in commands.left() if text == "whichrank run --kafka HOST:PORT"}
    assert set(commands.left()) == names


def _documents(commands: Commands) -> list[dict[str, object]]:
    told = run_shell("whichrank incidents list --kafka $WHICHRANK_KAFKA --json", commands.folder, commands.environ)
    found: list[dict[str, object]] = json.loads(told.output[told.output.index("{") :])["incidents"]
    return found


def _plan(commands: Commands) -> str:
    told = run_shell("whichrank plan list --kafka $WHICHRANK_KAFKA --json", commands.folder, commands.environ)
    return str(json.loads(told.output[told.output.index("{") :])["plans"][0]["id"])
