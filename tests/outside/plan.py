"""What is run: every kind of loop, clean and with every kind of fault, in an order of which any first part is a sample.

Places, ranks, moments and manners are drawn by seed. Pure.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

from tests.outside.kinds import DEVICE, OWN, RANKS, Kind, Place
from tests.outside.outcomes import Planned
from tests.outside.public_loops import PUBLIC

KINDS: tuple[Kind, ...] = (*OWN, *PUBLIC, *DEVICE)
#: hang_new: at a place that is new to the job, or in a read, or in a loop of its own.
FAULTS = ("clean", "clean_again", "hang", "hang_new", "killed", "all", "kill", "stop", "raise", "exit", "nan", "slow",
          "desync")  # fmt: skip
#: On the test process group once clean; its kernels take no time that a slow rank could add to.
ON_DEVICE = tuple(name for name in FAULTS if name not in ("clean_again", "slow", "nan"))
#: Pace is compared with the past of the job, and turns of calls become steps after 20 s.
SLOW_AFTER_S, SLOW_LASTS_S = 30.0, 60.0
CLEAN_S = 30.0


def faults_of(kind: Kind) -> tuple[str, ...]:
    possible = ON_DEVICE if kind.on_device else FAULTS
    return tuple(fault for fault in possible if fault != "nan" or kind.numbers)


def plan(seed: int, kinds: Sequence[Kind] = KINDS) -> list[Planned]:
    """In rounds: each kind once in each, with another fault; so a part of it has all kinds, and all faults alike."""
    draw = random.Random(seed)
    order = list(kinds)
    draw.shuffle(order)
    turn = list(FAULTS)
    draw.shuffle(turn)
    # A round goes on where the one before it ended; their number is prime, so each kind meets each fault once.
    step = len(order) % len(turn) or 1
    planned = []
    for number in range(len(turn)):
        row = [
            (kind, fault)
            for place, kind in enumerate(order)
            if (fault := turn[(number * step + place) % len(turn)]) in faults_of(kind)
        ]
        planned += [_planned(kind, fault, draw) for kind, fault in row]
    return planned


def _planned(kind: Kind, fault: str, draw: random.Random) -> Planned:
    name = f"{kind.name}-{fault}"
    if fault.startswith("clean"):  # from the first turn on
        return Planned(name=name, kind=kind.name, script=Path(kind.script).name, place=kind.turn, lasts_s=CLEAN_S)
    place, manner = _place(kind, fault, draw)
    return Planned(
        name=name,
        kind=kind.name,
        script=Path(kind.script).name,
        fault=fault.removesuffix("_new"),
        place=place.name,
        manner=manner,
        rank=draw.choice(place.ranks or tuple(range(RANKS))),
        after_s=_after_s(place, fault, draw),
        after_count=kind.turns if fault == "all" else place.count,
        known=place.known and manner != "blocked" and fault != "all",
        lasts_s={"slow": SLOW_LASTS_S, "killed": draw.uniform(10.0, 20.0)}.get(fault, 20.0),
    )


def _place(kind: Kind, fault: str, draw: random.Random) -> tuple[Place, str]:
    """Where, and in which manner."""
    turn = next(place for place in kind.places if place.name == kind.turn and place.known)
    often = [place for place in kind.places if place.known]
    if fault in ("hang", "killed"):
        return draw.choice(often), "sleep"
    if fault == "hang_new":
        manner = draw.choice(("sleep", "sleep", "sleep", "blocked", "spin"))
        places = [place for place in kind.places if not place.known] if manner == "sleep" else often
        return draw.choice(places), manner
    if fault == "desync":
        manner = draw.choice(kind.desync)
        if not kind.skip_shows:
            manner = "extra"
        call = next((place for place in often if place.name == "call"), turn)
        return (call if manner == "skip" else turn), manner
    if fault in ("all", "nan"):
        return turn, "sleep"
    if fault == "slow":
        return turn, draw.choice(("sleep", "busy"))
    each_step = [place for place in often if place.name in ("call", "forward", "backward", "data")]
    return draw.choice(each_step), "sleep"


def _after_s(place: Place, fault: str, draw: random.Random) -> float:
    """Since the first time at this place. A wait needs a past to be measured by, a crash does not."""
    if fault == "all" or not place.known:
        return 0.0
    if fault == "slow":
        return SLOW_AFTER_S
    return draw.uniform(8.0, 12.0) if fault in ("hang", "hang_new", "killed") else draw.uniform(2.0, 8.0)
