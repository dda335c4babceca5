"""Reading rings that cannot be trusted: every damage has a name, and none of them raises or misleads."""

from __future__ import annotations

import os
import struct
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from whichrank.agents.job_agent import Agent
from whichrank.agents.rings.crash_area import read_exception, read_signal, read_stack
from whichrank.agents.rings.progress_page import parse_group_row, parse_heartbeat_row, parse_rank_row
from whichrank.agents.rings.ring_file import RingDamaged, RingFile, exception_version
from whichrank.instrumentation.ring_writer import RingWriter
from whichrank.telemetry import ring_layout as L
from whichrank.telemetry.records import Identity
from whichrank.telemetry.vocabulary import Phase


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """A small ring with everything in it: groups, events, phases, an exception, a stack."""
    directory = tmp_path_factory.mktemp("image")
    writer = RingWriter.create(
        directory, rank=1, local_rank=1, world_size=4, identity={"host": "here"}, slots=64, group_rows=4
    )
    writer.define(L.DEFINITION_NOTE, 0, {"text": "hello"})
    for name in ("default_pg", "dp"):
        group = writer.define_group({"name": name, "ranks": "0-3", "size": 4, "ordinal": 0, "default": name == "dp"})
        writer.track_completion(True)
        writer.set_phase(Phase.FORWARD)
        for _ in range(5):
            writer.complete(group, writer.enqueue(group, 1, 100, 6, -1, 0), 0, 0)
        writer.enqueue(group, 1, 100, 6, -1, 0)
        writer.set_phase(Phase.BACKWARD)
        writer.end_step(1.0, 2.0, 0)
    writer.beat()
    writer.record_stack([("train.py", 3, "main")])
    writer.record_exception("builtins.ValueError: no", [("train.py", 4, "main")], True)
    content = writer.path.read_bytes()
    writer.close()
    return content


def _word(offset: int, value: int) -> Callable[[bytearray], None]:
    def change(raw: bytearray) -> None:
        struct.pack_into("<Q", raw, offset, value)

    return change


def _open(tmp_path: Path, raw: bytes) -> RingFile:
    path = tmp_path / "rank-00001.1.1.ring"
    path.write_bytes(raw)
    return RingFile(path)


def test_a_good_ring_reads_back(tmp_path: Path, image: bytes) -> None:
    ring = _open(tmp_path, image)
    header = ring.header
    assert (header.rank, header.world_size, header.event_slots, header.group_rows) == (1, 4, 64, 4)
    assert header.pid == os.getpid()
    assert header.identity["host"] == "here"
    hot = ring.read_hot()
    definitions, position, problem = ring.read_definitions(0, hot.definitions_used)
    assert problem == ""
    assert position == hot.definitions_used
    assert [each.payload.get("name") or each.payload.get("text") for each in definitions] == [
        "hello",
        "default_pg",
        "dp",
    ]
    ring.expect_groups(2)
    first, second = ring.read_page()
    rank_row = parse_rank_row(first, second)
    assert rank_row is not None
    assert (rank_row.step, rank_row.phase, rank_row.loss, rank_row.grad_norm) == (2, Phase.BACKWARD, 1.0, 2.0)
    assert parse_heartbeat_row(first, second) is not None
    for index in range(2):
        row = parse_group_row(first, second, index)
        assert row is not None
        assert (row.enqueued, row.completed, row.open, row.started, row.nbytes) == (6, 5, 1, -1, 100)
        assert row.oldest_open_ns == row.enqueue_ns
    assert parse_group_row(first, second, 2) is None
    found = read_exception(ring, writer_is_dead=False)
    assert found is not None
    assert (found.type_name, found.message, found.step) == ("ValueError", "no", 2)
    assert found.frames[-1].line == 4
    stack = read_stack(ring)
    assert stack is not None
    assert stack.frames[0].file == "train.py"
    assert read_signal(ring) is None
    ring.close()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (_word(L.H_MAGIC, 0), "magic"),
        (_word(L.H_LAYOUT, 7), "layout version 7"),
        (_word(L.H_FILE_BYTES, 100), "100 bytes"),
        (_word(L.H_FILE_BYTES, 1 << 50), f"{1 << 50} bytes"),
        (_word(L.H_EVENT_SLOTS, 0), "0 event slots"),
        (_word(L.H_EVENT_SLOTS, 65), "power of two"),
        (_word(L.H_EVENT_SLOTS, 1 << 40), "power of two"),
        (_word(L.H_GROUP_ROWS, 1 << 20), "group rows"),
        (_word(L.H_PROGRESS_OFFSET, 8), "progress page at 8"),
        (_word(L.H_EVENTS_OFFSET, (1 << 64) - 64), "events at"),
        (_word(L.H_DEFINITIONS_BYTES, 1 << 62), "definitions at"),
        (_word(L.H_CRASH_OFFSET, 1 << 30), "crash area at"),
        (_word(L.H_EVENTS_OFFSET, L.HEADER_BYTES), "overlap"),
        (_word(L.H_RANK, 4), "rank 4 of world size 4"),
        (_word(L.H_RANK, 1 << 63), "impossible"),
    ],
)
def test_a_damaged_header_is_named(
    tmp_path: Path, image: bytes, change: Callable[[bytearray], None], words: str
) -> None:
    raw = bytearray(image)
    change(raw)
    with pytest.raises(RingDamaged) as damage:
        _open(tmp_path, bytes(raw))
    assert words in str(damage.value)
    assert "rank-00001.1.1.ring" in str(damage.value)
    assert "\n" not in str(damage.value)


