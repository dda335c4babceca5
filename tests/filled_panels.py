"""Every panel and every rule on what the real pipeline makes: ``python -m tests.filled_panels``.

A real broker, agent, processor, Collector, Prometheus and VictoriaLogs. A torchrun job trains, saves and evaluates
until one of its ranks is killed, and is started again; its node's GPUs are played (tests/played_gpu). Simulated jobs
have faults that one machine cannot have, at the pace of life. Then each query of each dashboard and each rule's
expression is asked of the stores: none may fail, and what stays empty must be on the list of what is empty where all is
well. Each page has its alert, which ends when the page has.
Needs Java and Maven for the broker and Go for the stores, as ``make stack``; some eight minutes.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.played_gpu.played import PlayedGpus, Profile
from tests.stack.parts.kafka import Kafka
from tests.stack.parts.placing import REPOSITORY
from tests.stack.parts.service import eventually
from tests.stack.parts.whole_stack import assemble
from tests.stack.test_process_command import WAIT_S, WHICHRANK, Bench
from whichrank.commands.run.command import BOOTSTRAP
from whichrank.evaluation.bench.bench_report import exit_code, in_short, print_lines
from whichrank.simulator.scoring.summary import ScoreLine

DASHBOARDS = REPOSITORY / "grafana" / "dashboards"
REAL_JOB = "real-4711"
#: What the machine itself cannot have: other nodes, their ports that come and go, storage that is too slow for all.
SIMULATED = ("gpu_memory_error", "port_blinks", "metadata_storm")
SIMULATED_RANKS, SIMULATED_MINUTES = 32, 4.0
RANKS = 4
#: Panels that are empty where all is well, and why.
EMPTY_WHERE_ALL_IS_WELL: Mapping[tuple[str, str], str] = {
    ("whichrank-fleet", "Collectors that are blind"): "none is",
    ("whichrank-pipeline", "Collectors that fail"): "none does",
    ("whichrank-pipeline", "Dropped by agents, by reason"): "nothing was dropped",
    ("whichrank-node", "Clock"): "nobody sets this machine's clock right, so there is no offset to tell",
}
#: How long stores may take to have seen everything: recorded series come every 30 s, and look back a minute.
SEEN_S = 120.0
#: An alert goes on for two minutes after its incident, and is looked at every ten seconds.
ENDED_S = 240.0
SCRIPT = """
import os, signal, sys, time
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
dist.init_process_group("gloo")
rank = dist.get_rank()
other = dist.new_group([0, 1])
model = DistributedDataParallel(torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 8)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
loader = torch.utils.data.DataLoader(torch.randn(100_000, 64), batch_size=16)
for step, batch in enumerate(loader):
    loss = model(batch).square().mean()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
    if rank < 2:
        dist.all_reduce(torch.ones(8), group=other)
    if step % 40 == 39 and rank == 0:
        torch.save(model.state_dict(), sys.argv[2])
    if step % 50 == 49:
        model.eval()
        with torch.no_grad():
            model(batch)
        model.train()
    time.sleep(0.2)
    if rank == 1 and os.path.exists(sys.argv[1]):
        os.kill(os.getpid(), signal.SIGKILL)
