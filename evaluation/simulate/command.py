"""``whichrank simulate``: runs a scenario and judges it, keeps it as a run's folder, or sends it to Kafka."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from ...commands.incident_text.incident_panel import incident_panel
from ...commands.run_folder.incident_log import IncidentLog
from ...commands.run_folder.run_description import RunDescription
from ...commands.run_folder.run_directory import INCIDENTS_FILE, RUN_FILE, RunDirectory
from ...simulator.clock import START_UNIX_NS
from ...simulator.ground_truth import GroundTruth, Truth
from ...simulator.scenarios.scenarios import SCENARIOS
from ...simulator.sensing import Sensing
from ...simulator.world import World
from ...telemetry.incident_reading import read_incident
from ...transport.kafka_client import KafkaTrouble
from ...transport.kafka_settings import KafkaSettings
from .judge import CaptureBus, Judge
from .to_kafka import KafkaSink

SCHEMA = 1
TRUTH_FILE = "truth.json"
EXIT_USAGE = 2


def list_scenarios(*, as_json: bool) -> int:
    """Prints each scenario in a line, with the faults that it has. The exit code, 0."""
    told = [
        {"name": name, "number": [kind.number for kind in scenario.faults], "sentence": scenario.sentence}
        for name, scenario in SCENARIOS.items()
    ]
    if as_json:
        print(json.dumps({"schema": SCHEMA, "scenarios": told}, ensure_ascii=False))
        return 0
    table = Table("scenario", "no.", "what happens", box=None, pad_edge=False)
    for each in told:
        table.add_row(str(each["name"]), ",".join(each["number"]), str(each["sentence"]))
    Console().print(table)
    return 0


def simulate(
    scenario: str,
    *,
    ranks: int,
    seed: int,
    minutes: float | None,
    out: Path | None,
    kafka: KafkaSettings | None,
    as_json: bool,
    sensing: Sensing = Sensing.CLIENTS,
) -> int:
    """Simulates a scenario, and judges it, keeps it in ``out``, or sends it to Kafka; prints what was true.

    minutes None: as long as the scenario asks for. sensing: who tells of storage and fabric. The exit code: 0; 2 for
    what cannot be simulated, written or sent.
    """
    chosen = SCENARIOS.get(scenario)
    if chosen is None:
        return _refuse(f"there is no scenario {scenario!r}; --list shows all")
    sink = None
    try:
        if kafka is not None:
            sink = KafkaSink(kafka)
        start_ns = START_UNIX_NS if sink is None else sink.began_ns
        world = chosen.build(ranks, seed, start_unix_ns=start_ns, sensing=sensing)
    except (KafkaTrouble, ValueError) as error:
        return _refuse(str(error))
    seconds = 60.0 * (minutes if minutes is not None else chosen.minutes)
    try:
        if sink is not None:
            return _send(world, sink, seconds, as_json=as_json)
        return _judge(world, seconds, out, as_json=as_json)
    except OSError as error:
        return _refuse(f"{getattr(error, 'filename', None) or 'simulate'}: {error.strerror or error}")


def _judge(world: World, seconds: float, out: Path | None, *, as_json: bool) -> int:
    directory = RunDirectory(out) if out is not None else None
    bus = None
    if directory is not None:
        if (directory.path / RUN_FILE).exists() or directory.incidents.exists():
            return _refuse(f"{directory.path}: holds another run already; choose another --out")
        bus = CaptureBus(directory.capture, start_unix_ns=world.start_unix_ns)
    judge = Judge(bus, start_unix_ns=world.start_unix_ns)
    began_s = time.process_time()
    for until_s, sent in world.run(seconds):
        judge.take(until_s, sent)
    judge.close()
    cpu_s = time.process_time() - began_s
    ledger = world.settle()
    if directory is not None:
        _write(directory, judge, ledger, world, seconds)
    if as_json:
        told = asdict(_simulated(world, ledger, seconds)) | {
            "incidents": [incident.document for incident in judge.incidents.values()],
            "out": str(out) if out is not None else None,
        }
        print(json.dumps(told, ensure_ascii=False))
        return 0
    console = Console()
    for incident in judge.incidents.values():
        console.print(incident_panel(read_incident(incident.document)))
    console.print(_truth_table(ledger))
    count = len(judge.incidents)
    console.print(
        f"{seconds:.0f} s of {sum(job.spec.mesh.world_size for job in world.jobs)} ranks in {cpu_s:.1f} s of CPU time: "
        f"{judge.runner.records} records, {count} {'incident' if count == 1 else 'incidents'}"
    )
    if directory is not None:
        console.print(f"written to {directory.path}: whichrank replay {directory.path}")
    return 0


def _send(world: World, sink: KafkaSink, seconds: float, *, as_json: bool) -> int:
    for until_s, sent in world.run(seconds):
        sink.take(until_s, sent)
    left = sink.close()
    ledger = world.settle()
    if as_json:
        told = asdict(_simulated(world, ledger, seconds)) | {"messages": sink.messages, "unconfirmed": left}
        print(json.dumps(told, ensure_ascii=False))
    else:
        Console().print(_truth_table(ledger))
        print(f"{sink.messages} messages sent, {left} of them not confirmed")
    return 0 if not left else EXIT_USAGE


def _write(directory: RunDirectory, judge: Judge, ledger: GroundTruth, world: World, seconds: float) -> None:
    """As ``whichrank run`` leaves it; the truth in a file of its own. Raises OSError."""
    log = IncidentLog(directory.path / INCIDENTS_FILE)
    for revision in judge.revisions:
        log.append(revision)
    log.close()
    started = world.start_unix_ns / 1e9
    directory.write_run(
        RunDescription(
            command=("whichrank", "simulate", "--scenario", ledger.scenario, "--seed", str(ledger.seed)),
            started=started,
            ended=started + seconds,
            listens=True,
            simulated=True,
        )
    )
    (directory.path / TRUTH_FILE).write_text(json.dumps(ledger.as_json(), indent=1) + "\n")


@dataclass(frozen=True, slots=True, kw_only=True)
class Simulated:
    """What --json tells of each simulation. sums_s: by job and bucket of the ledger."""

    schema: int = SCHEMA
    scenario: str
    seed: int
    ranks: int
    seconds: float
    faults: tuple[Truth, ...]
    sums_s: Mapping[str, Mapping[str, float]]


def _simulated(world: World, ledger: GroundTruth, seconds: float) -> Simulated:
    return Simulated(
        scenario=ledger.scenario,
        seed=ledger.seed,
        ranks=sum(job.spec.mesh.world_size for job in world.jobs),
        seconds=seconds,
        faults=tuple(ledger.faults),
        sums_s={job.spec.name: _sums_s(ledger, job.spec.name) for job in world.jobs},
    )


def _sums_s(ledger: GroundTruth, job: str) -> Mapping[str, float]:
    return {bucket.value: round(value / 1e9, 3) for bucket, value in ledger.sums_ns(job).items()}


def _truth_table(ledger: GroundTruth) -> Table:
    table = Table("truth", "at", "where", title="what really happened", box=None, pad_edge=False)
    for fault in ledger.faults:
        where = ", ".join(
            filter(None, (fault.job, "ranks " + ",".join(map(str, fault.ranks)) if fault.ranks else "", *fault.nodes))
        )
        table.add_row(fault.fault, f"{fault.at_s:.1f} s", where)
    if not ledger.faults:
        table.add_row("nothing", "", "")
    return table


def _refuse(line: str) -> int:
    print(f"whichrank: {line}", file=sys.stderr)
    return EXIT_USAGE
