"""Logs of jobs are followed: real processes' descriptors, files of patterns; fair, bounded, without secrets."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from whichrank.agents.collectors.base.collector import Collected, NodeEvent, Timestamps
from whichrank.agents.collectors.logs import job_logs
from whichrank.agents.collectors.logs.job_logs import JobLogLine, JobLogsCollector
from whichrank.agents.collectors.processes.job_process import JobProcess
from whichrank.telemetry.node_metrics import node_metrics
from whichrank.telemetry.vocabulary import EventName

S = 1_000_000_000


def at(seconds: float) -> Timestamps:
    return Timestamps(wall_ns=1_800_000_000 * S + int(seconds * S), mono_ns=int(seconds * S))


class Classifier:
    """Keeps what it is given; a line with "Error" happens."""

    def __init__(self) -> None:
        self.lines: list[JobLogLine] = []
        self.calls = 0

    def __call__(self, lines: Sequence[JobLogLine], now: Timestamps) -> Sequence[NodeEvent]:
        self.calls += 1
        self.lines += lines
        return [
            NodeEvent(
                name=EventName.JOB_LOG,
                time_ns=now.wall_ns,
                attributes={
                    "line": line.text,
                    "around": (line.text, "x"),
                    "rank": line.process.rank if line.process else -1,
                },
                pid=line.process.pid if line.process else 0,
            )
            for line in lines
            if "Error" in line.text
        ]

    @property
    def texts(self) -> list[str]:
        return [line.text for line in self.lines]


RANK = """
import sys
for line in sys.stdin:
    print(line.strip(), flush=True)
    print("E " + line.strip(), file=sys.stderr, flush=True)
    print("done", file=open(sys.argv[1], "a"), flush=True)