"""


class Room(Bench):
    """Everything that runs; ``close`` ends it."""

    def __init__(self, folder: Path) -> None:
        self.kafka = Kafka(folder / "kafka")
        self.kafka.start()
        super().__init__(self.kafka, "", folder)
        made = self.command("topics", "--partitions", "3")
        if made.returncode:
            raise RuntimeError(made.stderr)
        self.stack = assemble(self.kafka, folder, make_topics=False)
        self.health = f"127.0.0.1:{self.stack.processor_port}"
        self.stack.start()
        self.gpus = PlayedGpus(Profile.H100, folder / "gpus")
        self._corrected = 0

    def trouble_gpus(self) -> None:
        """One is too hot, and another one's memory corrects an error now and then."""
        self.gpus.throttle(0, "sw_thermal_slowdown")
        self._corrected += 1
        self.gpus.set(1, **{"ecc.volatile.corrected": self._corrected, "ecc.volatile.corrected.dram": self._corrected})

    def close(self) -> None:
        for process in self.running:
            process.kill()
            process.wait()
        self.stack.kill()
        self.kafka.kill()

    def start(self, name: str, *words: str | Path, **environment: str) -> subprocess.Popen[bytes]:
        with (self.folder / f"{name}.log").open("ab") as log:
            given = {**self.environment, **environment}
            started = subprocess.Popen(words, env=given, cwd=self.folder, stdout=log, stderr=subprocess.STDOUT)
        self.running.append(started)
        return started

    def train(self) -> None:
        rings = self.folder / "rings" / REAL_JOB
        rings.mkdir(parents=True, mode=0o700)
        words = ("--rings", rings.parent, "--data", self.folder / "data")
        self.start("agent", WHICHRANK, "agent", *words, **self.gpus.environment())
        (self.folder / "train.py").write_text(SCRIPT)
        self.launch()
        eventually(lambda: "jobs here:" in self.said("agent"), what=self.said("agent"), timeout_s=WAIT_S)

    def launch(self) -> None:
        (self.folder / "now").unlink(missing_ok=True)
        self.start(
            "job",
            *(WHICHRANK.with_name("torchrun"), "--standalone", f"--nproc-per-node={RANKS}", self.folder / "train.py"),
            *(self.folder / "now", self.folder / "model.pt"),
            WHICHRANK_AUTO="1",
            PYTHONPATH=str(BOOTSTRAP),
            WHICHRANK_DIR=str(self.folder / "rings" / REAL_JOB),
            WHICHRANK_JOB_ID=REAL_JOB,
            OMP_NUM_THREADS="1",
        )

    def simulate(self, scenario: str) -> subprocess.Popen[bytes]:
        words = ("--scenario", scenario, "--ranks", str(SIMULATED_RANKS), "--seed", "1", "--kafka", self.kafka.address)
        return self.start(f"sim-{scenario}", WHICHRANK, "simulate", *words, "--minutes", str(SIMULATED_MINUTES))

    def prometheus(self, path: str) -> Any:
        return self.stack.prometheus.ask(path)


class Asked:
    """The answers of all panels, over time: a panel that has answered once is not empty."""

    def __init__(self, room: Room) -> None:
        self.room = room
        self.panels = {
            (board["uid"], panel["title"]): panel["targets"]
            for path in sorted(DASHBOARDS.glob("*.json"))
            for board in [json.loads(path.read_text())]
            for panel in board["panels"]
            if panel.get("targets")
        }
        self.answered: set[tuple[str, str]] = set()
        self.errors: dict[tuple[str, str], str] = {}

    def look(self) -> None:
        """At what has not answered yet, for each job, node and incident there is."""
        for key, targets in self.panels.items():
            if key not in self.answered and any(self._answer(key, target) for target in targets):
                self.answered.add(key)

    def empty(self) -> list[tuple[str, str]]:
        return sorted(set(self.panels) - self.answered)

    def _answer(self, key: tuple[str, str], target: Mapping[str, Any]) -> bool:
        for given in self._choices(target["expr"]):
            question = target["expr"]
            for name, value in given.items():
                question = question.replace(f"${name}", value)
            is_of_logs = target["datasource"]["uid"] == "victorialogs"
            try:
                if (self.room.stack.logs if is_of_logs else self.room.stack.prometheus).query(question):
                    return True
            except OSError as error:
                self.errors[key] = f"{question}: {error}"
        return False

    def _choices(self, expression: str) -> list[dict[str, str]]:
        base = {"__rate_interval": "2m", "__range": "1h"}
        for name, label in (
            ("job", "whichrank_job_id"),
            ("node", "whichrank_node_id"),
            ("incident", "whichrank_incident_id"),
        ):
            if f"${name}" in expression:
                metric = "whichrank_incident_active" if name == "incident" else ""
                values = self.room.prometheus(f"label/{label}/values" + (f"?match[]={metric}" if metric else ""))
                return [{**base, name: value} for value in values]
        return [base]


def rule_lines(room: Room) -> list[ScoreLine]:
    rules = [rule for group in room.prometheus("rules")["groups"] for rule in group["rules"]]
    healthy = [rule["health"] == "ok" and not rule.get("lastError") for rule in rules]
    wrong = [rule["name"] for rule, is_healthy in zip(rules, healthy, strict=True) if not is_healthy]
    return [
        ScoreLine(
            name="rules that Prometheus evaluates",
            asked="all, without an error",
            measured=", ".join(wrong) or "no error",
            share=f"{sum(healthy)} of {len(rules)}",
            ok=bool(rules) and all(healthy),
        )
    ]


