"""``whichrank grafana annotate`` as people start it, on the folder of a run, with a Grafana that fails meanwhile."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.commands.incidents.documents import document, make_run
from tests.commands.notify.conftest import suspect
from tests.grafana.small_grafana import TOKEN, SmallGrafana, running
from whichrank.commands.grafana.annotations import MOST_WAITING, Annotations
from whichrank.grafana.site import GrafanaSite
from whichrank.telemetry.incident import Document, canonical_line
from whichrank.telemetry.incident_reading import read_incident

WHICHRANK = Path(sys.executable).with_name("whichrank")
WAIT_S = 60.0


@pytest.fixture
def grafana() -> Iterator[SmallGrafana]:
    with running(SmallGrafana()) as made:
        yield made


def fresh(number: int, revision: int = 1, **fields: object) -> Document:
    now = time.time()
    return document(f"{number:016x}", revision, **{"times": {"onset": now - 3.0, "detected": now}, **fields})


def ended(number: int, revision: int) -> Document:
    now = time.time()
    times = {"onset": now - 3.0, "detected": now - 2.0, "resolved": now}
    return fresh(number, revision, change="resolved", state="resolved", times=times)


class Room:
    def __init__(self, folder: Path, grafana: SmallGrafana) -> None:
        self.folder, self.grafana, self.run = folder, grafana, folder / "run"
        make_run(self.run)
        (self.run / "incidents.jsonl").write_bytes(b"")
        self.environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith(("WHICHRANK_", "GRAFANA_"))},
            "GRAFANA_TOKEN": TOKEN,
            "PYTHONWARNINGS": "ignore",
        }
        self.words = [
            *(str(WHICHRANK), "grafana", "annotate", "--from", str(self.run), "--url", grafana.url),
            *("--state", str(folder / "state")),
        ]

    def once(self, **environment: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*self.words, "--once"],
            env={**self.environment, **environment},
            cwd=self.folder,
            capture_output=True,
            text=True,
            timeout=WAIT_S,
            check=False,
        )

    def service(self) -> subprocess.Popen[str]:
        with (self.folder / "service.log").open("a") as log:
            return subprocess.Popen(
                self.words, env=self.environment, cwd=self.folder, stdout=log, stderr=log, text=True
            )

    def append(self, *documents: Document) -> None:
        with (self.run / "incidents.jsonl").open("ab") as file:
            file.write(b"".join(map(canonical_line, documents)))


@pytest.fixture
def room(tmp_path: Path, grafana: SmallGrafana) -> Room:
    return Room(tmp_path, grafana)


def eventually(holds: Callable[[], bool], room: Room) -> None:
    until = time.monotonic() + WAIT_S
    while not holds():
        assert time.monotonic() < until, (room.folder / "service.log").read_text()
        time.sleep(0.1)


def test_what_is_there_is_annotated_once_however_often_it_is_read(room: Room) -> None:
    room.append(fresh(1), fresh(2), fresh(1, 2, suspects=suspect("node-9")), ended(2, 2))
    first = room.once()
    assert first.returncode == 0, first.stderr
    assert "2 made" in first.stderr
    (room.folder / "state" / "annotate.json").unlink()
    again = room.once()
    assert again.returncode == 0, again.stderr
    assert "2 same" in again.stderr
    assert len(room.grafana.annotations) == 2
    one, two = sorted(room.grafana.annotations.values(), key=lambda made: f"incident:{1:016x}" not in made["tags"])
    assert "node-9" in one["text"]
    assert two["timeEnd"] > two["time"]


def test_the_service_follows_is_killed_and_goes_on(room: Room) -> None:
    service = room.service()
    try:
        room.append(fresh(1))
        eventually(lambda: len(room.grafana.annotations) == 1, room)
        service.kill()
        service.wait()
        room.append(ended(1, 2), fresh(2))
        service = room.service()
        eventually(lambda: len(room.grafana.annotations) == 2, room)
        eventually(lambda: any(made["timeEnd"] > made["time"] for made in room.grafana.annotations.values()), room)
        service.send_signal(signal.SIGTERM)
        assert service.wait(WAIT_S) == 0
        assert "1 changed, 1 made" in (room.folder / "service.log").read_text()
    finally:
        service.kill()
        service.wait()


def test_a_grafana_that_fails_is_asked_again_and_nothing_is_lost(room: Room) -> None:
    room.grafana.fails_with = 503
    service = room.service()
    try:
        room.append(*(fresh(number) for number in range(1, 8)))
        eventually(lambda: "answers 503" in (room.folder / "service.log").read_text(), room)
        room.grafana.fails_with = None
        eventually(lambda: len(room.grafana.annotations) == 7, room)
    finally:
        service.kill()
        service.wait()
    assert (room.folder / "service.log").read_text().count("answers 503") == 1


def test_one_that_is_refused_does_not_stop_the_others(room: Room) -> None:
    room.grafana.refuses = f"incident:{1:016x}"
    room.append(fresh(1), fresh(2))
    done = room.once()
    assert done.returncode == 1
    assert "1 made, 1 refused" in done.stderr
    assert "it answers 400" in done.stderr


def test_what_is_old_is_passed_over_and_counted(room: Room) -> None:
    room.append(document(f"{1:016x}"), fresh(2))  # the first is of 2023
    done = room.once()
    assert done.returncode == 0, done.stderr
    assert "1 made, 1 old" in done.stderr


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"GRAFANA_TOKEN": "wrong"}, "it answers 401"),
        ({"WHICHRANK_GRAFANA_TOKEN_FILE": "nowhere"}, "grafana_token_file nowhere"),
        ({"WHICHRANK_ANNOTATE_MAX_AGE_S": "-1"}, "annotate_max_age_s"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(room: Room, change: dict[str, str], said: str) -> None:
    room.append(fresh(1))
    service = subprocess.Popen(
        [*room.words, "--once"],
        env={**room.environment, **change},
        cwd=room.folder,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert service.stderr is not None
    try:
        lines = iter(service.stderr)
        assert any(said in line and line.startswith("whichrank: ") for line in lines)
    finally:
        service.kill()
        service.wait()


def test_what_waits_is_bounded_and_the_last_revision_counts(grafana: SmallGrafana) -> None:
    waiting = Annotations(GrafanaSite(grafana.url, TOKEN), max_age_s=1e9)
    now = time.time()
    waiting.take([(read_incident(fresh(number)), now) for number in range(MOST_WAITING + 3)], now)
    assert (len(waiting), waiting.counts["dropped"]) == (MOST_WAITING, 3)
    few = Annotations(GrafanaSite(grafana.url, TOKEN), max_age_s=1e9)
    few.take([(read_incident(ended(1, 3)), now), (read_incident(fresh(1, 2)), now)], now)
    assert few.put(10) == 1
    (made,) = grafana.annotations.values()
    assert "(resolved)" in made["text"]
