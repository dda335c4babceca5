"""What the services of issue 38's beginning have left: they go on where those stopped, and say nothing twice.

Both files were written by ``whichrank notify`` and ``whichrank respond`` of 29 November 2026, before they had a common
base, over one simulated run.
"""

from __future__ import annotations

import gzip
from pathlib import Path

from whichrank.commands.notify.delivery_store import DeliveryStore
from whichrank.commands.respond.action_store import ActionStore
from whichrank.telemetry.vocabulary import Severity

LEFT = Path(__file__).with_name("left_by_older")
INCIDENT, REVISION, OFFSET = "611c2c1924c2e25a", 5, 15034
#: A minute after they were written.
NOW_S = 1795956800.0


def left(name: str, folder: Path) -> Path:
    (folder / f"{name}.sqlite").write_bytes(gzip.decompress((LEFT / f"{name}.sqlite.gz").read_bytes()))
    return folder


def test_notify_goes_on(tmp_path: Path) -> None:
    store = DeliveryStore(left("notify", tmp_path))
    try:
        position = store.position()
        assert position.byte == OFFSET
        known = store.incident(INCIDENT)
        assert known is not None
        assert (known.revision, known.severity) == (REVISION, Severity.PAGE)
        assert not store.is_fresh()
        store.take([(known, NOW_S)], position, NOW_S)
        assert store.waiting(NOW_S) == []  # this revision was there
    finally:
        store.close()


def test_respond_goes_on(tmp_path: Path) -> None:
    store = ActionStore(left("respond", tmp_path), "dry_run")
    try:
        assert store.position().byte == OFFSET
        assert store.due(NOW_S) == []
        assert store.last_acts(5) == []
    finally:
        store.close()