@pytest.mark.parametrize("identity", [b"{", b"[1]", b"\xff\xfe"])
def test_a_damaged_identity_does_not_lose_the_ring(tmp_path: Path, image: bytes, identity: bytes) -> None:
    raw = bytearray(image)
    struct.pack_into("<Q", raw, L.H_IDENTITY_BYTES, len(identity))
    raw[L.H_IDENTITY : L.H_IDENTITY + len(identity)] = identity
    header = _open(tmp_path, bytes(raw)).header
    assert header.identity == {}
    assert header.identity_problem


def test_a_row_in_the_middle_of_an_update_is_not_believed(tmp_path: Path, image: bytes) -> None:
    ring = _open(tmp_path, image)
    first, second = ring.read_page()
    assert parse_rank_row(first, second) is not None
    odd = bytearray(second)
    odd[0] |= 1
    assert parse_rank_row(bytes(odd), bytes(odd)) is None
    changed = bytearray(second)
    changed[L.R_STEP] ^= 0xFF
    assert parse_rank_row(bytes(changed), second) is None
    assert parse_rank_row(first[:40], second[:40]) is None
    torn = bytearray(second)
    torn[L.ROW_BYTES] |= 1
    assert parse_heartbeat_row(bytes(torn), bytes(torn)) is None
    assert parse_rank_row(bytes(torn), bytes(torn)) is not None


def test_an_exception_being_written_waits_for_a_live_writer_only(tmp_path: Path, image: bytes) -> None:
    raw = bytearray(image)
    crash = struct.unpack_from("<Q", raw, L.H_CRASH_OFFSET)[0]
    struct.pack_into("<Q", raw, crash + L.C_EXC_VERSION, 1)
    ring = _open(tmp_path, bytes(raw))
    assert read_exception(ring, writer_is_dead=False) is None
    found = read_exception(ring, writer_is_dead=True)
    assert found is not None
    assert not found.complete


def test_definitions_stop_at_the_first_break_and_keep_what_came_before(tmp_path: Path, image: bytes) -> None:
    raw = bytearray(image)
    start = struct.unpack_from("<Q", raw, L.H_DEFINITIONS_OFFSET)[0]
    used = struct.unpack_from("<Q", raw, L.H_DEFINITIONS_USED)[0]
    first_size = struct.unpack_from("<I", raw, start)[0]
    second = start + (L.DEFINITION_HEAD.size + first_size + 7 & ~7)
    struct.pack_into("<I", raw, second, 1 << 31)
    definitions, position, problem = _open(tmp_path, bytes(raw)).read_definitions(0, used)
    assert [each.payload for each in definitions] == [{"text": "hello"}]
    assert "claims" in problem
    assert position == used
    raw = bytearray(image)
    raw[second + L.DEFINITION_HEAD.size] = 0
    definitions, position, problem = _open(tmp_path, bytes(raw)).read_definitions(0, used)
    assert len(definitions) == 2
    assert "not a JSON object" in problem


def _exercise(path: Path) -> Agent:
    agent = Agent(ring_directory=path, publish=lambda *_: None, identity=Identity(job="job"))
    agent.read_left_behind()
    agent.poll()
    agent.close()
    return agent


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_no_bytes_break_the_agent(tmp_path_factory: pytest.TempPathFactory, image: bytes, data: st.DataObject) -> None:
    raw = bytearray(image)
    words = len(raw) // 8
    interesting = st.sampled_from([0, 1, 2, 63, 64, 65, 1 << 31, 1 << 32, 1 << 62, (1 << 63) + 1, (1 << 64) - 1])
    for _ in range(data.draw(st.integers(1, 12))):
        # Mostly where numbers are believed: header, page, first events, definitions.
        word = data.draw(st.one_of(st.integers(0, 19), st.integers(384, 1400), st.integers(0, words - 1)))
        value = data.draw(st.one_of(interesting, st.integers(0, (1 << 64) - 1)))
        struct.pack_into("<Q", raw, 8 * word, value)
    size = data.draw(st.one_of(st.just(len(raw)), st.integers(0, len(raw))))
    directory = tmp_path_factory.mktemp("fuzz")
    (directory / "rank-00001.1.1.ring").write_bytes(raw[:size])
    (directory / "rank-00002.1.1.ring").write_bytes(image)
    agent = _exercise(directory)
    assert agent.health.drops["poll_failed"] == 0, agent.health.problems
    assert agent.health.rings_found >= 1
    assert agent.health.records_sent >= 4  # the good ring was read whole


@pytest.mark.parametrize("size", [0, 7, 4095, 4096, 4097, 5000, 10_000, 20_000])
def test_truncation_anywhere_is_survived(tmp_path: Path, image: bytes, size: int) -> None:
    (tmp_path / "rank-00001.1.1.ring").write_bytes(image[:size])
    agent = _exercise(tmp_path)
    assert agent.health.drops["poll_failed"] == 0, agent.health.problems
    assert agent.health.problems


def test_exception_version_needs_a_whole_crash_area(tmp_path: Path, image: bytes) -> None:
    assert exception_version(_open(tmp_path, image)) == 2
    raw = bytearray(image)
    struct.pack_into("<Q", raw, L.H_CRASH_BYTES, 64)
    assert exception_version(_open(tmp_path, bytes(raw))) == 0
