"""What is told of ranks' logs while they are written: real files, the real rules, each statement once and in time."""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.agents.collectors.test_job_logs import S, append, at
from whichrank.agents.collectors.base.collector import FinalCollector, NodeEvent
from whichrank.agents.collectors.collector_plans import node_plans
from whichrank.agents.collectors.logs import job_log_events
from whichrank.agents.collectors.logs.job_log_events import MOST_TOLD, JobLogEvents
from whichrank.agents.collectors.logs.job_logs import JobLogLine, JobLogsCollector
from whichrank.agents.collectors.options import NAMES, NodeOptions
from whichrank.agents.collectors.processes.job_process import JobProcess
from whichrank.agents.collectors.schedule import NodeTelemetry, Seen
from whichrank.telemetry.records import Identity
from whichrank.telemetry.vocabulary import EventName

RANK = JobProcess(pid=4003, job="j", rank=3)
OTHER = JobProcess(pid=4004, job="j", rank=4)
FULL = """Traceback (most recent call last):
  File "/data/train.py", line 88, in main
    save(model, path)
  File "/data/train.py", line 31, in save
    torch.save(model.state_dict(), path)
  File "/usr/lib/python3/site-packages/torch/serialization.py", line 900, in save
    opened.write(data)
OSError: [Errno 28] No space left on device: '/ckpt/step_500.pt'"""


class Log:
    """Lines of one rank's file, handed over at times that the test chooses."""

    def __init__(self, process: JobProcess | None = RANK, path: str = "/logs/out", node: str = "n1") -> None:
        self.process, self.path = process, path
        self.events = JobLogEvents(lambda: [RANK, OTHER], node=node)

    def say(self, text: str, seconds: float, *, look_back: bool = False) -> list[dict[str, Any]]:
        lines = [
            JobLogLine(text=line, path=self.path, process=self.process, descriptor=1, look_back=look_back)
            for line in text.splitlines()
        ]
        return self.look(lines, seconds)

    def look(self, lines: Sequence[JobLogLine], seconds: float) -> list[dict[str, Any]]:
        return [_plain(happening) for happening in self.events(lines, at(seconds))]

    def quiet(self, seconds: float) -> list[dict[str, Any]]:
        return self.look([], seconds)


def _plain(happening: NodeEvent) -> dict[str, Any]:
    assert happening.name is EventName.JOB_LOG
    return {**happening.attributes, "pid": happening.pid, "at_s": happening.mono_ns / S}


def test_a_traceback_is_told_once_at_the_time_of_its_first_line() -> None:
    log = Log()
    assert log.say("step 499\n" + "\n".join(FULL.splitlines()[:4]), 10.0) == []
    assert log.say("\n".join(FULL.splitlines()[4:]), 11.0) == []
    (told,) = log.quiet(12.0)
    assert (told["class"], told["role"], told["scope"], told["action"]) == (
        "disk_full", "initiating", "storage", "raise_quota",
    )  # fmt: skip
    assert (told["file"], told["line"], told["function"]) == ("/data/train.py", 31, "save")
    assert (told["pid"], told["rank"], told["at_s"]) == (4003, 3, 10.0)
    assert "No space left on device" in told["text"]
    assert log.quiet(13.0) == []


def test_what_is_complete_is_told_at_once() -> None:
    (told,) = Log().say("mlx5_1 up\nNCCL WARN NET/IB : mlx5_2:1 Got async event : port error\nstep 4", 1.0)
    assert (told["class"], told["port"]) == ("network_link", "mlx5_2:1")


def test_a_warning_is_no_error() -> None:
    told = Log().say("WARNING: retrying: [Errno 5] Input/output error\nstep\nERROR: No space left on device\nstep", 1.0)
    assert [(each["class"], each["severity"]) for each in told] == [
        ("filesystem_error", "warning"),
        ("disk_full", "error"),
    ]


def test_a_user_buffer_that_timed_out_names_the_peer_and_warns_of_numbers() -> None:
    line = (
        "[UB:kuserbuffers_pullrecv:812] pullrecv [grank dst:3 global src:4][nvrank(GPU# dst: 3 src: 4]: "
        "expecting 5, observed 4"
    )
    (told,) = Log().say(line, 1.0)
    assert (told["class"], told["peer"], told["rank"]) == ("user_buffer_timeout", 4, 3)
    assert "do not trust numbers" in told["warning"]
    (told,) = Log().say("[3] Reduce-scatter: SM 12 [1]: expecting 4 got 3", 1.0)
    assert "peer" not in told


