"""Whether attempt after attempt gets anywhere: a training that restarts and restarts and does not move must be stopped.

Pure. A mark that cannot be read is unknown: it neither counts against the training nor for it.
"""

from __future__ import annotations

from dataclasses import dataclass

MAX_CYCLES = 3


@dataclass(slots=True)
class ProgressWatch:
    """``mark``: how far the attempt before came (iterations, or the newest checkpoint's); None: there was none."""

    min_iterations: int = 1
    max_cycles: int = MAX_CYCLES
    mark: int | None = None
    cycles_without: int = 0

    def end_cycle(self, reached: int | None, *, is_readable: bool = True) -> bool:
        """Takes the end of an attempt that came to iteration ``reached`` (None: none at all). Whether to stop for good.

        is_readable False: nobody knows how far it came, so it does not count.
        """
        if not is_readable:
            return self.should_stop
        if self.mark is None:
            # The first attempt that says anything is what later ones are compared with.
            self.mark = reached
            return self.should_stop
        if reached is not None and reached - self.mark >= self.min_iterations:
            self.cycles_without = 0
        else:
            self.cycles_without += 1
        self.mark = reached if reached is not None else self.mark
        return self.should_stop

    @property
    def should_stop(self) -> bool:
        """Whether so many cycles in a row made no progress that another one will not either."""
        return self.cycles_without >= self.max_cycles
