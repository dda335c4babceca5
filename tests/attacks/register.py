"""What an attack is, and how a module of this package adds one.

    @attack("A1", "a", "stdout is an O_PATH descriptor of a root-only file", asked="the file stays on the node")
    def stdout_of_root(folder: Path) -> Outcome:
        ...
        return Outcome(held=CANARY not in sent, measured=f"{len(sent)} bytes sent, the canary in none")

Each runs in a process of its own, in a session of its own, with an empty folder (0755, root's); what it has started is
killed after it. An exception, a skip and a time-out count as FAILS.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """measured: what was seen, with figures, in a few words."""

    held: bool
    measured: str


Act = Callable[[Path], Outcome]


@dataclass(frozen=True, slots=True, kw_only=True)
class Attack:
    """who: a user of the node (a), a peer (b), the agents' rights on Kafka (c), a text (d), an operator's mistake (e),
    the machine (R). long: takes more than some seconds, and runs in `make attacks-long` alone. fuzz: goes on for
    ``fuzz_s()`` of CPU, to which limit_s comes. memory_mb: it runs under that limit (``users.MemoryLimit``), without
    the users' processes that it starts; 0: under none."""

    number: str
    who: str
    text: str
    asked: str
    limit_s: float
    long: bool
    fuzz: bool
    memory_mb: int
    act: Act


#: Holds the seconds of `--fuzz-s` for the attack's own process.
FUZZ_S_VARIABLE = "ATTACKS_FUZZ_S"
SHORT_FUZZ_S, LONG_FUZZ_S = 20.0, 600.0


def fuzz_s() -> float:
    """CPU seconds that an attack of random input goes on for."""
    return float(os.environ.get(FUZZ_S_VARIABLE) or SHORT_FUZZ_S)


ATTACKS: dict[str, Attack] = {}


def attack(
    number: str,
    who: str,
    text: str,
    *,
    asked: str,
    limit_s: float = 120,
    long: bool = False,
    fuzz: bool = False,
    memory_mb: int = 0,
) -> Callable[[Act], Act]:
    """Raises ValueError where the number is taken."""

    def register(act: Act) -> Act:
        if number in ATTACKS:
            raise ValueError(f"two attacks are called {number}: {ATTACKS[number].act.__name__} and {act.__name__}")
        ATTACKS[number] = Attack(
            number=number,
            who=who,
            text=text,
            asked=asked,
            limit_s=limit_s,
            long=long,
            fuzz=fuzz,
            memory_mb=memory_mb,
            act=act,
        )
        return act

    return register
