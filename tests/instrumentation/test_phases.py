"""The phase stack: innermost wins, long phases hide what runs inside them, and every end is found."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from whichrank.instrumentation.support.guard import Guard, HookHealth
from whichrank.instrumentation.trackers.phase_rules import COMBINED
from whichrank.instrumentation.trackers.phases import COST_EVERY, Phases, PhaseTracker, make_phase_tracker
from whichrank.telemetry.vocabulary import Phase


class Recorder:
    """Stands where the ring writer's ``set_phase`` stands."""

    def __init__(self) -> None:
        self.phases: list[Phase] = []

    def set_phase(self, phase: int) -> int:
        self.phases.append(Phase(phase))
        return 0


Make = Callable[[Callable[[int], int], Guard], Phases]


def in_c(set_phase: Callable[[int], int], guard: Guard) -> Phases:
    from whichrank.instrumentation.trackers.phases_native import NativePhaseTracker

    return NativePhaseTracker(set_phase, guard)


KINDS: list[Any] = [pytest.param(PhaseTracker, id="python")]
if find_spec("whichrank.instrumentation._phases"):
    KINDS.append(pytest.param(in_c, id="c"))


@pytest.fixture(params=KINDS, autouse=True)
def make(request: pytest.FixtureRequest) -> Iterator[None]:
    """Every test runs on both trackers."""
    global _make
    _make = request.param
    yield
    _make = PhaseTracker


_make: Make = PhaseTracker


def make_tracker() -> tuple[Phases, Recorder]:
    recorder = Recorder()
    return _make(recorder.set_phase, Guard("phases", HookHealth())), recorder


def test_a_step_is_shown_in_order() -> None:
    tracker, recorder = make_tracker()
    for phase in (Phase.DATA, Phase.FORWARD, Phase.BACKWARD, Phase.OPTIMIZER):
        tracker.leave(tracker.enter(phase))
    assert recorder.phases == [
        Phase.DATA, Phase.OTHER, Phase.FORWARD, Phase.OTHER, Phase.BACKWARD, Phase.OTHER, Phase.OPTIMIZER, Phase.OTHER,
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("outer", "inner", "shown"),
    [
        (Phase.FORWARD, Phase.COMPILE, Phase.COMPILE),
        (Phase.COMPILE, Phase.RESTORE, Phase.COMPILE),
        (Phase.CHECKPOINT, Phase.FORWARD, Phase.CHECKPOINT),
        (Phase.EVAL, Phase.FORWARD, Phase.EVAL),
        (Phase.EVAL, Phase.DATA, Phase.EVAL),
        (Phase.EVAL, Phase.CHECKPOINT, Phase.CHECKPOINT),
        (Phase.BACKWARD, Phase.FORWARD, Phase.BACKWARD),
        (Phase.OPTIMIZER, Phase.BACKWARD, Phase.BACKWARD),
        (Phase.DATA, Phase.RESTORE, Phase.DATA),
        (Phase.OTHER, Phase.RESTORE, Phase.RESTORE),
    ],
)
def test_what_is_shown_for_a_phase_inside_another(outer: Phase, inner: Phase, shown: Phase) -> None:
    assert COMBINED[outer][inner] == shown


def test_the_first_phase_of_the_loop_ends_init_and_a_restore_does_not() -> None:
    tracker, recorder = make_tracker()
    tracker.leave(tracker.enter(Phase.RESTORE))
    assert recorder.phases == [Phase.RESTORE, Phase.INIT]
    tracker.leave(tracker.enter(Phase.FORWARD))
    assert recorder.phases[-2:] == [Phase.FORWARD, Phase.OTHER]


def test_a_phase_left_open_ends_where_the_next_begins() -> None:
    tracker, recorder = make_tracker()
    forward = tracker.enter(Phase.FORWARD, left_open=True)
    backward = tracker.enter(Phase.BACKWARD)
    assert tracker.depth() == 1
    tracker.leave(forward)  # late news of an end must not end another phase
    assert tracker.shown == Phase.BACKWARD
    tracker.leave(backward)
    assert recorder.phases == [Phase.FORWARD, Phase.BACKWARD, Phase.OTHER]


def test_an_optimizer_that_raised_ends_with_the_next_batch() -> None:
    tracker, recorder = make_tracker()
    tracker.enter(Phase.OPTIMIZER, left_open=True)
    tracker.leave(tracker.enter(Phase.DATA))
    assert recorder.phases == [Phase.OPTIMIZER, Phase.DATA, Phase.OTHER]


def test_by_hand_is_shown_whatever_is_around_it() -> None:
    tracker, recorder = make_tracker()
    tracker.set_base(Phase.EVAL)
    tracker.leave(tracker.enter(Phase.DATA, by_hand=True))
    assert recorder.phases == [Phase.EVAL, Phase.DATA, Phase.EVAL]


