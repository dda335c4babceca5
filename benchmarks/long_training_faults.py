"""Which faults come to one long training, when, and on whom: drawn by a seed, written down before it begins.

``plan_of`` draws, ``Plan`` is what ``long_training_script`` reads in every rank, and
``long_training_jobs`` from outside. Standard library only: ranks import it.
"""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from enum import Enum
from pathlib import Path

PLAN_FILE = "plan.json"
KINDS = ("ddp", "fsdp2", "tp_dp", "hf", "lightning")
ONE_NODE, THREE_NODES = "one-node", "three-namespaces"
LAYOUTS = (ONE_NODE, THREE_NODES)
#: In a training's folder: a small file system, that can be full; and where copies go to.
CHECKPOINTS, UPLOADS = "checkpoints", "uploads"
#: Of the small file system: what fills it.
FILLER = "filler"
#: A step without a fault, nearly all of it asleep; every so many steps a checkpoint.
STEP_S, EVERY = 0.2, 50
#: What a step takes in fact, on a machine that others use as well.
_STEP_TAKES_S = 0.24
#: So much of a training's time is left for steps: the rest goes to what the faults cost.
_SHARE_OF_STEPS = 0.6
#: How a slow node's steps grow, and for how many of them.
SLOW_S, SLOW_STEPS = 0.3, 40


class FaultKind(str, Enum):
    HANG = "hang"
    DEADLOCK = "deadlock"
    KILL = "sigkill"
    STOP = "sigstop"
    ONCE = "exception that passes"
    ALWAYS = "exception at a fixed step"
    NODE = "node destroyed"
    SLOW = "slow node"
    DISK = "full disk"
    UPLOAD = "failed upload"


class Truth(str, Enum):
    """What has to become of it."""

    #: A restart helps: the training goes on by itself.
    RESTART = "restart"
    #: It trains on: nobody is to act.
    NOTHING = "nothing"
    #: It comes again each time: stopped, and a person told.
    PERSON = "person"


TRUTHS = {
    FaultKind.HANG: Truth.RESTART,
    FaultKind.DEADLOCK: Truth.RESTART,
    FaultKind.KILL: Truth.RESTART,
    FaultKind.STOP: Truth.RESTART,
    FaultKind.ONCE: Truth.RESTART,
    FaultKind.NODE: Truth.RESTART,
    FaultKind.SLOW: Truth.NOTHING,
    FaultKind.DISK: Truth.NOTHING,
    FaultKind.UPLOAD: Truth.NOTHING,
    FaultKind.ALWAYS: Truth.PERSON,
}


class Place(str, Enum):
    """Where in a step a rank hangs."""

    STEP = "step"
    SAVE = "save"
    #: The first step of a start: where nothing says how long it may take.
    FIRST = "first step"


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """step: from which on it is due. rank: drawn, of as many as there are then. node: of the three, never the first."""

    number: int
    kind: FaultKind
    step: int
    rank: int
    node: int = 2
    place: Place = Place.STEP

    @property
    def truth(self) -> Truth:
        """What has to become of it."""
        return TRUTHS[self.kind]


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """One training. timeout_s: of its process groups; 0: torch's own. step_s: how long a step sleeps at least."""

    kind: str
    layout: str
    seed: int
    steps: int
    faults: tuple[Fault, ...]
    step_s: float = STEP_S
    timeout_s: float = 0.0

    @property
    def is_for_a_person(self) -> bool:
        """Whether it ends by a fault that no restart helps against."""
        return any(fault.truth is Truth.PERSON for fault in self.faults)

    def write(self, folder: Path) -> None:
        """Puts it where the ranks look."""
        (folder / PLAN_FILE).write_text(json.dumps(asdict(self)))


def read_plan(folder: Path) -> Plan:
    """The plan of a folder."""
    return plan_from(json.loads((folder / PLAN_FILE).read_text()))


def plan_from(said: dict[str, object]) -> Plan:
    """A plan from its JSON."""
    rows = said["faults"]
    assert isinstance(rows, list)
    faults = tuple(
        Fault(**{**row, "kind": FaultKind(row["kind"]), "place": Place(row["place"])})  # its own words, read back
        for row in rows
    )
    return Plan(**{**said, "faults": faults})  # type: ignore[arg-type]


def steps_in(minutes: float) -> int:
    """Steps of a training that takes about so long with its faults."""
    return max(2 * EVERY, int(60.0 * minutes * _SHARE_OF_STEPS / _STEP_TAKES_S))


def plan_of(kind: str, layout: str, *, minutes: float, faults: int, seed: int, ranks: int) -> Plan:
    """Draws one training.

    All kinds of faults come by turns over the trainings of a seed; half of the trainings end by the one that is for a
    person, which comes last. A node is destroyed late, since the others go on without it.
    """
    number = KINDS.index(kind) * len(LAYOUTS) + LAYOUTS.index(layout)
    draw = random.Random(f"{kind}/{layout}/{seed}")
    ends_early = (KINDS.index(kind) + LAYOUTS.index(layout) + seed) % 2 == 0
    pool: list[FaultKind] = [one for one in FaultKind if one not in (FaultKind.ALWAYS, FaultKind.NODE)]
    last = [FaultKind.NODE] if layout == THREE_NODES else []
    last += [FaultKind.ALWAYS] if ends_early else []
    last = last[-faults:]
    first = (number * 3 + seed) % len(pool)  # by turns: short trainings see different ones
    kinds: list[FaultKind] = [pool[(first + index) % len(pool)] for index in range(faults - len(last))]
    draw.shuffle(kinds)
    kinds += last
    return Plan(
        kind=kind,
        layout=layout,
        seed=seed,
        steps=steps_in(minutes),
        faults=tuple(_placed(draw, kinds, steps_in(minutes), ranks)),
    )


def hangs_of(kind: str, layout: str, *, minutes: float, faults: int, seed: int, ranks: int, timeout_s: float) -> Plan:
    """A training in which nothing but hangs comes: for torchrun's own restarts."""
    draw = random.Random(f"hangs/{kind}/{layout}/{seed}")
    steps = steps_in(minutes)
    placed = _placed(draw, [FaultKind.HANG] * faults, steps, ranks, places=(Place.STEP,))
    return Plan(kind=kind, layout=layout, seed=seed, steps=steps, faults=tuple(placed), timeout_s=timeout_s)


def _placed(
    draw: random.Random, kinds: list[FaultKind], steps: int, ranks: int, places: Sequence[Place] = tuple(Place)
) -> list[Fault]:
    """Each somewhere in a stretch of its own, with room behind it for what it takes to end. places: of hangs."""
    placed: list[Fault] = []
    stretch = (steps - EVERY) / max(1, len(kinds))
    for number, kind in enumerate(kinds):
        step, place = int(EVERY // 2 + stretch * (number + draw.uniform(0.15, 0.4))), Place.STEP
        if kind is FaultKind.HANG:
            after = placed[-1].truth if placed else Truth.NOTHING
            elsewhere = Place.FIRST if after is Truth.RESTART else Place.SAVE
            place = draw.choice((Place.STEP, elsewhere if elsewhere in places else Place.STEP))
        if place is Place.FIRST:
            step = placed[-1].step  # of the start that the fault before has brought about
        rank, node = draw.randrange(ranks), draw.choice((1, 2))
        placed.append(Fault(number=number, kind=kind, step=step, rank=rank, node=node, place=place))
    return placed
