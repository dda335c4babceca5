"""``python -m tests.golden.make NAME``: what this release leaves behind, kept in ``tests/golden/NAME`` for later ones.

A state in the middle of an incident with the capture that goes on after it, and the ring of a rank that was killed.
Run once, when a release is made; what is there is never written again.
"""

from __future__ import annotations

import gzip
import json
import shutil
import signal
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

from tests.processors.job.synthetic_job import FOREVER, SyntheticJob
from tests.processors.runner_examples import Clock
from whichrank.processors.cluster.operator import ClusterOperator
from whichrank.processors.job.operator import JobOperator
from whichrank.processors.runner import EmbeddedRunner
from whichrank.processors.state_versions import SCHEMA_VERSION
from whichrank.telemetry.otlp import encode_payloads
from whichrank.telemetry.records import Block, Event, Incident, Record
from whichrank.telemetry.vocabulary import EventName, ExitState, Phase
from whichrank.transport.embedded import EmbeddedBus

HERE = Path(__file__).parent
TOPIC_BLOCKS = "whichrank.blocks"
SECOND = 1_000_000_000
RANK_PROCESS = HERE.parent / "agents" / "rank_process.py"


def hang_then_death() -> list[Record]:
    """Rank 2 hangs in step 25; long after, it is killed."""
    return SyntheticJob(
        steps=40,
        after_s=14.0,
        delays=[lambda rank, step, phase: FOREVER if (rank, step, phase) == (2, 25, Phase.FORWARD) else 0.0],
        events=[(17.0, EventName.RANK_EXIT, 2, {"signal": 9, "exit_state": int(ExitState.RUNNING)})],
    ).records()


def make_state(folder: Path) -> dict[str, object]:
    """capture/ with all messages, state.sqlite as of the middle; what was concluded up to there."""
    records = hang_then_death()
    clock = Clock()
    begin_ns = records[0].stamp_ns
    bus = EmbeddedBus(folder / "capture", start_wall_ns=begin_ns, monotonic_ns=clock)
    revisions: list[dict[str, object]] = []

    def note(record: Record) -> None:
        if isinstance(record.payload, Incident):
            revisions.append(dict(record.payload.document))

    runner = EmbeddedRunner(bus, folder / "state.sqlite", [JobOperator(), ClusterOperator()], note, live=True)
    middle = next(i for i, r in enumerate(records) if r.stamp_ns - begin_ns > 15 * SECOND)
    for index, record in enumerate(records):
        clock.ns = max(clock.ns, record.stamp_ns - begin_ns)
        if index == middle:
            runner.drain()
            runner.close()
        payload = record.payload
        assert isinstance(payload, (Block, Event))
        bus.append(TOPIC_BLOCKS, "job-1", encode_payloads([replace(payload)]))
        if index < middle:
            runner.drain()
    bus.close()
    return {"state_version": SCHEMA_VERSION, "revisions": revisions, "messages": len(records)}


def make_ring(folder: Path) -> dict[str, object]:
    """ring/: of a rank that made 60 collectives in 6 steps and was killed."""
    rings = folder / "ring"
    rings.mkdir(mode=0o700)
    options = {"native": False}
    process = subprocess.Popen(
        [sys.executable, str(RANK_PROCESS), str(rings), "1", "2", json.dumps(options)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdout.readline()
    for _ in range(6):
        for line in ("collectives 10", "step 0.5"):
            process.stdin.write(line + "\n")
            process.stdin.flush()
            assert process.stdout.readline().startswith("ok")
    process.send_signal(signal.SIGKILL)
    process.wait()
    (ring,) = rings.glob("*.ring")
    return {"ring": ring.name, "collectives": 60, "steps": 6}


def main() -> int:
    target = HERE / sys.argv[1]
    if target.exists():
        print(f"{target} is there already; a release's files are never written again", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        facts = make_state(folder) | make_ring(folder)
        for path in sorted(folder.rglob("*")):
            if path.is_file() and path.name != "lock":
                packed = target / (path.relative_to(folder).as_posix() + ".gz")
                packed.parent.mkdir(parents=True, exist_ok=True)
                with path.open("rb") as source, gzip.GzipFile(packed, "wb", mtime=0) as file:
                    shutil.copyfileobj(source, file)
        (target / "facts.json").write_text(json.dumps(facts, indent=1) + "\n")
    print(f"{target}: {sum(f.stat().st_size for f in target.rglob('*') if f.is_file()) >> 10} KiB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
