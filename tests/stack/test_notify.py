"""From a rank killed in a real torchrun job to the page, over a real Kafka; and that it stays the only one.

Prometheus is not there at all: ``whichrank notify`` needs the broker and nothing else.
"""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.commands.notify.parts import APIS, SECRET, Api, receiver_table
from tests.commands.respond.parts import Receiver
from tests.stack.parts.kafka import Kafka
from tests.stack.parts.service import eventually
from tests.stack.test_process_command import WAIT_S, WHICHRANK
from tests.stack.test_respond import Road


@pytest.fixture
def apis() -> Iterator[dict[str, Api]]:
    made = {name: kind() for name, kind in APIS.items()}
    yield made
    for api in made.values():
        api.close()


@pytest.fixture
def road(fresh_kafka: Callable[..., Kafka], tmp_path: Path, apis: dict[str, Api]) -> Iterator[NotifyRoad]:
    receiver = Receiver()
    made = NotifyRoad(fresh_kafka(), "pages.", tmp_path, receiver)
    receiver.close()
    (tmp_path / "whichrank.toml").write_text("".join(receiver_table(api, name) for name, api in apis.items()))
    yield made
    for process in made.running:
        process.kill()
        process.wait()


class NotifyRoad(Road):
    """And the broker itself, and ``whichrank notify``."""

    def __init__(self, kafka: Kafka, prefix: str, folder: Path, receiver: Receiver) -> None:
        super().__init__(kafka, prefix, folder, receiver)
        self.kafka = kafka
        self.environment |= {"NOTIFY_SECRET": SECRET, "WHICHRANK_NOTIFY_STATE": str(folder / "notify")}
        self.config = folder / "whichrank.toml"
        made = self.command("topics", "--partitions", "3")
        assert made.returncode == 0, made.stderr

    def notify(self) -> subprocess.Popen[bytes]:
        return self.start("notify", WHICHRANK, "notify", "--config", self.config, "--health", "")


def test_one_page_whatever_is_killed(road: NotifyRoad, apis: dict[str, Api]) -> None:
    processor = road.process(name="one")
    road.wait_until_ready()
    road.start(
        "agent", WHICHRANK, "agent", "--rings", road.rings, "--data", road.folder / "data", "--set", "collect=none"
    )
    notify = road.notify()
    eventually(lambda: "tells" in road.said("notify"), what=road.said("notify"), timeout_s=WAIT_S)
    road.job()
    eventually(lambda: "jobs here:" in road.said("agent"), what="the agent finds the job", timeout_s=WAIT_S)
    road.kill_rank()
    eventually(lambda: all(api.pages for api in apis.values()), what=road.said("notify"), timeout_s=WAIT_S)
    killed = road.killed_at()
    print("\nkilled -> " + ", ".join(f"{name} {api.paged_at[0] - killed:.2f} s" for name, api in apis.items()))

    notify.kill()
    notify.wait()
    road.kafka.kill()
    processor.kill()
    processor.wait()
    notify = road.notify()  # without a broker it waits
    time.sleep(2.0)
    assert notify.poll() is None
    road.kafka.start()
    road.process(name="of-an-empty-state")
    road.wait_until_ready()
    # A second cause comes through, so all before it was read.
    first = {name: list(api.pages) for name, api in apis.items()}
    assert all(len(pages) == 1 for pages in first.values()), first
    road.job("4712")
    eventually(lambda: road.said("agent").count("4712") > 0, what=road.said("agent"), timeout_s=WAIT_S)
    road.kill_rank("4712")
    eventually(lambda: all(len(api.pages) > 1 for api in apis.values()), what=road.said("notify"), timeout_s=WAIT_S)
    notify.terminate()
    assert notify.wait(timeout=60) == 0
    assert {name: len(api.pages) for name, api in apis.items()} == dict.fromkeys(apis, 2)
    assert {name: len(set(api.pages)) for name, api in apis.items()} == dict.fromkeys(apis, 2)
    assert [api.wrong for api in apis.values()] == [[], [], [], []]
