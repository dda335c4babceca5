"""The ranks of ``whichrank check pairs``: who they are, how they meet, and the parts that each of them plays.

Runs in each process that torchrun, srun or another launcher starts. torch is imported here, and nowhere before.
"""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from math import inf
from typing import Any

from ...diagnosis.hostlist import HostlistError, expand_hostlist
from ...diagnosis.pair_checks.measured import PairLimits
from ...diagnosis.pair_checks.planner import PairPlanner, group_numbers
from .exchange import Effort, Timed, TorchWay, all_reduce_seconds, exchange
from .pair_session import PairFollower, PairLeader, PairOutcome, PairRank
from .perftest import Perftest

#: Of a rendezvous that srun leaves to us.
DEFAULT_PORT = 29_411
_MEET_S = 300.0
#: Over sockets data and answers wait for a core at both ends, too.
_SLOWER_PERCENT, _SLOWER_PERCENT_OF_HOSTS = 20.0, 50.0
_LEAST_LATENCY_S, _LEAST_LATENCY_OF_HOSTS_S = 5e-6, 5e-3


class CannotMeet(RuntimeError):
    """One line: why this process is no rank of a check, and what to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PairPlan:
    """As the flags have it. backend: "auto", "gloo" or "nccl". size_bytes None: what suits it. groups: of each node."""

    backend: str = "auto"
    size_bytes: int | None = None
    sweep: bool = False
    ring: bool = True
    perftest: bool = False
    places: Mapping[str, str] | None = None
    slower_percent: float | None = None
    least_bytes_per_s: float = 0.0
    timeout_s: float = 600.0
    seed: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """Of the rank that leads; nodes: names. groups: of each, None where none are known."""

    outcome: PairOutcome
    nodes: Sequence[str]
    groups: Sequence[str] | None
    rails: int
    size_bytes: int


def rank_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR, MASTER_PORT, of torchrun's or Slurm's variables.

    Raises CannotMeet where it is neither.
    """
    if "RANK" in environment and "WORLD_SIZE" in environment:
        return {"LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1", **environment}
    if "SLURM_PROCID" not in environment or int(environment.get("SLURM_NTASKS", "1")) < 2:
        raise CannotMeet(
            "this is no rank of a job: start it by torchrun (torchrun --no-python ... whichrank check pairs) or srun"
        )
    try:
        first = expand_hostlist(environment.get("SLURM_STEP_NODELIST") or environment["SLURM_JOB_NODELIST"])[0]
    except (HostlistError, KeyError, IndexError):
        raise CannotMeet("SLURM_STEP_NODELIST names no nodes: set MASTER_ADDR") from None
    tasks = environment.get("SLURM_STEP_TASKS_PER_NODE", environment.get("SLURM_TASKS_PER_NODE", "1"))
    return {
        "MASTER_ADDR": first,
        "MASTER_PORT": str(DEFAULT_PORT),
        **environment,
        "RANK": environment["SLURM_PROCID"],
        "WORLD_SIZE": environment["SLURM_NTASKS"],
        "LOCAL_RANK": environment.get("SLURM_LOCALID", "0"),
        "LOCAL_WORLD_SIZE": tasks.partition("(")[0].partition(",")[0],
    }


def _need_torch() -> None:
    try:
        import torch  # noqa: F401 (whether it can be)
    except ModuleNotFoundError:
        needs = "torch is not installed: pip install 'whichrank[torch]'; the check exchanges data by torch.distributed"
        raise CannotMeet(needs) from None
    except ImportError as error:
        raise CannotMeet(f"torch cannot be imported ({error}); the check exchanges data by torch.distributed") from None


