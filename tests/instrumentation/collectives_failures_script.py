"""Run as two ranks by test_collectives_failures: operations and hooks that fail, levels, late installs.

collectives_failures_script.py CASE DIRECTORY WRITER        (each rank writes result-RANK.json)
"""

from __future__ import annotations

import json
import os
import sys
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from whichrank.instrumentation import collectives
from whichrank.instrumentation.ring_writer import RankRecorder, open_ring_writer

RANK = int(os.environ["RANK"])
DIRECTORY: Path
WRITER: RankRecorder
RESULT: dict[str, Any]
#: Every tensor that torch was given, until the process ends: torch 2.6, without us too, hangs in destroy_process_group
#: where a gloo thread is the last to let go of one, for it then wants the GIL that the joining main thread holds.
KEPT: list[torch.Tensor] = []


def start(**changes: Any) -> collectives.CollectiveHooks:
    hooks = collectives.install(WRITER, **changes)
    dist.init_process_group(
        "gloo", init_method=f"file://{DIRECTORY}/store", rank=RANK, world_size=2, timeout=timedelta(seconds=20)
    )
    return hooks


def finish(hooks: collectives.CollectiveHooks, *, destroy: bool = True) -> None:
    RESULT.update(state=int(hooks.state), errors=hooks.errors, open=len(hooks.completion))
    (DIRECTORY / f"result-{RANK}.json").write_text(json.dumps(RESULT))
    if destroy:
        dist.destroy_process_group()
        hooks.uninstall()


def status_of(hooks: collectives.CollectiveHooks) -> Any:
    return hooks.status.status_of("gloo", hooks.registry.groups()[0].orders["gloo"])


def ones(size: int = 2) -> torch.Tensor:
    KEPT.append(torch.ones(size))
    return KEPT[-1]


def total() -> float:
    tensor = ones()
    dist.all_reduce(tensor)
    return float(tensor.sum())


def hook_raises() -> None:
    """Defining a new group raises inside the hook; everything the job does goes on as if nothing had happened."""
    hooks = start()
    RESULT["before"] = total()

    def broken(group: Any) -> bool:
        raise RuntimeError("struck")

    hooks.registry.define = broken  # type: ignore[method-assign]
    group: Any = dist.new_group()
    tensor = ones()
    for _ in range(3):
        dist.all_reduce(tensor, group=group)
    RESULT["during"] = float(tensor.sum())
    RESULT["after"] = [total() for _ in range(5)]
    RESULT["polled"] = hooks.poll_completions()
    finish(hooks)


def issue_raises() -> None:
    """A call that torch refuses after the pre hook: the error is the user's, the operation ends failed."""
    hooks = start()
    total()
    try:
        world: Any = dist.group.WORLD
        world.allreduce([ones(), ones(3)])  # of different sizes: refused when it is issued
    except Exception as error:
        RESULT["raised"] = type(error).__name__
    total()
    finish(hooks)


def peer_dies() -> None:
    """The wait for a dead peer raises the same error as ever, and the end is marked failed."""
    hooks = start()
    total()
    if RANK == 1:
        finish(hooks, destroy=False)
        os._exit(3)
    try:
        while True:
            total()
    except RuntimeError as error:
        RESULT["raised"] = str(error)[:200]
    finish(hooks, destroy=False)
    os._exit(0)


def level_changes() -> None:
    """Numbers go on while recording is off, so that both ranks agree again whenever each resumes."""
    hooks = start()
    for number in range(30):
        # The ranks hear of the change at different times.
        hooks.set_enabled(not 10 + 3 * RANK <= number < 20 + RANK)
        total()
    finish(hooks)


def open_operation() -> None:
    """An operation that a peer does not enter is open, with its age; it is seen to end without being waited for."""
    hooks = start()
    total()
    if RANK == 0:
        began = time.monotonic()
        work: Any = dist.all_reduce(ones(), async_op=True)
        time.sleep(0.3)
        RESULT["open_before"] = hooks.poll_completions()
        hooks.status.read(["gloo"])
        status = status_of(hooks)
        RESULT["status_before"] = None if status is None else [status.enqueued, status.completed]
        (DIRECTORY / "go").touch()
        while hooks.poll_completions() and time.monotonic() < began + 30:
            time.sleep(0.005)
        RESULT["open_after"] = hooks.poll_completions()
        hooks.status.read(["gloo"])
        status = status_of(hooks)
        RESULT["status_after"] = None if status is None else [status.enqueued, status.completed]
        del work
    else:
        while not (DIRECTORY / "go").exists():
            time.sleep(0.01)
        total()
    total()
    finish(hooks)


def recorder_completes() -> None:
    """Completion from the flight recorder's status alone, as for device groups, whose Work is never held."""
    hooks = start()
    WRITER.track_completion(True)
    hooks.completion.uninstall_wait()
    if RANK == 0:
        works: list[Any] = [dist.all_reduce(ones(), async_op=True) for _ in range(3)]
        hooks.completion.clear()  # as if it had never been held

        def look() -> list[int] | None:
            before = WRITER.enqueued(0)
            hooks.status.read(["gloo"])
            hooks.status.complete_group(0, "gloo", hooks.registry.groups()[0].orders["gloo"], before, 4)
            status = status_of(hooks)
            return None if status is None else [before, status.enqueued, status.completed]

        RESULT["before"] = look()
        (DIRECTORY / "go").touch()
        for work in works:
            work.wait()
        until = time.monotonic() + 20
        after = look()
        while after is not None and after[1] != after[2] and time.monotonic() < until:
            time.sleep(0.01)  # the recorder hears of it a moment after the waiter
            after = look()
        RESULT["after"] = after
    else:
        while not (DIRECTORY / "go").exists():
            time.sleep(0.01)
        for _ in range(3):
            total()
    finish(hooks)


def destroyed_and_made_again() -> None:
    """Groups come and go; the same members under the same name get another ordinal and another row."""
    hooks = start()
    total()
    group: Any = dist.new_group(group_desc="short-lived")
    dist.all_reduce(ones(), group=group)
    dist.destroy_process_group(group)
    dist.destroy_process_group()
    dist.init_process_group("gloo", init_method=f"file://{DIRECTORY}/store2", rank=RANK, world_size=2)
    total()
    total()
    RESULT["state_before"] = int(hooks.state)
    dist.destroy_process_group()
    hooks.uninstall()
    # A second start in the same process, as after whichrank.stop().
    again = collectives.install(WRITER)
    dist.init_process_group("gloo", init_method=f"file://{DIRECTORY}/store3", rank=RANK, world_size=2)
    total()
    RESULT["again"] = int(again.state)
    finish(again)


CASES = (
    hook_raises,
    issue_raises,
    level_changes,
    open_operation,
    recorder_completes,
    destroyed_and_made_again,
    peer_dies,  # the last: it ends the processes
)

if __name__ == "__main__":
    for case in CASES:
        DIRECTORY = Path(sys.argv[1]) / case.__name__
        DIRECTORY.mkdir(exist_ok=True)
        WRITER = open_ring_writer(
            DIRECTORY, rank=RANK, local_rank=RANK, world_size=2, identity={}, native=sys.argv[2] == "c"
        )
        RESULT = {"path": str(WRITER.path)}
        case()
