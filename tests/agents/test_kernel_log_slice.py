"""The last minutes of the kernel log: from each kind of source, without secrets, bounded, whatever the lines are."""

from __future__ import annotations

import calendar
import os
import random
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.agents.conftest import RankProcess, Watched
from tests.agents.test_evidence_requests import files, request
from whichrank.agents.evidence.kernel_log_slice import KMSG, line_time_ns, read_kernel_log
from whichrank.telemetry.vocabulary import EventName

_S = 1_000_000_000
NOW_NS = calendar.timegm((2026, 3, 1, 12, 0, 0)) * _S
UP_NS = 5_000 * _S


def told(path: Path, look_back_s: float = 600.0, **options: object) -> list[str]:
    found = read_kernel_log(look_back_s, str(path), wall_ns=lambda: NOW_NS, **options)  # type: ignore[arg-type]
    assert found.source == str(path), found.problem
    return found.text.decode("utf-8", "replace").splitlines()


@pytest.fixture(autouse=True)
def utc(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()


@pytest.mark.parametrize(
    ("line", "age_s"),
    [
        (b"2026-03-01T11:59:00.250000+00:00 n1 kernel: x", 59.75),
        (b"2026-03-01T12:59:00,5+0100 n1 kernel: x", 59.5),
        (b"2026-03-01T11:59:00Z x", 60),
        (b"2026-03-01 11:59:00 n1 kernel: x", 60),
        (b"Mar  1 11:59:00 n1 kernel: [ 12.000000] x", 60),
        (b"Dec 31 23:59:00 n1 kernel: x", 60.0 + 59 * 86_400 + 12 * 3600),
        (b"[ 4940.000000] x", 60),
        (b"<6>[ 4940.500000] x", 59.5),
        (b"Foo  1 11:59:00 n1 kernel: x", None),
        (b"Feb 31 11:59:00 n1 kernel: x", None),
        (b"2026-13-01T11:59:00Z x", None),
        (b"no time at all", None),
        (b"", None),
    ],
)
def test_the_time_of_a_line(line: bytes, age_s: float | None) -> None:
    time_ns = line_time_ns(line, NOW_NS, UP_NS)
    assert (None if time_ns is None else (NOW_NS - time_ns) / _S) == age_s


def test_lines_of_the_last_minutes_and_what_belongs_to_them(tmp_path: Path) -> None:
    log = tmp_path / "kern.log"
    log.write_text(
        "Mar  1 11:40:00 n1 kernel: old\n  of the old\n"
        "Mar  1 11:55:00 n1 kernel: NVRM: Xid (PCI:0000:5e:00): 79, pid=7\n  continued\n"
        "Mar  1 11:56:00 n1 kernel: mount: password=hunter2\n"
    )
    assert told(log)[1:] == [
        "Mar  1 11:55:00 n1 kernel: NVRM: Xid (PCI:0000:5e:00): 79, pid=7",
        "  continued",
        "Mar  1 11:56:00 n1 kernel: mount: password=hunter2",
    ]
    assert len(told(log, look_back_s=86_400)[1:]) == 5


def test_of_a_file_of_everybody_only_the_kernels_lines_are_taken(tmp_path: Path) -> None:
    log = tmp_path / "messages"
    log.write_text("Mar  1 11:59:00 n1 sshd[1]: of a user\nMar  1 11:59:00 n1 kernel: of the kernel\n")
    found = read_kernel_log(600, wall_ns=lambda: NOW_NS, sources=(str(tmp_path / "none"), str(log)))
    assert found.text.splitlines()[1:] == [b"Mar  1 11:59:00 n1 kernel: of the kernel"]
    assert len(told(log)[1:]) == 2, "the file that was configured is the kernel's own"


def test_a_flood_keeps_its_end_and_says_so(tmp_path: Path) -> None:
    log = tmp_path / "kern.log"
    log.write_text("".join(f"Mar  1 11:59:00 n1 kernel: line {number}\n" for number in range(10_000)))
    lines = told(log, limit_bytes=2000)
    assert sum(map(len, lines)) <= 2100
    assert lines[-1].endswith("line 9999")
    long = tmp_path / "long"
    long.write_bytes(b"Mar  1 11:59:00 n1 kernel: " + b"x" * (1 << 20) + b"\n" + b"Mar  1 11:59:30 n1 kernel: after\n")
    assert len(told(long)) == 3
    assert max(map(len, told(long))) < 5000


def test_garbage_does_no_harm(tmp_path: Path) -> None:
    draw, log = random.Random(7), tmp_path / "kern.log"
    begins = (b"Mar  1 11:59:00 ", b"[ 4999.000000] ", b"2026-03-01T11:59:00", b"6,1,2,-;", b"", b"\0")
    for _ in range(60):
        lines = [draw.choice(begins) + draw.randbytes(draw.randrange(200)) for _ in range(draw.randrange(40))]
        log.write_bytes(b"\n".join(lines))
        assert "\0" not in "\n".join(told(log))


def test_what_cannot_be_read_is_one_line(tmp_path: Path) -> None:
    found = read_kernel_log(600, str(tmp_path / "none"))
    assert (found.source, found.text) == ("", b"")
    assert found.problem == f"{tmp_path / 'none'}: No such file or directory"
    folder = read_kernel_log(600, sources=(str(tmp_path), str(tmp_path / "none")))
    assert folder.problem.startswith(f"{tmp_path}: Is a directory; {tmp_path / 'none'}: ")


def test_journalctl_is_asked_for_these_minutes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "journalctl"
    program.write_text('#!/bin/sh\necho "2026-03-01T11:59:00.5+0000 n1 kernel: $*"\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    found = read_kernel_log(600, wall_ns=lambda: NOW_NS, sources=("journalctl",))
    assert f"--since=@{NOW_NS // _S - 600}".encode() in found.text
    program.write_text("#!/bin/sh\necho 'No journal files were opened' >&2\nexit 1\n")
    found = read_kernel_log(600, sources=("journalctl",))
    assert found.problem == "journalctl: No journal files were opened"


def readable_kmsg() -> bool:
    try:
        os.close(os.open(KMSG, os.O_RDWR | os.O_NONBLOCK))
    except OSError:
        return False
    return True


@pytest.mark.skipif(not readable_kmsg(), reason="the kernel log is not this user's to read and write")
def test_this_machines_own_kernel_log() -> None:
    with open(KMSG, "wb", buffering=0) as kmsg:
        kmsg.write(b"<6>whichrank test: api_key=abcdefgh and \xff\x07 bytes\n")
    found = read_kernel_log(30)
    assert found.source == KMSG
    (line,) = (line for line in found.text.splitlines()[-2000:] if b"whichrank test: " in line)
    assert b"api_key=abcdefgh and" in line  # for the gate, which comes later
    time_ns = line_time_ns(line, time.time_ns(), time.monotonic_ns())
    assert time_ns is not None
    assert abs(time.time_ns() - time_ns) < 20 * _S


def test_a_nodes_kernel_log_can_be_asked_for(
    start_rank: Callable[..., RankProcess], watch: Callable[..., Watched], tmp_path: Path
) -> None:
    log = tmp_path / "kern.log"
    log.write_text("[ 0.000000] the first line of all\n")
    start_rank(0, 1)
    watched = watch(requests_per_minute=5, kernel_log=str(log), kernel_log_s=1e9)
    watched.run_until(lambda: watched.events(EventName.RANK_STARTED))
    watched.agent.request(request("kernel_log", rank=-1))  # of the node: any rank will do
    watched.run_until(lambda: files(watched))
    (file,) = files(watched)
    assert (file.identity.rank, file.name.endswith("-node-node-a-kernel.log")) == (-1, True)
    assert file.content.endswith(b"the first line of all\n")


def test_that_it_cannot_be_read_is_an_answer_too(
    start_rank: Callable[..., RankProcess], watch: Callable[..., Watched], tmp_path: Path
) -> None:
    start_rank(0, 1)
    watched = watch(requests_per_minute=5, kernel_log=str(tmp_path / "none"))
    watched.run_until(lambda: watched.events(EventName.RANK_STARTED))
    watched.agent.request(request("kernel_log"))
    watched.run_until(lambda: files(watched))
    assert files(watched)[0].content.startswith(b"# the kernel log cannot be read: ")
