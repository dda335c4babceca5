"""Pages counted at receivers: ``python -m tests.notify_pages``. Needs Java and Maven for the broker, as ``make stack``.

Two parts, with four receivers on loopback that play their APIs (tests/commands/notify/parts.py) and a real Kafka:
ranks of real torchrun jobs are killed, and the time from the kill to the page is taken; then causes come by the topic,
are revised and merge, while ``whichrank notify`` and the broker are killed and the receivers fail, and each cause's
pages are counted. There is no Prometheus at all.
"""

from __future__ import annotations

import argparse
import math
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.commands.notify.conftest import merged, page, suspect
from tests.commands.notify.parts import APIS, DROP, Api, Status, receiver_table
from tests.commands.respond.parts import Receiver
from tests.stack.parts.kafka import Kafka
from tests.stack.parts.service import eventually
from tests.stack.test_notify import NotifyRoad
from tests.stack.test_process_command import WAIT_S, WHICHRANK
from whichrank.evaluation.bench.bench_report import exit_code, print_lines
from whichrank.simulator.scoring.summary import ScoreLine
from whichrank.telemetry.incident_document import IncidentDocument
from whichrank.telemetry.incident_writing import write_incident
from whichrank.telemetry.otlp import encode_payloads
from whichrank.telemetry.records import Incident
from whichrank.telemetry.topics import TOPIC_INCIDENTS

ASKED_S = 5.0
#: Of each round: alone, merged while on hold, merged with a leader that was on hold.
ALONE, HELD, HELD_LEADER = 6, 2, 2
#: Between two kills: a page within 10 s of another job's is held on purpose (docs/shared-causes.md).
APART_S = 15.0
QUIET = 40


