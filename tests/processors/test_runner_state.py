"""The state file: what is wrong with it is said, set aside and never overwritten."""

from __future__ import annotations

import contextlib
import sqlite3
import subprocess
import sys
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.processors.runner_examples import Clock, encode_events, make_operators, open_bus, output_line, rank_event
from whichrank.processors.runner import EmbeddedRunner
from whichrank.processors.runner_state import RunnerState
from whichrank.processors.state_file import APPLICATION_ID
from whichrank.telemetry.vocabulary import EventName
from whichrank.transport.bus import TOPIC_BLOCKS

ROOT = Path(__file__).parents[2]


def run_once(directory: Path, at_s: float = 0.0) -> tuple[list[bytes], list[str]]:
    """One life of whichrank in ``directory``: hear rank 2 leave, then stop. Outputs and what was said."""
    clock = Clock()
    said: list[str] = []
    lines: list[bytes] = []
    bus = open_bus(directory / "capture", clock)
    runner = EmbeddedRunner(
        bus,
        directory / "state.sqlite",
        make_operators(),
        lambda record: lines.append(output_line(record)),
        live=True,
        report=said.append,
    )
    clock.advance(at_s)
    bus.append(TOPIC_BLOCKS, "j", encode_events(rank_event(0), rank_event(2, EventName.RANK_EXIT)))
    runner.drain()
    runner.close()
    bus.close()
    return lines, said


def open_state(path: Path, said: list[str], bus: str = "b") -> RunnerState:
    return RunnerState(path, bus=bus, start_after=0, report=said.append)


def test_everything_comes_back(tmp_path: Path) -> None:
    said: list[str] = []
    state = open_state(tmp_path / "s", said)
    table = state.open_table(("job", "k", "t"))
    table.put("b", b"\x00\xff")
    table.put("a", b"1")
    table.put("gone", b"1")
    table.delete("gone")
    state.timers.set("job", "k", "late", 20, 1)
    state.timers.set("job", "k", "early", 10, 1)
    state.timers.set("job", "k", "never", 5, 1)
    state.timers.clear("job", "k", "never")
    state.add_output("t", "k", 3, b"v", "why")
    state.position.after = 77
    state.position.silent = True
    assert state.commit()
    table.put("uncommitted", b"1")
    state.close()
    state = open_state(tmp_path / "s", said)
    assert list(state.open_table(("job", "k", "t")).rows()) == [("a", b"1"), ("b", b"\x00\xff")]
    assert state.timers.next_due_ns() == 10
    assert state.timers.pop() == (10, "k", "early", "job")
    assert (state.position.after, state.position.silent) == (77, True)
    (entry,) = state.outbox
    assert (entry.topic, entry.key, entry.stamp_ns, entry.value, entry.headers) == ("t", "k", 3, b"v", "why")
    state.forget_outputs([entry])
    assert state.commit()
    state.close()
    state = open_state(tmp_path / "s", said)
    assert state.outbox == []
    assert state.timers.next_due_ns() == 20
    state.close()
    assert said == []


def test_a_row_for_later_is_made_once_a_commit_as_it_is_then(tmp_path: Path) -> None:
    said: list[str] = []
    content, made = {"value": b"first"}, []

    def make() -> bytes:
        made.append(content["value"])
        return content["value"]

    state = open_state(tmp_path / "state.sqlite", said)
    table = state.open_table(("job", "j", "job"))
    for value in (b"first", b"second", b"third"):
        content["value"] = value
        table.put_later("facts", make)
    assert not made
    assert state.row_count() == 1
    assert state.commit()
    assert state.commit()
    assert made == [b"third"]
    content["value"] = b"fourth"
    assert table.get("facts") == b"third", "only put_later says that a row has changed"
    table.put_later("facts", make)
    assert table.get("facts") == b"fourth"
    table.put_later("gone", make)
    table.delete("gone")
    assert list(table.rows()) == [("facts", b"fourth")]
    assert list(state.rows_of("job", "job")) == [("facts", b"fourth")]
    assert state.commit()
    assert made == [b"third", b"fourth"]
    state.close()
    again = open_state(tmp_path / "state.sqlite", said)
    assert list(again.open_table(("job", "j", "job")).rows()) == [("facts", b"fourth")]
    again.close()
    assert not said


def test_a_row_that_cannot_be_made_is_no_fault_of_the_disk(tmp_path: Path) -> None:
    def make() -> bytes:
        raise UnicodeError("not a text")

    said: list[str] = []
    state = open_state(tmp_path / "state.sqlite", said)
    state.open_table(("job", "j", "job")).put_later("facts", make)
    with pytest.raises(UnicodeError):
        state.commit()
    assert not said
    state.close()


