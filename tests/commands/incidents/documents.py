"""Incident documents and runs for tests. Not a test module."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

from whichrank.commands.run_folder.incident_log import read_lines
from whichrank.telemetry.incident import Document, canonical_line, check_document, complete_document, read_line

ID = "00531b2fdcc45a19"
LAUNCH = "b52443d473a0a629"
(_GOLDEN,) = (Path(__file__).parents[2] / "golden" / "0.1.0.dev8" / "ring").glob("*.ring.gz")
RING = gzip.decompress(_GOLDEN.read_bytes())


def document(id_: str = ID, revision: int = 1, **fields: Any) -> Document:
    """rank_not_entered of rank 1 on node-1, unless fields say otherwise."""
    made = complete_document(
        {
            "id": id_,
            "revision": revision,
            "change": "opened" if revision == 1 else "updated",
            "state": "open",
            "severity": "page",
            "cluster": "local",
            "job": {"id": "job-1", "name": "train.py", "attempt": LAUNCH, "run": "run-1"},
            "bucket": "communication_hang",
            "kind": "rank_not_entered",
            "scope": "rank",
            "suspects": [
                {
                    "scope": "rank",
                    "id": "1",
                    "rank": 1,
                    "node": "node-1",
                    "pid": 4711,
                    "where": {"file": "/job/train.py", "line": 88, "phase": "data"},
                    "probability": 0.9,
                }
            ],
            "victims": {"count": 1, "ranks": "0"},
            "coverage": {"ranks_seen": 2, "ranks_expected": 2},
            "first_bad": {"step": 41, "group": "world", "sequence": 97, "operation": "all_reduce"},
            "times": {"onset": 1_700_000_000.0, "detected": 1_700_000_003.5},
            "evidence": [
                {
                    "signal": "progress",
                    "source": "rank 1",
                    "time": 1_700_000_003.0,
                    "shows": "has not entered; its error says api_key=hunter2",
                }
            ],
            "ruled_out": [{"who": "rank 0", "looks_guilty": "printed a time-out", "because": "it waits"}],
            "confidence": 0.9,
            "advice": {"action": "restart_without_node", "by": "human", "text": "leave node-1 out"},
            **fields,
        }
    )
    assert (wrong := check_document(made)) == [], wrong
    return made


def evidence() -> dict[str, bytes]:
    """Files as an agent keeps them for ``document()``, and some of others."""
    rank = f"{LAUNCH}-rank-00001-4711"
    return {
        f"{ID}-{rank}-0.log": b"the last words\n",
        f"{ID}-{rank}-history.ring-events.gz": gzip.compress(b"events", mtime=0),
        f"{ID}-{LAUNCH}-rank-00000-4710-trace_0.dump.gz": gzip.compress(b"dump of rank 0", mtime=0),
        f"{ID}-{LAUNCH}-node-node-1-kernel.log": b"# kernel log from /dev/kmsg\nNVRM: Xid\n",
        f"{rank}-not_entered.stack.txt": b"train.py:88\n",
        f"{rank}-request.stack.txt": b"train.py:88\n",
        f"{rank}-not_entered.ring.gz": gzip.compress(RING, mtime=0),
        f"{LAUNCH}-rank-00000-4710-waits.stack.txt": b"where rank 0 waits\n",
        f"{LAUNCH}-rank-00000-4710-died.ring.gz": b"ring of one who only waited",
        f"ffffffffffffffff-{LAUNCH}-rank-00001-4711-0.log": b"asked for by another incident",
        "aaaaaaaaaaaaaaaa-rank-00001-99-died.ring.gz": b"of an earlier attempt",
        ".partial": b"",
        "notes.txt": b"",
    }


def make_run(path: Path, *documents: Document, files: dict[str, bytes] | None = None) -> Path:
    (path / "evidence").mkdir(parents=True)
    (path / "incidents.jsonl").write_bytes(b"".join(map(canonical_line, documents or (document(),))))
    (path / "run.json").write_text('{"schema": 1, "host": "node-1", "exit_code": 1, "started": 1700000000.0}\n')
    for name, content in (evidence() if files is None else files).items():
        (path / "evidence" / name).write_bytes(content)
    return path


def written_documents(path: Path) -> list[Document]:
    """incidents.jsonl as it stands: each revision, in order. Lines that are none are left out."""
    return [read_line(line) for _, line, incident in read_lines(path) if incident is not None]