class Room:
    """A broker, receivers, and what is started against them."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.draws = random.Random(seed)
        self.apis: dict[str, Api] = {name: kind() for name, kind in APIS.items()}
        kafka = Kafka(folder / "kafka")
        kafka.start()
        unused = Receiver()
        self.road = NotifyRoad(kafka, "pages.", folder, unused)
        unused.close()
        tables = [receiver_table(api, name, new_per_hour=100_000) for name, api in self.apis.items()]
        (folder / "whichrank.toml").write_text("\n".join(tables))
        self.road.config = folder / "whichrank.toml"
        self._numbers = 0
        self.notify = self._started()

    def close(self) -> None:
        for process in self.road.running:
            process.kill()
            process.wait()
        self.road.kafka.kill()

    def number(self) -> int:
        self._numbers += 1
        return self._numbers

    def kill_notify(self) -> None:
        self.notify.kill()
        self.notify.wait()
        self.notify = self._started()

    def _started(self) -> subprocess.Popen[bytes]:
        before = self.road.said("notify").count("tells")
        started = self.road.notify()
        eventually(
            lambda: self.road.said("notify").count("tells") > before, what=self.road.said("notify"), timeout_s=WAIT_S
        )
        return started

    def send(self, *documents: IncidentDocument) -> None:
        for each in documents:
            self.road.send(TOPIC_INCIDENTS, encode_payloads([Incident(document=write_incident(each))]), key=each.id)

    def make_trouble(self) -> None:
        """The next requests of each receiver: refused for now, failed, or done and the answer lost."""
        for api in self.apis.values():
            ways: list[Status | str] = [Status(code=429, headers={"Retry-After": "1"}), Status(code=503), DROP]
            api.answers = self.draws.choices(ways, k=3)

    def pages_of(self, api: Api, keys: Sequence[str]) -> int:
        return sum(key in keys for key in api.pages)


def onset_to_receiver(room: Room, jobs: int) -> dict[str, list[float]]:
    """Ranks of real jobs are killed, one after the other."""
    road = room.road
    road.process()
    road.wait_until_ready()
    taken: dict[str, list[float]] = {name: [] for name in room.apis}
    for number in range(jobs):
        job = str(4711 + number)
        before = {name: len(api.pages) for name, api in room.apis.items()}
        agent = f"agent-{job}"
        # A node of its own: the third rank that dies on one node is that node's history, and no new page.
        road.environment["WHICHRANK_NODE_ID"] = f"node-{job}"
        road.rings = road.folder / f"rings-{job}"
        road.rings.mkdir()
        words = ("--rings", road.rings, "--data", road.folder / f"data-{job}", "--set", "collect=none")
        running = road.start(agent, WHICHRANK, "agent", *words)
        road.job(job)
        eventually(lambda: job in road.said(agent), what=road.said(agent), timeout_s=WAIT_S)  # noqa: B023
        last = max((api.paged_at[-1] for api in room.apis.values() if api.paged_at), default=0.0)
        time.sleep(max(2.0, last + APART_S - time.time()))  # it trains
        road.kill_rank(job)
        eventually(
            lambda: all(len(api.pages) > before[name] for name, api in room.apis.items()),  # noqa: B023
            what=road.said("notify"),
            timeout_s=WAIT_S,
        )
        for name, api in room.apis.items():
            taken[name].append(api.paged_at[before[name]] - road.killed_at(job))
        running.terminate()
    return taken


def revision_to_receiver(room: Room) -> dict[str, list[float]]:
    """Incidents by the topic, while nothing is wrong."""
    sent: dict[str, float] = {}
    for _ in range(QUIET):
        document = _new(room.number())
        sent[document.id] = time.time()
        room.send(document)
    _wait(room, [[key] for key in sent])
    return {
        name: [at - sent[key] for key, at in zip(api.pages, api.paged_at, strict=True) if key in sent]
        for name, api in room.apis.items()
    }


def pages_under_trouble(room: Room, rounds: int) -> list[list[str]]:
    """The causes, each by the ids that belong to it."""
    causes: list[list[str]] = []
    for turn in range(rounds):
        room.make_trouble()
        alone = [room.number() for _ in range(ALONE)]
        pairs = [(room.number(), room.number()) for _ in range(HELD + HELD_LEADER)]
        hold: dict[str, Any] = {"hold": {"until": time.time() + 60.0, "because": "others fail, too"}}
        room.send(*(_new(number) for number in alone))
        for index, (leader, other) in enumerate(pairs):
            is_leader_held = index >= HELD
            room.send(_new(leader, **(hold if is_leader_held else {})), _new(other, **({} if is_leader_held else hold)))
        paged = [[_id(number)] for number in alone] + [
            [_id(other if index >= HELD else leader)] for index, (leader, other) in enumerate(pairs)
        ]
        if turn % 2:
            time.sleep(room.draws.uniform(0.0, 0.4))
            room.kill_notify()
        if turn % 3 == 2:
            room.road.kafka.kill()
            time.sleep(2.0)
            room.road.kafka.start()
        _wait(room, paged)
        room.make_trouble()
        room.send(*(_new(number, 2, suspects=suspect(f"node-{number}")) for number in alone))
        for leader, other in pairs:
            room.send(merged(other, 2, into=leader), _new(leader, 2, kind="switch_fault", scope="switch"))
        if turn % 2 == 0:
            time.sleep(room.draws.uniform(0.0, 0.4))
            room.kill_notify()
        room.send(*(_new(number, 3, suspects=suspect(f"node-{number + 1}")) for number in alone))
        room.send(*(_new(number) for number in alone))  # a processor that begins anew tells again
        causes += [[_id(number)] for number in alone] + [[_id(leader), _id(other)] for leader, other in pairs]
    last = room.number()
    room.send(_new(last))
    causes.append([_id(last)])
    _wait(room, causes)
    time.sleep(15.0)  # what is told late is counted, too
    return causes


def _new(number: int, revision: int = 1, **fields: Any) -> IncidentDocument:
    now = time.time()
    return page(number, revision, times={"onset": now, "detected": now}, **fields)


def _id(number: int) -> str:
    return f"{number:016x}"


def _wait(room: Room, causes: Sequence[Sequence[str]]) -> None:
    def all_are_there() -> bool:
        return all(room.pages_of(api, keys) for api in room.apis.values() for keys in causes)

    eventually(all_are_there, what=room.road.said("notify")[-2000:], timeout_s=WAIT_S)


def _delay_line(name: str, taken: Sequence[float]) -> ScoreLine:
    ordered = sorted(taken)
    p95 = ordered[min(len(ordered) - 1, math.ceil(0.95 * len(ordered)) - 1)]
    within = sum(seconds <= ASKED_S for seconds in ordered)
    measured = f"{p95:.2f} s, longest {ordered[-1]:.2f} s"
    return ScoreLine(
        name=name,
        asked=f"p95 <= {ASKED_S:.0f} s",
        measured=measured,
        share=f"{within} of {len(ordered)} within",
        ok=p95 <= ASKED_S,
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=10, help="whose rank is killed")
    parser.add_argument("--rounds", type=int, default=6, help="of ten causes each, under trouble")
    given = parser.parse_args()
    lines: list[ScoreLine] = []
    with tempfile.TemporaryDirectory(prefix="whichrank-pages-") as folder:
        room = Room(Path(folder), given.seed)
        try:
            for name, taken in onset_to_receiver(room, given.jobs).items():
                lines.append(_delay_line(f"rank killed -> {name}", taken))
            for name, taken in revision_to_receiver(room).items():
                lines.append(_delay_line(f"revision on the topic -> {name}", taken))
            causes = pages_under_trouble(room, given.rounds)
            for name, api in room.apis.items():
                counts = [room.pages_of(api, keys) for keys in causes]
                right, more, none = counts.count(1), sum(count > 1 for count in counts), counts.count(0)
                lines.append(
                    ScoreLine(
                        name=f"{name}: pages per cause",
                        asked="exactly 1",
                        measured=f"{more} twice or more, {none} never",
                        share=f"{right} of {len(counts)}",
                        ok=right == len(counts),
                    )
                )
            wrong = {name: len(api.wrong) for name, api in room.apis.items()}
            share = f"{sum(wrong.values())} of {sum(len(api.requests) for api in room.apis.values())}"
            lines.append(
                ScoreLine(
                    name="requests that an API would refuse",
                    asked="none",
                    measured=", ".join(f"{name} {count}" for name, count in wrong.items()),
                    share=share,
                    ok=not any(wrong.values()),
                )
            )
        finally:
            room.close()
    print_lines(lines, "whichrank notify: notify and broker killed, receivers failing, suspects revised, merges")
    return exit_code(lines)


if __name__ == "__main__":
    sys.exit(main())