def panel_lines(asked: Asked) -> list[ScoreLine]:
    empty = asked.empty()
    unexpected = [key for key in empty if key not in EMPTY_WHERE_ALL_IS_WELL]
    for uid, title in empty:
        why = EMPTY_WHERE_ALL_IS_WELL.get((uid, title), "NOT EXPECTED")
        print(f"  empty: {uid}, {title!r}: {why}", file=sys.stderr)
    for (uid, title), error in asked.errors.items():
        print(f"  fails: {uid}, {title!r}: {error}", file=sys.stderr)
    count = len(asked.panels)
    return [
        ScoreLine(
            name="panels whose queries fail",
            asked="0",
            measured=str(len(asked.errors)),
            share=f"{len(asked.errors)} of {count}",
            ok=not asked.errors,
        ),
        ScoreLine(
            name="panels with data, or empty for a reason",
            asked="all",
            measured=f"{len(empty)} empty, {len(unexpected)} of them without a reason",
            share=f"{count - len(unexpected)} of {count}",
            ok=not unexpected,
        ),
    ]


def fired(room: Room) -> set[str]:
    """Incidents that an alert is firing for."""
    return {
        alert["labels"]["whichrank_incident_id"]
        for alert in room.prometheus("alerts")["alerts"]
        if alert["state"] == "firing" and "whichrank_incident_id" in alert["labels"]
    }


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="whichrank-panels-") as folder:
        room = Room(Path(folder))
        try:
            lines = measure(room)
        finally:
            room.close()
    print_lines(lines, "panels and rules on what the real pipeline makes of real and simulated jobs")
    print(in_short(lines))
    return exit_code(lines)


def measure(room: Room) -> list[ScoreLine]:
    room.process()
    room.wait_until_ready()
    room.train()
    simulations = [room.simulate(scenario) for scenario in SIMULATED]
    asked, alerted = Asked(room), set[str]()
    ends_s = time.monotonic() + 60.0 * SIMULATED_MINUTES
    while time.monotonic() < ends_s:
        time.sleep(10.0)
        room.trouble_gpus()
        asked.look()
        alerted |= fired(room)
    (room.folder / "now").touch()  # the real job's rank dies, as its neighbours' simulated ones have
    died = room.wait_for(
        lambda all_of: any(d["kind"] == "rank_died" and d["job"]["id"] == REAL_JOB for d in all_of.values()), "the end"
    )
    (identifier,) = (d["id"] for d in died.values() if d["kind"] == "rank_died" and d["job"]["id"] == REAL_JOB)
    labelled = room.command("incidents", "label", identifier, "--cause", "a test", "--kafka", room.kafka.address)
    if labelled.returncode:
        raise RuntimeError(labelled.stderr)
    room.launch()
    seen_s = time.monotonic() + SEEN_S
    while time.monotonic() < seen_s:
        time.sleep(10.0)
        asked.look()
        alerted |= fired(room)
    for simulation in simulations:
        simulation.wait(timeout=WAIT_S)
    told = room.incidents()
    lines = [*panel_lines(asked), *rule_lines(room)]
    owed = {d["id"] for d in told.values() if d["severity"] in ("page", "ticket") and not d.get("merged_into")}
    return [
        *lines,
        _alert_line("incidents that an alert has fired for", owed & alerted, owed),
        *_ended(room, told, alerted),
    ]


def _ended(room: Room, told: Mapping[str, Mapping[str, Any]], alerted: set[str]) -> list[ScoreLine]:
    over = {key for key in alerted if told.get(key, {}).get("state") == "resolved"}
    until_s = time.monotonic() + ENDED_S
    while fired(room) & over and time.monotonic() < until_s:
        time.sleep(5.0)
    return [_alert_line("alerts that have ended with their incident", over - fired(room), over)]


def _alert_line(name: str, right: set[str], of: set[str]) -> ScoreLine:
    missing = sorted(of - right)
    return ScoreLine(
        name=name,
        asked="all",
        measured=f"missing: {', '.join(missing)}" if missing else "none is missing",
        share=f"{len(right)} of {len(of)}",
        ok=bool(of) and not missing,
    )


if __name__ == "__main__":
    sys.exit(main())
