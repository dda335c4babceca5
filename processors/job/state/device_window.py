"""What is kept of closed steps to tell late devices, and who holds up whom, in arrays of their finders."""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np

from ..detectors.slow.device_straggler.launch_bound import no_launches
from ..detectors.slow.device_straggler.occupancy import LAST, no_looks
from ..detectors.slow.lag_coupling import no_starts
from ..detectors.slow.pipeline_stage_time import no_passes
from ..detectors.slow.smallest_group_waits import no_inner_waits


@dataclass(slots=True, kw_only=True, eq=False)
class DeviceWindow:
    """Tables of the detectors of late devices, each as the function that makes it says.

    All are kept on devices only, but ``starts``; ``passes`` in pipelines only.
    """

    looks: np.ndarray
    inner: np.ndarray
    starts: np.ndarray
    passes: np.ndarray
    launches: np.ndarray

    @classmethod
    def empty(cls, ranks: int) -> DeviceWindow:
        """A window before the first step. ranks: how many."""
        return cls(
            looks=no_looks(ranks),
            inner=no_inner_waits(ranks),
            starts=no_starts(ranks),
            passes=no_passes(ranks),
            launches=no_launches(ranks),
        )

    def drop_steps(self, first: int, last: int) -> None:
        """Drops steps ``first`` to ``last``, of a fault that is over; of looks, which are added up over steps, all
        since then.
        """
        self.looks = self.looks[self.looks[:, LAST] < first]
        for name in ("inner", "starts", "passes", "launches"):
            rows = getattr(self, name)
            setattr(self, name, rows[(rows[:, 0] < first) | (rows[:, 0] > last)])

    def arrays(self) -> dict[str, np.ndarray]:
        """The tables by name, as rows of state keep them, for ``of_arrays``."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    @classmethod
    def of_arrays(cls, arrays: dict[str, np.ndarray], ranks: int) -> DeviceWindow:
        """As ``arrays`` gave them; empty what an earlier release did not keep. arrays: by name; times in ns."""
        return cls(**{name: arrays.get(name, none) for name, none in cls.empty(ranks).arrays().items()})