def take_part(plan: PairPlan) -> Result | None:
    """Takes part in the check to its end; the result where this rank leads, else None. Raises CannotMeet."""
    _need_torch()
    import torch

    environment = rank_environment(os.environ)
    os.environ.update({name: environment[name] for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")})
    local, rails = int(environment["LOCAL_RANK"]), int(environment["LOCAL_WORLD_SIZE"])
    backend = plan.backend
    if backend == "auto":
        backend = "nccl" if torch.cuda.is_available() and torch.distributed.is_nccl_available() else "gloo"
    device = "cpu"
    if backend == "nccl":
        device = f"cuda:{local}"
        torch.cuda.set_device(local)
    dist: Any = torch.distributed
    try:
        met, rank, world = next(dist.rendezvous("env://", timeout=timedelta(seconds=_MEET_S)))
        own = dist.PrefixStore("groups", met)
        dist.init_process_group(backend, timeout=timedelta(seconds=_MEET_S), store=own, rank=rank, world_size=world)
    except (RuntimeError, ValueError) as error:
        raise CannotMeet(f"the ranks did not meet: {str(error).splitlines()[0][:200]}") from None
    # Before two of them exchange anything all have to have met: NCCL makes its communicator then.
    dist.all_reduce(torch.zeros(1, device=device))
    place = PairRank(rank=dist.get_rank(), world=dist.get_world_size(), rails=rails)
    if place.world % rails or place.nodes < 2:
        raise CannotMeet(f"{place.world} ranks, {rails} a node: at least two nodes with as many ranks each are needed")
    store = dist.PrefixStore("pairs", met)
    store.set_timeout(timedelta(seconds=plan.timeout_s + _MEET_S))
    size_bytes = plan.size_bytes or (256 << 20 if backend == "nccl" else 4 << 20)
    effort = Effort(size_bytes=size_bytes, small=40, repeats=4, limit_s=20.0)
    way = TorchWay(torch, device)
    by_perftest = Perftest(store, place) if plan.perftest else None

    def measure(partner: int, tag: int, asked: Effort, leads: bool) -> Timed:
        timed = exchange(way, partner, tag, asked, leads=leads)
        # A sweep has no second for each pair.
        if by_perftest is None or timed.failed or asked.repeats == 1:
            return timed
        return by_perftest.instead_of(timed, partner, tag, asked, leads=leads)

    def ring(ranks: Sequence[int]) -> float:
        group = dist.new_group(list(ranks), use_local_synchronization=False)
        if place.rank not in ranks:
            return 0.0
        return all_reduce_seconds(torch, group, size_bytes, device)

    store.set(f"who/{place.rank}", json.dumps(_node_name()))
    renew = partial(way.renew, limit_s=_MEET_S) if backend == "gloo" else None
    follower = PairFollower(store, place, effort, measure, ring if plan.ring else None, renew)
    result = None
    if place.rank == 0:
        result = _lead(plan, place, store, effort, follower, is_fabric=backend == "nccl")
    else:
        follower.run()
    store.add("gone", 1)
    if place.rank == 0:
        _wait_for_all(store, place.world)
    return result


def _lead(
    plan: PairPlan, place: PairRank, store: Any, effort: Effort, follower: PairFollower, *, is_fabric: bool
) -> Result:
    names = [str(json.loads(store.get(f"who/{node * place.rails}"))) for node in range(place.nodes)]
    groups = None
    if plan.places:
        known = [plan.places.get(name, "") for name in names]
        groups = known if all(known) and len(set(known)) > 1 else None
    least = plan.least_bytes_per_s
    usual = _SLOWER_PERCENT if is_fabric else _SLOWER_PERCENT_OF_HOSTS
    percent = plan.slower_percent if plan.slower_percent is not None else usual
    planner = PairPlanner(
        place.nodes,
        groups=group_numbers(groups).tolist() if groups is not None else None,
        sweep=plan.sweep,
        limits=PairLimits(
            slower=1 / (1 - percent / 100),
            least_latency_s=_LEAST_LATENCY_S if is_fabric else _LEAST_LATENCY_OF_HOSTS_S,
            most_seconds=effort.size_bytes / least if least else inf,
        ),
        seed=plan.seed,
    )
    leader = PairLeader(store, place, effort, follower, until_s=time.monotonic() + plan.timeout_s)
    outcome = leader.run(planner, with_ring=plan.ring)
    return Result(outcome=outcome, nodes=names, groups=groups, rails=place.rails, size_bytes=effort.size_bytes)


def _wait_for_all(store: Any, world: int) -> None:
    """The store goes with the first rank: others read their last order from it."""
    until_s = time.monotonic() + 10.0
    while store.add("gone", 0) < world and time.monotonic() < until_s:
        time.sleep(0.02)


def _node_name() -> str:
    return os.environ.get("SLURMD_NODENAME") or socket.gethostname()
