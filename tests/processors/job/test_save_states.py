"""Which checkpoint counts: the newest of which all that began are durable; and what is said where none becomes so."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from tests.processors.job.synthetic_job import MemoryContext, SyntheticJob, drive
from tests.processors.job.test_accounting import account, dies, finished_at, merged, started_at
from whichrank.processors.job.saves import save_findings
from whichrank.processors.job.state.checkpoint_saves import CheckpointSaves, bits_of, ranks_of
from whichrank.processors.job.state.state_rows import load_job
from whichrank.telemetry.vocabulary import EventName

Happening = tuple[float, EventName, int, dict[str, Any]]


def told(at_s: float, state: str, step: int, ranks: str = "0-3", **values: Any) -> Happening:
    """What a node tells of its ranks' saves."""
    attributes = {"state": state, "step": step, "ranks": ranks, "way": "dcp_async_save", "tier": "network", **values}
    return at_s, EventName.CHECKPOINT_STATE, 0, attributes


def lost_after(*events: Happening, reads: tuple[str, ...] = ()) -> tuple[int, int]:
    """Steps done and steps lost of an attempt that dies in step 70 or so, without a phase that shows a save."""
    first = dies(37.0, 100.0, "a1", step_s=0.5)
    first.events += events
    read = [(0.2, EventName.RANK_CHECKPOINT, 0, {"checkpoint": each, "read": True, "step": 0}) for each in reads]
    second = SyntheticJob(steps=30, attempt="a2", start_s=145.0, step_s=0.5, after_s=0.5, events=list(read))
    context = drive(merged([started_at(99.0)], first.records(), second.records(), [finished_at(161.0)]))
    found = account(context)
    (interruption,) = found.interruptions
    return found.steps - 30, interruption.lost_steps


SAVED_20 = (told(10.0, "begun", 20), told(10.2, "staged", 20), told(12.0, "durable", 20, seconds=2.0))


@pytest.mark.parametrize(
    ("events", "resumed"),
    [
        (SAVED_20, 20),
        # Staged, and killed before it was written.
        ((*SAVED_20, told(30.0, "begun", 60), told(30.2, "staged", 60)), 20),
        # Durable long after its step.
        ((*SAVED_20, told(20.0, "begun", 40), told(34.0, "durable", 40)), 40),
        # One of four ranks is missing.
        ((*SAVED_20, told(20.0, "begun", 40), told(21.0, "durable", 40, "0-2")), 20),
        # In any order between nodes.
        (
            (
                *SAVED_20,
                told(20.0, "begun", 40, "0-1"),
                told(20.5, "durable", 40, "0-1"),
                told(20.6, "begun", 40, "2-3"),
                told(21.0, "durable", 40, "2-3"),
            ),
            40,
        ),
        (
            (*SAVED_20, told(20.0, "begun", 40, "0-1"), told(20.5, "durable", 40, "0-1"), told(20.6, "begun", 40, "3")),
            20,
        ),
        # Two files of one step, the second one cut short.
        ((*SAVED_20, told(20.0, "begun", 40), told(20.1, "durable", 40), told(20.2, "begun", 40)), 20),
        # Two at once: both have to end.
        ((*SAVED_20, told(20.0, "begun", 40), told(20.1, "begun", 40), told(20.2, "durable", 40)), 20),
        (
            (
                *SAVED_20,
                told(20.0, "begun", 40),
                told(20.1, "begun", 40),
                told(20.2, "durable", 40),
                told(20.3, "durable", 40),
            ),
            40,
        ),
        # A second kind of save of the same step is not written.
        (
            (*SAVED_20, told(20.0, "begun", 40), told(20.1, "durable", 40), told(20.2, "begun", 40, way="torch_save")),
            20,
        ),
        ((*SAVED_20, told(20.0, "begun", 40), told(20.1, "failed", 40, "2", error="OSError: full")), 20),
        # A cache before the first step; what nobody saw begin; ranks that no job has; words that mean nothing.
        ((*SAVED_20, told(0.1, "begun", 0), told(0.2, "durable", 0), told(30.0, "durable", 60)), 20),
        ((*SAVED_20, told(20.0, "begun", 40, "0-999999999"), told(20.1, "durable", 40, "0-999999999")), 20),
        ((*SAVED_20, told(20.0, "begun", 40), told(20.1, "durable", 40), told(20.3, "nonsense", 40)), 40),
    ],
)
def test_lost_work_counts_from_the_newest_save_that_is_whole(events: tuple[Happening, ...], resumed: int) -> None:
    done, lost = lost_after(*events)
    assert lost == done - resumed


def test_what_is_read_tells_more_than_what_was_told() -> None:
    """Killed between the last byte and the word that it is durable: the next attempt goes on from there."""
    begun = told(20.0, "begun", 40, checkpoints=("b",))
    done, lost = lost_after(*SAVED_20, begun, reads=("b",))
    assert lost == done - 40


def test_a_place_that_is_written_again_holds_the_old_state_until_the_new_one_is_whole() -> None:
    events = (
        told(10.0, "begun", 20, checkpoints=("latest",)),
        told(11.0, "durable", 20),
        told(20.0, "begun", 40, checkpoints=("latest",)),
    )
    done, lost = lost_after(*events, reads=("latest",))
    assert lost == done - 20
    done, lost = lost_after(*events, told(21.0, "durable", 40), reads=("latest",))
    assert lost == done - 40


def judged(*events: Happening, steps: int = 60, step_s: float = 0.5) -> Mapping[str, Any]:
    """Findings at the end, by kind."""
    context: MemoryContext = drive(SyntheticJob(steps=steps, step_s=step_s, events=list(events)).records())
    return {item.body["kind"]: item for item in context.final().values()}


