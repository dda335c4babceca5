"""What ranks feed into their operations: the first NaN of a step is told, by both hooks, and nothing else is."""

from __future__ import annotations

import textwrap
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tests.instrumentation.jobs import run_job
from whichrank.agents.rings.ring_file import RingFile
from whichrank.instrumentation.input_checks import MOST_REPORTS, InputChecks
from whichrank.instrumentation.support.guard import Guard, HookHealth
from whichrank.telemetry import ring_layout as layout
from whichrank.telemetry.vocabulary import Op

# The pause: torch 2.6 waits for ever, without whichrank as well, where a group is destroyed while a thread of gloo's
# still holds a tensor: that thread wants the GIL, which the one that joins it has.
JOB = """
    import time, torch, torch.distributed as dist
    dist.init_process_group("gloo")
    rank, other = dist.get_rank(), dist.new_group([0, 1])
    good, bad = torch.ones(8), torch.full((8,), float("nan"))
    dist.all_reduce(good.clone())
    dist.all_reduce(torch.full((8,), float("-inf")), op=dist.ReduceOp.MAX)
    dist.broadcast(bad.clone() if rank else good.clone(), 0)  # what the others hold is not sent
    dist.all_reduce(good.clone(), group=other)
    dist.all_gather([torch.empty(8), torch.empty(8)], bad if rank else good)  # collective 4
    dist.all_reduce(bad.clone())
    dist.barrier()
    time.sleep(0.5)
    dist.destroy_process_group()
"""


def bad_inputs_in(directory: Path) -> dict[int, list[dict[str, Any]]]:
    found: dict[int, list[dict[str, Any]]] = {}
    for path in sorted(directory.rglob(f"*{layout.RING_SUFFIX}")):
        ring = RingFile(path)
        definitions = ring.read_definitions(0, ring.read_hot().definitions_used)[0]
        found[ring.header.rank] = [each.payload for each in definitions if each.kind == layout.DEFINITION_BAD_INPUT]
        ring.close()
    return found


@pytest.mark.parametrize("native", ["1", "0"])
def test_the_first_bad_input_of_a_step_is_in_the_ring(tmp_path: Path, native: str) -> None:
    environment = {"WHICHRANK_NATIVE": native, "WHICHRANK_CHECK_INPUTS": "1"}
    result = run_job(textwrap.dedent(JOB), tmp_path, environment=environment)
    assert result.exit_code == 0, result.output
    found = bad_inputs_in(result.directory)
    assert [(each["seq"], each["p2p"]) for rank in (0, 1) for each in found[rank]] == [(5, False), (4, False)]
    world = found[1][0]["group"]
    assert found[1][0]["before"] == {str(world): 3, str(1 - world): 1}


def test_nothing_is_looked_at_where_nobody_asked_for_it(tmp_path: Path) -> None:
    result = run_job(textwrap.dedent(JOB), tmp_path)
    # Torch's own, in jobs that never heard of whichrank as well: some abort after their last line, on a busy machine.
    assert result.exit_code == 0 or "terminate called without an active exception" in result.output, result.output
    assert bad_inputs_in(result.directory) == {0: [], 1: []}


class Ring:
    """Takes definitions."""

    def __init__(self) -> None:
        self.told: list[tuple[int, dict[str, Any]]] = []

    def define(self, kind: int, index: int, payload: dict[str, Any]) -> bool:
        self.told.append((kind, payload))
        return True


@pytest.fixture
def ring() -> Ring:
    return Ring()


@pytest.fixture
def steps() -> SimpleNamespace:
    return SimpleNamespace(step=0)


@pytest.fixture
def guard() -> Guard:
    return Guard("input_checks", HookHealth())


@pytest.fixture
def checks(ring: Any, steps: Any, guard: Guard) -> InputChecks:
    return InputChecks(ring, 0, steps, guard)


NAN = torch.tensor([1.0, float("nan")])


@pytest.mark.parametrize(
    "tensors",
    [
        [NAN],
        NAN,
        [[torch.ones(2), NAN]],
        [NAN.to(torch.bfloat16)],
        [NAN.to(torch.float16)],
        [torch.complex(torch.ones(2), NAN)],
        [NAN.expand(3, 2)[:, 1:]],
        [NAN.clone().requires_grad_()],
    ],
)
def test_nan_is_found_in_whatever_torch_hands_over(checks: InputChecks, ring: Ring, tensors: Any) -> None:
    checks.check(layout.call_mark(3, 7, 0), int(Op.ALL_REDUCE), -1, tensors)
    ((kind, payload),) = ring.told
    assert kind == layout.DEFINITION_BAD_INPUT
    assert (payload["group"], payload["seq"], payload["step"]) == (3, 7, 0)


@pytest.mark.parametrize(
    ("op", "peer", "tensors"),
    [
        (Op.ALL_REDUCE, -1, [torch.tensor([float("inf"), -float("inf")])]),
        (Op.ALL_REDUCE, -1, [torch.empty(0)]),
        (Op.ALL_REDUCE, -1, [torch.ones(2, dtype=torch.int64)]),
        (Op.ALL_REDUCE, -1, [torch.empty(2, device="meta")]),
        (Op.ALL_REDUCE, -1, [torch.ones(2, 2).to_sparse()]),
        (Op.BROADCAST, 1, [NAN]),
        (Op.RECV, 1, [NAN]),
        (Op.BARRIER, -1, [NAN]),
    ],
)
def test_what_is_no_nan_of_this_rank_is_none(
    checks: InputChecks, ring: Ring, guard: Guard, op: Op, peer: int, tensors: Any
) -> None:
    checks.check(layout.call_mark(0, 1, 0), int(op), peer, tensors)
    assert ring.told == []
    assert guard.enabled


def test_one_of_a_step_is_reported_up_to_the_limit(checks: InputChecks, ring: Ring, steps: SimpleNamespace) -> None:
    for seq in range(1, 100):
        steps.step = seq // 2
        checks.check(layout.call_mark(0, seq, 0), int(Op.ALL_REDUCE), -1, [NAN])
    told = [payload["seq"] for kind, payload in ring.told if kind == layout.DEFINITION_BAD_INPUT]
    assert told == [1, *range(2, 2 * MOST_REPORTS, 2)]
    (note,) = [payload["text"] for kind, payload in ring.told if kind == layout.DEFINITION_NOTE]
    assert "not checked any more" in note


def test_a_failure_ends_the_checks_and_nothing_else(checks: InputChecks, ring: Ring, guard: Guard) -> None:
    class Hostile:
        @property
        def step(self) -> int:
            raise RuntimeError("no")

    broken = InputChecks(ring, 0, Hostile(), guard)  # type: ignore[arg-type]
    broken.check(0, int(Op.ALL_REDUCE), -1, [NAN])
    assert not guard.enabled
    assert ring.told == []