def test_other_threads_do_not_count() -> None:
    tracker, recorder = make_tracker()
    entered: list[int] = []
    thread = threading.Thread(target=lambda: entered.append(tracker.enter(Phase.CHECKPOINT)))
    thread.start()
    thread.join()
    assert entered == [0]
    assert recorder.phases == []


def test_an_exception_is_known_to_the_phase_it_came_from() -> None:
    tracker, _ = make_tracker()
    entered = tracker.enter(Phase.FORWARD)
    inner = ValueError("inner")
    tracker.leave_by_exception(entered, inner)
    assert tracker.shown == Phase.OTHER
    outer = RuntimeError("outer")
    outer.__cause__ = inner
    assert tracker.phase_of_exception(outer) == Phase.FORWARD
    assert tracker.phase_of_exception(KeyError()) is None


def test_the_innermost_phase_that_was_shown_is_the_one_that_failed() -> None:
    tracker, _ = make_tracker()
    outer = tracker.enter(Phase.FORWARD)
    inner = tracker.enter(Phase.COMPILE)
    error = ValueError()
    tracker.leave_by_exception(inner, error)
    tracker.leave_by_exception(outer, error)
    assert tracker.phase_of_exception(error) == Phase.COMPILE


def test_a_writer_that_raises_switches_the_tracker_off_and_nothing_else() -> None:
    def broken(phase: int) -> int:
        raise OSError("no space")

    health = HookHealth()
    tracker = _make(broken, Guard("phases", health))
    for _ in range(3):
        tracker.leave(tracker.enter(Phase.FORWARD))
    assert health.errors == 1
    assert health.disabled == {"phases": "OSError: no space"}


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(st.sampled_from(list(Phase)), st.booleans(), st.booleans()), max_size=30))
def test_any_nesting_returns_to_the_base(entries: list[tuple[Phase, bool, bool]]) -> None:
    tracker, recorder = make_tracker()
    stack = [tracker.enter(phase, left_open=left_open, by_hand=by_hand) for phase, left_open, by_hand in entries]
    for identifier in reversed(stack):
        tracker.leave(identifier)
    assert tracker.depth() == 0
    assert tracker.shown == tracker.base
    assert tracker.base in (Phase.INIT, Phase.OTHER)
    # Only changes are written.
    assert all(before != after for before, after in zip(recorder.phases, recorder.phases[1:], strict=False))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.integers(0, 6), max_size=40))
def test_ends_in_any_order_never_break_the_stack(order: list[int]) -> None:
    tracker, _ = make_tracker()
    live: list[int] = []
    for number in order:
        if number < 4:
            live.append(tracker.enter((Phase.DATA, Phase.FORWARD, Phase.BACKWARD, Phase.OPTIMIZER)[number]))
        elif live:
            tracker.leave(live.pop(number % len(live)))
    for identifier in live:
        tracker.leave(identifier)
    assert tracker.depth() == 0


@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("enter"), st.sampled_from(list(Phase)), st.booleans(), st.booleans()),
            st.tuples(st.just("leave"), st.integers(0, 12)),
            st.tuples(st.just("base"), st.sampled_from(list(Phase))),
            st.tuples(st.just("enabled"), st.booleans()),
            st.tuples(st.just("force"), st.sampled_from(list(Phase))),
        ),
        max_size=40,
    )
)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_both_trackers_show_the_same(calls: list[tuple[Any, ...]]) -> None:
    python, shown_by_python = make_tracker()
    recorder = Recorder()
    other = make_phase_tracker(recorder.set_phase, Guard("phases", HookHealth()))
    for name, *arguments in calls:
        returned = []
        for tracker in (python, other):
            if name == "enter":
                phase, left_open, by_hand = arguments
                returned.append(tracker.enter(phase, left_open=left_open, by_hand=by_hand))
            elif name == "leave":
                tracker.leave(arguments[0])
            elif name == "base":
                tracker.set_base(arguments[0])
            elif name == "force":
                tracker.force(arguments[0])
            else:
                tracker.enabled = arguments[0]
        assert len(set(returned)) <= 1
        assert (python.shown, python.base, python.depth()) == (other.shown, other.base, other.depth())
    assert shown_by_python.phases == recorder.phases


def test_own_cost_is_sampled() -> None:
    tracker, _ = make_tracker()
    for _ in range(COST_EVERY):
        tracker.leave(tracker.enter(Phase.FORWARD))
    assert tracker.calls == 2 * COST_EVERY
    assert 0 < tracker.cost_ns < 1_000_000_000


def test_a_phase_that_does_not_exist_switches_the_tracker_off() -> None:
    health = HookHealth()
    tracker = _make(Recorder().set_phase, Guard("phases", health))
    assert tracker.enter(99) == 0
    assert tracker.enter(Phase.FORWARD) == 0
    assert set(health.disabled) == {"phases"}


def test_what_is_no_error_goes_through() -> None:
    def interrupted(phase: int) -> int:
        raise KeyboardInterrupt

    tracker = _make(interrupted, Guard("phases", HookHealth()))
    with pytest.raises(KeyboardInterrupt):
        tracker.enter(Phase.FORWARD)