def test_a_failed_save_is_an_incident_until_one_is_whole() -> None:
    failed = (*SAVED_20, told(20.0, "begun", 40), told(21.0, "failed", 40, "2", error="OSError: [Errno 28] No space"))
    found = judged(*failed)["checkpoint_failed"]
    assert not found.cleared
    assert found.body["severity"] == "ticket"
    assert [each["rank"] for each in found.body["suspects"]] == [2]
    assert found.body["evidence"][0]["fact"]["message"] == "[Errno 28] No space"
    (at_risk,) = [row for row in found.body["evidence"] if row["signal"] == "checkpoint.at_risk"]
    assert at_risk["value"] > 10
    again = (*failed, told(24.0, "begun", 48), told(24.5, "durable", 48))
    assert judged(*again)["checkpoint_failed"].cleared


def test_two_in_a_row_are_a_page_and_all_ranks_are_nobodys_fault() -> None:
    failed = (told(10.0, "begun", 20), told(11.0, "failed", 20, error="OSError: x"))
    more = (told(20.0, "begun", 40), told(21.0, "failed", 40, error="OSError: x"))
    found = judged(*failed, *more)["checkpoint_failed"]
    assert found.body["severity"] == "page"
    assert found.body["suspects"] == []
    assert found.body["scope"] == "storage"


@pytest.fixture
def long_is_a_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    """A tenth of what it is: simulated hours take seconds."""
    monkeypatch.setattr(save_findings, "LONG_NS", 60_000_000_000)


@pytest.mark.usefixtures("long_is_a_minute")
def test_an_upload_that_does_not_end_is_an_incident_while_training_goes_on() -> None:
    open_save = (told(10.0, "begun", 4), told(10.1, "staged", 4))
    found = judged(*open_save, steps=75, step_s=2.0)["checkpoint_unfinished"]
    assert not found.cleared
    assert [each["rank"] for each in found.body["suspects"]] == []  # all four of four
    partly = (*open_save, told(10.5, "durable", 4, "0-2", seconds=0.5))
    found = judged(*partly, steps=75, step_s=2.0)["checkpoint_unfinished"]
    assert [each["rank"] for each in found.body["suspects"]] == [3]
    late = (*partly, told(100.0, "durable", 4, "3"))
    assert judged(*late, steps=75, step_s=2.0)["checkpoint_unfinished"].cleared


@pytest.mark.usefixtures("long_is_a_minute")
def test_an_upload_within_what_is_usual_is_none() -> None:
    usual = [
        each
        for number in range(3)
        for each in (
            told(5.0 + 40 * number, "begun", 2 + 20 * number),
            told(40.0 + 40 * number, "durable", 2 + 20 * number, seconds=35.0),
        )
    ]
    assert "checkpoint_unfinished" not in judged(*usual, told(130.0, "begun", 65), steps=105, step_s=2.0)
    assert "checkpoint_unfinished" in judged(told(130.0, "begun", 65), steps=105, step_s=2.0)


def test_a_step_is_saved_near_the_job_while_storage_goes_on() -> None:
    near, storage = {"way": "whichrank"}, {"way": "whichrank_storage"}
    events = (told(10.0, "begun", 20, **near), told(10.1, "begun", 20, **storage), told(11.0, "durable", 20, **near))
    done, lost = lost_after(*events)
    assert lost == done - 20


def test_a_step_that_another_rank_left_out_is_neither_saved_nor_an_incident() -> None:
    near = {"way": "whichrank"}
    events = (told(20.0, "begun", 40, "0-2", **near), told(20.2, "left_out", 40, "0-2", **near))
    done, lost = lost_after(*SAVED_20, *events)
    assert lost == done - 20
    assert judged(*SAVED_20, *events) == judged(*SAVED_20)


def test_state_of_saves_is_kept_and_bounded() -> None:
    saves = CheckpointSaves()
    for step in range(1, 200):
        saves.at(step, "torch_save").begin(bits_of([0, 5]), step, 7)
    saves.at(199, "torch_save").end(bits_of([5]), 1.5)
    saves.at(199, "torch_save").begin(bits_of([0]), 200, 7)
    again = CheckpointSaves.of_rows(saves.as_rows())
    assert again.as_rows() == saves.as_rows()
    assert len(list(again)) == 12
    assert ranks_of(again.at(199, "torch_save").missing) == [0]
    assert again.at(199, "torch_save").again == {0: 1}


def test_an_open_save_outlives_a_restart_of_the_judge() -> None:
    events = [*SAVED_20, told(20.0, "begun", 40), told(20.2, "staged", 40)]
    context = drive(SyntheticJob(steps=60, step_s=0.5, events=events).records())
    job = load_job(context.table("job"))
    assert job is not None
    assert job.checkpoints.saved_steps == 20
    assert [save.step for save in job.checkpoints.saves if save.is_open] == [40]
    assert job.checkpoints.saves.are_told


def test_many_that_fail_in_a_row_do_not_push_out_the_one_that_is_whole() -> None:
    saves = CheckpointSaves()
    saves.at(5, "torch_save").begin(bits_of([0]), 1, 7)
    saves.at(5, "torch_save").end(bits_of([0]), 1.0)
    for step in range(10, 40):
        saves.at(step, "torch_save").begin(bits_of([0]), step, 7)
    assert saves.newest_complete_step() == 5
    assert CheckpointSaves.of_rows(saves.as_rows()).newest_complete_step() == 5
