"""How fast the processors run, and how often heat or power slowed them.

Asking an idle core for its frequency wakes it, so each look asks a few of them, others each time.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ..base.small_files import listed, read_number

_ASKED_PER_LOOK = 8


@dataclass(frozen=True, slots=True)
class Speed:
    """hertz: mean over the cores that were asked. limit_hertz: the most that anyone allows them now, mean.

    throttles: by package, since the boot. What the machine does not tell is None or absent.
    """

    hertz: float | None
    limit_hertz: float | None
    throttles: Mapping[str, int]


class CpuSpeed:
    def __init__(self, sys: Path) -> None:
        root = sys / "devices/system/cpu"
        cores = [root / name for name in listed(root, "cpu") if name[3:].isdigit()]
        self._cores = [core for core in cores if (core / "cpufreq/scaling_cur_freq").exists()]
        self._next = 0
        #: One core speaks for its package.
        self._packages: dict[str, Path] = {}
        for core in cores:
            package = read_number(core / "topology/physical_package_id")
            count = core / "thermal_throttle/package_throttle_count"
            if package is not None and str(package) not in self._packages and count.exists():
                self._packages[str(package)] = count

    def read(self) -> Speed:
        """The mean frequency of a few cores, others at each call, and the throttle counts of all packages.

        So a look costs the same on any number of cores.
        """
        asked = [
            self._cores[(self._next + n) % len(self._cores)] for n in range(min(_ASKED_PER_LOOK, len(self._cores)))
        ]
        self._next += len(asked)
        kilohertz = [read_number(core / "cpufreq/scaling_cur_freq") for core in asked]
        limits = [read_number(core / "cpufreq/scaling_max_freq") for core in asked]
        throttles = {package: read_number(path) for package, path in self._packages.items()}
        return Speed(
            _mean_hertz(kilohertz),
            _mean_hertz(limits),
            {package: count for package, count in throttles.items() if count is not None},
        )


def _mean_hertz(kilohertz: list[int | None]) -> float | None:
    known = [value for value in kilohertz if value is not None]
    return sum(known) * 1000 / len(known) if known else None
