"""Flight-recorder dumps: where torch writes them, what may be read of them, and when."""

from __future__ import annotations

import gzip
import os
import subprocess
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.agents.conftest import RankProcess, Watched
from tests.agents.test_evidence_requests import files, request
from whichrank.agents.evidence import awaited_dumps
from whichrank.agents.evidence.awaited_dumps import AFTER_END_NS, AWAITED_NS, AwaitedDump, AwaitedDumps
from whichrank.agents.evidence.flight_dumps import (
    DUMP_BYTES,
    DumpPlaces,
    dump_paths,
    find_dump_places,
    is_settled,
    read_dump,
)
from whichrank.agents.user_files.user_files import files_of
from whichrank.telemetry.vocabulary import EventName

ON: dict[str, Any] = {"requests_per_minute": 20}
LONG_AGO_NS = 1_000_000_000
_S = 1_000_000_000


def places(*paths: Path, uid: int | None = None, since_ns: int = LONG_AGO_NS) -> DumpPlaces:
    owner = os.getuid() if uid is None else uid
    root = os.open("/", os.O_PATH)
    return DumpPlaces(
        paths=tuple(map(str, paths)),
        owner_uid=owner,
        files=files_of(owner, are_slow=True),
        root=root,
        since_ns=since_ns,
    )


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({"TORCH_FR_DUMP_TEMP_FILE": "/d/fr_"}, ("/d/fr_3",)),
        ({"TORCH_NCCL_DEBUG_INFO_TEMP_FILE": "/d/nccl_"}, ("/d/nccl_3",)),
        ({"TORCH_NCCL_DEBUG_INFO_TEMP_FILE": "old_", "TORCH_FR_DUMP_TEMP_FILE": "new_"}, ("/job/new_3", "/job/old_3")),
        ({"TORCH_FR_DUMP_TEMP_FILE": "/d/x", "TORCH_FR_DUMP_DYNAMIC_FILE_NAME": "1"}, ("/d/x", "/d/x3")),
        ({"TORCH_FR_DUMP_TEMP_FILE": "/d/x", "TORCH_FR_DUMP_DYNAMIC_FILE_NAME": "0"}, ("/d/x3",)),
        (
            {"HOME": "/home/u"},
            (
                "/home/u/.cache/torch/comm_lib_trace_rank_3",
                "/home/u/.cache/torch/nccl_trace_rank_3",
                "/tmp/comm_lib_trace_rank_3",
                "/tmp/nccl_trace_rank_3",
            ),
        ),
        (
            {"HOME": "/home/u", "XDG_CACHE_HOME": "/cache"},
            (
                "/cache/torch/comm_lib_trace_rank_3",
                "/cache/torch/nccl_trace_rank_3",
                "/tmp/comm_lib_trace_rank_3",
                "/tmp/nccl_trace_rank_3",
            ),
        ),
        ({}, ("/tmp/comm_lib_trace_rank_3", "/tmp/nccl_trace_rank_3")),
    ],
)
def test_places_are_those_of_torchs_own_writer(environment: Mapping[str, str], expected: tuple[str, ...]) -> None:
    assert dump_paths(environment, 3, "/job") == expected


def test_places_follow_the_environment_that_a_process_began_with(tmp_path: Path) -> None:
    environment = {"TORCH_FR_DUMP_TEMP_FILE": "dumps/r", "SECRET": "x" * 100_000}
    with subprocess.Popen(["sleep", "60"], env={**os.environ, **environment}, cwd=tmp_path) as process:
        deadline = time.monotonic() + 10.0
        # Right after it has begun another program a process has no environment for a moment.
        while not Path(f"/proc/{process.pid}/environ").read_bytes() and time.monotonic() < deadline:
            time.sleep(0.01)
        began_ns = time.time_ns()
        found = find_dump_places(process.pid, 7, os.getuid(), 5)
        later = find_dump_places(process.pid, 7, os.getuid(), began_ns + 3600 * _S)
        of_another = find_dump_places(process.pid, 7, os.getuid() + 1, 5)
        process.kill()
    assert found is not None
    assert (found.paths, found.owner_uid) == ((str(tmp_path / "dumps/r7"),), os.getuid())
    assert began_ns - 30 * _S < found.since_ns <= time.time_ns(), "the kernel's word counts, not what a ring claims"
    assert later is not None
    assert later.since_ns == began_ns + 3600 * _S
    assert of_another is None
    assert find_dump_places(1 << 30, 0, os.getuid(), 0) is None


def test_only_a_ranks_own_regular_file_of_this_job_is_read(tmp_path: Path) -> None:
    mine = tmp_path / "trace_0"
    mine.write_bytes(b"dump")
    assert read_dump(places(mine), str(mine)) == b"dump"
    with pytest.raises(PermissionError):  # he may not even look for it
        read_dump(places(mine, uid=os.getuid() + 1), str(mine))
    assert read_dump(places(mine, since_ns=time.time_ns() + 60 * _S), str(mine)) == b"", "of an earlier job"
    link, pipe, empty = tmp_path / "link", tmp_path / "pipe", tmp_path / "empty"
    link.symlink_to(mine)
    os.mkfifo(pipe)
    empty.touch()
    for path in (link, pipe, tmp_path):
        with pytest.raises(OSError, match="not a regular file"):
            read_dump(places(path), str(path))
    assert read_dump(places(empty), str(empty)) == b""
    long = tmp_path / "long"
    long.touch()
    os.truncate(long, DUMP_BYTES + 1)
    assert read_dump(places(long), str(long)) == b""
    later_ns = time.time_ns() + 10 * _S
    assert is_settled(places(mine), str(mine), later_ns)
    for path in (link, pipe, empty, long, tmp_path / "none", tmp_path):
        assert not is_settled(places(path), str(path), later_ns), path


