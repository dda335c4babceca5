"""One exchange of two ranks, timed: small messages to and fro, then many bytes both ways. Over torch.distributed.

Both ends do the same; it is timed from the first answer on, so that nobody pays for a partner that comes late. The
last message of a large exchange answers for its arrival, so that both ends see the slower direction.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from statistics import median
from typing import Any, Protocol

#: Times the limit, for a partner that is still held up by the one before.
_PATIENCE = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Effort:
    """How much is exchanged. limit_s: no answer after so long is none. enough_s: no repeat begins after so long."""

    size_bytes: int
    small: int
    repeats: int
    limit_s: float = 10.0
    enough_s: float = 0.5

    def quick(self) -> Effort:
        """Of a sweep, where each meets all."""
        return Effort(
            size_bytes=max(self.size_bytes // 8, 1 << 14),
            small=max(self.small // 4, 4),
            repeats=1,
            limit_s=self.limit_s,
            enough_s=self.enough_s,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Timed:
    """As ``Exchange`` of ``diagnosis.pair_checks`` has them; failed: no answer came in time."""

    seconds: float = 0.0
    latency_s: float = 0.0
    stall_s: float = 0.0
    failed: bool = False


class Way(Protocol):
    """Messages of two ranks, both ways at once."""

    def small(self, partner: int, tag: int, word: int, limit_s: float) -> int:
        """Sends one byte, and returns the partner's. Raises RuntimeError where none comes in time."""

    def large(self, partner: int, tag: int, size_bytes: int, limit_s: float) -> None:
        """Sends and receives so many bytes. Raises RuntimeError where they do not come in time."""


def exchange(
    way: Way, partner: int, tag: int, effort: Effort, *, leads: bool, clock: Callable[[], float] = time.perf_counter
) -> Timed:
    """Exchanges with a rank that does the same. tag: the same at both ends, and never used before between the two.

    leads: exactly one of the two does; it says how often is enough.
    """
    limit_s = effort.limit_s
    try:
        way.small(partner, tag, 0, _PATIENCE * limit_s)  # it is here; it may have waited for another one before
        times: list[float] = []
        began_s = clock()
        for _ in range(effort.small):
            at_s = clock()
            way.small(partner, tag, 0, limit_s)
            times.append(clock() - at_s)
        latency_s = median(times)
        stall_s = max(times) - latency_s
        large: list[float] = []
        more = 1
        while more:
            at_s = clock()
            way.large(partner, tag, effort.size_bytes, limit_s)
            more = int(len(large) + 1 < effort.repeats and clock() - began_s < effort.enough_s)
            answer = way.small(partner, tag, more, limit_s)
            large.append(clock() - at_s)
            more = more if leads else answer
    except (RuntimeError, ValueError, OSError):
        return Timed(failed=True)
    best_s = min(large)
    # What a slow way needs for many bytes is no stall: only what the same way did faster at another time.
    return Timed(seconds=best_s, latency_s=latency_s, stall_s=max(stall_s, max(large) - best_s))


class TorchWay:
    """Over a process group of torch that is there. device: where its messages lie ("cpu", "cuda:3")."""

    def __init__(self, torch: Any, device: str) -> None:
        self._torch, self._device = torch, device
        self._dist = torch.distributed
        self._is_cuda = device.startswith("cuda")
        self._byte_out = torch.zeros(1, dtype=torch.uint8, device=device)
        self._byte_in = torch.zeros(1, dtype=torch.uint8, device=device)
        self._group: Any = None
        self._size_bytes = 0
        self._out: Any = None
        self._in: Any = None

    def small(self, partner: int, tag: int, word: int, limit_s: float) -> int:
        """As ``Way`` says."""
        self._byte_out.fill_(word)
        self._both(self._byte_out, self._byte_in, partner, tag, limit_s)
        return int(self._byte_in.item())

    def large(self, partner: int, tag: int, size_bytes: int, limit_s: float) -> None:
        """As ``Way`` says."""
        if size_bytes != self._size_bytes:
            self._size_bytes = size_bytes
            self._out = self._torch.ones(size_bytes, dtype=self._torch.uint8, device=self._device)
            self._in = self._torch.ones(size_bytes, dtype=self._torch.uint8, device=self._device)
        self._both(self._out, self._in, partner, tag, limit_s)

    def renew(self, ranks: Sequence[int], limit_s: float) -> None:
        """Makes a group of its own for these ranks, all of which call it: one message that gloo gave up on ends all
        that its group could do. Raises RuntimeError where they do not meet.
        """
        timeout = timedelta(seconds=limit_s)
        self._group = self._dist.new_group(list(ranks), timeout=timeout, use_local_synchronization=True)

    def _both(self, out: Any, into: Any, partner: int, tag: int, limit_s: float) -> None:
        op = self._dist.P2POp
        # gloo's tags keep a late message of an exchange that failed from being taken for one of the next.
        own = {"group": self._group} | ({} if self._is_cuda else {"tag": tag})
        ops = [op(self._dist.isend, out, partner, **own), op(self._dist.irecv, into, partner, **own)]
        works = self._dist.batch_isend_irecv(ops)
        if not self._is_cuda:
            for work in works:
                work.wait(timedelta(seconds=limit_s))
            return
        for work in works:
            work.wait()
        done = self._torch.cuda.Event()
        done.record()
        until_s = time.monotonic() + limit_s
        while not done.query():
            if time.monotonic() > until_s:
                raise RuntimeError("no answer")


def all_reduce_seconds(torch: Any, group: Any, size_bytes: int, device: str, repeats: int = 3) -> float:
    """The best time of an all-reduce of so many bytes over a group; 0 where it fails."""
    data = torch.ones(max(size_bytes // 4, 1), dtype=torch.float32, device=device)
    times: list[float] = []
    with suppress(RuntimeError):
        for _ in range(repeats + 1):  # the first one connects
            at_s = time.perf_counter()
            torch.distributed.all_reduce(data, group=group)
            if device.startswith("cuda"):
                torch.cuda.synchronize()
            times.append(time.perf_counter() - at_s)
    return min(times[1:], default=0.0)
