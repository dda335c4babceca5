"""The phase tracker whose hot half is in C. Importing this raises ImportError where it was not built.

Same methods and behaviour as phases.PhaseTracker, whose tables it is given.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from ...telemetry.vocabulary import Phase
from .._phases import PhaseTracker as CPhaseTracker
from ..support.guard import Guard
from .phase_rules import COMBINED, FailedPhase, closing_table, loop_table


class NativePhaseTracker(CPhaseTracker, FailedPhase):
    """Stack of phases of the main thread."""

    __slots__ = ("unwound",)

    def __new__(cls, set_phase: Callable[[int], int], guard: Guard) -> NativePhaseTracker:
        tracker: Any = super().__new__(
            cls,
            set_phase,
            guard,
            main_thread=threading.main_thread().ident or 0,
            phases=len(Phase),
            init=int(Phase.INIT),
            other=int(Phase.OTHER),
            combined=b"".join(map(bytes, COMBINED)),
            closes=b"".join(map(bytes, closing_table())),
            loop=bytes(loop_table()),
        )
        return tracker  # type: ignore[no-any-return]

    def __init__(self, set_phase: Callable[[int], int], guard: Guard) -> None:
        self.unwound = (0, int(Phase.INIT))
