from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.commands.incidents.documents import document
from tests.commands.notify.parts import APIS, SECRET, Api
from whichrank.commands.notify.desk import Desk
from whichrank.commands.notify.ledger import Ledger
from whichrank.commands.notify.messages.routes import Routing
from whichrank.commands.notify.sender import ReceiverPolicy, Sender
from whichrank.commands.notify.service import make_receiver, routing_of
from whichrank.commands.settings.notify_options import NotifyOptions, ReceiverOptions
from whichrank.telemetry.incident import Document

NOW = 1_800_000_000.0


class Room:
    """Desk, ledger and senders of some receivers, on a clock that the test moves. ``again``: as after a kill."""

    def __init__(self, folder: Path, kinds: dict[str, Api], **options: Any) -> None:
        self.now = NOW
        self.folder = folder
        for api in kinds.values():
            api.clock = lambda: self.now
        limits = options.pop("limits", {})
        receivers = {
            name: ReceiverOptions(
                kind=name,  # type: ignore[arg-type]
                url=api.url,
                channel="C042",
                secret_variable="NOTIFY_SECRET",
                timeout_s=0.5,
                **limits,
            )
            for name, api in kinds.items()
        }
        self.options = NotifyOptions(notify_from=Path(), notify_receivers=receivers, **options)
        self.ledger = Ledger(folder)
        self._open()

    def _open(self) -> None:
        self.routing: Routing = routing_of(self.options)
        self.desk = Desk(self.ledger, self.routing, max_age_s=self.options.notify_max_age_s)
        self.senders = {
            name: Sender(
                ReceiverPolicy(
                    name=name,
                    new_per_hour=given.new_per_hour,
                    mark="shadow" if given.shadow else "",
                    link="",
                    cluster="local",
                ),
                make_receiver(name, given, clock=lambda: self.now),
                self.ledger,
                clock=lambda: self.now,
            )
            for name, given in self.options.notify_receivers.items()
        }

    def again(self) -> None:
        self.ledger.close()
        self.ledger = Ledger(self.folder)
        self._open()

    def take(self, *documents: Document) -> None:
        self.ledger.take([(each, self.now) for each in documents], {"offset": 1}, self.now)

    def tell(self, *documents: Document, after_s: float = 10.0) -> None:
        """Time goes on, so that changes need not wait for each other."""
        self.take(*documents)
        self.turn()
        self.now += after_s
        self.turn()

    def turn(self) -> None:
        self.desk.turn(self.now)
        for sender in self.senders.values():
            for _ in range(1000):
                if not sender.turn():
                    break
        self.desk.turn(self.now)

    def close(self) -> None:
        self.ledger.close()


@pytest.fixture(params=sorted(APIS))
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def api(kind: str) -> Iterator[Api]:
    made = APIS[kind]()
    yield made
    made.close()


@pytest.fixture
def room_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Room]]:
    monkeypatch.setenv("NOTIFY_SECRET", SECRET)
    made: list[Room] = []

    def make(kinds: dict[str, Api], **options: Any) -> Room:
        made.append(Room(tmp_path / f"state-{len(made)}", kinds, **options))
        return made[-1]

    yield make
    for room in made:
        room.close()


@pytest.fixture
def room(room_of: Callable[..., Room], kind: str, api: Api) -> Room:
    return room_of({kind: api})


def page(number: int = 1, revision: int = 1, **fields: Any) -> Document:
    return document(f"{number:016x}", revision, **fields)


def suspect(node: str, rank: int = 3) -> list[dict[str, Any]]:
    return [{"scope": "rank", "id": str(rank), "rank": rank, "node": node, "pid": 1, "probability": 0.9}]


def merged(number: int, revision: int, into: int) -> Document:
    return page(number, revision, change="merged", state="merged", merged_into=f"{into:016x}")


def resolved(number: int = 1, revision: int = 9) -> Document:
    return page(
        number,
        revision,
        change="resolved",
        state="resolved",
        times={"onset": 1.7e9, "detected": 1.7e9, "resolved": NOW},
    )
