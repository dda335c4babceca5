"""What earlier releases left is read: states in mid-incident go on, captures are judged, rings tell all they hold.

``make.py`` writes the files when a release is made; each folder here is one.
"""

from __future__ import annotations

import gzip
import json
import shutil
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from tests.agents.conftest import Watched
from tests.golden.make import SECOND
from tests.processors.runner_examples import Clock
from whichrank.commands.embedded.embedded_operators import make_operators
from whichrank.processors.runner import EmbeddedRunner
from whichrank.processors.state_versions import OLDEST_READ, SCHEMA_VERSION
from whichrank.telemetry.records import Incident, Record
from whichrank.telemetry.vocabulary import EventName
from whichrank.transport.embedded import EmbeddedBus

HERE = Path(__file__).parent
RELEASES = sorted(path.parent.name for path in HERE.glob("*/facts.json"))


class Left:
    """What one release left, unpacked."""

    def __init__(self, release: str, folder: Path) -> None:
        source = HERE / release
        self.facts: dict[str, Any] = json.loads((source / "facts.json").read_text())
        self.folder = folder
        for packed in source.rglob("*.gz"):
            path = folder / packed.relative_to(source).with_suffix("")
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            with gzip.open(packed) as file, path.open("wb") as target:
                shutil.copyfileobj(file, target)

    def judge(self, state: Path | None) -> list[dict[str, Any]]:
        """Go on from a state, or judge all from the capture; the revisions concluded."""
        clock = Clock()
        bus = EmbeddedBus(self.folder / "capture", monotonic_ns=clock)
        revisions: list[dict[str, Any]] = []

        def note(record: Record) -> None:
            if isinstance(record.payload, Incident):
                revisions.append(dict(record.payload.document))

        self.said: list[str] = []
        runner = EmbeddedRunner(bus, state, make_operators(), note, live=False, report=self.said.append)
        runner.drain()
        runner.let_time_pass(5 * SECOND)
        runner.close()
        bus.close()
        return revisions


@pytest.fixture(params=RELEASES)
def left(request: pytest.FixtureRequest, tmp_path: Path) -> Left:
    return Left(request.param, tmp_path)


def test_there_are_some() -> None:
    assert RELEASES


def test_an_upgrade_in_mid_incident_loses_and_repeats_nothing(left: Left) -> None:
    before = left.facts["revisions"]
    assert before[-1]["state"] == "open"
    after = left.judge(left.folder / "state.sqlite")
    assert left.said == [], "the state was read, not set aside"
    assert {document["id"] for document in after} == {before[0]["id"]}, "no second incident"
    assert [d["revision"] for d in after] == list(
        range(before[-1]["revision"] + 1, before[-1]["revision"] + 1 + len(after))
    )
    assert all(document["change"] != "opened" for document in after)
    assert after[-1]["suspects"][0]["rank"] == 2


def test_its_capture_is_judged_as_it_was(left: Left) -> None:
    revisions = left.judge(None)
    first, was = revisions[0], left.facts["revisions"][0]
    for name in ("id", "kind", "bucket", "scope", "first_bad", "victims"):
        assert first[name] == was[name], name
    # Until 0.1.0 each wait that was noticed was a page at once; now the page comes when it has lasted.
    assert first["severity"] == ("info" if was["kind"] == "rank_not_entered" else was["severity"])
    assert first["times"]["onset"] == pytest.approx(was["times"]["onset"], abs=0.5)


def test_its_rings_tell_all_they_hold(left: Left, tmp_path: Path) -> None:
    rings = tmp_path / "ring"
    (rings / left.facts["ring"]).chmod(0o600)
    rings.chmod(0o700)
    watched = Watched(rings)
    watched.agent.read_left_behind()
    watched.agent.close()
    assert watched.events(EventName.RANK_EXIT)
    blocks = watched.blocks(EventName.BLOCK_COLLECTIVES)
    seen = {(int(row["seq"])) for block in blocks for row in block.rows}
    assert len(seen) == left.facts["collectives"]
    assert sum(len(block.rows) for block in watched.blocks(EventName.BLOCK_STEPS)) == left.facts["steps"]


def test_a_newer_state_is_set_aside_and_made_anew(left: Left) -> None:
    state = left.folder / "state.sqlite"
    database = sqlite3.connect(state)
    database.execute(f"PRAGMA user_version = {SCHEMA_VERSION + 1}")
    database.close()
    revisions = left.judge(state)
    assert any("newer release" in line for line in left.said)
    assert (left.folder / "state.sqlite.aside-1").exists()
    assert revisions[0]["id"] == left.facts["revisions"][0]["id"], "the same incident, from the capture"


def test_versions_that_are_read_are_at_most_two_releases_old() -> None:
    assert SCHEMA_VERSION - 2 <= OLDEST_READ <= SCHEMA_VERSION
