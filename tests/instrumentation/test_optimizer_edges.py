"""Every optimizer step has a phase and ends a step, also where steps nest, raise, or run in another thread."""

from __future__ import annotations

import threading
from importlib.util import find_spec

import pytest

from whichrank.instrumentation.support.guard import Guard, HookHealth
from whichrank.instrumentation.trackers.optimizer_edges import MAX_NESTED, Edges, OptimizerEdges, make_optimizer_edges
from whichrank.instrumentation.trackers.phases import make_phase_tracker
from whichrank.telemetry.vocabulary import Phase

KINDS = ["python", "c"] if find_spec("whichrank.instrumentation._steps") else ["python"]


class Scene:
    """The edges with a real tracker; what they said is in ``said``."""

    def __init__(self) -> None:
        self.said: list[object] = []
        self.health = HookHealth()
        self.open_operations: list[object] = []
        self.tracker = make_phase_tracker(self._show, Guard("phases", self.health))
        self.step_error: Exception | None = None
        self.edges: Edges = make_optimizer_edges(
            self.tracker, self._step, self._poll, self.open_operations, Guard("optimizer", self.health)
        )

    def _show(self, phase: int) -> int:
        self.said.append(Phase(phase).name.lower())
        return 0

    def _step(self, optimizer: object) -> None:
        if self.step_error is not None:
            raise self.step_error
        self.said.append(optimizer)

    def _poll(self) -> None:
        self.said.append("polled")


@pytest.fixture(params=KINDS)
def scene(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Scene:
    monkeypatch.setenv("WHICHRANK_NATIVE", "1" if request.param == "c" else "0")
    made = Scene()
    assert isinstance(made.edges, OptimizerEdges) == (request.param == "python")
    return made


def test_the_step_ends_before_the_phase_does(scene: Scene) -> None:
    scene.edges.begin("adam")
    scene.edges.end("adam")
    assert scene.said == ["optimizer", "adam", "other"]


def test_open_collectives_are_looked_at_first(scene: Scene) -> None:
    scene.open_operations.append(object())
    scene.edges.begin("adam")
    assert scene.said == ["polled", "optimizer"]


def test_nested_optimizers_each_end_a_step(scene: Scene) -> None:
    scene.edges.begin("zero")
    scene.edges.begin("adam")
    scene.edges.end("adam")
    scene.edges.end("zero")
    assert scene.said == ["optimizer", "adam", "zero", "other"]
    assert scene.tracker.depth() == 0


def test_a_step_that_raised_is_over_when_its_optimizer_steps_again(scene: Scene) -> None:
    scene.edges.begin("adam")  # raises
    scene.edges.begin("adam")
    scene.edges.end("adam")
    assert scene.said == ["optimizer", "other", "optimizer", "adam", "other"]
    assert scene.tracker.depth() == 0


def test_an_end_without_a_beginning_is_nothing(scene: Scene) -> None:
    scene.edges.begin("adam")
    scene.edges.end("another")
    assert scene.said == ["optimizer"]


def test_ends_that_were_never_seen_do_not_pile_up(scene: Scene) -> None:
    optimizers = [f"optimizer {index}" for index in range(3 * MAX_NESTED)]
    for optimizer in optimizers:
        scene.edges.begin(optimizer)
    scene.said.clear()
    for optimizer in optimizers:
        scene.edges.end(optimizer)
    steps = [word for word in scene.said if word in optimizers]
    assert steps
    assert len(steps) <= MAX_NESTED
    assert scene.health.errors == 0


def test_other_threads_have_no_phase_and_end_no_step(scene: Scene) -> None:
    def run() -> None:
        scene.edges.begin("adam")
        scene.edges.end("adam")

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert scene.said == []


def test_off_while_the_level_is_off(scene: Scene) -> None:
    scene.tracker.enabled = False
    scene.edges.begin("adam")
    scene.edges.end("adam")
    assert scene.said == []


def test_an_error_switches_it_off_and_is_counted(scene: Scene) -> None:
    scene.step_error = ValueError("no")
    for _ in range(3):
        scene.edges.begin("adam")
        scene.edges.end("adam")
    assert scene.health.errors == 1
    assert scene.health.disabled == {"optimizer": "ValueError: no"}
