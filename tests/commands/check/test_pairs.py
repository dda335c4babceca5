"""``whichrank check pairs`` as ranks run it, and its parts without any network."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path

import pytest

from tests.ports import free_ports
from whichrank.commands.check_pairs.exchange import Effort, Timed, exchange
from whichrank.commands.check_pairs.pair_ranks import CannotMeet, rank_environment
from whichrank.commands.check_pairs.pair_report import findings_of
from whichrank.commands.check_pairs.pair_session import PairFollower, PairLeader, PairOutcome, PairRank
from whichrank.commands.check_pairs.perftest import Perftest, gbits_of
from whichrank.diagnosis.pair_checks.measured import PairLimits
from whichrank.diagnosis.pair_checks.planner import PairPlanner

WHICHRANK = Path(sys.executable).with_name("whichrank")


def test_ranks_of_several_nodes_measure_each_other() -> None:
    port = free_ports(1)[0]
    ranks = []
    for rank in range(3):
        environment = {
            **os.environ,
            "RANK": str(rank),
            "WORLD_SIZE": "3",
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
            "SLURMD_NODENAME": f"node-{rank}",
            "OMP_NUM_THREADS": "1",
        }
        words = [str(WHICHRANK), "check", "pairs", "--json", "--backend", "gloo", "--size", "1"]
        ranks.append(
            subprocess.Popen(words, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        )
    said = [rank.communicate(timeout=150) for rank in ranks]
    document = json.loads(said[0][0])
    assert [each[0] for each in said[1:]] == ["", ""]
    assert (document["nodes"], document["rails"], document["schema"]) == (3, 1, 1)
    assert document["rounds"] >= 6
    assert document["usual"]["bytes_per_s"] > 0
    assert document["ring"]["all_bytes_per_s"] > 0
    assert ranks[0].returncode == document["exit_code"]
    assert [rank.returncode for rank in ranks[1:]] == [0, 0]


def test_one_process_alone_is_no_check() -> None:
    environment = {name: value for name, value in os.environ.items() if name not in ("RANK", "WORLD_SIZE")}
    words = [str(WHICHRANK), "check", "pairs"]
    done = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 2
    assert "torchrun" in done.stderr


def test_slurms_words_are_enough_to_meet() -> None:
    told = {
        "SLURM_PROCID": "9", "SLURM_NTASKS": "16", "SLURM_LOCALID": "1", "SLURM_STEP_NODELIST": "gpu[03-04]",
        "SLURM_STEP_TASKS_PER_NODE": "8(x2)",
    }  # fmt: skip
    found = rank_environment(told)
    assert (found["RANK"], found["WORLD_SIZE"], found["LOCAL_RANK"]) == ("9", "16", "1")
    assert (found["MASTER_ADDR"], found["LOCAL_WORLD_SIZE"]) == ("gpu03", "8")
    with pytest.raises(CannotMeet):
        rank_environment({})


class MemoryStore:
    """As c10d's, for threads."""

    def __init__(self) -> None:
        self._held: dict[str, str] = {}
        self._news = threading.Condition()

    def set(self, key: str, value: str) -> None:
        with self._news:
            self._held[key] = value
            self._news.notify_all()

    def get(self, key: str) -> bytes:
        self.wait([key], timedelta(seconds=30))
        return self._held[key].encode()

    def wait(self, keys: list[str], timeout: timedelta) -> None:
        with self._news:
            if not self._news.wait_for(lambda: all(key in self._held for key in keys), timeout.total_seconds()):
                raise RuntimeError("not in time")

    def check(self, keys: list[str]) -> bool:
        return all(key in self._held for key in keys)

    def delete_key(self, key: str) -> bool:
        with self._news:
            return self._held.pop(key, None) is not None


