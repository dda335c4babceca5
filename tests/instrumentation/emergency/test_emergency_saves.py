"""Ranks agree on one step and save there: real processes and signals, a barrier for the collective, no torch."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from multiprocessing.process import BaseProcess
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import Any

import pytest

from whichrank.instrumentation.background_thread import start_background_thread
from whichrank.instrumentation.emergency import agreement as agreement_module
from whichrank.instrumentation.emergency.agreement import Agreement, SaveRequest, request_key
from whichrank.instrumentation.emergency.emergency_saving import EmergencySaving
from whichrank.instrumentation.emergency.emergency_watch import EmergencyWatch
from whichrank.instrumentation.emergency.word_board import WordFolder
from whichrank.instrumentation.support.guard import Guard, HookHealth
from whichrank.instrumentation.trackers.phases import PhaseTracker
from whichrank.instrumentation.trackers.saves import RankSaves
from whichrank.telemetry.emergency_words import DEFAULT_SECONDS, REQUEST_FILE

_FORK = multiprocessing.get_context("fork")
RANKS, STEP_S, WAIT_S = 3, 0.02, 20.0


def rank_main(
    rank: int,
    folder: Path,
    barrier: Barrier,
    save: Callable[..., None] | None = None,
    hangs_at: int = -1,
    catches: bool = False,
    **options: Any,
) -> None:
    """A rank that steps together with the others until it is told to end; what it tells is in ``told-RANK``."""
    with open(folder / f"told-{rank}", "w", buffering=1) as told:

        def define(kind: int, index: int, said: dict[str, Any]) -> bool:
            print(json.dumps(said), file=told)
            return True

        if catches:
            signal.signal(signal.SIGTERM, lambda *_: (print(json.dumps({"state": "handler"}), file=told), os._exit(7)))
        health = HookHealth()
        guard = Guard("test", health)
        step = 0
        saves = RankSaves(lambda *_, **__: None, define, lambda: step, guard)
        saving = EmergencySaving(save or (lambda: None), saves, PhaseTracker(lambda _: 0, guard), define)
        watch = EmergencyWatch(
            saving,
            rank=rank,
            local_rank=rank,
            world_size=RANKS,
            directory=folder,
            find_board=lambda: WordFolder(folder / "emergency"),
            start_thread=start_background_thread,
            updates=lambda: step,
            may_save_now=lambda _: True,
            on_error=lambda error: print(json.dumps({"state": f"error {error!r}"}), file=told),
            **{"grace_s": 2.0, "end_s": 0.0, "lead_s": 0.0, **options},
        )
        watch.start(0)
        print(json.dumps({"state": "listens"}), file=told)
        try:
            while not (folder / "over").exists():
                if step == hangs_at:
                    threading.Event().wait()
                time.sleep(STEP_S)
                barrier.wait(WAIT_S)
                step += 1
                watch.at_boundary(step)
            barrier.abort()
        except threading.BrokenBarrierError:
            watch.at_exception(RuntimeError("a peer is gone"))
        watch.at_exit()


@dataclass
class Ranks:
    """The processes of one job."""

    folder: Path
    barrier: Barrier
    processes: list[BaseProcess] = field(default_factory=list)

    def start(self, **options: Any) -> None:
        """Starts all and waits until they listen."""
        for rank in range(RANKS):
            own = {name: each[rank] if isinstance(each, list) else each for name, each in options.items()}
            process = _FORK.Process(target=rank_main, args=(rank, self.folder, self.barrier), kwargs=own)
            process.start()
            self.processes.append(process)
        self.wait_for("listens", range(RANKS))
        time.sleep(0.2)

    def told(self, rank: int) -> list[dict[str, Any]]:
        """What a rank has told."""
        path = self.folder / f"told-{rank}"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def wait_for(self, state: str, ranks: Any, times: int = 1) -> list[dict[str, Any]]:
        """The newest word of this kind of each of these ranks."""
        until_s = time.monotonic() + WAIT_S
        while True:
            found = [[each for each in self.told(rank) if each.get("state") == state] for rank in ranks]
            if all(len(each) >= times for each in found):
                return [each[-1] for each in found]
            assert time.monotonic() < until_s, [self.told(rank) for rank in range(RANKS)]
            time.sleep(0.02)

    def signal(self, rank: int, number: int = signal.SIGTERM) -> None:
        """Sends one rank a signal."""
        os.kill(self.processes[rank].pid or 0, number)

    def exit_of(self, rank: int) -> int | None:
        """How a rank has ended, within the time."""
        self.processes[rank].join(WAIT_S)
        return self.processes[rank].exitcode


@pytest.fixture
def ranks(tmp_path: Path) -> Iterator[Ranks]:
    """No rank runs yet; none is left."""
    job = Ranks(tmp_path, _FORK.Barrier(RANKS))
    yield job
    for process in job.processes:
        process.kill()
        process.join()


@pytest.mark.parametrize("signalled", [(1,), (0, 2), (0, 1, 2)], ids=str)
def test_sigterm_saves_one_step_on_all_and_then_ends_whom_it_was_sent_to(
    ranks: Ranks, signalled: tuple[int, ...]
) -> None:
    ranks.start()
    for rank in signalled:
        ranks.signal(rank)
    saved = ranks.wait_for("saved", range(RANKS))
    assert len({each["step"] for each in saved}) == 1
    assert {each["reason"] for each in saved} == {"SIGTERM"}
    assert all("missing" not in each for each in saved)
    assert [ranks.exit_of(rank) for rank in signalled] == [-signal.SIGTERM] * len(signalled)


def test_the_owners_handler_is_called_after_the_save(ranks: Ranks) -> None:
    ranks.start(catches=True)
    ranks.signal(0)
    ranks.wait_for("saved", range(RANKS))
    assert ranks.exit_of(0) == 7
    assert [each["state"] for each in ranks.told(0)][-2:] == ["saved", "handler"]


def test_a_file_asks_as_often_as_it_is_put_there(ranks: Ranks) -> None:
    ranks.start()
    steps = []
    for times in (1, 2):
        (ranks.folder / "part").write_text(json.dumps({"reason": "person", "seconds": 5}))
        (ranks.folder / "part").rename(ranks.folder / REQUEST_FILE)
        saved = ranks.wait_for("saved", range(RANKS), times)
        (step,) = {each["step"] for each in saved}
        steps.append(step)
    assert steps[0] < steps[1]
    assert all(process.is_alive() for process in ranks.processes)


def test_a_time_limit_asks_once(ranks: Ranks) -> None:
    ranks.start(end_s=time.time() + 30.0, lead_s=60.0)
    saved = ranks.wait_for("saved", range(RANKS))
    assert {each["reason"] for each in saved} == {"time_limit"}
    time.sleep(1.2)
    assert all(sum(each.get("state") == "saved" for each in ranks.told(rank)) == 1 for rank in range(RANKS))


def test_a_dead_rank_is_left_out_and_the_others_save_what_they_hold(ranks: Ranks) -> None:
    ranks.start()
    ranks.signal(2, signal.SIGKILL)
    time.sleep(0.2)
    ranks.signal(0)
    ranks.signal(1)
    ranks.barrier.abort()
    saved = ranks.wait_for("saved", (0, 1))
    assert len({each["step"] for each in saved}) == 1


def test_a_rank_that_hangs_is_told_and_the_signal_is_passed_on_in_time(ranks: Ranks) -> None:
    ranks.start(hangs_at=[-1, -1, 30])
    time.sleep(30 * STEP_S + 0.8)
    began_s = time.monotonic()
    ranks.signal(1)
    missed = ranks.wait_for("missed", range(RANKS))
    assert {each["why"] for each in missed} == {"not_reached"}
    assert ranks.exit_of(1) == -signal.SIGTERM
    assert time.monotonic() - began_s < 2.0 + 3.0


def test_a_save_that_raises_is_told_and_nothing_else_changes(ranks: Ranks) -> None:
    def no_room(reason: str) -> None:
        raise OSError("no room")

    ranks.start(save=[no_room, None, None])
    (ranks.folder / REQUEST_FILE).write_text("{}")
    (failed,) = ranks.wait_for("failed", (0,))
    assert failed["error"] == "OSError: no room"
    ranks.wait_for("saved", (1, 2))
    time.sleep(0.2)
    assert all(process.is_alive() for process in ranks.processes)


def test_the_highest_boundary_is_taken_and_a_word_is_never_changed(tmp_path: Path) -> None:
    board = WordFolder(tmp_path / "board")
    request = SaveRequest("person", 0, 9.0)
    assert board.put(request_key(0), request.as_word()) == board.put(request_key(0), "later") == request.as_word()
    assert SaveRequest.of_word(board.get(request_key(0)) or "") == request
    members = [Agreement(board, 0, rank, 2, request) for rank in range(2)]
    members[0].answer(7)
    members[0].look()
    assert members[0].step is None
    members[1].answer(9)
    for member in (members[1], *members, members[1]):
        member.look()
    assert [(each.step, each.missing) for each in members] == [(9, ()), (9, ())]


def test_who_does_not_answer_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agreement_module, "ANSWER_S", 0.0)
    member = Agreement(WordFolder(tmp_path), 0, 0, 3, SaveRequest("person", 0, 9.0))
    member.answer(4)
    member.look()
    assert (member.step, member.missing) == (4, (1, 2))


@pytest.mark.parametrize("word", ["", "[]", "nonsense", '{"seconds": "x", "rank": []}', '{"seconds": -1}'])
def test_strange_requests_get_the_defaults(word: str) -> None:
    assert SaveRequest.of_word(word) == SaveRequest("person", -1, DEFAULT_SECONDS)
