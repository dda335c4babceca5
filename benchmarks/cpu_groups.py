"""Control groups that hold processes to a share of a core: cgroup v1 or v2, made here and removed at the end. Root."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

_V1, _V2 = Path("/sys/fs/cgroup/cpu"), Path("/sys/fs/cgroup")
_PERIOD_US = 100_000
_LET_GO_S = 10.0


class CpuGroup:
    """A group of at most so many ``cores``. Raises OSError where this user may make none."""

    def __init__(self, name: str, cores: float) -> None:
        self._parent = _V1 if _V1.is_dir() else _V2
        self.folder = self._parent / name
        self.folder.mkdir()
        quota_us = round(cores * _PERIOD_US)
        if self._parent is _V1:
            (self.folder / "cpu.cfs_period_us").write_text(str(_PERIOD_US))
            (self.folder / "cpu.cfs_quota_us").write_text(str(quota_us))
        else:
            (self.folder / "cpu.max").write_text(f"{quota_us} {_PERIOD_US}")

    def hold(self, processes: Sequence[int]) -> None:
        """From now on these, with all their threads."""
        for pid in processes:
            (self.folder / "cgroup.procs").write_text(str(pid))

    def throttled_s(self) -> float:
        """For how long the group was held back so far."""
        told = dict(line.split() for line in (self.folder / "cpu.stat").read_text().splitlines())
        return float(told.get("throttled_time", 0)) / 1e9 + float(told.get("throttled_usec", 0)) / 1e6

    def close(self) -> None:
        """Removes the group, once its processes have gone; those that have not go back to the group above."""
        deadline_s = time.monotonic() + _LET_GO_S
        while True:
            try:
                self.folder.rmdir()
            except OSError:
                if time.monotonic() > deadline_s:
                    raise
                for pid in (self.folder / "cgroup.procs").read_text().split():
                    (self._parent / "cgroup.procs").write_text(pid)
                time.sleep(0.2)
            else:
                return