def test_of_a_log_of_several_ranks_prefixes_tell_whose() -> None:
    log = Log(process=None)
    (told,) = log.say("[rank4]: OSError: [Errno 122] Disk quota exceeded\n[rank3]: step 8", 1.0)
    assert (told["class"], told["pid"], told["rank"]) == ("quota_exceeded", 4004, 4)
    (told,) = log.say("OSError: [Errno 28] No space left on device\nstep 9", 70.0)
    assert told["pid"] == 0
    assert "rank" not in told


def test_a_rank_of_two_jobs_is_nobodys() -> None:
    log = Log(process=None)
    log.events = JobLogEvents(lambda: [RANK, JobProcess(pid=9, job="other", rank=3)], node="n1")
    (told,) = log.say("[rank3]: OSError: [Errno 28] No space left on device\nstep", 1.0)
    assert told["pid"] == 0


def test_a_rank_that_has_ended_is_known_by_its_last_words() -> None:
    ranks = [RANK]
    log = Log(process=None)
    log.events = JobLogEvents(lambda: ranks, node="n1")
    log.quiet(0.0)
    ranks.clear()
    (told,) = log.say("[rank3]: OSError: [Errno 28] No space left on device\nend", 5.0)
    assert told["pid"] == 4003
    (told,) = log.say("[rank3]: OSError: [Errno 28] No space left on device\nend", 80.0)
    assert told["pid"] == 0


def test_what_a_rank_says_of_another_rank_and_node_is_not_its_own() -> None:
    (told,) = Log().say("ERROR Rank 180, node gpu-17, device 0: uncorrectable ECC error\nstep", 1.0)
    assert (told["pid"], told["rank"], told["node"]) == (0, 180, "gpu-17")


def test_what_was_there_before_the_agent_is_marked() -> None:
    log = Log()
    (old,) = log.say("OSError: [Errno 28] No space left on device\nstep", 1.0, look_back=True)
    assert old["before_start"] is True
    (new,) = log.say("OSError: [Errno 122] Disk quota exceeded\nstep", 2.0)
    assert "before_start" not in new


def test_a_traceback_that_began_before_the_agent_is_old() -> None:
    log = Log()
    log.say("step\n" + "\n".join(FULL.splitlines()[:-1]), 1.0, look_back=True)
    log.say(FULL.splitlines()[-1], 2.0)
    (told,) = log.quiet(3.0)
    assert told["before_start"] is True


def test_of_a_storm_each_class_is_told_once_a_minute_and_the_rest_is_counted() -> None:
    log = Log()
    told = []
    for number in range(100):
        told += log.say(f"OSError: [Errno 28] No space left on device: 'shard_{number}'\nstep {number}", number / 2)
    assert len(told) == 1
    (again,) = log.quiet(61.0)
    assert (again["class"], again["more"], again["at_s"]) == ("disk_full", 98, 0.5)
    assert log.quiet(200.0) == []


def test_words_that_say_little_do_not_use_up_what_the_cause_needs() -> None:
    log = Log()
    noise = (
        "KeyError: 'a'\nstep\nAssertionError: b\nstep\nZeroDivisionError: division by zero\nstep\n"
        "RuntimeError: Connection reset by peer\nstep\nerror: something\nstep"
    )
    told = log.say(noise, 1.0)
    assert len(told) == job_log_events.MOST_WEAK
    (told_last,) = log.say("OSError: [Errno 28] No space left on device\nstep", 2.0)
    assert told_last["class"] == "disk_full"


def test_a_window_has_a_bound() -> None:
    log = Log()
    text = "\n".join(
        f"{line}\nstep 1"
        for line in (
            "OSError: [Errno 28] No space left on device", "OSError: [Errno 122] Disk quota exceeded",
            "OSError: [Errno 5] Input/output error", "CUDA error: uncorrectable ECC error encountered",
            "NCCL WARN NET/IB : mlx5_2:1 Got async event : port error", "GPU has fallen off the bus",
            "slurmstepd: error: *** JOB 1 ON n1 CANCELLED AT 2026-01-02T03:04:05 DUE TO PREEMPTION ***",
            "RuntimeError: DataLoader worker is killed by signal: Bus error. insufficient shared memory (shm)",
        )
    )  # fmt: skip
    assert len(log.say(text, 1.0)) == MOST_TOLD


