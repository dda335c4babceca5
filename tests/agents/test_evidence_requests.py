"""Files that people and operators ask for: rings, their last minutes, log tails; bounded, once, without secrets."""

from __future__ import annotations

import gzip
import os
import subprocess
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.agents.conftest import RankProcess, Watched
from whichrank.agents.evidence import evidence_desk
from whichrank.agents.evidence.flight_dumps import DumpPlaces, find_dump_places
from whichrank.agents.evidence.log_tail import TAIL_BYTES, LogFile, close_logs, find_logs, read_tail
from whichrank.agents.rings.ring_events import decode_slots
from whichrank.agents.rings.ring_history import RingHistory
from whichrank.telemetry import ring_layout as L
from whichrank.telemetry.evidence_pieces import EvidencePiece, decode_evidence, join_pieces
from whichrank.telemetry.records import Event, Identity
from whichrank.telemetry.redaction import redact_bytes
from whichrank.telemetry.vocabulary import EventName

Start = Callable[..., RankProcess]
Watch = Callable[..., Watched]
ON: dict[str, Any] = {"requests_per_minute": 5, "history_s": 60.0}


def request(action: str, rank: int = 0, request_id: str = "") -> Event:
    return Event(
        name=EventName.EVIDENCE_REQUEST,
        identity=Identity(job="job"),
        time_ns=0,
        attributes={"id": request_id or f"incident/{action}/{rank}", "action": action, "rank": rank, "node": "node-a"},
    )


def files(watched: Watched) -> list[EvidencePiece]:
    return join_pieces(piece for value in watched.logs for piece in decode_evidence(value))


def events_of(content: bytes) -> Any:
    return decode_slots(gzip.decompress(content))


def test_the_last_minutes_reach_beyond_what_is_left_in_the_ring(start_rank: Start, watch: Watch) -> None:
    rank = start_rank(0, 1, slots=64)
    watched = watch(**ON)
    watched.run_until(lambda: watched.events(EventName.RANK_STARTED))
    for _ in range(10):
        rank.say("collectives 20")
        watched.run_for(0.6)
    watched.agent.request(request("history"))
    watched.agent.request(request("ring"))
    watched.run_until(lambda: len(files(watched)) == 2)
    found = {file.action: file for file in files(watched)}
    events = events_of(found["history"].content)
    # 10 x 20 calls of two events each, of which the ring of 64 slots has the last ones only.
    assert len(events) > 300
    assert list(events["begin"]) == list(range(int(events["begin"][0]), int(events["begin"][0]) + len(events)))
    assert int(events["end"][-1]) >= 400
    assert gzip.decompress(found["ring"].content)[:8] == L.MAGIC
    assert (found["history"].identity.rank, found["history"].identity.job) == (0, "job")
    assert found["history"].request_id == "incident/history/0"


def test_a_request_is_answered_once_and_so_many_a_minute(start_rank: Start, watch: Watch) -> None:
    start_rank(0, 1)
    watched = watch(**ON)
    watched.run_until(lambda: watched.events(EventName.RANK_STARTED))
    for _ in range(3):
        watched.agent.request(request("ring"))
    watched.run_until(lambda: files(watched))
    watched.run_for(0.5)
    assert sum(bool(decode_evidence(value)) for value in watched.logs) == 1
    assert len(files(watched)) == 1
    for number in range(10):
        watched.agent.request(request("ring", request_id=f"r{number}"))
    watched.run_until(lambda: len(files(watched)) == 5)
    assert watched.agent.health.drops["requests_refused"] == 6


def test_switched_off_nothing_is_kept_or_answered(start_rank: Start, watch: Watch) -> None:
    rank = start_rank(0, 1)
    watched = watch()
    watched.run_until(lambda: watched.events(EventName.RANK_STARTED))
    rank.say("collectives 20")
    for action in ("ring", "history", "log_tail"):
        watched.agent.request(request(action))
    watched.run_for(1.0)
    assert files(watched) == []
    assert watched.agent.health.drops["requests_refused"] == 3


