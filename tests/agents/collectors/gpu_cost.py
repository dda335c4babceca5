"""What the GPU collector costs: a process of its own, eight played GPUs, a collection each ten seconds, waits between.

python -m tests.agents.collectors.gpu_cost --seconds 60 --profile b200-575
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

from tests.played_gpu.collecting import CollectingProcess, Cost
from tests.played_gpu.played import PlayedGpus, Profile
from whichrank.agents.collectors.gpu.gpu_collector import PERIOD_S


def measure(profile: Profile, seconds: float, folder: Path) -> tuple[float, Cost, int]:
    """Share of one core, the state at the end, and points per collection. The first collection is not counted."""
    played = PlayedGpus(profile, folder)
    with CollectingProcess(played.environment()) as collector:
        collector.collect()
        before, began = collector.cost(), time.monotonic()
        points = 0
        while time.monotonic() - began < seconds:
            collector.wait(PERIOD_S, timeout_s=2 * PERIOD_S)
            points = len(collector.collect().points)
        after, took_s = collector.cost(), time.monotonic() - began
    return (after.cpu_s - before.cpu_s) / took_s, after, points


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--profile", type=Profile, default=Profile.H100, choices=list(Profile))
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        share, cost, points = measure(options.profile, options.seconds, Path(folder))
    print(
        f"{options.profile.value}: {share:.3%} of a core, {cost.resident_bytes / 1e6:.1f} MB resident, "
        f"{points} points per collection"
    )


if __name__ == "__main__":
    main()