def test_real_files_of_patterns_through_the_collector(tmp_path: Path) -> None:
    log = tmp_path / "rank_3.log"
    log.write_text("started\n")
    collector = JobLogsCollector(JobLogEvents(lambda: [RANK], node="n1"), patterns=[str(tmp_path / "*.log")])
    assert list(collector.collect(at(0)).happenings) == []
    append(log, "step 4\n" + FULL)
    happenings: list[NodeEvent] = []
    for second in range(1, 6):
        happenings += collector.collect(at(second)).happenings
    (told,) = map(_plain, happenings)
    assert (told["class"], told["pid"], told["log"]) == ("disk_full", 4003, str(log))
    collector.close()


def test_the_plan_is_there_unless_it_is_left_out(tmp_path: Path) -> None:
    ranks = {4003: Identity(job="j", rank=3)}
    options = NodeOptions(job_logs=(str(tmp_path / "*.log"),))
    (plan,) = [plan for plan in node_plans(options, lambda: ranks) if plan.name == "job_logs"]
    collector = plan.make()
    (tmp_path / "rank_3.log").write_text("")
    collector.collect(at(0))
    append(tmp_path / "rank_3.log", "OSError: [Errno 28] No space left on device\nstep\n")
    (happening,) = collector.collect(at(1)).happenings
    assert happening.pid == 4003
    collector.close()
    without = NodeOptions(collect=frozenset(NAMES) - {"job_logs"})
    assert not [plan for plan in node_plans(without, lambda: ranks) if plan.name == "job_logs"]


@pytest.mark.parametrize("seed", range(3))
def test_garbage_raises_nothing_and_little_is_kept(seed: int) -> None:
    draw = random.Random(seed)
    parts = [*FULL.splitlines(), "Fatal Python error: Bus error", "Current thread 0x00 (most recent call first):",
             "CUDA error", "\x00" * 50, "\udcff\x1b[31m", "x" * 200_000, "[rank3]: Traceback (most recent call last):",
             "{" * 3000, '{"message": "OSError: [Errno 28] No space left on device"}', ""]  # fmt: skip
    log = Log()
    told = 0
    for second in range(120):
        lines = [
            JobLogLine(
                text=draw.choice(parts)[draw.randrange(3) :],
                path=f"/logs/{draw.randrange(700)}",
                process=draw.choice([RANK, OTHER, None]),
                descriptor=draw.randrange(3),
                look_back=draw.random() < 0.1,
            )
            for _ in range(30)
        ]
        told += len(log.look(lines, second))
    assert told
    assert 100 < log.events.streams <= job_log_events.MOST_STREAMS


def test_our_own_words_are_not_the_jobs() -> None:
    log = Log()
    own = [
        "whichrank: [page] opened rank_raised: OSError: [Errno 28] No space left on device",
        "│ why         rank 1 raised OSError: [Errno 28] No space left on device       │",
        '{"schema":1,"id":"90cf","evidence":[{"shows":"OSError: [Errno 28] No space left on device"}]}',
    ]
    assert log.say("\n".join(own) + "\nstep", 1.0) == []
    assert log.say("OSError: [Errno 28] No space left on device\nstep", 2.0)


def test_the_last_look_tells_what_waited_and_half_a_line(tmp_path: Path) -> None:
    log = tmp_path / "rank_3.log"
    log.write_text("")
    (plan,) = [
        plan
        for plan in node_plans(NodeOptions(job_logs=(str(log),)), lambda: {4003: Identity(job="j", rank=3)})
        if plan.name == "job_logs"
    ]
    collector = plan.make()
    assert isinstance(collector, FinalCollector)
    collector.collect(at(0))
    append(log, FULL)  # without an end
    (told,) = map(_plain, collector.last_look(at(0.1)).happenings)
    assert (told["class"], told["pid"]) == ("disk_full", 4003)
    collector.close()


def test_when_telemetry_ends_last_looks_are_waited_for(tmp_path: Path) -> None:
    log = tmp_path / "rank_3.log"
    log.write_text("")
    plans = node_plans(
        NodeOptions(collect=frozenset({"job_logs"}), job_logs=(str(log),)), lambda: {4003: Identity(job="j", rank=3)}
    )
    telemetry = NodeTelemetry(plans, report=lambda line: None)
    telemetry.start()
    seen: list[Seen] = []
    end_s = time.monotonic() + 20
    while not any(point.name == "whichrank.log.files" for each in seen for point in each.collected.points):
        assert time.monotonic() < end_s
        seen += telemetry.take()
        time.sleep(0.01)
    append(log, FULL)
    telemetry.close()
    happenings = [happening for each in telemetry.take() for happening in each.collected.happenings]
    assert [happening.attributes["class"] for happening in happenings] == ["disk_full"]
