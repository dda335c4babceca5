"""What a ring tells of saves, from torch's own calls in a real process group of one rank."""

# mypy: disable-error-code="attr-defined,name-defined,misc,no-untyped-call"

from __future__ import annotations

import copy
import io
import threading
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp

import whichrank
from tests.instrumentation.test_hooks import Recording, recording, world
from whichrank.instrumentation import api
from whichrank.instrumentation.trackers.checkpoint_identity import checkpoint_number, checkpoint_tier
from whichrank.telemetry.checkpoint_states import (
    SaveState,
    SaveWay,
    Tier,
    pack_save_extra,
    pack_save_head,
    unpack_save_extra,
    unpack_save_head,
)
from whichrank.telemetry.ring_layout import DEFINITION_SAVE_FAILED
from whichrank.telemetry.vocabulary import EventKind

__all__ = ["recording", "world"]
STATE = {"a": torch.zeros(300)}
B, S, D, F, P = SaveState.BEGUN, SaveState.STAGED, SaveState.DURABLE, SaveState.FAILED, SaveState.PART


def saves(recording: Recording) -> list[tuple[int, SaveState, SaveWay, int]]:
    """(number, state, way, steps held) in order."""
    found = []
    for event in recording.ring.events:
        if event.kind is EventKind.SAVE:
            head = unpack_save_head(event.group)
            found.append((event.seq, SaveState(head.state), SaveWay(head.way), unpack_save_extra(event.extra)[0]))
    return found


def states(recording: Recording) -> list[tuple[int, SaveState]]:
    return [(number, state) for number, state, _, _ in saves(recording)]


def trained(steps: int) -> None:
    model = torch.nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(steps):
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()


def test_a_plain_save_is_durable_when_it_returns(recording: Recording, world: None) -> None:
    trained(3)
    torch.save(STATE, recording.directory / "a.pt")
    assert saves(recording) == [(1, B, SaveWay.TORCH_SAVE, 3), (1, D, SaveWay.TORCH_SAVE, 3)]
    begun = next(event for event in recording.ring.events if event.kind is EventKind.SAVE)
    assert begun.value == checkpoint_number(recording.directory / "a.pt")
    assert unpack_save_extra(begun.extra)[1] == 2048  # 1,200 bytes, to the next KiB


def test_what_is_written_into_memory_is_no_checkpoint(recording: Recording, world: None) -> None:
    torch.save(STATE, io.BytesIO())
    assert not saves(recording)


def test_a_save_that_raises_has_failed_with_its_words(recording: Recording, world: None) -> None:
    with pytest.raises(RuntimeError):
        torch.save(STATE, recording.directory / "nothing" / "a.pt")
    assert states(recording) == [(1, B), (1, F)]
    ((_, payload),) = [each for each in recording.ring.definitions if each[0] == DEFINITION_SAVE_FAILED]
    assert "nothing" in payload["error"]


def test_an_asynchronous_save_holds_the_step_at_which_it_was_begun(recording: Recording, world: None) -> None:
    trained(2)
    go_on = threading.Event()

    class SlowWriter(dcp.FileSystemWriter):
        def write_data(self, *args: Any, **kwargs: Any) -> Any:
            go_on.wait(20)
            return super().write_data(*args, **kwargs)

    future = dcp.async_save(STATE, storage_writer=SlowWriter(recording.directory / "dcp"))
    assert isinstance(future, Future)
    trained(3)
    assert states(recording) == [(1, B), (1, S)]
    go_on.set()
    future.result(timeout=20)
    dcp.save(STATE, checkpoint_id=recording.directory / "dcp2", no_dist=True)
    assert saves(recording) == [
        (1, B, SaveWay.DCP_ASYNC_SAVE, 2),
        (1, S, SaveWay.DCP_ASYNC_SAVE, 2),
        (1, D, SaveWay.DCP_ASYNC_SAVE, 2),
        (2, B, SaveWay.DCP_SAVE, 5),
        (2, D, SaveWay.DCP_SAVE, 5),
    ]


