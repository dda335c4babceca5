"""``whichrank replay``: the operators once more over the capture of a run, and the rings that a killed run left behind.

Reads the run's folder and never changes anything in it but for a new ``replay-N`` beside what is there. Whatever is
damaged gets one line, and everything readable is still used.
"""

from __future__ import annotations

import fcntl
import json
import os
import sys
import tempfile
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from rich.console import Console

from ...agents.base.settings import AgentSettings
from ...agents.job_agent import Agent
from ...diagnosis.goodput.interval import Interval, interval_of
from ...processors.runner import EmbeddedRunner
from ...telemetry.incident import canonical_line
from ...telemetry.incident_document import IncidentDocument, word_of
from ...telemetry.incident_reading import read_incident
from ...telemetry.records import Finding, Identity, Incident, Record
from ...telemetry.regular_files import open_regular
from ...transport.embedded import EmbeddedBus
from ..incident_text.incident_panel import incident_panel
from ..run_folder.incident_log import MOST_INCIDENTS_BYTES, IncidentLog, read_lines
from ..run_folder.run_description import RunDescription
from ..run_folder.run_directory import CAPTURE_FOLDER, INCIDENTS_FILE, RunDirectory, Unusable
from .embedded_operators import INPUT_TOPICS, make_operators, wanted_metrics

SCHEMA = 1
#: Time that passes after the last record of a run that was cut off: what was held back for it is concluded.
AFTERMATH_NS = 3_000_000_000
EXIT_DIFFERS = 1
EXIT_UNUSABLE = 2


@dataclass(slots=True)
class Replayed:
    """What a replay concluded, and how it compares with what the live run wrote down."""

    revisions: list[Incident] = field(default_factory=list)
    #: What the seconds were spent on, as told; revisions over what they replace.
    intervals: list[Interval] = field(default_factory=list)
    #: "equal", "continued" (the live run was cut off; all it wrote is equal), "differs", "absent", "partial" (the
    #: capture begins late: what rests on what came before cannot be the same byte for byte).
    compared: str = "absent"
    #: First line of incidents.jsonl that differs, from 1; 0 none.
    differs_at: int = 0
    #: Rings that nobody had read to their end.
    rings_left: int = 0
    #: Unix seconds from which on there is a capture, None if it is whole.
    begins: float | None = None
    #: Of the live run's incidents that began later: how many there are, and how many were judged the same.
    live_later: int = 0
    same_later: int = 0
    problems: list[str] = field(default_factory=list)

    def report(self, line: str) -> None:
        """Adds a line to ``problems`` unless it is there."""
        if line not in self.problems:
            self.problems.append(line)

    @property
    def incidents(self) -> dict[str, IncidentDocument]:
        """The last revision of each incident, by its id."""
        last = {str(revision.document["id"]): revision for revision in self.revisions}
        return {id_: read_incident(revision.document) for id_, revision in last.items()}


def replay_run(directory: RunDirectory) -> Replayed:
    """Runs the operators over a run's capture, and over rings that were left behind; compares with what the run wrote.

    Raises Unusable when there is no capture.
    """
    replayed = Replayed()
    try:
        description = directory.read_run()
    except Unusable as error:
        replayed.report(str(error))
        description = RunDescription()
    try:
        bus = EmbeddedBus(
            directory.capture,
            read_only=True,
            report=replayed.report,
            open_file=partial(open_regular, owner=directory.owner),
        )
    except OSError as error:
        raise Unusable(f"{directory.capture}: {error.strerror or error}") from error
    if not directory.capture.is_dir():
        raise Unusable(f"{directory.capture}: not there; nothing to replay")

    def collect(record: Record) -> None:
        if isinstance(record.payload, Incident):
            replayed.revisions.append(record.payload)
        elif isinstance(record.payload, Finding) and (interval := interval_of(record.payload)):
            replayed.intervals.append(interval)

    first = bus.first_kept()
    if first is not None and first[0] > 1:
        replayed.begins, started = first[1] / 1e9, description.started
        when = f"{replayed.begins - started:.0f} s after the job's start" if started is not None else "late"
        replayed.report(f"{directory.capture}: begins {when}: what came before is not judged again")
    runner = EmbeddedRunner(
        bus,
        None,
        make_operators(listens=description.listens),
        collect,
        live=False,
        report=replayed.report,
        input_topics=INPUT_TOPICS,
        metrics=wanted_metrics(),
    )
    runner.drain()
    if description.ended is None:
        if _is_being_written(directory.capture):
            replayed.report(f"{directory.path}: the run is still going on; this is what it has captured so far")
        else:
            replayed.rings_left = _read_rings(description, bus, replayed, directory.owner)
            runner.drain()
            runner.let_time_pass(AFTERMATH_NS)
    runner.close()
    bus.close()
    if first is None and not replayed.rings_left:
        found = f": {replayed.problems[-1]}" if replayed.problems else ""
        raise Unusable(f"{directory.capture}: holds no message that can be read; nothing to replay{found}")
    _compare(replayed, directory)
    return replayed


def replay(path: Path, *, as_json: bool, out: Path | None) -> int:
    """Runs ``whichrank replay``: prints the incidents and writes them into a folder (``out``, or a new ``replay-N``).

    The exit status: 0, 1 when the incidents differ from the live run's, 2 when unusable.
    """
    directory = RunDirectory(path)
    try:
        replayed = replay_run(directory)
        written = _write(replayed, out or _next_folder(directory))
    except Unusable as error:
        print(f"whichrank: {error}", file=sys.stderr)
        return EXIT_UNUSABLE
    if as_json:
        print(_as_json(replayed, path, written))
    else:
        for problem in replayed.problems:
            print(f"whichrank: {problem}", file=sys.stderr)
        console = Console()
        for incident in replayed.incidents.values():
            console.print(incident_panel(incident))
        print(describe_comparison(replayed))
        print(f"written to {written}")
    return EXIT_DIFFERS if replayed.compared == "differs" else 0


