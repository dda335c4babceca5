from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.commands.incidents.documents import document
from tests.commands.notify.parts import APIS, SECRET, Api
from whichrank.commands.incident_feeds.feed_position import FeedPosition
from whichrank.commands.notify.delivery_planner import DeliveryPlanner
from whichrank.commands.notify.delivery_store import DeliveryStore
from whichrank.commands.notify.messages.routes import Routing
from whichrank.commands.notify.notify_service import make_receiver, routing_of
from whichrank.commands.notify.sender import NoticeSender, ReceiverPolicy
from whichrank.commands.settings.notify_options import NotifyOptions, ReceiverOptions
from whichrank.telemetry.incident_document import IncidentDocument
from whichrank.telemetry.incident_reading import read_incident

NOW = 1_800_000_000.0


class Room:
    """Planner, store and senders of some receivers, on a clock that the test moves. ``again``: as after a kill."""

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
        self.store = DeliveryStore(folder)
        self._open()

    def _open(self) -> None:
        self.routing: Routing = routing_of(self.options)
        self.planner = DeliveryPlanner(self.store, self.routing, max_age_s=self.options.notify_max_age_s)
        self.senders = {
            name: NoticeSender(
                ReceiverPolicy(
                    name=name,
                    new_per_hour=given.new_per_hour,
                    mark="shadow" if given.shadow else "",
                    link="",
                    cluster="local",
                ),
                make_receiver(name, given, clock=lambda: self.now),
                self.store,
                clock=lambda: self.now,
            )
            for name, given in self.options.notify_receivers.items()
        }

    def again(self) -> None:
        self.store.close()
        self.store = DeliveryStore(self.folder)
        self._open()

    def take(self, *documents: IncidentDocument) -> None:
        self.store.take([(each, self.now) for each in documents], FeedPosition(byte=1), self.now)

    def tell(self, *documents: IncidentDocument, after_s: float = 10.0) -> None:
        """Time goes on, so that changes need not wait for each other."""
        self.take(*documents)
        self.turn()
        self.now += after_s
        self.turn()

    def turn(self) -> None:
        self.planner.turn(self.now)
        for sender in self.senders.values():
            for _ in range(1000):
                if not sender.turn():
                    break
        self.planner.turn(self.now)

    def close(self) -> None:
        self.store.close()


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


def page(number: int = 1, revision: int = 1, **fields: Any) -> IncidentDocument:
    return read_incident(document(f"{number:016x}", revision, **fields))


def suspect(node: str, rank: int = 3) -> list[dict[str, Any]]:
    return [{"scope": "rank", "id": str(rank), "rank": rank, "node": node, "pid": 1, "probability": 0.9}]


def merged(number: int, revision: int, into: int) -> IncidentDocument:
    return page(number, revision, change="merged", state="merged", merged_into=f"{into:016x}")


def resolved(number: int = 1, revision: int = 9) -> IncidentDocument:
    return page(
        number,
        revision,
        change="resolved",
        state="resolved",
        times={"onset": 1.7e9, "detected": 1.7e9, "resolved": NOW},
    )