def test_a_dump_is_awaited_until_it_is_written_and_no_longer_grows(tmp_path: Path) -> None:
    path = tmp_path / "trace_0"
    told: list[tuple[str, bytes]] = []
    said: list[str] = []
    awaited = AwaitedDumps(said.append)
    awaited.add(AwaitedDump(pid=1, places=places(path), tell=lambda *file: told.append(file)), now_ns=0)
    awaited.look(1, time.time_ns())
    path.write_bytes(b"half")
    awaited.look(2, time.time_ns())
    assert (told, len(awaited)) == ([], 1)
    path.write_bytes(b"whole")
    awaited.look(3, time.time_ns() + 2 * _S)
    assert (told, len(awaited), said) == ([("trace_0", b"whole")], 0, [])


def test_waiting_ends_with_the_process_or_after_the_longest_time_out(tmp_path: Path) -> None:
    awaited, told = AwaitedDumps(lambda line: None), []
    for pid in (1, 2):
        path = tmp_path / f"trace_{pid}"
        awaited.add(AwaitedDump(pid=pid, places=places(path), tell=lambda *file: told.append(file)), now_ns=0)
    awaited.end(1, 10 * _S)
    awaited.look(10 * _S + AFTER_END_NS - 1, time.time_ns())
    assert len(awaited) == 2
    awaited.look(10 * _S + AFTER_END_NS, time.time_ns())
    assert len(awaited) == 1
    (tmp_path / "trace_2").write_bytes(b"written in the last moment")
    awaited.look(AWAITED_NS, time.time_ns(), last=True)
    assert (told, len(awaited)) == ([("trace_2", b"written in the last moment")], 0)
    for number in range(awaited_dumps.MAX_AWAITED + 9):
        awaited.add(AwaitedDump(pid=number, places=places(), tell=lambda *file: None), now_ns=0)
    assert len(awaited) == awaited_dumps.MAX_AWAITED


def test_what_is_too_large_is_told_once(tmp_path: Path) -> None:
    path = tmp_path / "trace_0"
    said: list[str] = []
    path.touch()
    os.truncate(path, DUMP_BYTES + 1)
    awaited = AwaitedDumps(said.append)
    awaited.add(AwaitedDump(pid=1, places=places(path), tell=lambda *file: None), now_ns=0)
    for turn in range(3):
        awaited.look(turn, time.time_ns() + 2 * _S)
    (line,) = said
    assert str(path) in line
    assert "copy it by hand" in line


def test_a_rank_that_cannot_dump_is_answered_for_by_those_beside_it(
    start_rank: Callable[..., RankProcess],
    watch: Callable[..., Watched],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TORCH_FR_DUMP_TEMP_FILE", str(tmp_path / "trace_"))
    monkeypatch.setattr(awaited_dumps, "LOOK_S", 0.2)
    monkeypatch.setattr("whichrank.agents.evidence.evidence_desk.LOOK_S", 0.2)
    ranks = [start_rank(number, 3) for number in range(3)]
    watched = watch(**ON)
    watched.run_until(lambda: len(watched.events(EventName.RANK_STARTED)) == 3)
    watched.agent.request(request("flight_recorder", rank=2))
    watched.run_for(0.5)
    assert files(watched) == []
    for number in (0, 1):
        (tmp_path / f"trace_{number}").write_bytes(b"what rank %d saw" % number)
    ranks[0].say("exit 3 1", answers=False)
    watched.run_until(lambda: len(files(watched)) == 2)
    found = {file.identity.rank: file for file in files(watched)}
    assert {rank: gzip.decompress(file.content) for rank, file in found.items()} == {
        rank: b"what rank %d saw" % rank for rank in (0, 1)
    }
    assert found[1].name.endswith(f"rank-00001-{ranks[1].pid}-trace_1.dump.gz")
    assert {file.request_id for file in found.values()} == {"incident/flight_recorder/2"}


def test_a_dump_of_the_last_moment_is_still_told_at_the_agents_end(
    start_rank: Callable[..., RankProcess],
    watch: Callable[..., Watched],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TORCH_FR_DUMP_TEMP_FILE", str(tmp_path / "trace_"))
    start_rank(0, 1)
    watched = watch(**ON, keeps_answers=True, ships_answers=False)
    watched.run_until(lambda: watched.events(EventName.RANK_STARTED))
    watched.agent.request(request("flight_recorder"))
    watched.run_for(0.3)
    (tmp_path / "trace_0").write_bytes(b"the end")
    watched.agent.close()
    (kept,) = (path for path in (tmp_path / "evidence").iterdir() if path.name.endswith(".dump.gz"))
    assert gzip.decompress(kept.read_bytes()) == b"the end"
    assert files(watched) == []
