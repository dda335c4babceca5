from collections.abc import Callable

class PhaseTracker:
    base: int
    shown: int
    enabled: bool
    cost_ns: int
    calls: int
    def __new__(
        cls,
        set_phase: Callable[[int], int],
        guard: object,
        main_thread: int,
        phases: int,
        init: int,
        other: int,
        combined: bytes,
        closes: bytes,
        loop: bytes,
    ) -> PhaseTracker: ...
    def enter(self, phase: int, *, left_open: bool = False, by_hand: bool = False) -> int: ...
    def leave(self, identifier: int, /) -> None: ...
    def set_base(self, phase: int, /) -> None: ...
    def force(self, phase: int, /) -> None: ...
    def in_main_thread(self) -> bool: ...
    def depth(self) -> int: ...