def test_an_asynchronous_save_that_fails(recording: Recording, world: None) -> None:
    future = dcp.async_save(STATE, checkpoint_id="/proc/nothing/here")
    assert isinstance(future, Future)
    assert future.exception(timeout=20) is not None
    assert states(recording) == [(1, B), (1, S), (1, F)]


def test_calls_within_a_save_are_its_parts(recording: Recording, world: None) -> None:
    with whichrank.phase("checkpoint"):
        torch.save(STATE, recording.directory / "model.pt")
        torch.save(STATE, recording.directory / "optimizer.pt")
    assert states(recording) == [(1, B), (1, P), (1, P), (1, D)]


def save_carefully(state: Any, place: Path) -> bool:
    try:
        torch.save(state, place)
    except RuntimeError:
        return False
    return True


def test_a_save_that_caught_what_its_part_raised_has_failed(recording: Recording, world: None) -> None:
    with whichrank.phase("checkpoint"):
        torch.save(STATE, recording.directory / "optimizer.pt")
        assert not save_carefully(STATE, recording.directory / "nothing" / "model.pt")
    assert states(recording) == [(1, B), (1, P), (1, F)]


def test_what_is_written_at_the_second_try_or_in_another_way_is_whole(recording: Recording, world: None) -> None:
    late = recording.directory / "late"
    with whichrank.phase("checkpoint"):
        assert not save_carefully(STATE, late / "model.pt")
        late.mkdir()
        assert save_carefully(STATE, late / "model.pt")
    with whichrank.phase("checkpoint"):
        assert not save_carefully(STATE, recording.directory / "nothing" / "model.safetensors")
        assert save_carefully(STATE, recording.directory / "model.bin")
    assert [state for _, state in states(recording)] == [B, P, D, B, P, D]


def test_what_found_no_room_is_not_made_good_by_what_is_written_elsewhere(recording: Recording, world: None) -> None:
    with whichrank.phase("checkpoint"):
        with pytest.raises(OSError, match="space"), Path("/dev/full").open("wb", buffering=0) as full:
            torch.save(STATE, full)
        torch.save(STATE, recording.directory / "optimizer.pt")
    assert states(recording) == [(1, B), (1, P), (1, F)]


def test_a_save_by_hand_that_hands_over_is_durable_with_what_it_handed_over(recording: Recording, world: None) -> None:
    with whichrank.phase("checkpoint"):
        future = dcp.async_save(STATE, checkpoint_id=recording.directory / "dcp")
    assert isinstance(future, Future)
    future.result(timeout=20)
    assert {number for number, _ in states(recording)} == {1}
    assert states(recording)[-1] in {(1, D), (1, S)}
    assert [state for _, state in states(recording)].count(D) == 1


def test_a_thread_of_the_jobs_own_saves_without_holding_anybody_up(recording: Recording, world: None) -> None:
    thread = threading.Thread(target=torch.save, args=(STATE, recording.directory / "a.pt"))
    thread.start()
    thread.join()
    assert states(recording) == [(1, B), (1, S), (1, D)]


@pytest.mark.parametrize("kind", [torch.optim.AdamW, torch.optim.SGD])
def test_a_copy_that_a_thread_writes_later_holds_the_step_at_which_it_was_copied(
    recording: Recording, world: None, kind: Any
) -> None:
    model = torch.nn.Linear(2, 2)
    optimizer = kind(model.parameters(), 0.1)
    copies = []
    for _ in range(24):
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()
        copies.append(copy.deepcopy({"model": model.state_dict(), "trainer": {"optimizer": optimizer.state_dict()}}))
    for number in (3, 20):
        thread = threading.Thread(target=torch.save, args=(copies[number - 1], recording.directory / f"{number}.pt"))
        thread.start()
        thread.join()
    held = [steps for _, state, _, steps in saves(recording) if state is D]
    assert held == ([3, 20] if kind is torch.optim.AdamW else [24, 24])  # SGD counts nothing: what the weights hold


