"""What each release wrote stays readable: one message of every sort of record per release.

``python -m tests.telemetry.test_golden 0.1.0`` writes the file of a release, once; files are never rewritten.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest

from whichrank.telemetry import attributes as names
from whichrank.telemetry.block import parse_dtype
from whichrank.telemetry.incident import complete_document
from whichrank.telemetry.otlp import Encodable, decode_logs, encode_payloads
from whichrank.telemetry.records import Block, Event, Finding, Group, Identity, Incident
from whichrank.telemetry.tables import TABLES
from whichrank.telemetry.vocabulary import EventName

FOLDER = Path(__file__).parent / "golden"
IDENTITY = Identity(cluster="alps", run="llm", job="llm-7", attempt="a1", world="", node="nid001", rank=-1)
GROUPS = (
    Group(uid="u0", name="default_pg", ranks="0-7", size=8, backend="gloo", timeout_s=1800.0, is_default=True),
    Group(uid="u1", name="tp", desc="mesh_tp", ranks="0,4", size=2, backend="gloo", timeout_s=60.5),
)


def block_of(name: EventName) -> Block:
    """Three rows in which every column holds another small number."""
    rows = np.zeros(3, TABLES[name])
    for number, column in enumerate(rows.dtype.names or ()):
        limit = 2 if column in ("group", "level") else 4 if column in ("phase", "op", "exit_state", "last_op") else 100
        values = (np.arange(3) + number) % limit
        rows[column] = values[:, None] if rows[column].ndim > 1 else values
    return Block(name=name, identity=IDENTITY, rows=rows, groups=GROUPS, clock_offset_ns=-5, time_ns=1_790_000_000)


def records() -> list[Encodable]:
    attributes: dict[str, Any] = {
        "exit_code": -9,
        "signal": 9,
        "core": False,
        "phase": "forward",
        "loss": 0.25,
        "near": (1, 2.5, "x", True),
    }
    body = {"kind": "rank_died", "suspects": [{"rank": 2}], "confidence": 0.95, "advice": None}
    document = {"id": "i1", "revision": 1, "change": "opened", "kind": "rank_died", "times": {"onset": 1.5}}
    return [
        *(block_of(name) for name in TABLES),
        Event(
            name=EventName.RANK_EXIT,
            identity=replace(IDENTITY, rank=2),
            time_ns=1_790_000_001,
            mono_ns=77,
            attributes=attributes,
        ),
        Finding(identity=IDENTITY, key="rank_died 2", cleared=False, time_ns=1_790_000_002, body=body),
        Incident(document=complete_document(document)),
    ]


def releases() -> list[str]:
    return sorted(path.stem for path in FOLDER.glob("*.otlp"))


def columns_of(value: bytes, name: EventName) -> dict[str, int]:
    """Columns that the release wrote for a table, with the width of those that are arrays (else 0)."""
    for record in ExportLogsServiceRequest.FromString(value).resource_logs[0].scope_logs[0].log_records:
        if record.event_name == name.value:
            found = {pair.key: pair.value.string_value for pair in record.attributes}
            dtype = parse_dtype(found[names.BLOCK_DTYPE])
            return {column: (*dtype[column].shape, 0)[0] for column in dtype.names or ()}
    raise AssertionError(f"no {name.value} in the file")


@pytest.mark.parametrize("release", releases())
def test_records_of_a_release_read_as_they_were_meant(release: str) -> None:
    value = (FOLDER / f"{release}.otlp").read_bytes()
    found = decode_logs("golden", value)
    known = {each.name for each in found if isinstance(each, Block)}
    assert len(known) >= 5, "tables came later, none has gone"
    expected = [each for each in records() if not isinstance(each, Block) or each.name in known]
    assert len(found) == len(expected)
    for left, right in zip(found, expected, strict=True):
        if isinstance(left, Block) and isinstance(right, Block):
            for column, width in columns_of(value, left.name).items():
                read, meant = left.rows[column], right.rows[column]
                if width:  # phases that came later are zero
                    read, meant = read[:, :width], meant[:, :width]
                assert read.tolist() == meant.tolist(), f"{left.name.value} {column}"
            assert (left.groups, left.identity, left.clock_offset_ns) == (GROUPS, IDENTITY, -5)
        else:
            assert left == right


def test_there_is_a_file_of_the_first_release() -> None:
    assert "0.1.0" in releases()


if __name__ == "__main__":
    with (FOLDER / f"{sys.argv[1]}.otlp").open("xb") as file:
        file.write(encode_payloads(records()))
