"""The lines that issue operations: found in real jobs by both hooks, and read again by the agent."""

from __future__ import annotations

import textwrap
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.instrumentation.jobs import run_job
from whichrank.agents.evidence.call_site_desk import Calls, calls_of, failing_calls
from whichrank.agents.rings.ring_file import RingFile
from whichrank.instrumentation.call_site_ring import CallSites
from whichrank.instrumentation.ring_writer import RankRecorder, open_ring_writer
from whichrank.telemetry import ring_layout as layout

JOB = """
    import torch, torch.distributed as dist
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    ones = torch.ones(8)
    def reduce():
        dist.all_reduce(ones)  # line 7
    def swap():
        if rank == 0:
            dist.send(ones, 1)  # line 10
        else:
            dist.recv(ones, 0)  # line 12
    for _ in range(20):
        reduce()
        swap()
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 1))
    model(torch.ones(2, 4)).sum().backward()  # line 17
    dist.barrier()  # line 18
    dist.monitored_barrier()  # line 19
    dist.destroy_process_group()
"""


@pytest.mark.parametrize("native", ["1", "0"])
def test_the_lines_of_the_newest_calls_are_in_the_ring(tmp_path: Path, native: str) -> None:
    result = run_job(textwrap.dedent(JOB), tmp_path, environment={"WHICHRANK_NATIVE": native})
    assert result.exit_code == 0, result.output
    script = tmp_path / "script.py"
    for path in sorted(result.directory.rglob(f"*{layout.RING_SUFFIX}")):
        ring = RingFile(path)
        rank = ring.header.rank
        collectives, exchanges = sorted(calls_of(ring), key=lambda calls: calls.point_to_point)
        ring.close()
        assert [frame.line for frame in collectives.frames][-3:] == [17, 18, 19]
        assert collectives.seqs == tuple(range(collectives.seqs[0], collectives.seqs[0] + len(collectives.seqs)))
        assert {frame.file for frame in (*collectives.frames, *exchanges.frames)} == {str(script)}
        assert exchanges.point_to_point
        assert exchanges.seqs == tuple(range(1, 21))
        assert [(frame.line, frame.function) for frame in exchanges.frames] == [(10 if rank == 0 else 12, "swap")] * 20


@pytest.fixture(params=["python", "c"])
def writer(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    opened = open_ring_writer(
        tmp_path, rank=0, local_rank=0, world_size=2, identity={"job": "j"}, native=request.param == "c"
    )
    yield opened
    opened.close()


def calls_in(writer: RankRecorder) -> list[Calls]:
    ring = RingFile(writer.path)
    try:
        return calls_of(ring)
    finally:
        ring.close()


def define_group(writer: RankRecorder) -> int:
    return writer.define_group(
        {"name": "0", "desc": "", "ranks": "0-1", "size": 2, "backend": "gloo", "ordinal": 0, "timeout_s": 60}
    )


def test_more_lines_than_there_is_room_for_leave_groups_their_room(writer: RankRecorder) -> None:
    sites = CallSites(writer)

    def call(seq: int) -> None:
        code = compile(f"note({layout.call_mark(0, seq, 0)})", f"/job/{seq % 2000}.py", "exec")
        exec(code, {"note": sites.note})

    for seq in range(1, 2001):
        call(seq)
    assert define_group(writer) == 0
    (calls,) = calls_in(writer)
    assert 50 < len(calls.seqs) < 1000  # the first had room
    assert calls.frames[0].file == "/job/1.py"
    ring = RingFile(writer.path)
    definitions = ring.read_definitions(0, ring.read_hot().definitions_used)[0]
    ring.close()
    (note,) = [each.payload["text"] for each in definitions if each.kind == layout.DEFINITION_NOTE]
    assert "lines that issue operations" in note


def test_the_oldest_calls_make_room(writer: RankRecorder) -> None:
    row, sites = define_group(writer), CallSites(writer)
    for seq in range(1, 2 * layout.CALLS + 1):
        sites.note(layout.call_mark(row, seq, seq % 2))
    collectives, exchanges = sorted(calls_in(writer), key=lambda calls: calls.point_to_point)
    assert collectives.seqs == tuple(range(layout.CALLS + 2, 2 * layout.CALLS + 1, 2))
    assert exchanges.seqs == tuple(range(layout.CALLS + 1, 2 * layout.CALLS, 2))
    assert collectives.attributes(3, until=layout.CALLS + 9)["seqs"] == tuple(layout.CALLS + n for n in (4, 6, 8))


def test_damaged_words_and_definitions_are_passed_over(writer: RankRecorder) -> None:
    row = define_group(writer)
    writer.define(layout.DEFINITION_CALL_SITE, 1, {"file": "/job/a.py", "line": 3, "function": "f\tg\nh"})
    writer.define(layout.DEFINITION_CALL_SITE, 2, {"file": 5, "line": "x", "function": None})
    for seq, index in ((1, 1), (2, 2), (3, 999), (4, 0)):
        writer.note_call(seq, layout.call_mark(row, seq, 0) | index)
    writer.note_call(5, layout.call_mark(77, 5, 0) | 1)  # of a group that nobody has defined
    (calls,) = calls_in(writer)
    assert (calls.seqs, calls.frames[0].function) == ((1,), "f g h")


def test_of_a_rank_that_fails_the_newest_two_are_told(writer: RankRecorder) -> None:
    row = define_group(writer)
    writer.define(layout.DEFINITION_CALL_SITE, 1, {"file": "/job/a.py", "line": 3, "function": "f"})
    for seq in range(1, 30):
        writer.note_call(seq, layout.call_mark(row, seq, 0) | 1)
    ring = RingFile(writer.path)
    rank: Any = SimpleNamespace(ring=ring)
    (told,) = failing_calls(rank)
    ring.close()
    assert told["seqs"] == (28, 29)
    assert told["sites"] == "/job/a.py\t3\tf\n" * 2