"""


class Rank:
    """A process whose standard output and error are files."""

    def __init__(self, folder: Path, rank: int, out: Path, error: Path | None = None) -> None:
        self.rank = rank
        self._done = folder / f"done-{rank}"
        self._said = 0
        with open(out, "ab") as out_file, open(error or out, "ab") as error_file:
            self.process = subprocess.Popen(
                [sys.executable, "-c", RANK, str(self._done)],
                stdin=subprocess.PIPE,
                stdout=out_file,
                stderr=error_file,
                text=True,
            )

    @property
    def watched(self) -> JobProcess:
        return JobProcess(pid=self.process.pid, job="j", rank=self.rank)

    def say(self, text: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(text + "\n")
        self.process.stdin.flush()
        self._said += 1
        end_s = time.monotonic() + 20
        while not self._done.exists() or self._done.read_text().count("done") < self._said:
            assert time.monotonic() < end_s
            time.sleep(0.005)

    def end(self) -> None:
        if self.process.poll() is None:
            self.process.communicate(timeout=20)


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Rank]]:
    started: list[Rank] = []

    def one(rank: int, out: Path, error: Path | None = None) -> Rank:
        started.append(Rank(tmp_path, rank, out, error))
        return started[-1]

    yield one
    for rank in started:
        rank.end()


def append(path: Path, text: str) -> None:
    with open(path, "a") as file:
        file.write(text)


def counts(collected: Collected) -> dict[str, float]:
    for point in collected.points:
        assert tuple(point.attributes) == node_metrics()[point.name].attributes
    return {point.name.removeprefix("whichrank.log."): point.value for point in collected.points}


# --- whose ----------------------------------------------------------------------------------------------------------


def test_a_ranks_output_and_error_are_found_by_its_descriptors(tmp_path: Path, start: Callable[..., Rank]) -> None:
    rank = start(3, tmp_path / "out", tmp_path / "err")
    seen = Classifier()
    collector = JobLogsCollector(seen, lambda: [rank.watched])
    collector.collect(at(0))
    rank.say("RuntimeError: here")
    collected = collector.collect(at(1))
    assert sorted((line.text, line.descriptor, line.path, line.look_back) for line in seen.lines) == [
        ("E RuntimeError: here", 2, str(tmp_path / "err"), False),
        ("RuntimeError: here", 1, str(tmp_path / "out"), False),
    ]
    assert {happening.pid for happening in collected.happenings} == {rank.process.pid}
    assert counts(collected) == {"lines": 2, "storms": 0, "lost.bytes": 0, "files": 2}
    assert collected.problems == []
    collector.close()


def test_last_words_of_a_rank_that_has_ended_are_read(tmp_path: Path, start: Callable[..., Rank]) -> None:
    rank = start(0, tmp_path / "out")
    ranks = [rank.watched]
    seen = Classifier()
    collector = JobLogsCollector(seen, lambda: ranks)
    collector.collect(at(0))
    rank.say("Error: last words")
    append(tmp_path / "out", "and half a line")
    rank.end()
    ranks.clear()
    for second in range(1, 5):
        collector.collect(at(second))
    assert seen.texts == ["Error: last words", "E Error: last words", "and half a line"]
    assert counts(collector.collect(at(45))) == {"lines": 3, "storms": 0, "lost.bytes": 0, "files": 0}
    collector.close()


def test_ranks_that_are_awaited_are_looked_for_often_and_their_lines_read_as_usual(
    tmp_path: Path, start: Callable[..., Rank]
) -> None:
    """Who fails within a second of its start has no descriptors any more at the next usual look."""
    seen = Classifier()
    ranks: list[JobProcess] = []
    collector = JobLogsCollector(seen, lambda: ranks)
    collector.collect(at(0))
    assert collector.period_s == 0.25
    rank = start(0, tmp_path / "out")
    ranks.append(rank.watched)
    collector.collect(at(0.25))
    rank.say("Error: at once")
    append(tmp_path / "out", "half a line")
    rank.end()
    ranks.clear()
    for look in range(2, 5):
        collector.collect(at(look * 0.25))
    assert seen.texts == ["Error: at once", "E Error: at once"]  # half a line waits for two usual looks, not quick ones
    ranks.append(JobProcess(pid=os.getpid(), job="next"))
    collector.collect(at(1.25))
    assert collector.period_s == 0.25
    collector.collect(at(7))
    assert collector.period_s == 1.0
    collector.close()


def test_a_deleted_or_truncated_log_is_followed_by_its_descriptor(tmp_path: Path, start: Callable[..., Rank]) -> None:
    rank = start(0, tmp_path / "out")
    seen = Classifier()
    collector = JobLogsCollector(seen, lambda: [rank.watched])
    rank.say("one")
    collector.collect(at(0))
    os.truncate(tmp_path / "out", 0)
    rank.say("two")
    collector.collect(at(1))
    (tmp_path / "out").unlink()
    (tmp_path / "out").write_text("a trap\n")
    rank.say("three")
    collector.collect(at(2))
    assert seen.texts == ["one", "E one", "two", "E two", "three", "E three"]
    collector.close()


def test_what_a_ranks_file_holds_when_it_is_found_is_old(tmp_path: Path, start: Callable[..., Rank]) -> None:
    """Of another attempt, or of another job that appended to it."""
    (tmp_path / "out").write_text("Error: of the last attempt\n")
    seen = Classifier()
    ranks: list[JobProcess] = []
    collector = JobLogsCollector(seen, lambda: ranks)
    collector.collect(at(0))
    rank = start(0, tmp_path / "out")
    ranks.append(rank.watched)
    collector.collect(at(1))
    rank.say("Error: of this one")
    collector.collect(at(2))
    assert [(line.text, line.look_back) for line in seen.lines] == [
        ("Error: of the last attempt", True),
        ("Error: of this one", False),
        ("E Error: of this one", False),
    ]
    collector.close()


def test_a_file_has_the_owners_that_it_has_now(tmp_path: Path, start: Callable[..., Rank]) -> None:
    """Ranks are found one by one, and start again."""
    first = start(0, tmp_path / "out")
    ranks = [first.watched]
    seen = Classifier()
    collector = JobLogsCollector(seen, lambda: ranks)
    collector.collect(at(0))
    second = start(1, tmp_path / "out")
    ranks.append(second.watched)
    second.say("two")
    collector.collect(at(1))
    ranks.remove(first.watched)
    second.say("one")
    collector.collect(at(2))
    owners = {line.text: line.process for line in seen.lines}
    assert owners == {"two": None, "E two": None, "one": second.watched, "E one": second.watched}
    collector.close()


def test_a_log_of_several_ranks_is_nobodys_in_particular(tmp_path: Path, start: Callable[..., Rank]) -> None:
    ranks = [start(number, tmp_path / "out") for number in range(2)]
    seen = Classifier()
    collector = JobLogsCollector(seen, lambda: [rank.watched for rank in ranks])
    ranks[1].say("Error")
    collector.collect(at(0))
    assert [(line.text, line.process) for line in seen.lines] == [("Error", None), ("E Error", None)]
    collector.close()


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root: gives a file away")
def test_a_file_of_another_user_is_not_followed(tmp_path: Path, start: Callable[..., Rank]) -> None:
    (tmp_path / "out").write_text("secret of somebody\n")
    os.chown(tmp_path / "out", 12345, 12345)
    rank = start(0, tmp_path / "out")
    seen = Classifier()
    collector = JobLogsCollector(seen, lambda: [rank.watched])
    problems = {problem for second in range(3) for problem in collector.collect(at(second)).problems}
    assert seen.lines == []
    assert len(problems) == 1
    assert "another user" in problems.pop()
    collector.close()


def test_pipes_and_gone_processes_are_no_logs(start: Callable[..., Rank]) -> None:
    seen = Classifier()
    collector = JobLogsCollector(seen, lambda: [JobProcess(pid=1 << 22), JobProcess(pid=os.getppid())])
    assert collector.collect(at(0)).problems == [] or seen.lines == []
    collector.close()


# --- patterns -------------------------------------------------------------------------------------------------------


def test_files_of_patterns_old_and_new(tmp_path: Path) -> None:
    (tmp_path / "a.log").write_text("".join(f"old line {number:06d}\n" for number in range(50_000)))
    seen = Classifier()
    collector = JobLogsCollector(seen, patterns=[str(tmp_path / "**" / "*.log")], most_bytes=64 << 20, most_lines=10**6)
    collector.collect(at(0))
    # Of what was there before, the end; marked as such.
    assert seen.texts[-1] == "old line 049999"
    assert all(line.look_back for line in seen.lines)
    assert len("\n".join(seen.texts)) == pytest.approx(job_logs.LOOK_BACK_BYTES, abs=32)
    seen.lines.clear()
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "b.log").write_text("first of a new file\n")
    append(tmp_path / "a.log", "new line\n")
    collector.collect(at(11))
    assert sorted((line.text, line.look_back) for line in seen.lines) == [
        ("first of a new file", False),
        ("new line", False),
    ]
    collector.close()


def test_a_rotated_log_is_not_read_twice(tmp_path: Path) -> None:
    log = tmp_path / "x.log"
    log.write_text("one\n")
    seen = Classifier()
    collector = JobLogsCollector(seen, patterns=[str(tmp_path / "x.log*")])
    collector.collect(at(0))
    log.rename(tmp_path / "x.log.1")
    log.write_text("two\n")
    for second in range(1, 40):
        collector.collect(at(second))
    append(log, "three\n")
    collector.collect(at(41))
    assert seen.texts == ["one", "two", "three"]
    collector.close()


def test_links_and_what_is_no_file_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("root's\n")
    (tmp_path / "x.log").symlink_to(tmp_path / "secret")
    os.mkfifo(tmp_path / "y.log")
    (tmp_path / "z.log").mkdir()
    (tmp_path / "w.log.1.gz").write_bytes(b"\x1f\x8b packed")
    seen = Classifier()
    collector = JobLogsCollector(seen, patterns=[str(tmp_path / "*.log*")])
    assert collector.collect(at(0)).problems == []
    assert seen.lines == []
    collector.close()


def test_a_log_that_may_not_be_read_is_one_problem(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "x.log").write_text("x\n")
    (tmp_path / "y.log").write_text("y\n")
    true_open = os.open

    def refuse(path: str, *more: int, **options: int) -> int:
        if str(path).endswith("x.log"):
            raise PermissionError(13, "Permission denied", path)
        return true_open(path, *more, **options)

    monkeypatch.setattr(os, "open", refuse)
    seen = Classifier()
    collector = JobLogsCollector(seen, patterns=[str(tmp_path / "*.log")])
    assert collector.collect(at(0)).problems == [f"{tmp_path}/x.log: Permission denied: it is not followed"]
    assert seen.texts == ["y"]
    collector.close()


def test_quiet_files_are_closed_and_opened_when_they_grow(tmp_path: Path) -> None:
    log = tmp_path / "x.log"
    log.write_text("one\n")
    seen = Classifier()
    collector = JobLogsCollector(seen, patterns=[str(log)])
    collector.collect(at(0))
    assert counts(collector.collect(at(4000)))["files"] == 0
    assert collector.collect(at(4100)) == Collected(points=[], happenings=[], problems=[])
    append(log, "two\n")
    collector.collect(at(4200))
    assert seen.texts == ["one", "two"]
    collector.close()


# --- bounds, privacy ------------------------------------------------------------------------------------------------


def test_off_means_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "x.log").write_text("Error\n")
    seen = Classifier()
    collector = JobLogsCollector(seen, patterns=[str(tmp_path / "*")], enabled=False)

    def never(*_: object) -> None:
        raise AssertionError("opened")

    monkeypatch.setattr(job_logs, "FollowedFile", never)
    assert collector.collect(at(0)) == Collected()
    assert seen.calls == 0


def test_texts_are_bounded(tmp_path: Path) -> None:
    (tmp_path / "x.log").write_text("Error: login with password=hunter2 failed\nError " + "y" * 60_000 + "\n")
    collector = JobLogsCollector(Classifier(), patterns=[str(tmp_path / "*")])
    first, second = collector.collect(at(0)).happenings
    assert first.attributes["line"] == "Error: login with password=hunter2 failed"  # for the gate
    assert first.attributes["around"] == (first.attributes["line"], "x")
    assert len(second.attributes["line"]) <= 8192
    collector.close()


def test_one_that_floods_does_not_silence_the_others(tmp_path: Path) -> None:
    for number in range(4):
        (tmp_path / f"{number}.log").write_text("")
    seen = Classifier()
    collector = JobLogsCollector(seen, patterns=[str(tmp_path / "*.log")], most_lines=400)
    collector.collect(at(0))
    append(tmp_path / "0.log", "flood\n" * 100_000)
    for number in range(1, 4):
        append(tmp_path / f"{number}.log", f"Error of {number}\n")
    collected = collector.collect(at(1))
    assert sorted(str(happening.attributes["line"]) for happening in collected.happenings) == [
        "Error of 1",
        "Error of 2",
        "Error of 3",
    ]
    assert len(seen.lines) <= 400
    assert counts(collected)["storms"] == 1
    for second in range(2, 1000):
        if not collector.collect(at(second)).points:
            break
    assert seen.texts.count("flood") == 100_000
    collector.close()


def test_the_classifier_is_asked_without_lines_too() -> None:
    seen = Classifier()
    collector = JobLogsCollector(seen)
    collector.collect(at(0))
    collector.collect(at(1))
    assert (seen.calls, seen.lines) == (2, [])


def test_garbage_of_every_kind(tmp_path: Path) -> None:
    """8-bit garbage, zeros, long lines, files that come, go and are swapped: no crash, bounded lines."""
    chance = random.Random(2)
    seen = Classifier()
    collector = JobLogsCollector(seen, patterns=[str(tmp_path / "*.log")])
    begin_s = time.process_time()
    for turn in range(150):
        path = tmp_path / f"{chance.randrange(6)}.log"
        what = chance.randrange(8)
        if what == 0 and path.exists():
            path.unlink()
        elif what == 1 and path.exists():
            path.rename(tmp_path / f"{chance.randrange(6)}.log")
        elif what == 2:
            path.write_bytes(b"\0" * chance.randrange(100_000))
        else:
            with open(path, "ab") as file:
                file.write(chance.randbytes(chance.randrange(20_000)) if what < 6 else b"z" * 1_000_000)
        seen.lines.clear()
        collector.collect(at(11 * turn))
        assert all(len(line.text) <= 65536 for line in seen.lines)
    assert time.process_time() - begin_s < 5
    collector.close()