def describe_comparison(replayed: Replayed) -> str:
    """One sentence on how many incidents were found, and how they compare with those of the live run."""
    rings = f", {_count(replayed.rings_left, 'ring')} left behind read" if replayed.rings_left else ""
    what = f"{_count(len(replayed.incidents), 'incident')} in {_count(len(replayed.revisions), 'revision')}{rings}"
    return {
        "equal": f"{what}; equal to {INCIDENTS_FILE} byte for byte",
        "continued": f"{what}; the run was cut off, what it wrote to {INCIDENTS_FILE} is equal byte for byte",
        "differs": f"{what}; DIFFERS from {INCIDENTS_FILE} at line {replayed.differs_at}",
        "absent": f"{what}; the run left no {INCIDENTS_FILE}",
        "partial": f"{what}; of the run's incidents, {replayed.live_later} began within the capture; "
        f"{replayed.same_later} of them judged the same",
    }[replayed.compared]


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _read_rings(description: RunDescription, bus: EmbeddedBus, replayed: Replayed, owner: int | None) -> int:
    """Put on the bus what the ranks wrote after the run's own agent was gone. Returns the number of rings found.

    owner: whose run it is, where it is another user's: run.json may name anybody's folder.
    """
    rings = Path(description.ring_directory or "")
    try:
        found = len(list(rings.glob("*.ring"))) if description.ring_directory else 0
        if found and owner is not None and os.lstat(rings).st_uid != owner:
            replayed.report(f"{rings}: the rings of another user than the run's, and not read")
            return 0
    except OSError as error:
        replayed.report(f"{rings}: {error.strerror}")
        return 0
    if not found:
        return 0
    identity = description.identity or Identity()

    def publish(topic: str, key: str, value: bytes) -> None:
        bus.append(topic, key, value)

    agent = Agent(
        ring_directory=rings,
        publish=publish,
        identity=identity,
        evidence_directory=None,
        settings=AgentSettings(take_stacks=False),
    )
    try:
        agent.read_left_behind()
    finally:
        agent.close()
    return found


def _compare(replayed: Replayed, directory: RunDirectory) -> None:
    path = directory.incidents
    try:
        lines = list(read_lines(path, directory.owner, MOST_INCIDENTS_BYTES))
    except FileNotFoundError:
        return
    except OSError as error:
        replayed.report(f"{path}: cannot be read: {error.strerror}")
        return
    for number, line, incident in lines:
        if incident is None and line.strip():
            replayed.report(f"{path}: line {number} is no incident document")
    live = [(number, line) for number, line, incident in lines if incident is not None]
    if replayed.begins is not None:
        _compare_late(replayed, [incident for _, _, incident in lines if incident is not None], replayed.begins)
        return
    ours = [canonical_line(revision.document) for revision in replayed.revisions]
    for (number, line), mine in zip(live, ours, strict=False):
        if line != mine:
            replayed.compared, replayed.differs_at = "differs", number
            return
    if len(live) > len(ours):
        replayed.compared, replayed.differs_at = "differs", live[len(ours)][0]
    else:
        replayed.compared = "equal" if len(live) == len(ours) else "continued"


def _compare_late(replayed: Replayed, incidents: list[IncidentDocument], begins: float) -> None:
    """Incidents that began when the capture had begun: is there one with the same kind and suspects?"""
    replayed.compared = "partial"
    live = {incident.id: incident for incident in incidents}
    later = [incident for incident in live.values() if incident.times.onset_s >= begins]
    ours = [_verdict(incident) for incident in replayed.incidents.values()]
    replayed.live_later = len(later)
    replayed.same_later = sum(_verdict(incident) in ours for incident in later)


def _verdict(incident: IncidentDocument) -> tuple[str, list[str]]:
    return word_of(incident.kind), sorted(suspect.id for suspect in incident.suspects)


def _write(replayed: Replayed, folder: Path) -> Path:
    """Write the replayed incidents to a new file. Raises Unusable."""
    path = folder / INCIDENTS_FILE
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if path.exists():
            raise Unusable(f"{path}: exists already; choose another --out")
        log = IncidentLog(path)
        for revision in replayed.revisions:
            log.append(revision)
        log.close()
    except OSError as error:
        raise Unusable(f"{path}: cannot be written: {error.strerror or error}; choose another --out") from error
    return path


def _next_folder(directory: RunDirectory) -> Path:
    path, number = directory.path, 1
    if os.geteuid() == 0 and directory.owner is not None:  # who could lead root's file elsewhere
        return Path(tempfile.mkdtemp(prefix="whichrank-replay-"))
    while (path / f"replay-{number}").exists():
        number += 1
    return path / f"replay-{number}"


def _is_being_written(capture: Path) -> bool:
    """Does a live run hold the lock of this capture?"""
    try:
        descriptor = open_regular(capture / "lock")
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(descriptor)
    return False


def _as_json(replayed: Replayed, path: Path, written: Path) -> str:
    last = {str(revision.document["id"]): revision.document for revision in replayed.revisions}
    told = {
        "schema": SCHEMA,
        "run": str(path),
        "capture": str(path / CAPTURE_FOLDER),
        "written": str(written),
        "compared": replayed.compared,
        "differs_at": replayed.differs_at or None,
        "begins": replayed.begins,
        "live_later": replayed.live_later,
        "same_later": replayed.same_later,
        "revisions": len(replayed.revisions),
        "rings_left": replayed.rings_left,
        "problems": replayed.problems,
        "incidents": list(last.values()),
    }
    return json.dumps(told, ensure_ascii=False)
