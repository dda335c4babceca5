"""Faults that a rank does itself: once, by request, in the main thread, written down before, and never otherwise."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import HashStore

from whichrank.instrumentation.injection.inside_faults import install_faults
from whichrank.instrumentation.injection.request_watch import RequestWatch, read_request
from whichrank.instrumentation.support.patch import PatchSet
from whichrank.telemetry.injection_words import ANSWER_FILE, REQUEST_FILE, InsideFault

RANK = 1


@pytest.fixture
def watch(tmp_path: Path) -> Iterator[RequestWatch]:
    """A rank that listens, with the hooks installed and a process group of its own."""
    errors: list[BaseException] = []
    found = RequestWatch(tmp_path, RANK, step=lambda: 7, start_thread=_thread, on_error=errors.append)
    patches = PatchSet(lambda name, error: errors.append(error))
    dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    original = dist.all_reduce
    remove = install_faults(found, patches)
    found.start()
    yield found
    found.stop()
    remove()
    patches.uninstall()
    assert dist.all_reduce is original
    dist.destroy_process_group()
    assert errors == []


def _thread(name: str, run: Callable[[], None]) -> threading.Thread:
    thread = threading.Thread(target=run, name=name, daemon=True)
    thread.start()
    return thread


def ask(folder: Path, kind: InsideFault, watch: RequestWatch, **more: Any) -> None:
    request = {"id": "a", "kind": kind.value, "rank": RANK, "until_s": time.time() + 30, **more}
    part = folder / "part"
    part.write_text(json.dumps(request))
    part.replace(folder / REQUEST_FILE)
    deadline = time.monotonic() + 10.0
    while watch.waiting is None and request["rank"] == RANK:
        assert time.monotonic() < deadline
        time.sleep(0.01)


def answer(folder: Path) -> dict[str, Any]:
    said: dict[str, Any] = json.loads((folder / ANSWER_FILE).read_text())
    return said


def optimizer() -> tuple[torch.optim.Optimizer, torch.Tensor]:
    weight = torch.zeros(4, requires_grad=True)
    weight.grad = torch.ones(4)
    return torch.optim.SGD([weight], lr=0.1), weight


def test_it_raises_once_and_says_so_before(watch: RequestWatch, tmp_path: Path) -> None:
    steps, weight = optimizer()
    steps.step()
    ask(tmp_path, InsideFault.RAISE, watch)
    dist.all_reduce(torch.ones(1))  # not its place
    with pytest.raises(RuntimeError, match="whichrank inject"):
        steps.step()
    assert answer(tmp_path)["step"] == 7
    assert abs(answer(tmp_path)["time"] - time.time()) < 10
    steps.step()
    time.sleep(0.3)  # the file is there still
    steps.step()
    assert torch.allclose(weight, torch.full((4,), -0.3))


def test_a_gradient_is_no_number(watch: RequestWatch, tmp_path: Path) -> None:
    steps, weight = optimizer()
    ask(tmp_path, InsideFault.NAN, watch)
    steps.step()
    assert weight.isnan().tolist() == [True, False, False, False]


def test_a_collective_is_left_out_once(watch: RequestWatch, tmp_path: Path) -> None:
    given, got = torch.ones(2), torch.zeros(2)
    ask(tmp_path, InsideFault.SKIP_COLLECTIVE, watch)
    work = dist.all_gather_into_tensor(got, given, async_op=True)  # its caller waits for it
    assert work is not None
    work.wait()
    assert got.tolist() == [1.0, 1.0]
    got.zero_()
    dist.all_gather_into_tensor(got, given)
    assert got.tolist() == [0.0, 0.0]
    dist.all_gather_into_tensor(got, given)
    assert got.tolist() == [1.0, 1.0]


def test_one_exchange_of_gradients_is_left_out(watch: RequestWatch, tmp_path: Path) -> None:
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 1))
    ask(tmp_path, InsideFault.SKIP_COLLECTIVE, watch)
    for _ in range(3):
        model(torch.ones(1, 2)).sum().backward()
    assert model.require_backward_grad_sync
    assert answer(tmp_path)["id"] == "a"


def test_a_collective_too_many(watch: RequestWatch, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[torch.Tensor] = []
    monkeypatch.setattr(dist, "all_reduce", calls.append)
    steps, _ = optimizer()
    ask(tmp_path, InsideFault.ADD_COLLECTIVE, watch)
    steps.step()
    steps.step()
    assert len(calls) == 1
    monkeypatch.undo()


def test_neither_another_rank_nor_thread_nor_child_nor_too_late(watch: RequestWatch, tmp_path: Path) -> None:
    steps, _ = optimizer()
    ask(tmp_path, InsideFault.RAISE, watch, rank=RANK + 1)
    time.sleep(0.3)
    steps.step()
    ask(tmp_path, InsideFault.RAISE, watch)
    taken: list[bool] = []
    thread = threading.Thread(target=lambda: taken.append(watch.take(InsideFault.RAISE)))
    thread.start()
    thread.join()
    pid = os.fork()
    if pid == 0:
        os._exit(int(watch.take(InsideFault.RAISE)))
    assert (taken, os.waitpid(pid, 0)[1]) == ([False], 0)
    assert not watch.take(InsideFault.NAN)
    ask(tmp_path, InsideFault.RAISE, watch, id="b", until_s=time.time() - 1)
    time.sleep(0.3)
    steps.step()
    assert not (tmp_path / ANSWER_FILE).exists()


def test_a_request_that_is_taken_back_is_not_done(watch: RequestWatch, tmp_path: Path) -> None:
    ask(tmp_path, InsideFault.RAISE, watch)
    (tmp_path / REQUEST_FILE).unlink()
    time.sleep(0.3)
    optimizer()[0].step()


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"id": 1}', '{"id": "a", "kind": "melt", "rank": 1, "until_s": 1}', "9"]
)
def test_what_is_no_request_is_passed_over(text: str) -> None:
    assert read_request(text, RANK) is None
