"""The spool on a real file system: order, limits, priorities, damage, kills in the middle of a write."""

from __future__ import annotations

import contextlib
import errno
import os
import random
from pathlib import Path
from typing import Any

import pytest

from whichrank.agents.base.priority import Priority
from whichrank.agents.publish.spool import OWN, Outgoing, Spool


def outgoing(
    number: int, priority: Priority = Priority.PROGRESS, topic: str = "blocks", size: int = 10, owner: int = OWN
) -> Outgoing:
    return Outgoing(
        number=number, priority=priority, topic=topic, key=f"job-{number % 3}", value=b"v" * size, stamp_ns=number,
        owner=owner,
    )  # fmt: skip


class Open:
    """Spools of one folder, one after the other."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.said: list[str] = []
        self.at: list[Spool] = []

    def __call__(self, limit_bytes: int = 1 << 20) -> Spool:
        self.at.append(Spool(self.directory, limit_bytes, self.said.append))
        return self.at[-1]


@pytest.fixture
def open_spool(tmp_path: Path) -> Any:
    opened = Open(tmp_path / "spool")
    yield opened
    for spool in opened.at:
        spool.close()


def read_all(spool: Spool, topic: str = "blocks") -> list[int]:
    numbers = []
    while (message := spool.next(topic)) is not None:
        spool.hand_over(topic, message.number)
        numbers.append(message.number)
    return numbers


def kill(spool: Spool) -> None:
    """What kill -9 does to a process's open files: they are closed, nothing is written."""
    os.close(spool._lock_fd)  # noqa: SLF001
    spool._lock_fd = -1  # noqa: SLF001


def test_messages_come_back_by_number_over_all_priorities_as_they_were(open_spool: Open) -> None:
    spool = open_spool()
    messages = [outgoing(n, Priority(n % 5), size=n * 7) for n in range(1, 40)]
    for message in messages:
        spool.append(message)
    first = spool.next("blocks")
    assert first == messages[0]
    assert read_all(spool) == list(range(1, 40))
    assert spool.next("blocks") is None
    spool.append(outgoing(40))
    assert read_all(spool) == [40]


def test_topics_are_apart(open_spool: Open) -> None:
    spool = open_spool()
    spool.append(outgoing(1, topic="a.b"))
    spool.append(outgoing(2, topic="otlp_logs"))
    assert read_all(spool, "otlp_logs") == [2]
    assert read_all(spool, "a.b") == [1]


def test_another_agent_goes_on_where_the_killed_one_stopped(open_spool: Open) -> None:
    spool = open_spool()
    for number in range(1, 21):
        spool.append(outgoing(number, Priority(number % 5)))
    for _ in range(7):
        message = spool.next("blocks")
        assert message is not None
        spool.hand_over("blocks", message.number)
    spool.settle("blocks", 5)
    spool.write_ledger()
    kill(spool)
    again = open_spool()
    assert again.last_number == 20
    assert again.waiting == 15
    again.append(outgoing(21))
    assert read_all(again) == list(range(6, 22))


def test_what_is_settled_leaves_the_disk(open_spool: Open) -> None:
    spool = open_spool(6400)  # segments of 100 bytes: one message each
    for number in range(1, 11):
        spool.append(outgoing(number))
    before = spool.bytes
    assert read_all(spool) == list(range(1, 11))
    spool.settle("blocks", 9)
    assert 0 < spool.bytes < before / 5
    spool.settle("blocks", 10)
    assert spool.bytes == 0
    assert [path.name for path in open_spool.directory.iterdir()] == ["lock"]


def test_beyond_the_limit_the_oldest_of_the_lowest_priority_goes(open_spool: Open) -> None:
    spool = open_spool(6400)
    kept = [Priority.EVIDENCE, Priority.RANK_EVENTS]
    for number in range(1, 201):
        spool.append(outgoing(number, Priority(number % 5), size=40))
        assert spool.bytes <= 6400
    left = read_all(spool)
    for priority in kept:
        of_it = [n for n in range(1, 201) if n % 5 == priority]
        survivors = [n for n in left if n % 5 == priority]
        assert survivors == of_it[len(of_it) - len(survivors) :]  # the oldest went
    assert not any(n % 5 in (Priority.COLLECTIVES, Priority.COPIES) for n in left)
    assert len(left) + sum(spool.dropped.values()) == 200
    assert spool.dropped[Priority.COPIES, "spool_full"] == 40
    assert spool.dropped[Priority.EVIDENCE, "spool_full"] <= spool.dropped[Priority.RANK_EVENTS, "spool_full"]


NOISY, QUIET = 12001, 12002


