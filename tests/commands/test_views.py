"""What people see: the picture of a job from its blocks, the live and plain views, and the incident in words."""

from __future__ import annotations

import io
import re
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from tests.processors.job.synthetic_job import FOREVER, SyntheticJob, drive
from whichrank.commands.incident_text.incident_panel import incident_panel
from whichrank.commands.incident_text.incident_view import (
    cleared_words,
    describe_suspects,
    headline,
    incident_line,
    incident_view,
)
from whichrank.commands.live_view import status_view
from whichrank.commands.live_view.job_status import JobStatus, describe_ranks
from whichrank.commands.live_view.status_view import LineView, describe_waiting, render_lines, render_status
from whichrank.commands.run.watching import print_summary
from whichrank.commands.run_folder.run_directory import RunDirectory
from whichrank.telemetry.incident import complete_document
from whichrank.telemetry.incident_document import IncidentDocument
from whichrank.telemetry.incident_reading import read_incident, read_ruled_out
from whichrank.telemetry.records import Block, Event, Group, Identity
from whichrank.telemetry.tables import GROUP_PROGRESS, PROGRESS, STEPS
from whichrank.telemetry.vocabulary import EventName, Op, Phase, ProcessState, StepFlag

IDENTITY = Identity(cluster="local", job="j", attempt="a1")
GROUP = Group(uid="u", name="0", desc="default_pg", ranks="0-2", size=3, is_default=True)


def progress(ranks: int, phase: Phase = Phase.FORWARD, step: int = 7, **columns: int) -> Block:
    rows = np.zeros(ranks, PROGRESS)
    rows["rank"], rows["phase"], rows["step"] = np.arange(ranks), phase, step
    rows["read_ns"], rows["phase_age_ns"] = time.monotonic_ns(), 2_000_000_000
    rows["process_state"] = ProcessState.SLEEPING
    for name, value in columns.items():
        rows[name] = value
    return Block(name=EventName.BLOCK_PROGRESS, identity=IDENTITY, rows=rows)


def group_progress(enqueued: list[int], open_age_s: float = 4.0) -> Block:
    rows = np.zeros(len(enqueued), GROUP_PROGRESS)
    rows["rank"], rows["enqueued"], rows["op"] = np.arange(len(enqueued)), enqueued, Op.ALL_REDUCE
    front = rows["enqueued"] == max(enqueued)
    rows["completed"] = rows["enqueued"] - front
    rows["open"], rows["open_age_ns"] = front, front * int(open_age_s * 1e9)
    return Block(name=EventName.BLOCK_GROUP_PROGRESS, identity=IDENTITY, rows=rows, groups=(GROUP,))


def event(name: EventName, rank: int, **attributes: Any) -> Event:
    identity = Identity(cluster="local", job="j", attempt="a1", rank=rank)
    return Event(name=name, identity=identity, time_ns=0, attributes=attributes)


@pytest.fixture
def waiting() -> JobStatus:
    status = JobStatus()
    status.update(event(EventName.RANK_STARTED, 0, world_size=3, pid=11))
    status.update(progress(3))
    status.update(group_progress([97, 96, 97]))
    return status


def text_of(renderable: Any, width: int = 100) -> str:
    console = Console(file=io.StringIO(), width=width)
    with console.capture() as capture:
        console.print(renderable)
    return capture.get()


def test_the_picture_shows_who_waits_for_whom(waiting: JobStatus) -> None:
    (wait,) = waiting.waiting()
    assert (wait.waiters, wait.waited_for, wait.sequence) == ((0, 2), (1,), 97)
    line = describe_waiting(wait, waiting)
    assert line.startswith("ranks 0,2 have waited 4.")
    assert line.endswith("in all_reduce 97 of world for rank 1 (forward)")
    shown = "\n".join(render_lines(render_status("j", waiting, {}, 83.0), 100))
    assert "3 of 3 ranks" in shown
    assert "step 7" in shown
    assert "1:23" in shown
    assert shown.count("waits for rank 1") == 2


