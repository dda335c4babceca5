"""Runs of one seed in the same cluster are one until the first change: their beginning is simulated and judged once.

A process goes through it, and where a run goes its own way leaves a copy of itself (fork) that goes on with that run.
What comes out is to the byte what the run gives by itself.
"""

from __future__ import annotations

import math
import multiprocessing
import os
import resource
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import replace
from multiprocessing.connection import Connection

from ...commands.support.gc_tuning import search_seldom
from ...simulator.scenarios.scenarios import Setting
from ...simulator.simulated_attempt import FLUSH_S
from ...simulator.world import World
from .one_run import AskedRun, MeasuredRun, UnderWay, truth_before

#: A shorter beginning is not worth a copy.
SHORTEST_S = 30.0
#: A copy looks so often whether anybody waits for it.
_LOOK_S = 5.0
_END_S = 5.0


def together(runs: Sequence[AskedRun]) -> list[list[AskedRun]]:
    """Groups of runs that share their beginning, in the order of the first of each.

    Many runs are alone, as is what cannot be laid out.
    """
    found: dict[object, list[AskedRun]] = {}
    for asked in runs:
        found.setdefault(_what_is_shared(asked), []).append(asked)
    return list(found.values())


def _what_is_shared(asked: AskedRun) -> object:
    try:
        setting = asked.setting()
    except ValueError:
        return asked
    return asked if fork_s(setting) < SHORTEST_S else (setting.topology, setting.jobs, asked.seed)


def fork_s(setting: Setting) -> float:
    """The end (seconds of the simulation) of the last window before anything changes; infinite where nothing does."""
    if math.isinf(setting.undisturbed_s):
        return math.inf
    return max(0.0, FLUSH_S * (math.ceil(setting.undisturbed_s / FLUSH_S) - 1))


def run_together(runs: Sequence[AskedRun], *, limit_s: float) -> Iterator[tuple[AskedRun, MeasuredRun]]:
    """Runs a group with a common beginning, and gives each run as it is done, in an order of its own.

    runs: of ``together``. limit_s: for each after the beginning, and for what comes before it.
    """
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_work, args=(list(runs), theirs, limit_s), daemon=True)
    process.start()
    theirs.close()
    left, problem, is_late = list(runs), "", False
    try:
        while left:
            if not ours.poll(2.0 * limit_s):  # a copy that is late has been ended before, and costs no other
                problem, is_late = f"not done after {limit_s:.0f} s", True
                break
            place, measured = ours.recv()
            asked = runs[place]
            left.remove(asked)
            yield asked, measured if measured.truth is not None else replace(measured, truth=truth_before(asked))
    except EOFError:
        process.join(_END_S)
        problem = f"the process ended with {process.exitcode}"
    finally:
        process.kill()
        process.join(_END_S)
        ours.close()
    for asked in left:
        yield asked, MeasuredRun(truth=truth_before(asked), out_of_time=is_late, problem=problem)


def _work(runs: Sequence[AskedRun], results: Connection, limit_s: float) -> None:
    """In a process of its own, which has one thread: a copy of it is whole."""
    resource.setrlimit(resource.RLIMIT_DATA, (max(asked.most_memory_bytes for asked in runs),) * 2)
    search_seldom()  # as a service does
    settings = [asked.setting() for asked in runs]
    first = settings[0]
    under_way = UnderWay(World(first.topology, first.jobs, seed=runs[0].seed))
    for place in sorted(range(len(runs)), key=lambda place: fork_s(settings[place])):
        under_way.go_on(min(fork_s(settings[place]), runs[place].seconds))
        results.send((place, _in_a_copy(under_way, runs[place], settings[place], limit_s)))
    results.close()


def _in_a_copy(under_way: UnderWay, asked: AskedRun, setting: Setting, limit_s: float) -> MeasuredRun:
    """Without a truth where it gives nothing."""
    ours, theirs = multiprocessing.Pipe(duplex=False)
    parent = os.getpid()
    copy = os.fork()
    if not copy:
        try:
            ours.close()
            theirs.send(_finish(under_way, asked, setting, parent))
            theirs.close()
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    theirs.close()
    try:
        if not ours.poll(limit_s):
            os.kill(copy, 9)
            return MeasuredRun(truth=None, out_of_time=True, problem=f"not done after {limit_s:.0f} s")
        result = ours.recv()
        assert isinstance(result, MeasuredRun)
        return result
    except EOFError:
        return MeasuredRun(truth=None, problem="its process ended")
    finally:
        ours.close()
        os.waitpid(copy, 0)


def _finish(under_way: UnderWay, asked: AskedRun, setting: Setting, parent: int) -> MeasuredRun:
    try:
        under_way.world.expect(setting.changes, setting.truths, scenario=asked.scenario)
        while under_way.world.now_s < asked.seconds:
            under_way.go_on(min(under_way.world.now_s + _LOOK_S, asked.seconds))
            if os.getppid() != parent:
                os._exit(1)  # nobody waits for it any more
        return under_way.end()
    except MemoryError:
        return MeasuredRun(truth=None, problem=f"needs more than {asked.most_memory_bytes >> 20} MiB of memory")
