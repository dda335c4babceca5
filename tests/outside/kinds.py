"""Kinds of loops: what is run, and at which places a fault can be put into it.

Own ones lie in ``scripts/``; public ones (``public_loops.py``) are run as they are out of a folder that the command is
given; those of ``DEVICE`` are own ones on the test process group whose calls return at once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

HERE = Path(__file__).parent
RANKS = 3
#: Visits to a place after which the job knows it: calls repeat several times in a step, an evaluation is rare.
OFTEN, SEVERAL, RARELY = 100, 40, 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Of ``inject/fault.py``. count: visits after which the job knows how long it takes there; 0: the first is told to
    be new to it. ranks: that come there; () all."""

    name: str
    count: int = 0
    ranks: tuple[int, ...] = ()

    @property
    def known(self) -> bool:
        return self.count > 0


def known(*names: str) -> tuple[Place, ...]:
    """Places of each step."""
    return tuple(Place(name=name, count=OFTEN if name in ("call", "sample") else SEVERAL) for name in names)


def new(*names: str, ranks: tuple[int, ...] = ()) -> tuple[Place, ...]:
    """Places that the job has come to for the first time, or hardly ever."""
    return tuple(Place(name=name, ranks=ranks) for name in names)


def later(*names: str, ranks: tuple[int, ...] = ()) -> tuple[Place, ...]:
    """Places between the steps that the job has been at before."""
    return tuple(Place(name=name, count=RARELY, ranks=ranks) for name in names)


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """places: where a rank can stand still. turn: the place that every step has, for all other faults.
    turns: visits of it after which all ranks stop at once. numbers: whether a NaN of a backward pass can be seen.
    desync: manners; skip_shows: False where one skipped call is nobody's loss: the only call of the loop, and only one
    rank waits in it. repository, arguments, environment, data, links, packages: of public ones."""

    name: str
    script: str
    turn: str
    places: tuple[Place, ...]
    turns: int = 300
    numbers: bool = False
    desync: tuple[str, ...] = ("extra",)
    skip_shows: bool = True
    on_device: bool = False
    repository: str = ""
    arguments: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    data: tuple[str, ...] = ()
    links: tuple[str, ...] = ()
    packages: tuple[str, ...] = ()

    @property
    def source(self) -> str:
        return "public" if self.repository else "device" if self.on_device else "own"


def own(name: str, turn: str, *places: Place, **values: object) -> Kind:
    return Kind(name=name, script=f"{name}.py", turn=turn, places=places, **values)  # type: ignore[arg-type]


EITHER = ("extra", "skip")
OWN: tuple[Kind, ...] = (
    own("actors_and_learner", "call", *known("call"), *new("call"), desync=EITHER),
    own("embeddings", "call", *known("call", "forward"), *new("call"), *new("save", ranks=(0,)),
        desync=EITHER, skip_shows=False),
    own("evaluation", "call", *known("call", "data"), *new("call", "loader"), *later("epochs"), desync=EITHER),
    own("functional", "call", *known("call"), *new("call"), desync=EITHER),
    own("generation", "call", *known("call", "sample"), *new("call", "sample"), desync=EITHER),
    own("hand_update", "backward", *known("call", "forward", "backward"), *new("backward"), numbers=True, turns=60),
    own("local_sgd", "backward", *known("call", "forward", "backward"), *new("forward", "call"), numbers=True,
        turns=60),
    own("llm_evaluation", "call", *known("call", "forward"), *new("call"), desync=EITHER),
    own("pipeline_by_hand", "forward", *known("call", "forward"), *new("call"), turns=60),
    own("power_iteration", "call", *known("call"), *new("call"), desync=EITHER),
    # A rank that skips its exchange of sizes has none, and raises: it says itself who it was.
    own("shuffle", "call", *known("call"), *new("call")),
    own("trainer", "backward", *known("forward", "backward", "data"), *later("evaluation_later", "epochs"),
        *new("backward", "loader", "evaluation_first"), *new("save", ranks=(0,)), *later("save", ranks=(0,)),
        numbers=True, turns=60),
)  # fmt: skip
#: Own loops that use nothing but calls that the test process group has, and no value that came from another rank.
ON_DEVICE = ("evaluation", "functional", "generation", "hand_update", "power_iteration", "trainer")
DEVICE: tuple[Kind, ...] = tuple(
    replace(kind, name=f"{kind.name}_on_device", on_device=True, numbers=False)
    for kind in OWN
    if kind.name in ON_DEVICE
)
