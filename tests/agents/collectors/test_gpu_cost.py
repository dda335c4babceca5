"""What the GPU collector costs a node: ``python -m tests.agents.collectors.gpu_cost`` measures it over minutes."""

from __future__ import annotations

from pathlib import Path

from tests.agents.collectors.conftest import Start
from tests.played_gpu.played import PlayedGpus
from whichrank.agents.collectors.base.collector import Collector
from whichrank.agents.collectors.gpu.gpu_collector import PERIOD_S
from whichrank.agents.collectors.gpu.which_maker import make_gpu_collector


def test_it_is_a_collector(tmp_path: Path) -> None:
    collector: Collector = make_gpu_collector(tmp_path)
    assert (collector.name, collector.period_s) == ("gpu", PERIOD_S)
    collector.close()


def test_collections_cost_less_than_half_a_percent_of_a_core(played: PlayedGpus, start: Start) -> None:
    """A minute's collections at once, the slow values once: 0.5 % of a core are 50 ms for each."""
    collector = start(played)
    collector.collect()
    before = collector.cost()
    for turn in range(6):
        collector.collect(later_s=turn * PERIOD_S + 5)
    cost = collector.cost()
    print(f"{(cost.cpu_s - before.cpu_s) / 6 * 1e3:.1f} ms of CPU per collection, {cost.resident_bytes / 1e6:.1f} MB")
    assert (cost.cpu_s - before.cpu_s) / 6 < PERIOD_S * 0.005


def test_memory_does_not_grow(h100: PlayedGpus, start: Start) -> None:
    """An hour of collections in which GPUs, links and processes come and go."""
    collector = start(h100)
    sizes = []
    for turn in range(360):
        if turn % 10 == 0:
            h100.xid(turn % 8, turn)
            h100.link_down(1, turn % 18)
            h100.attach(100_000 + turn, 2)
        elif turn % 10 == 5:
            h100.lose(turn % 8)
            h100.link_up(1, (turn - 5) % 18)
            h100.detach(100_000 + turn - 5)
        elif turn % 10 == 7:
            h100.bring_back((turn - 2) % 8)
        collector.collect(later_s=turn * PERIOD_S)
        if turn in (119, 359):
            sizes.append(collector.cost().resident_bytes)
    assert sizes[1] - sizes[0] < 2_000_000, sizes