def test_the_console_and_the_incident_name_the_same_call() -> None:
    """The others have called two more buckets: what they wait in is the first, in both."""
    job = SyntheticJob(
        ranks=3,
        steps=20,
        delays=[lambda rank, step, phase: FOREVER if (rank, step, phase) == (1, 12, Phase.BACKWARD) else 0],
    )
    records, status = job.records(), JobStatus(node="node-0")
    for record in records:
        status.update(record.payload)
    (finding,) = drive(records).final().values()
    (wait,) = status.waiting()
    first = finding.body["first_bad"]
    assert (wait.operation, wait.sequence, wait.group) == (first["operation"], first["sequence"], first["group"])
    assert wait.group == "world"
    assert (wait.waiters, wait.waited_for) == ((0, 2), (1,))
    said = finding.body["evidence"][0]["shows"]
    assert f"{wait.operation} {wait.sequence} of group {wait.group}" in said


def test_a_wait_is_as_old_as_the_progress_row_that_follows_says() -> None:
    status = JobStatus()
    earlier = progress(3)
    earlier.rows["read_ns"] -= 1_000_000_000
    status.update(earlier)
    status.update(group_progress([97, 96, 97], open_age_s=4.0))
    now_ns = time.monotonic_ns()
    block = progress(3)
    block.rows["read_ns"] = now_ns
    status.update(block)
    (wait,) = status.waiting()
    assert now_ns - wait.since_ns == 4_000_000_000


def test_the_place_is_not_cut_off_with_a_long_verdict(waiting: JobStatus) -> None:
    lines = [_without_colours(line) for line in render_lines(render_status("j", waiting, {"x": incident()}, 1.0), 60)]
    at = next(index for index, line in enumerate(lines) if line.startswith("● page · open · rank 2 (pid 4711, n1)"))
    assert lines[at].endswith("…")
    assert lines[at + 1].strip() == "at train.py:88 in forward"


def test_before_a_rank_has_started_no_step_is_claimed() -> None:
    (head, below) = render_lines(render_status("gpt.py", JobStatus(), {}, 5.0), 60)
    assert _without_colours(head).startswith("whichrank · gpt.py · 0:05 ─")
    assert "no rank has started yet" in below


def test_a_blind_rank_is_neither_late_nor_waited_for(waiting: JobStatus) -> None:
    block = group_progress([97, 3, 97])
    block.rows["blind"][1] = 1
    waiting.update(block)
    assert waiting.waiting() == []


def test_dead_ranks_wait_for_nobody(waiting: JobStatus) -> None:
    waiting.update(event(EventName.RANK_EXIT, 0, signal=6))
    waiting.update(event(EventName.RANK_EXIT, 2, exit_code=1))
    assert waiting.waiting() == []
    assert [waiting.ranks[rank].ended for rank in (0, 1, 2)] == ["signal 6", "", "exit 1"]


def test_a_new_attempt_begins_a_new_picture(waiting: JobStatus) -> None:
    rows = progress(2).rows
    waiting.update(Block(name=EventName.BLOCK_PROGRESS, identity=Identity(job="j", attempt="a2"), rows=rows))
    assert (sorted(waiting.ranks), waiting.attempts, waiting.waiting()) == ([0, 1], 2, [])


def test_the_pace_is_the_median_of_one_ranks_steps() -> None:
    status = JobStatus()
    rows = np.zeros(9, STEPS)
    rows["rank"], rows["end_ns"] = np.repeat([0, 1, 2], 3), [100_000_000, 200_000_000, 900_000_000] * 3
    status.update(Block(name=EventName.BLOCK_STEPS, identity=IDENTITY, rows=rows))
    assert status.seconds_per_step == pytest.approx(0.2)
    status.update(Block(name=EventName.BLOCK_STEPS, identity=IDENTITY, rows=rows[:0]))


def test_numbers_of_a_later_release_do_not_stop_the_view() -> None:
    status = JobStatus()
    block = progress(1)
    block.rows["phase"], block.rows["process_state"] = 200, 99
    status.update(block)
    assert status.ranks[0].phase is Phase.OTHER


