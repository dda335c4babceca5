"""Which phase wins, which ends another, and whose exception it is: shared by both trackers of phases. Pure."""

from __future__ import annotations

from ...telemetry.vocabulary import Phase

_DATA, _FORWARD = int(Phase.DATA), int(Phase.FORWARD)
_BACKWARD, _OPTIMIZER = int(Phase.BACKWARD), int(Phase.OPTIMIZER)
#: The training loop has begun when one of these is entered.
LOOP = frozenset({_DATA, _FORWARD, _BACKWARD, _OPTIMIZER})


def _combine(outer: Phase, inner: Phase) -> Phase:
    """What to show while ``inner`` runs inside ``outer``."""
    if outer in (Phase.CHECKPOINT, Phase.RESTORE, Phase.COMPILE):
        return outer
    long_ones = (Phase.CHECKPOINT, Phase.RESTORE, Phase.COMPILE, Phase.EVAL)
    if outer is Phase.EVAL:
        return inner if inner in long_ones else outer
    if outer is Phase.BACKWARD and inner in (Phase.FORWARD, Phase.OPTIMIZER):
        return outer  # activation recomputation; optimizers that step inside backward
    if outer is Phase.DATA and inner in (Phase.CHECKPOINT, Phase.RESTORE):
        return outer  # data sets that torch.load their samples
    return inner


COMBINED = tuple(tuple(int(_combine(outer, inner)) for inner in Phase) for outer in Phase)

#: A phase that was left open (its end was not seen because something raised) ends when one of these begins.
CLOSED_BY = {
    _FORWARD: frozenset({_DATA, _FORWARD, _BACKWARD, _OPTIMIZER}),
    _OPTIMIZER: frozenset({_DATA}),
}


class FailedPhase:
    """Which phase an exception came from. Rare, hence shared by both trackers."""

    __slots__ = ()

    shown: int
    #: Identity of the last exception that unwound a phase, and that phase.
    unwound: tuple[int, int]

    def leave_by_exception(self, identifier: int, error: BaseException) -> None:
        """Ends a phase whose body raised ``error``, and remembers that the error came from it.

        Only the exception's identity is kept: a reference would keep its traceback, and with it tensors, alive.
        """
        if identifier and self.unwound[0] != id(error):
            self.unwound = (id(error), self.shown)  # type: ignore[misc]  # the trackers have the slot
        self.leave(identifier)

    def leave(self, identifier: int) -> None:
        """Ends a phase; each tracker has its own."""
        raise NotImplementedError

    def phase_of_exception(self, error: BaseException) -> int | None:
        """The phase that ``error``, or what it was raised from, unwound; None where no phase was unwound by it."""
        cause: BaseException | None = error
        for _ in range(32):
            if cause is None:
                return None
            if id(cause) == self.unwound[0]:
                return self.unwound[1]
            cause = cause.__cause__ or cause.__context__
        return None


def closing_table() -> list[list[bool]]:
    """[open phase][phase that begins]: whether the one that was left open has ended then."""
    return [[new in CLOSED_BY.get(int(old), ()) for new in Phase] for old in Phase]


def loop_table() -> list[bool]:
    """[phase]: whether the training loop has begun with it."""
    return [phase in LOOP for phase in Phase]