def test_a_rank_whose_files_could_not_be_found_is_looked_at_again(
    start_rank: Start, watch: Watch, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    tries: list[int] = []

    def not_at_first(pid: int, *words: int) -> DumpPlaces | None:
        tries.append(pid)
        return find_dump_places(pid, *words) if len(tries) > 1 else None  # its owner's helper did not answer

    monkeypatch.setattr(evidence_desk, "find_dump_places", not_at_first)
    monkeypatch.setenv("TORCH_FR_DUMP_TEMP_FILE", str(tmp_path / "dump"))
    start_rank(0, 1)
    watched = watch(**ON)
    watched.run_until(lambda: watched.events(EventName.RANK_STARTED))
    (tmp_path / "dump0").write_bytes(b"what the recorder wrote")
    watched.run_until(lambda: len(tries) == 2)
    watched.agent.request(request("flight_recorder"))
    watched.run_until(lambda: files(watched))
    assert gzip.decompress(files(watched)[0].content) == b"what the recorder wrote"


def test_nobody_is_asked_for(start_rank: Start, watch: Watch) -> None:
    start_rank(0, 1)
    watched = watch(**ON)
    watched.run_until(lambda: watched.events(EventName.RANK_STARTED))
    watched.agent.request(request("ring", rank=7))
    assert watched.agent.health.drops["requests_for_nobody"] == 1


def test_the_log_and_the_history_of_a_rank_that_died_can_still_be_had(
    ring_directory: Path, tmp_path: Path, watch: Watch
) -> None:
    log = tmp_path / "rank.err"
    rank = RankProcess(ring_directory, 0, 1, log=str(log))
    try:
        watched = watch(**ON)
        watched.run_until(lambda: watched.events(EventName.RANK_STARTED))
        rank.say("collectives 30")
        rank.say("log the_last_words_of_this_rank")
        rank.say("log api_key=sk-12345678")
        watched.run_for(0.5)
        rank.say("exit 3 1", answers=False)
        watched.run_until(lambda: watched.events(EventName.RANK_EXIT))
        watched.run_for(0.3)
        watched.agent.request(request("log_tail"))
        watched.agent.request(request("history"))
        watched.run_until(lambda: len(files(watched)) == 2)
        found = {file.action: file for file in files(watched)}
        assert found["log_tail"].content == b"the_last_words_of_this_rank\napi_key=[removed]\n"
        assert len(events_of(found["history"].content)) >= 60
    finally:
        rank.end()


def test_what_a_node_sends_has_a_bound(start_rank: Start, watch: Watch) -> None:
    start_rank(0, 1)
    watched = watch(requests_per_minute=100, evidence_bytes=40_000)
    watched.run_until(lambda: watched.events(EventName.RANK_STARTED))
    for number in range(60):
        watched.agent.request(request("ring", request_id=f"r{number}"))
        watched.run_for(0.02)
    watched.run_until(lambda: watched.agent.health.drops["evidence_over_limit"])
    watched.run_for(0.3)
    sizes = [len(file.content) for file in files(watched)]
    assert 40_000 - sizes[0] < sum(sizes) <= 40_000
    assert len(sizes) + watched.agent.health.drops["evidence_over_limit"] == 60


def test_answers_that_are_kept_bear_the_incidents_name(start_rank: Start, watch: Watch, tmp_path: Path) -> None:
    start_rank(0, 1)
    watched = watch(**ON, keeps_answers=True)
    watched.run_until(lambda: watched.events(EventName.RANK_STARTED))
    for number, incident in enumerate(("0123456789abcdef", "")):
        asked = request("ring", request_id=f"r{number}")
        watched.agent.request(replace(asked, attributes={**asked.attributes, "incident": incident}))
    watched.run_until(lambda: len(files(watched)) == 2)
    kept = sorted(path.name for path in (tmp_path / "evidence").iterdir())
    assert [file.incident for file in files(watched)] == ["0123456789abcdef", ""]
    assert kept == sorted(
        (f"0123456789abcdef-{files(watched)[0].name}", files(watched)[1].name),
    )


def test_a_history_keeps_its_bounds() -> None:
    def chunk(time_ns: int) -> bytes:
        slot = [0] * len(L.EVENT_STRUCT.unpack(bytes(L.EVENT_BYTES)))
        slot[L.E_TIME_NS] = time_ns
        return L.EVENT_STRUCT.pack(*slot) * 4

    history = RingHistory(age_s=10.0, limit_bytes=100 * len(chunk(0)))
    for second in range(60):
        history.add(chunk(second * 1_000_000_000))
    assert history.size == 11 * len(chunk(0))
    assert history.take_copy() == b"".join(chunk(second * 1_000_000_000) for second in range(49, 60))
    history.limit_bytes = 3 * len(chunk(0))
    history.add(chunk(60_000_000_000))
    assert history.size == history.limit_bytes
    nothing = RingHistory()
    nothing.add(chunk(1))
    assert nothing.size == 0


def test_a_log_that_was_swapped_for_another_file_is_not_read(tmp_path: Path) -> None:
    secret, path = tmp_path / "secret", tmp_path / "out.log"
    secret.write_text("of another user")
    path.write_text("mine")
    log = LogFile(path=str(path), fd=os.open(path, os.O_RDONLY))
    assert read_tail(log) == b"mine"
    path.rename(tmp_path / "kept")
    path.symlink_to(secret)
    assert read_tail(log) == b"mine"
    path.unlink()
    path.write_text("another")
    assert read_tail(log) == b"mine"
    close_logs([log])
    assert read_tail(log) == b""


def test_a_tail_begins_with_a_line(tmp_path: Path) -> None:
    path = tmp_path / "out.log"
    path.write_text("".join(f"line {number}\n" for number in range(1000)))
    tail = read_tail(LogFile(path=str(path), fd=os.open(path, os.O_RDONLY)), 100)
    assert tail.endswith(b"line 998\nline 999\n")
    assert tail.startswith(b"line 9")
    assert len(tail) <= 100


def test_only_files_are_logs(tmp_path: Path) -> None:
    path = tmp_path / "out.log"
    with path.open("wb") as log:
        for streams, expected in (((log, log), [str(path)]), ((subprocess.PIPE, log), [str(path)])):
            process = subprocess.Popen(["sleep", "60"], stdout=streams[0], stderr=streams[1])
            found = [log.path for log in find_logs(process.pid, os.getuid())]
            process.kill()
            process.communicate()
            assert found == expected
    with subprocess.Popen(["sleep", "60"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        assert find_logs(process.pid, os.getuid()) == ()
        process.kill()
    assert find_logs(1 << 30, os.getuid()) == ()


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("password=hunter2 next", "password=[removed] next"),
        ('{"api_key": "abc def", "x": 1}', '{"api_key": "[removed]", "x": 1}'),
        ("export AWS_SECRET_ACCESS_KEY=abc/def+1", "export AWS_SECRET_ACCESS_KEY=[removed]"),
        ("HF_TOKEN: hf_abcdefghijklmnop", "HF_TOKEN: [removed]"),
        ("found AKIAABCDEFGHIJKLMNOP here", "found [removed] here"),
        ("Authorization: Bearer eyJhbGciOi.J9", "Authorization: Bearer [removed]"),
        ("s3://user:pa55@host/bucket", "s3://user:[removed]@host/bucket"),
        ("loss: 3.2, tokens per second: 17", "loss: 3.2, tokens per second: 17"),
        ("step 12 loss=0.5", "step 12 loss=0.5"),
    ],
)
def test_secrets_are_blotted_out(text: str, left: str) -> None:
    assert redact_bytes(text.encode()).decode() == left


@pytest.mark.parametrize("part", [b"a", b"a.", b"x-", b"http", b"token", b" ", b"bearer ", b"://", b"'", b"=", b"a:b@"])
def test_words_without_end_are_looked_at_in_a_moment(part: bytes) -> None:
    began_s = time.process_time()
    redact_bytes(part * (TAIL_BYTES // len(part)))
    assert time.process_time() - began_s < 2.0
