"""One step per iteration, whatever the script does around its optimizer."""

from __future__ import annotations

import math
from importlib.util import find_spec
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from whichrank.instrumentation.support.guard import Guard, HookHealth
from whichrank.instrumentation.trackers.step_counter import StepCounter, Steps, StepWriter, make_step_counter
from whichrank.telemetry.vocabulary import StepFlag

KINDS = ["python", "c"] if find_spec("whichrank.instrumentation._steps") else ["python"]


def make_steps(kind: str, writer: StepWriter, guard: Guard) -> Steps:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("WHICHRANK_NATIVE", "1" if kind == "c" else "0")
        steps = make_step_counter(writer, guard)
    assert isinstance(steps, StepCounter) == (kind == "python")
    return steps


class Recorder:
    """Stands where the ring writer stands."""

    def __init__(self) -> None:
        self.ended: list[tuple[float | None, float | None, int]] = []
        self.microsteps = 0
        self.live_loss: float | None = None

    def end_step(self, loss: float | None, grad_norm: float | None, flags: int) -> int:
        self.ended.append((loss, grad_norm, flags))
        return len(self.ended)

    def add_microstep(self) -> None:
        self.microsteps += 1

    def set_loss(self, loss: float) -> None:
        self.live_loss = loss


class Loop:
    """A training loop's calls as the hooks make them."""

    def __init__(self, kind: str) -> None:
        self.recorder = Recorder()
        self.steps = make_steps(kind, self.recorder, Guard("steps", HookHealth()))

    def backward(self, loss: float = 1.0) -> None:
        self.steps.on_loss(loss)
        self.steps.on_backward()

    def optimizer(self, which: object, *, skipped: bool = False) -> None:
        self.steps.on_optimizer_step(which, skipped=skipped)

    @property
    def flags(self) -> list[int]:
        return [flags for _, _, flags in self.recorder.ended]


@pytest.fixture(params=KINDS)
def loop(request: pytest.FixtureRequest) -> Loop:
    return Loop(request.param)


def test_one_optimizer(loop: Loop) -> None:
    optimizer = object()
    for _ in range(3):
        loop.backward()
        loop.optimizer(optimizer)
    assert len(loop.recorder.ended) == loop.steps.step == 3


def test_gradient_accumulation_counts_once(loop: Loop) -> None:
    optimizer = object()
    for _ in range(2):
        for _ in range(4):
            loop.backward()
        loop.optimizer(optimizer)
    assert len(loop.recorder.ended) == 2
    assert loop.recorder.microsteps == 8


def test_two_optimizers_after_one_backward_are_one_step(loop: Loop) -> None:
    first, second = object(), object()
    for _ in range(3):
        loop.backward()
        loop.optimizer(first)
        loop.optimizer(second)
    assert len(loop.recorder.ended) == 3


def test_optimizers_that_take_turns_are_one_step_per_round(loop: Loop) -> None:
    generator, discriminator = object(), object()
    for _ in range(5):
        loop.backward()
        loop.optimizer(discriminator)
        loop.backward()
        loop.optimizer(generator)
    assert len(loop.recorder.ended) == 5


def test_one_that_takes_its_turn_in_every_fifth_round_adds_no_step(loop: Loop) -> None:
    critic, generator = object(), object()
    for _ in range(3):
        for _ in range(5):
            loop.backward()
            loop.optimizer(critic)
        loop.backward()
        loop.optimizer(generator)
    assert len(loop.recorder.ended) == 15


def test_another_optimizer_that_goes_on_alone_is_counted_from_its_first_step(loop: Loop) -> None:
    for optimizer in (object(), object()):
        for _ in range(6):
            loop.backward()
            loop.optimizer(optimizer)
    assert len(loop.recorder.ended) == 12


def test_optimizers_that_are_always_new_count_each_after_the_first_round(loop: Loop) -> None:
    fresh = [object() for _ in range(20)]  # all alive: no identity comes twice
    for optimizer in fresh:
        loop.backward()
        loop.optimizer(optimizer)
    assert len(loop.recorder.ended) == 16


def test_an_optimizer_without_any_backward_counts_from_its_second_step(loop: Loop) -> None:
    optimizer = object()
    for _ in range(4):
        loop.optimizer(optimizer)
    assert len(loop.recorder.ended) == 3


def test_a_skipped_update_is_a_step_and_says_so(loop: Loop) -> None:
    optimizer = object()
    loop.backward()
    loop.optimizer(optimizer, skipped=True)
    loop.backward()
    loop.optimizer(optimizer)
    assert [flags & StepFlag.SKIPPED for flags in loop.flags] == [StepFlag.SKIPPED, 0]
    assert loop.steps.optimizer_calls == 1