@pytest.mark.parametrize("noise", [Priority.EVIDENCE, Priority.PROGRESS, Priority.COPIES])
@pytest.mark.parametrize("alone", [0, 900])
def test_what_an_owner_has_beyond_his_share_goes_before_what_the_others_have(
    open_spool: Open, noise: Priority, alone: int
) -> None:
    """alone: so much he had written before there was anybody else."""
    spool = open_spool(limit_bytes=256 << 10)
    for number in range(1, alone):
        spool.append(outgoing(number, noise, size=900, owner=NOISY))
    quiet = []
    for number in range(max(alone, 1), alone + 2000):
        if number % 50 == 0:
            quiet.append(number)
            spool.append(outgoing(number, Priority.COPIES, size=900, owner=QUIET))
        else:
            spool.append(outgoing(number, noise, size=900, owner=NOISY))
    assert spool.bytes <= 256 << 10
    assert spool.dropped_of[QUIET] == 0
    assert spool.dropped_of[NOISY] > 1000
    kill(spool)
    again = open_spool(limit_bytes=256 << 10)
    assert set(quiet) <= set(read_all(again))
    assert again.dropped_of[NOISY] > 1000


def test_who_is_alone_has_all_of_it_and_keeps_the_newest(open_spool: Open) -> None:
    spool = open_spool(limit_bytes=64 << 10)
    for number in range(1, 400):
        spool.append(outgoing(number, size=900, owner=NOISY))
    kept = read_all(spool)
    assert kept == list(range(kept[0], 400))
    assert len(kept) > 55


def test_segments_of_a_release_without_owners_are_read(open_spool: Open) -> None:
    spool = open_spool()
    spool.append(outgoing(1))
    spool.append(outgoing(2, owner=QUIET))
    kill(spool)
    again = open_spool()
    first, second = again.next("blocks"), None
    again.hand_over("blocks", 1)
    second = again.next("blocks")
    assert first is not None
    assert second is not None
    assert (first.owner, second.owner) == (OWN, QUIET)


def test_drops_are_still_counted_after_a_kill(open_spool: Open) -> None:
    spool = open_spool(6400)
    for number in range(1, 101):
        spool.append(outgoing(number, size=100))
    dropped = spool.dropped.copy()
    assert dropped.total()
    kill(spool)
    again = open_spool(6400)
    assert again.dropped == dropped
    assert len(read_all(again)) + dropped.total() == 100


def test_a_kill_between_ledger_and_removal_counts_once(open_spool: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    spool = open_spool(6400)
    number = 0

    def killed(self: Any, path: Path) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(Spool, "_unlink", killed)
        with contextlib.suppress(KeyboardInterrupt):
            while True:
                number += 1
                spool.append(outgoing(number, size=100))
    kill(spool)
    again = open_spool(6400)
    assert again.dropped.total() == 1
    assert read_all(again) == list(range(2, number + 1))


@pytest.mark.parametrize("seed", range(8))
def test_a_half_written_record_is_left_out_and_counted(open_spool: Open, seed: int) -> None:
    spool = open_spool()
    for number in range(1, 6):
        spool.append(outgoing(number, size=50))
    kill(spool)
    (path,) = open_spool.directory.glob("*.spool")
    whole = path.stat().st_size
    last = random.Random(seed).randrange(1, 100)  # less than the last frame
    os.truncate(path, whole - last)
    again = open_spool()
    assert again.damaged == 1
    again.append(outgoing(6))
    assert read_all(again) == [1, 2, 3, 4, 6]
    assert any("ends in the middle of a record" in line for line in open_spool.said)


def test_damage_in_the_middle_costs_what_it_hits(open_spool: Open) -> None:
    spool = open_spool()
    for number in range(1, 101):
        spool.append(outgoing(number, size=200))
    kill(spool)
    path, *_ = sorted(open_spool.directory.glob("*.spool"))
    content = bytearray(path.read_bytes())
    content[5000:5010] = b"0123456789"
    path.write_bytes(content)
    again = open_spool()
    left = read_all(again)
    assert len(left) >= 98
    assert left == sorted(left)
    assert again.damaged == 1
    (line,) = open_spool.said
    assert str(path) in line


@pytest.mark.parametrize("content", ["", "{", "[]", '{"settled": 3}', '{"settled": {}, "dropped": [[9, "x", 1]]}'])
def test_a_damaged_ledger_is_said_and_nothing_is_lost(open_spool: Open, content: str) -> None:
    spool = open_spool()
    spool.append(outgoing(1))
    kill(spool)
    (open_spool.directory / "ledger.json").write_text(content)
    assert read_all(open_spool()) == [1]
    assert "ledger.json" in open_spool.said[0]


def test_a_full_disk_refuses_and_leaves_no_half_record(open_spool: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    spool = open_spool()
    spool.append(outgoing(1))
    real = os.write

    def half(fd: int, data: Any) -> int:
        if len(data) < 20:
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(fd, data[: len(data) // 2])

    with monkeypatch.context() as patched:
        patched.setattr(os, "write", half)
        with pytest.raises(OSError, match="No space left"):
            spool.append(outgoing(2))
        with pytest.raises(OSError, match="No space left"):
            spool.append(outgoing(3, Priority.EVIDENCE))
    spool.append(outgoing(4))
    spool.append(outgoing(5, Priority.EVIDENCE))
    assert read_all(spool) == [1, 4, 5]
    kill(spool)
    again = open_spool()
    assert read_all(again) == [1, 4, 5]
    assert again.damaged == 0


def test_two_agents_do_not_share_a_folder(open_spool: Open) -> None:
    open_spool()
    with pytest.raises(OSError, match="another process keeps its spool here"):
        open_spool()