def test_a_state_that_was_loaded_counts_from_the_attempts_first_step(recording: Recording, world: None) -> None:
    model = torch.nn.Linear(2, 2)
    earlier, optimizer = (torch.optim.AdamW(model.parameters(), 0.1) for _ in range(2))
    for parameter in model.parameters():
        earlier.state[parameter] = {
            "step": torch.tensor(100.0),
            "exp_avg": parameter.data * 0,
            "exp_avg_sq": parameter.data * 0,
        }
    optimizer.load_state_dict(earlier.state_dict())
    for number in range(5):
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()
        if number == 1:
            copied = copy.deepcopy(optimizer.state_dict())
    thread = threading.Thread(target=torch.save, args=({"opt": copied}, recording.directory / "a.pt"))
    thread.start()
    thread.join()
    assert [steps for _, state, _, steps in saves(recording) if state is D] == [2]


def test_steps_that_the_script_ends_itself(recording: Recording, world: None) -> None:
    """The state holds the update that was made, whether the script has called its step over or not."""
    model = torch.nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for number in range(3):
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()
        if number == 1:
            torch.save(STATE, recording.directory / "before.pt")
        whichrank.step()
    torch.save(STATE, recording.directory / "after.pt")
    assert [held for _, state, _, held in saves(recording) if state is D] == [2, 3]


class Request:
    """What Megatron and NVIDIA's library hand to their queue."""

    def __init__(self) -> None:
        self.async_fn: object = None
        self.finalize_fns: list[object] = []


def test_a_request_is_durable_when_its_queue_says_so(recording: Recording, world: None) -> None:
    from whichrank.instrumentation.hooks.framework_saves import _Requests

    session = api.current_session()
    assert session is not None
    assert session.context is not None
    requests = _Requests(session.context)

    class Queue:
        def __init__(self) -> None:
            self.done: list[Any] = []

        def schedule(self, request: Request) -> int:
            return 0  # as NVIDIA's does for each

        def finalize(self) -> list[int]:
            if self.done == ["bad"]:
                raise RuntimeError("the writer died")
            done, self.done = self.done, []
            return done

    schedule, finalize = requests._scheduling(Queue.schedule), requests._finalizing(Queue.finalize)
    queue = Queue()
    for _ in range(2):
        save = session.saves.enter(SaveWay.MEGATRON)
        session.saves.hand_over()
        assert save is not None
        assert requests.completes(save, Request())
        session.saves.leave(save)
        schedule(queue, Request())
    schedule(queue, Request())  # of a call that nobody hooked
    assert finalize(queue) == []
    queue.done = [1]
    assert finalize(queue) == [1]
    queue.done = ["bad"]
    with pytest.raises(RuntimeError):
        finalize(queue)
    ended = [(number, state) for number, state in states(recording) if state in (D, F)]
    assert ended == [(1, D), (2, F)]
    assert states(recording)[-3:-1] != []
    assert (3, S) in states(recording)


@pytest.mark.parametrize(
    ("state", "tier", "way"), [(B, Tier.MEMORY, SaveWay.OTHER), (P, Tier.OBJECT_STORE, SaveWay.WHICHRANK)]
)
def test_what_an_event_holds_comes_back(state: SaveState, tier: Tier, way: SaveWay) -> None:
    assert unpack_save_head(pack_save_head(state, tier, way)) == (state, tier, way)
    assert unpack_save_extra(pack_save_extra(7, 1)) == (7, 1024)
    assert unpack_save_extra(pack_save_extra(-1, 1 << 60)) == (0, ((1 << 32) - 1) * 1024)


def test_what_a_checkpoint_lies_on(tmp_path: Path) -> None:
    assert checkpoint_tier("/dev/shm/a/b") is Tier.MEMORY
    assert checkpoint_tier("s3://bucket/a") is Tier.OBJECT_STORE
    assert checkpoint_tier(tmp_path / "a") in (Tier.DISK, Tier.MEMORY, Tier.NETWORK, Tier.UNKNOWN)
    assert checkpoint_tier(io.BytesIO()) is Tier.UNKNOWN