def test_a_timer_moved_at_every_message_costs_no_memory_and_fires_once(tmp_path: Path) -> None:
    state = open_state(tmp_path / "s", [])
    state.timers.set("job", "k", "other", 10**9, 0)
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    for now in range(10_000):
        state.timers.set("job", "k", "moved", now + 500, now)
        state.timers.set("job", "k", "other", 10**9, now)
    assert tracemalloc.get_traced_memory()[0] - before < 50_000
    tracemalloc.stop()
    assert state.timers.next_due_ns() == 10_499
    assert state.timers.pop() == (10_499, "k", "moved", "job")
    assert state.timers.next_due_ns() == 10**9
    assert state.timers.pop() == (10**9, "k", "other", "job")
    assert state.timers.next_due_ns() is None
    state.close()


def test_timers_run_their_full_time_again_from_when_they_were_set(tmp_path: Path) -> None:
    state = open_state(tmp_path / "s", [])
    state.timers.set("job", "k", "a", 130, 100)
    state.timers.set("job", "k", "a", 130, 120)  # said again, not moved
    state.timers.restart(1_000)
    assert state.timers.next_due_ns() == 1_030
    state.timers.set("job", "k", "never", 1 << 70, 0)
    assert state.commit()
    state.close()


def damage_header(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[0:16] = b"not a database!!"
    path.write_bytes(data)


def damage_pages(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[100:] = b"\xa5" * (len(data) - 100)
    path.write_bytes(data)


def cut_short(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:5000])


def make_newer(path: Path) -> None:
    database = sqlite3.connect(path)
    database.execute("PRAGMA user_version = 99")
    database.close()


def make_older(path: Path) -> None:
    database = sqlite3.connect(path)
    database.execute("PRAGMA user_version = 1")
    database.close()


def make_foreign(path: Path) -> None:
    path.unlink()
    database = sqlite3.connect(path)
    database.execute("CREATE TABLE bookmarks (url TEXT)")
    database.commit()
    database.close()


def make_a_table_nameless(path: Path) -> None:
    """Its name in the schema is no text, and its page is no page."""
    data = path.read_bytes()
    at = data.index(b"tabletimerstimers") + len(b"table")
    page = data[at + len(b"timerstimers")]
    damaged = bytearray(data.replace(b"tabletimerstimers", b"table" + b"\xff" * 12))
    size = int.from_bytes(data[16:18], "big")
    damaged[(page - 1) * size : (page - 1) * size + 64] = b"\xa5" * 64
    path.write_bytes(damaged)


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (make_a_table_nameless, "damaged"),
        (damage_header, "not a whichrank state file"),
        (damage_pages, "damaged"),
        (cut_short, "damaged"),
        (make_newer, "newer release"),
        (make_older, "older release"),
        (make_foreign, "another program's database"),
    ],
)
def test_a_file_that_cannot_be_used_is_set_aside_and_state_rebuilt(
    tmp_path: Path, spoil: Callable[[Path], None], words: str
) -> None:
    first, _ = run_once(tmp_path)
    path = tmp_path / "state.sqlite"
    spoil(path)
    spoiled = path.read_bytes()
    again, said = run_once(tmp_path)
    (line,) = said
    assert str(path) in line
    assert words in line
    aside = tmp_path / "state.sqlite.aside-1"
    assert aside.name in line
    assert aside.read_bytes() == spoiled, "the old file is as it was"
    # Rebuilt: the first incident comes again (its consumers know it), the second is revision 2 of it.
    assert again[: len(first)] == first
    assert b'"revision":2' in b"".join(again[len(first) :])
    _, said = run_once(tmp_path)
    assert said == [], "the new file is good"


def test_a_row_whose_key_is_no_text_is_no_reason_to_go_on_in_memory(tmp_path: Path) -> None:
    run_once(tmp_path)
    database = sqlite3.connect(tmp_path / "state.sqlite")
    database.execute("UPDATE rows SET key = CAST(X'ff' AS TEXT) WHERE rowid = (SELECT min(rowid) FROM rows)")
    database.commit()
    database.close()
    _, (line,) = run_once(tmp_path)
    assert "it is damaged" in line
    assert (tmp_path / "state.sqlite.aside-1").exists()
    _, said = run_once(tmp_path)
    assert said == [], "the new file is good"


def test_a_second_bad_file_does_not_replace_the_first(tmp_path: Path) -> None:
    path = tmp_path / "state.sqlite"
    for number in (1, 2):
        path.write_bytes(b"rubbish %d" % number)
        run_once(tmp_path)
        assert (tmp_path / f"state.sqlite.aside-{number}").read_bytes() == b"rubbish %d" % number
    assert (tmp_path / "state.sqlite.aside-1").read_bytes() == b"rubbish 1"


def test_the_state_of_another_capture_is_set_aside(tmp_path: Path) -> None:
    run_once(tmp_path)
    (tmp_path / "capture").rename(tmp_path / "old")
    _, said = run_once(tmp_path)
    assert "belongs to another capture" in said[0]


def test_a_state_in_use_is_refused_not_set_aside(tmp_path: Path) -> None:
    state = open_state(tmp_path / "s", [])
    state.open_table(("o", "k", "t")).put("a", b"1")
    state.commit()
    with pytest.raises(BlockingIOError, match="another process is using"):
        open_state(tmp_path / "s", [])
    assert [path.name for path in tmp_path.glob("*aside*")] == []
    state.close()