def led(nodes: int, slow: Mapping[int, float], *, sweep: bool = False, dead: int = -1, rails: int = 1) -> PairOutcome:
    """The outcome of a check in which exchanges take 1 ms, with a slow node so many times that."""
    store, effort = MemoryStore(), Effort(size_bytes=1 << 20, small=4, repeats=1, limit_s=0.3)

    def follower(rank: int) -> PairFollower:
        place = PairRank(rank=rank, world=nodes * rails, rails=rails)

        def measure(partner: int, tag: int, asked: Effort, leads: bool) -> Timed:
            if dead in (place.node, partner // rails):
                return Timed(failed=True)
            factor = max(slow.get(place.node, 1.0), slow.get(partner // rails, 1.0))
            return Timed(seconds=1e-3 * factor * asked.size_bytes / (1 << 20), latency_s=1e-5)

        return PairFollower(store, place, effort, measure, renew=lambda ranks: None)

    # One that is dead carries out nothing.
    others = [follower(rank) for rank in range(1, nodes * rails) if rank // rails != dead]
    threads = [threading.Thread(target=each.run, daemon=True) for each in others]
    for thread in threads:
        thread.start()
    first = follower(0)
    place = PairRank(rank=0, world=nodes * rails, rails=rails)
    leader = PairLeader(store, place, effort, first, until_s=float("inf"))
    outcome = leader.run(PairPlanner(nodes, sweep=sweep, limits=PairLimits(), seed=1), with_ring=False)
    for thread in threads:
        thread.join(10)
        assert not thread.is_alive()
    return outcome


def named(outcome: PairOutcome) -> list[tuple[str, tuple[int, ...]]]:
    return [(each.part.value, each.nodes) for each in outcome.named]


def test_a_leader_and_its_followers_name_a_slow_node_on_all_rails() -> None:
    outcome = led(6, {4: 3.0}, rails=2)
    assert named(outcome) == [("node", (4,))]
    (finding,) = findings_of(outcome, [f"n{node}" for node in range(6)], None, 1 << 20)
    assert (finding.device, finding.status.value, finding.nodes) == ("n4", "CRITICAL", ("n4",))
    assert "0.35 GB/s each way, where others have 1.05 GB/s" in finding.reason


def test_a_sweep_exchanges_less_and_names_nobody_for_that() -> None:
    outcome = led(40, {}, sweep=True)
    assert named(outcome) == []
    assert outcome.exchanges >= 39


def test_a_node_whose_process_is_gone_is_named_and_holds_nobody_up() -> None:
    outcome = led(5, {}, dead=3)
    assert named(outcome) == [("node", (3,))]
    assert outcome.took_s < 60


class TwoEnds:
    """Messages between two threads; every one takes what the wire is told to take."""

    def __init__(self) -> None:
        self.sent: dict[int, list[int]] = {0: [], 1: []}
        self.news = threading.Condition()

    def end(self, own: int) -> TwoEnds.End:
        return TwoEnds.End(self, own)

    class End:
        def __init__(self, wire: TwoEnds, own: int) -> None:
            self._wire, self._own, self._read = wire, own, 0

        def small(self, partner: int, tag: int, word: int, limit_s: float) -> int:
            wire = self._wire
            with wire.news:
                wire.sent[self._own].append(word)
                wire.news.notify_all()
                other = wire.sent[1 - self._own]
                if not wire.news.wait_for(lambda: len(other) > self._read, limit_s):
                    raise RuntimeError("no answer")
                self._read += 1
                return other[self._read - 1]

        def large(self, partner: int, tag: int, size_bytes: int, limit_s: float) -> None:
            self.small(partner, tag, 0, limit_s)


def test_both_ends_of_an_exchange_do_as_many_repeats() -> None:
    wire, effort = TwoEnds(), Effort(size_bytes=1 << 20, small=3, repeats=3, limit_s=5.0)
    found: dict[int, Timed] = {}

    def run(own: int) -> None:
        found[own] = exchange(wire.end(own), 1 - own, 1, effort, leads=not own)

    ends = [threading.Thread(target=run, args=(own,)) for own in (0, 1)]
    for end in ends:
        end.start()
    for end in ends:
        end.join(30)
    assert not found[0].failed
    assert not found[1].failed
    assert len(wire.sent[0]) == len(wire.sent[1]) == 1 + 3 + 2 * 3


def test_without_a_partner_an_exchange_fails_in_time() -> None:
    effort = Effort(size_bytes=1 << 20, small=3, repeats=3, limit_s=0.05)
    assert exchange(TwoEnds().end(0), 1, 1, effort, leads=True).failed


def test_what_perftest_prints() -> None:
    said = """
 #bytes     #iterations    BW peak[Gb/sec]    BW average[Gb/sec]   MsgRate[Mpps]
 65536      351820           0.00               368.91              0.703641
---------------------------------------------------------------------------------------
"""
    assert gbits_of(said) == 368.91
    assert gbits_of("Couldn't connect to node:18515") == 0.0


def test_perftest_takes_the_place_of_what_torch_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "ib_write_bw"
    program.write_text(
        "#!/bin/sh\necho ' 65536      351820           0.00               368.91              0.703641'\n"
    )
    program.chmod(0o755)
    (tmp_path / "devices" / "mlx5_0").mkdir(parents=True)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    store, effort, found = MemoryStore(), Effort(size_bytes=1 << 20, small=4, repeats=2, limit_s=10.0), {}

    def run(rank: int) -> None:
        own = Perftest(store, PairRank(rank=rank, world=2, rails=1), tmp_path / "devices")
        timed = Timed(seconds=1.0, latency_s=2e-5)
        found[rank] = own.instead_of(timed, 1 - rank, 7, effort, leads=rank == 0)

    ends = [threading.Thread(target=run, args=(rank,)) for rank in (0, 1)]
    for end in ends:
        end.start()
    for end in ends:
        end.join(30)
    assert found[0].seconds == pytest.approx((1 << 20) / (368.91 / 2 * 1e9 / 8))
    assert found[0].latency_s == 2e-5


def test_without_perftest_at_the_other_end_torchs_measurement_stays(tmp_path: Path) -> None:
    effort = Effort(size_bytes=1 << 20, small=4, repeats=2, limit_s=0.1)
    alone = Perftest(MemoryStore(), PairRank(rank=0, world=2, rails=1), tmp_path / "none")
    assert alone.instead_of(Timed(seconds=1.0), 1, 7, effort, leads=True) == Timed(seconds=1.0)