def test_many_ranks_are_put_together_by_what_they_do() -> None:
    status = JobStatus()
    block = progress(512)
    block.rows["phase"][37] = Phase.DATA
    status.update(block)
    lines = render_lines(render_status("j", status, {}, 0.0), 100)
    assert len(lines) < 10
    assert any("rank 37" in line and "data" in line for line in lines)
    assert any("ranks 0-36,38-511" in line for line in lines)


@pytest.mark.parametrize("width", [20, 40, 80])
def test_no_line_is_wider_than_the_terminal(waiting: JobStatus, width: int) -> None:
    for line in render_lines(render_status("a-job-with-a-long-name" * 3, waiting, {"x": incident()}, 1.0), width):
        assert len(_without_colours(line)) <= width


def test_the_plain_view_says_each_thing_once(waiting: JobStatus, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    clock = [0.0]
    view = LineView(said.append, now=lambda: clock[0])
    for _ in range(3):
        view.update(waiting)
        view.incident(incident())
    assert len(said) == 2, said
    clock[0] = status_view.PROGRESS_LINE_S + 1
    view.update(waiting)
    assert said[-1].startswith("step 7, 3 ranks alive in forward")


def test_a_wait_that_goes_on_stands_in_every_line_of_progress(waiting: JobStatus) -> None:
    said: list[str] = []
    clock = [0.0]
    view = LineView(said.append, now=lambda: clock[0])
    for turn in range(1, 4):
        clock[0] = turn * (status_view.PROGRESS_LINE_S + 1)
        view.update(waiting)
    lines = [line for line in said if line.startswith("step 7")]
    assert len(lines) == 3
    assert all("for rank" in line for line in lines)


def test_where_no_step_is_seen_that_is_said_once_with_what_is_known() -> None:
    status = JobStatus(node="here")
    status.update(progress(3, Phase.OTHER, step=0))
    status.update(group_progress([70, 70, 70]))
    said: list[str] = []
    clock = [0.0]
    view = LineView(said.append, now=lambda: clock[0])
    for seconds in (0.0, 44.0, 46.0, 60.0, 120.0):
        clock[0] = seconds
        view.update(status)
    lacking = [line for line in said if "no step is seen" in line]
    assert len(lacking) == 1
    assert "whichrank.step()" in lacking[0]
    assert "70 calls" in lacking[0]
    assert [line for line in said if line.startswith("no step seen, 3 ranks alive")]
    assert "no step is seen" in text_of(render_status("job", status, {}, 60.0))


def test_inferred_steps_are_called_so() -> None:
    status = JobStatus(node="here")
    status.update(progress(2, step=12))
    rows = np.zeros(1, STEPS)
    rows["flags"], rows["end_ns"] = int(StepFlag.INFERRED), 10**9
    status.update(Block(name=EventName.BLOCK_STEPS, identity=IDENTITY, rows=rows))
    assert "step 12 (inferred" in text_of(render_status("job", status, {}, 60.0), 200)


def incident(**fields: Any) -> IncidentDocument:
    where = {"file": "/x/train.py", "line": 88, "phase": "forward"}
    made = complete_document(
        {
            "id": "abc",
            "revision": 1,
            "change": "opened",
            "state": "open",
            "severity": "page",
            "bucket": "communication_hang",
            "kind": "rank_not_entered",
            "suspects": [{"scope": "rank", "id": "2", "rank": 2, "node": "n1", "pid": 4711, "where": where}],
            "job": {"run": None, "id": "gpt-0d92c7dc", "name": "gpt.py", "attempt": None, "owner": None, "now": None},
            "victims": {"count": 3, "ranks": "0-1,3"},
            "coverage": {"ranks_seen": 4, "ranks_expected": 4},
            "first_bad": {"step": 41, "group": "dp", "sequence": 97, "operation": "all_reduce"},
            "times": {"onset": 1000.0, "detected": 1003.5},
            "evidence": [{"signal": "progress", "source": "rank 2", "shows": "has not entered [bold]all_reduce[/] 97"}],
            "ruled_out": [{"who": "rank 0", "looks_guilty": "printed a timeout", "because": "it waits"}],
            "confidence": 0.95,
            **fields,
        }
    )
    return read_incident(made)


def test_ranks_with_one_excuse_share_a_line_and_phase_other_is_not_said() -> None:
    gloo = "raised RuntimeError: Connection closed by peer [127.0.0.1]:{}"
    rows = [
        {"who": "rank 0", "ranks": "0", "looks_guilty": gloo.format(8844), "because": "rank 3 came first"},
        {"who": "rank 1", "ranks": "1", "looks_guilty": "was ended by SIGTERM", "because": "rank 3 came first"},
        {"who": "rank 2", "ranks": "2", "looks_guilty": gloo.format(24208), "because": "rank 3 came first"},
        {"who": "ranks 4-9", "ranks": "4-9", "looks_guilty": gloo.format(1), "because": "rank 3 came first"},
        {"who": "the switch", "looks_guilty": "is shared", "because": "others use it"},
        {"who": "rank 7", "ranks": "seven", "looks_guilty": "is odd", "because": "it is not"},
    ]
    assert cleared_words(list(map(read_ruled_out, rows))) == [
        "ranks 0,2,4-9: each raised RuntimeError: Connection closed by peer [127.0.0.1], but rank 3 came first",
        "rank 1: was ended by SIGTERM, but rank 3 came first",
        "the switch: is shared, but others use it",
        "rank 7: is odd, but it is not",
    ]
    where = {"file": "train.py", "line": 88, "phase": "other"}
    suspects = [{"scope": "rank", "id": "1", "where": {**where, **more}} for more in ({}, {"phase": "forward"})]
    assert [row.where for row in incident_view(incident(suspects=suspects)).suspects] == [
        "train.py:88", "train.py:88 in forward",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("counted_by", "words"),
    [
        ("server", "noisy_neighbour (lustre1), by what the server counts of each job"),
        ("clients", "noisy_neighbour (lustre1), by what the jobs' own nodes count; the server does not count by job"),
        ("someone", "noisy_neighbour (lustre1)"),
        (None, "noisy_neighbour (lustre1)"),
    ],
)
def test_of_a_noisy_neighbour_it_is_said_who_counted(counted_by: str | None, words: str) -> None:
    cause = {"condition": "noisy_neighbour", "entity": "lustre1", "device_kind": "storage", "device": "", "since": 1.0,
             "domain": "shared", "counted_by": counted_by}  # fmt: skip
    told = incident(cause={name: value for name, value in cause.items() if value is not None})
    assert incident_view(told).because == words


def test_the_panel_tells_who_what_where_since_why_and_who_is_innocent() -> None:
    text = text_of(incident_panel(incident()), width=140)
    for words in (
        "rank 2 (pid 4711, n1)",
        "gpt.py · gpt-0d92c7dc",
        "[communication_hang / rank_not_entered]",
        "/x/train.py:88 in forward",
        "step 41, all_reduce 97 of group dp",
        "seen after 3.5 s",
        "ranks 0-1,3",
        "has not entered [bold]all_reduce[/] 97",
        "rank 0: printed a timeout, but it waits",
        "4 of 4 ranks",
        "0.95",
    ):
        assert words in text


@pytest.mark.parametrize(("id_by", "is_said"), [("claimed", True), ("kernel", False), ("named", False)])
def test_an_id_that_only_the_job_claims_is_shown_as_claimed(id_by: str, is_said: bool) -> None:
    document = incident(job={"run": "r", "id": "4711", "name": "llm", "id_by": id_by})
    assert (
        "llm · 4711 (an id that only the job itself claims)" in text_of(incident_panel(document), width=140)
    ) == is_said


def test_many_suspects_are_told_in_a_few_words() -> None:
    def suspects(ranks: range) -> list[dict[str, Any]]:
        where = {"file": None, "line": None, "phase": "data"}
        return [
            {"scope": "rank", "id": str(rank), "rank": rank, "node": f"n{rank // 8}", "pid": 7, "where": where}
            for rank in ranks
        ]

    few = incident(suspects=suspects(range(4)))
    assert describe_suspects(few.suspects).count(" or ") == 3
    text = text_of(incident_panel(few), width=140)
    assert text.count("where") == 1
    assert "0-3: in data" in text
    node, stage = incident(suspects=suspects(range(8, 16))), incident(suspects=suspects(range(96, 128)))
    assert describe_suspects(node.suspects) == "one or more of ranks 8-15 (n1)"
    assert describe_suspects(stage.suspects) == "one or more of ranks 96-127 (n12 and 3 more nodes)"
    assert (
        describe_suspects(incident(suspects=suspects(range(2, 14))).suspects)
        == "one or more of ranks 2-13 (n0 and 1 more node)"
    )
    spread = describe_suspects(incident(suspects=suspects(range(0, 1000, 4))).suspects)
    assert spread.startswith("one or more of ranks 0,4,8,")
    assert spread.endswith(" and so on, 250 of them (n0 and 124 more nodes)")
    assert len(spread) < 160


@pytest.mark.parametrize(
    "fields",
    [
        {"suspects": [], "kind": "planned_stop", "bucket": "planned", "severity": "info"},
        {"suspects": [], "evidence": [], "ruled_out": [], "victims": None, "coverage": None, "first_bad": None},
        {"times": {"onset": 1.0}, "confidence": None, "kind": "a_kind_of_a_later_release"},
        {"suspects": [{"scope": "rank", "id": "1", "rank": 1}, {"scope": "rank", "id": "2", "rank": 2}]},
    ],
)
def test_whatever_is_unknown_is_left_out(fields: dict[str, Any]) -> None:
    document = incident(**fields)
    assert "None" not in text_of(incident_panel(document)).replace("None:", "")
    assert "None" not in incident_line(document)


def test_what_an_exception_says_cannot_move_the_cursor_or_break_the_box() -> None:
    nasty = incident(
        evidence=[{"source": "rank 2", "signal": "x", "shows": "a\x1b[2Jb\r\nc GLHF! \U0001f3d6\ufe0f end"}],
        ruled_out=[{"who": "rank 0", "looks_guilty": "said \x1b]0;gotcha\x07", "because": "it waits"}],
    )
    lines = text_of(incident_panel(nasty), width=100).splitlines()
    assert not any(c in line for line in lines for c in "\x1b\x07\r\ufe0f")
    assert any("a [2Jb  c GLHF! \U0001f3d6 end" in line for line in lines)
    assert "\x1b" not in incident_line(incident(kind="a\x1b[1mb"))


def test_one_line_for_logs() -> None:
    assert headline(incident()).endswith("; it is at train.py:88 in forward")
    assert incident_line(incident()).startswith("[page] opened rank_not_entered: rank 2 (pid 4711, n1)")
    assert describe_ranks([3]) == "rank 3"


def _without_colours(line: str) -> str:
    return re.sub(r"\x1b\[[0-9;]*m", "", line)


def test_a_node_is_named_with_its_ranks_and_nobody_with_what_is_known() -> None:
    node = {"scope": "node", "id": "node-2", "node": "node-2", "ranks": "8-15"}
    lost = complete_document(
        {"id": "a", "severity": "page", "change": "opened", "kind": "node_lost", "suspects": [node]}
    )
    assert "node_lost: node node-2 (ranks 8-15) is gone, with its ranks" in incident_line(read_incident(lost))
    waits = {"id": "b", "severity": "page", "change": "opened", "kind": "rank_not_entered"}
    unseen = read_incident({**waits, "first_bad": {"group": "world", "sequence": 5}})
    assert "rank_not_entered: ranks wait in a collective for others that cannot be seen (" in incident_line(unseen)
    outside = read_incident(waits)
    assert "rank_not_entered: all ranks stand still, and none waits in a collective (" in incident_line(outside)


def test_a_wait_that_has_passed_is_counted_and_takes_no_room(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def of(number: str, severity: str, state: str) -> IncidentDocument:
        return incident(id=number, severity=severity, state=state)

    told = {"a": of("a", "info", "resolved"), "b": of("b", "page", "resolved"), "c": of("c", "info", "open")}
    print_summary(told, {}, JobStatus(), RunDirectory(path=tmp_path))
    said = capsys.readouterr().err
    assert "2 incidents, 1 wait that passed; no rank was seen" in said
    assert "incident a" not in said
    assert "incident b" in said