def test_a_folder_that_cannot_be_written_means_memory_only(tmp_path: Path) -> None:
    said: list[str] = []
    state = open_state(tmp_path / "missing" / "s", said)
    state.open_table(("o", "k", "t")).put("a", b"1")
    assert not state.commit()
    assert len(said) == 1
    assert "going on in memory" in said[0]
    state.close()


def test_a_capture_that_lost_its_end_does_not_hide_what_comes_next(tmp_path: Path) -> None:
    for number in range(3):
        run_once(tmp_path, at_s=number)
    (segment, *_) = sorted((tmp_path / "capture").glob("segment-*.log"))
    for later in sorted((tmp_path / "capture").glob("segment-*.log"))[1:]:
        later.unlink()  # as if the disk had refused them
    assert segment.exists()
    lines, said = run_once(tmp_path, at_s=5)
    assert said == []
    assert b'"revision":4' in b"".join(lines), "the state knows three, and the new message was heard"


def test_an_empty_file_is_a_new_state(tmp_path: Path) -> None:
    (tmp_path / "s").touch()
    said: list[str] = []
    state = open_state(tmp_path / "s", said)
    assert state.commit()
    state.close()
    assert said == []
    header = (tmp_path / "s").read_bytes()[:100]
    assert int.from_bytes(header[68:72], "big") == APPLICATION_ID


# A real full disk: the process's own file-size limit refuses writes exactly as a full file system does.
FULL_DISK_SCRIPT = """
import resource, signal, sys, time
from pathlib import Path
from tests.processors.runner_examples import *
from whichrank.processors import runner_state
from whichrank.processors.commit_pace import CommitPace
from whichrank.processors.runner import EmbeddedRunner
from whichrank.transport.embedded import EmbeddedBus
from whichrank.telemetry.records import Incident
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
runner_state.RETRY_S = 0.2
directory, said, found = Path(sys.argv[1]), [], []
bus = open_bus(directory / "capture", Clock())
runner = EmbeddedRunner(bus, directory / "state.sqlite", make_operators(), found.append, live=True,
                        pace=CommitPace(0.0, 0.0), report=said.append)
limit = max(path.stat().st_size for path in directory.glob("state.sqlite*")) + 100
resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
for rank in range(30):
    try:
        bus.append("whichrank.blocks", "j", encode_events(rank_event(rank, EventName.RANK_EXIT)))
    except OSError:
        pass  # the capture is on the same disk
    runner.drain()
assert len([r for r in found if isinstance(r.payload, Incident)]) == 30, len(found)
assert runner.failed_commits >= 20, runner.failed_commits
state_lines = [line for line in said if "state.sqlite" in line]
assert len(state_lines) == 1 and "going on in memory" in state_lines[0], said
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
time.sleep(0.3)
bus.append("whichrank.blocks", "j", encode_events(rank_event(99, EventName.RANK_EXIT)))
runner.drain()
assert "written again" in said[-1], said
runner.close()
"""


def test_a_full_disk_is_said_once_judging_goes_on_and_nothing_is_missing_after(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", FULL_DISK_SCRIPT, str(tmp_path)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    database = sqlite3.connect(tmp_path / "state.sqlite")
    assert database.execute("SELECT count(*) FROM rows WHERE operator = 'docket'").fetchone() == (31,)
    database.close()


def test_rows_of_an_older_file_are_given_rowids(tmp_path: Path) -> None:
    run_once(tmp_path)
    path = tmp_path / "state.sqlite"
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as database:
        database.execute("ALTER TABLE rows RENAME TO quick")
        database.execute(
            "CREATE TABLE rows (operator TEXT, key TEXT, tbl TEXT, row TEXT, value BLOB NOT NULL,"
            " PRIMARY KEY (operator, key, tbl, row)) WITHOUT ROWID"
        )
        database.execute("INSERT INTO rows SELECT * FROM quick")
        database.execute("DROP TABLE quick")
    again, said = run_once(tmp_path)
    assert said == []
    assert b'"revision":2' in b"".join(again), "what was known is known"
    with contextlib.closing(sqlite3.connect(path)) as database:
        assert database.execute("SELECT count(rowid) > 0 FROM rows").fetchone() == (1,)


def test_a_row_of_a_large_job_is_written_in_a_moment(tmp_path: Path) -> None:
    """Beside thousands of small ones. A table without rowids takes seconds of CPU time for it."""
    state = RunnerState(tmp_path / "state.sqlite", bus="b", start_after=0, report=print)
    table = state.open_table(("op", "job", "job"))
    spent_s = []
    for commit in range(3):
        table.put("steps", bytes([commit]) * 20_000_000)
        for row in range(2_000):
            table.put(f"open/{commit}/{row}", b"x" * 1000)
        began_s = time.process_time()
        assert state.commit()
        spent_s.append(time.process_time() - began_s)
    state.close()
    assert min(spent_s) < 1.0, spent_s