def test_optimizers_that_step_inside_backward_count_once_per_iteration(loop: Loop) -> None:
    per_parameter = [object(), object(), object()]
    for _ in range(4):
        for optimizer in per_parameter:
            loop.optimizer(optimizer)
        loop.backward()
    assert len(loop.recorder.ended) == 3  # the first iteration's end is seen in the second


def test_by_hand_takes_over(loop: Loop) -> None:
    optimizer = object()
    for index in range(4):
        loop.backward()
        loop.optimizer(optimizer)
        loop.steps.end_by_hand(float(index), 2.0)
    # The first iteration was counted by the hook before the script spoke up, and is not counted again.
    assert len(loop.recorder.ended) == 4
    assert [flags & StepFlag.BY_HAND for flags in loop.flags] == [0] + [StepFlag.BY_HAND] * 3
    assert [loss for loss, _, _ in loop.recorder.ended] == [1.0, 1.0, 2.0, 3.0]
    assert loop.recorder.ended[-1][1] == 2.0


def test_by_hand_alone(loop: Loop) -> None:
    for _ in range(3):
        loop.steps.end_by_hand(None, None)
    assert loop.flags == [StepFlag.BY_HAND] * 3


def test_the_last_loss_of_a_step_counts_but_a_bad_one_sticks(loop: Loop) -> None:
    optimizer = object()
    for losses in ((1.0, 2.0), (math.nan, 3.0), (4.0, math.inf), (5.0, 6.0)):
        for loss in losses:
            loop.backward(loss)
        loop.optimizer(optimizer)
    found = [loss for loss, _, _ in loop.recorder.ended]
    assert found[0] == 2.0
    assert math.isnan(found[1] or 0.0)
    assert found[2] == math.inf
    assert found[3] == 6.0


def test_a_step_without_loss_says_so(loop: Loop) -> None:
    loop.steps.on_backward()
    loop.optimizer(object())
    assert loop.recorder.ended == [(None, None, 0)]


@pytest.mark.parametrize("kind", KINDS)
def test_a_writer_that_raises_switches_counting_off_and_nothing_else(kind: str) -> None:
    class Broken(Recorder):
        def end_step(self, loss: float | None, grad_norm: float | None, flags: int) -> int:
            raise OSError("gone")

    health = HookHealth()
    steps = make_steps(kind, Broken(), Guard("steps", health))
    for _ in range(3):
        steps.on_backward()
        steps.on_optimizer_step(object())
    assert health.errors == 1
    assert health.disabled == {"steps": "OSError: gone"}


@pytest.mark.parametrize("kind", KINDS)
def test_a_keyboard_interrupt_in_a_hook_is_the_users(kind: str) -> None:
    class Interrupted(Recorder):
        def add_microstep(self) -> None:
            raise KeyboardInterrupt

    health = HookHealth()
    steps = make_steps(kind, Interrupted(), Guard("steps", health))
    with pytest.raises(KeyboardInterrupt):
        steps.on_backward()
    assert health.errors == 0


OPTIMIZERS = [object(), object(), object()]
values = st.one_of(st.none(), st.floats())
moves: st.SearchStrategy[tuple[str, Any]] = st.one_of(
    st.tuples(st.just("backward"), st.none()),
    st.tuples(st.just("loss"), st.floats()),
    st.tuples(st.just("norm"), st.floats()),
    st.tuples(st.just("optimizer"), st.tuples(st.sampled_from([0, 1, 2]), st.booleans())),
    st.tuples(st.just("hand"), st.tuples(values, values)),
    st.tuples(st.just("level"), st.booleans()),
)


@pytest.mark.skipif(KINDS == ["python"], reason="the C module was not built")
@given(st.lists(moves, max_size=40))
def test_both_counters_do_the_same(sequence: list[tuple[str, Any]]) -> None:
    ends = []
    for kind in KINDS:
        loop = Loop(kind)
        for name, value in sequence:
            if name == "backward":
                loop.steps.on_backward()
            elif name == "loss":
                loop.steps.on_loss(value)
            elif name == "norm":
                loop.steps.on_grad_norm(value)
            elif name == "optimizer":
                loop.optimizer(OPTIMIZERS[value[0]], skipped=value[1])
            elif name == "hand":
                loop.steps.end_by_hand(*value)
            else:
                loop.steps.enabled = value
        recorder = loop.recorder
        counted = (loop.steps.step, loop.steps.calls, loop.steps.optimizer_calls)
        ends.append(repr((recorder.ended, recorder.microsteps, recorder.live_loss, counted)))  # NaN is not NaN
    assert ends[0] == ends[1]
