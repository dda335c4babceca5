"""A course on the test process group: what a step takes is the device's time, and the host runs steps ahead of it.

The host fetches data and launches; kernels and collectives are the device's. So a fault of the host begins to matter
when its device has nothing left to do: its onset is stamped anew then. What is logged of a step is its end there.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

import torch.distributed as dist
from course import Course  # type: ignore[import-not-found]

sys.path.append(str(Path(__file__).resolve().parents[3]))

from tests.device_backend import register, stream
from tests.device_backend.group import groups, wait_for_futures

#: The data is the host's, and the device waits for it only where it is late.
SHARES = {"data": 0.1, "forward": 0.9}
AHEAD_STEPS = 4
#: After these the host stands still, and its device goes on with what was launched.
HOST_HANGS = frozenset({"sleep", "blocked_read", "busy_loop"})


class DeviceCourse(Course):  # type: ignore[misc]
    """The plan of this rank, on a device. One per process."""

    def __init__(self) -> None:
        super().__init__()
        self._shares = SHARES
        self._first_launch = 0

    def start(self) -> None:
        """The default group, on the device."""
        register()
        timeout = timedelta(seconds=self.options.get("timeout_s", 600.0))
        dist.init_process_group("device", timeout=timeout)

    # -- steps -------------------------------------------------------------------------------------------------------
    def begin(self, step: int) -> None:
        super().begin(step)
        if step == 1:
            self._first_launch = stream().launched
        elif step == 2:
            per_step = stream().launched - self._first_launch
            stream().run_ahead(AHEAD_STEPS * per_step)
        for group in groups() if self.options.get("replays") else ():
            group.replay_graph()

    def end(self) -> None:
        step = self.step
        stream().launch(lambda: self._log(step))

    def _log(self, step: int) -> None:
        os.write(self._step_log, f"{step} {time.clock_gettime(time.CLOCK_REALTIME):.6f}\n".encode())

    def finish(self) -> None:
        stream().synchronize()
        dist.destroy_process_group()

    # -- pace --------------------------------------------------------------------------------------------------------
    @contextmanager
    def part(self, name: str, step: int | None = None) -> Iterator[None]:
        """Data is fetched by the host in its own time; a forward pass is a kernel of the length that was drawn."""
        if name == "data":
            with super().part(name, step):
                yield
            return
        self.point(name)
        yield
        wait_for_futures()
        step = self.step
        if self.point("kernel"):
            return
        usual = self._budget_s(name, step)
        stream().compute(usual, before=lambda: self._mark(step))

    def _mark(self, step: int) -> None:
        """On the device: its first slow kernel is the onset of a straggler."""
        if self.plan["fault"] == "slow" and self._guilty and step == self.plan["onset_step"]:
            self.stamp_step(step, __file__, 0, 10**9)

    def _slow_down(self, name: str, step: int) -> float:
        slow = self.plan["fault"] == "slow" and self._guilty and step >= self.plan["onset_step"]
        return float(self.options["slow_by"]) if slow and name == self.plan["point"] else 0.0

    # -- faults ------------------------------------------------------------------------------------------------------
    def stamp(self, file: str, first_line: int, last_line: int) -> None:
        """Now, so that the runner knows; and again when the device has done what was launched before."""
        super().stamp(file, first_line, last_line)
        step = self.step
        if self.plan["fault"] in HOST_HANGS:

            def again() -> None:
                stream().synchronize()
                self.stamp_step(step, file, first_line, last_line)

            threading.Thread(target=again, daemon=True).start()

    def stamp_step(self, step: int, file: str, first_line: int, last_line: int) -> None:
        """The onset, of a step that the host may have left behind."""
        self._write(
            f"onset-{self.rank}.json",
            {
                "realtime": time.clock_gettime(time.CLOCK_REALTIME),
                "monotonic": time.monotonic(),
                "step": step,
                "file": Path(file).name,
                "lines": [first_line, last_line],
            },
        )
