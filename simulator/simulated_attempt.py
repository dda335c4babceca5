"""One launch of a job on its nodes: its processes, what happens to them, what they do of it, and what is told.

Reactions are those of real launchers and libraries: a process that dies is noticed by its launcher, which ends the
others; a lost GPU is an error at the process's next call; whoever waits in NCCL waits until its watchdog aborts it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..agents.base.user_frames import UserFrame, format_stack, innermost_user_frame
from ..agents.reduction.large_jobs import is_large
from ..telemetry.records import Block, Event
from ..telemetry.vocabulary import EventName, Phase
from .attempt_agents import AttemptAgents
from .attempt_steps import AttemptSteps
from .clock import generator, ns, to_ns
from .dues import Dues
from .errors import not_met, user_frames, with_bad_norm, without_space
from .held_ranks import RankHere
from .jobs import JobSpec
from .live_steps import Conditions
from .node_agents import NodeClocks, groups_of
from .process_words import ProcessWords, identities_of
from .propagate import Stop
from .rank_processes import SIGABRT, SIGKILL, SIGTERM, Processes
from .ranks_here import RanksHere
from .unsent_events import TOLD_AFTER_S, UnsentEvents

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
#: Of a node's agent: between two flushes, and between two progress rows.
FLUSH_S = 0.5
#: Where they flush seldom, they do it when the minute begins, not all at once.
_FLUSHES_WITHIN_S = 2.0
_ARRIVES_AFTER_S = 0.004
#: A stopped process is looked at once its heartbeat is late, and again to be sure.
_STOP_SEEN_AFTER_S = 0.45
#: From then until its agent tells how the others stand who wait: its look after ``agents.job_agent._WITNESS_NS``.
_WITNESS_AFTER_S = 0.3
#: From an exception until the interpreter has gone.
_UNWINDS_S = 0.6
#: What a rank's ring holds of its past: who reads it again after so long finds all that was written meanwhile.
_RING_HOLDS_S = 60.0
#: Of steps that will never begin, from when they would have.
_NEVER_BEGUN_S = 1e8
Ships = Callable[[float, str, list[Block | Event]], None]


class SimulatedAttempt:
    """One launch of a job. number: 0 for a job's first launch. steps_before: made by earlier ones and saved."""

    def __init__(
        self,
        spec: JobSpec,
        *,
        number: int,
        began_s: float,
        steps_before: int,
        seed: int,
        cluster: str,
        node_names: list[str],
        clocks: NodeClocks,
        conditions: Callable[[int], Conditions],
        says: Callable[[float, int, str, dict[str, Any]], None],
        joins: NDArray[np.bool_],
        flush_s: float = FLUSH_S,
    ) -> None:
        """node_names, clocks: by node of the job. says: a process's or kernel's word: time, rank, what, details.
        joins: by rank, whether it finds the others. flush_s: between two flushes of an agent.
        """
        self.spec, self.number, self.began_s, self.steps_before = spec, number, began_s, steps_before
        self.restored = bool(steps_before)
        self._node_names, self._clocks, self.says = node_names, clocks, says
        words = seed, spec.name, number
        random = generator(*words, "start")
        world, per_node = spec.mesh.world_size, spec.ranks_per_node
        self.node_of_rank = np.arange(world) // per_node
        started = began_s + 2.0 + random.uniform(0.0, 1.0, world)
        self.processes = Processes(world, 4000 + 100 * number + np.arange(world) % per_node * 7, started)
        self._joined_s = joined = float(started.max()) + 3.0 if joins.all() else np.inf
        #: By rank: when it asks for what it needs before it meets the others; inf: it does not come so far.
        self.asks_s = np.where(joins, started + 1.5, np.inf)
        begins = joined + (spec.restore_s if self.restored else 1.0) + random.uniform(0.0, 0.2, world)
        self.restores_s, self.first_step_s = joined, float(begins.max())
        self.steps = AttemptSteps(
            mesh=spec.mesh,
            recipe=spec.recipe,
            noise=spec.noise,
            words=words,
            begin_s=begins,
            phase_before=Phase.RESTORE if self.restored else Phase.INIT,
            since_ns=to_ns(np.full(world, joined) if self.restored else started),
            look_offset_ns=random.integers(0, 100_000_000, world),
            conditions=conditions,
            steps_only=spec.steps_only,
        )
        self._flush_offset_s = random.uniform(0.0, min(flush_s, _FLUSHES_WITHIN_S), len(node_names))
        self._flushes, self._is_large = random.integers(0, 2, len(node_names)), is_large(world) and flush_s == FLUSH_S
        self._identities = identities_of(spec, number, cluster, node_names)
        self._groups = groups_of(spec.mesh, spec.recipe.backend, spec.recipe.timeout_s)
        self._agents = AttemptAgents(spec, self._identities, self._groups, clocks)
        self._words = ProcessWords(spec, number, node_names, self.processes, self.steps)
        self._here, self._dues = RanksHere(self._identities, self.node_of_rank, per_node), Dues()
        self._telling = UnsentEvents(self._identities, self._clocks, self.node_of_rank)
        #: By rank: it has been told to end, or has met an error.
        self._doomed = np.zeros(world, bool)
        #: Since when its quota has no room for what it writes; when all of it is taken down.
        self.no_space_since_s = self._takedown_s = np.inf
        self.nodes_down: set[int] = set()
        self._begin(joins)

    # --- what goes on -------------------------------------------------------------------------------------------------
    @property
    def ended_s(self) -> float:
        """When the last process has ended, in seconds of the simulation; inf while one lives."""
        return float(self.processes.ended_s.max())

    def advance(self, until_s: float) -> None:
        """Makes steps until ``until_s``, and does what happens by itself till then: time-outs, errors, what is due."""
        self.steps.extend(until_s, self.processes)
        self._watch_for_timeouts(until_s)
        if np.isfinite(self.no_space_since_s):
            without_space(self, self.no_space_since_s)
        if self.spec.recipe.guards:
            with_bad_norm(self)
        self._dues.act_until(until_s)

    def end_agent(self, node: int, at_s: float) -> None:
        """The agent of a node of the job is told to end at ``at_s``, and tells so if it has ranks; they go on."""
        here, processes = self.node_of_rank == node, self.processes
        if ((processes.started_s <= at_s) & (processes.ended_s > at_s) & here).any():
            self._telling.of_node(EventName.AGENT_STOPPED, node, at_s, {})
            self._telling.witness(node, at_s + TOLD_AFTER_S)

    def ship(self, from_s: float, until_s: float, ships: Ships, heard_until_s: Floats) -> None:
        """What the agents send in this window. heard_until_s: by node of the job, when its agent ends."""
        self._flushes += 1  # of a large job's, each has progress, and there is none between
        regular = np.where(self._is_large & (self._flushes % 2 == 1), np.inf, from_s + self._flush_offset_s)
        created = float(self.processes.started_s.min())
        for moments, at_once in self._telling.flushes(regular, from_s, until_s):
            active = np.isfinite(moments) & (moments > created) & (moments <= heard_until_s)
            if active.any():
                progress = active & (at_once | (self._flushes % 2 == 0)) & (not self.spec.steps_only)
                self._flush(moments, active, progress, ships)
        read_ns = self._agents.read_until_ns()
        self.steps.prune(min(ns(from_s - 1.0), max(read_ns, ns(from_s - _RING_HOLDS_S))), self.processes)

    def _flush(self, moments: Floats, active: NDArray[np.bool_], progress: NDArray[np.bool_], ships: Ships) -> None:
        if not self.steps.live:  # they are at their start: so far the first step says where they stand
            self.steps.lay_out_first(self.processes)
        blocks = self._agents.flush(moments, active, progress, self.steps, self.processes)
        for node in np.flatnonzero(active).tolist():
            payloads = self._telling.take(node, float(moments[node]), blocks.get(node, ()))
            self._agents.forget_ended(node, float(moments[node]))
            if payloads:
                ships(float(moments[node]) + _ARRIVES_AFTER_S, self._node_names[node], payloads)

    def ranks_here(self, at_s: float, gpus: Ints, nodes: NDArray[np.bool_]) -> dict[int, dict[int, RankHere]]:
        """By place of their node in the job, and pid: the ranks that run at ``at_s``. gpus: by rank.

        nodes: by node of the job, whether it counts. A node's ranks are the same object as at the last call, as long as
        they are the same.
        """
        return self._here.look(at_s, gpus, nodes, self.processes, self.steps)

    def never_meet(self) -> None:
        """Some rank cannot come to the meeting: drops what would follow it (groups, steps), so that no step begins."""
        self._telling.forget_from(self._joined_s)
        self.first_step_s += _NEVER_BEGUN_S
        self.steps.begin_s = self.steps.begin_s + _NEVER_BEGUN_S
        for live in self.steps.live[:1]:
            live.begin_s = live.device_s = self.steps.begin_s
        self.steps.recompute(self.processes)

    def set_clocks(self, wall_ns: Ints) -> None:
        """Sets the wall clocks, which the nodes' agents share. wall_ns: by node of the job."""
        self._clocks.wall_ns[:] = wall_ns

    # --- the start ----------------------------------------------------------------------------------------------------
    def _begin(self, joins: NDArray[np.bool_]) -> None:
        for rank in range(self.spec.mesh.world_size):
            at_s = float(self.processes.started_s[rank])
            self._telling.before(EventName.RANK_STARTED, rank, at_s, self._words.started(rank))
            for joined, when_s in ((False, float(self.asks_s[rank])), (True, self._joined_s)):
                attributes = {
                    "joined": joined,
                    "timeout_s": self.spec.recipe.timeout_s,
                    "pid": int(self.processes.pid[rank]),
                }
                if when_s < np.inf:
                    self._telling.behind(EventName.RANK_JOINING, rank, when_s, attributes)
        if self._joined_s == np.inf:
            if joins.any():
                gives_up_s = float(self.asks_s[joins].max()) + self.spec.recipe.timeout_s
                self.at(gives_up_s, partial(not_met, self, joins))
            return
        token = f"{self.spec.name}-{self.number}"
        for node in range(len(self._node_names)):
            self._telling.of_node(EventName.LAUNCH_MET, node, self._joined_s, {"token": token})
            ranks = np.flatnonzero(self.node_of_rank == node)
            for groups, group_of in self._groups:
                for place in np.unique(group_of[ranks]).tolist():
                    group = groups[place]
                    told = {name: getattr(group, name) for name in group.__slots__}
                    self._telling.of_node(EventName.GROUP_DEFINED, node, self._joined_s, told)

    # --- what happens to processes ------------------------------------------------------------------------------------
    def stand(self, kind: Stop, ranks: Ints, at_s: float) -> None:
        """Lets ranks stand still for this reason from ``at_s`` on; steps under way are computed again."""
        self.steps.extend(at_s, self.processes)
        self.processes.stand(kind, ranks, at_s)
        self.steps.recompute(self.processes)

    def go_on(self, kind: Stop, ranks: Ints, at_s: float) -> None:
        """Lets ranks that stand for this reason go on at ``at_s``; steps under way are computed again."""
        self.processes.go_on(kind, ranks, at_s)
        self.steps.recompute(self.processes)

    def stop(self, ranks: Ints, at_s: float) -> None:
        """SIGSTOP to those of the ranks that live; their agents tell a moment later."""
        ranks = ranks[self.processes.alive[ranks]]
        self.processes.stopped.since_s[ranks], self.processes.stopped.until_s[ranks] = at_s, np.inf
        self.stand(Stop.HOST, ranks, at_s)
        for rank in ranks.tolist():
            self._tell_later(EventName.RANK_STOPPED, rank, at_s + _STOP_SEEN_AFTER_S)

    def resume(self, ranks: Ints, at_s: float) -> None:
        """SIGCONT to stopped ranks at ``at_s``: they go on, and their agents tell so."""
        self.processes.stopped.until_s[ranks] = at_s
        self.go_on(Stop.HOST, ranks, at_s)
        for rank in ranks.tolist():
            self._tell_later(EventName.RANK_CONTINUED, rank, at_s + 0.1)

    def wait_in_driver(self, ranks: Ints, at_s: float) -> None:
        """From ``at_s`` on the ranks' hosts stand in a call of the driver that never returns."""
        self.processes.in_driver_since_s[ranks] = np.minimum(self.processes.in_driver_since_s[ranks], at_s)
        self.stand(Stop.HOST, ranks, at_s)

    def die(self, ranks: Ints, at_s: Floats, *, code: int = -1, signal: int = 0) -> None:
        """Ends processes (at_s: by rank given); agents tell of it, and their launchers take down the rest later.

        Ranks that ended before are left out. code: exit code, -1 none; signal: 0 none.
        """
        self.steps.extend(float(at_s.min()), self.processes)
        ended = self.processes.end(ranks, at_s, code=code, signal=signal)
        if not ended.size:
            return
        self.steps.recompute(self.processes)
        self._doomed[ended] = True
        for rank in ended.tolist():
            when_s = float(self.processes.ended_s[rank])
            node = int(self.node_of_rank[rank])
            if node in self.nodes_down:
                continue
            self._telling.behind(EventName.RANK_EXIT, rank, when_s, self._words.exit(rank, when_s))
            self._agents.forget_later(rank, when_s)
        first_s = float(self.processes.ended_s[ended].min())
        if np.isinf(self._takedown_s):
            self._be_noticed(ended, first_s)

    def _be_noticed(self, ended: Ints, at_s: float) -> None:
        """The first processes of the attempt have ended: who is told, and when all others are ended."""
        launcher = self.spec.launcher
        nodes = {int(self.node_of_rank[rank]) for rank in ended.tolist()} - self.nodes_down
        self._takedown_s = at_s + (launcher.kills_all_s if nodes else launcher.lost_node_s)
        self.at(self._takedown_s, self.terminate)
        for node in nodes:
            self.at(at_s + launcher.notices_s, partial(self._end_node, node))
        if nodes:  # a kernel closes the connections of its dead; one that is gone itself does not
            self._break_off_peers(at_s)

    def lose_node(self, node: int, at_s: float) -> None:
        """Power or kernel of a node (place in the job) is gone: its ranks are killed, and nothing tells of it."""
        self.nodes_down.add(node)
        ranks = np.flatnonzero(self.node_of_rank == node)
        self.die(ranks, np.full(ranks.size, at_s), signal=SIGKILL)

    def raise_in(
        self,
        ranks: Ints,
        at_s: Floats,
        type_name: str,
        message: str,
        frames: tuple[UserFrame, ...],
        *,
        is_victim: bool = False,
    ) -> Ints:
        """An uncaught exception in the main thread, and the end of the process a little later. Returns who raises it:
        whoever lives, has not met another one, and comes to it."""
        fresh = self.processes.alive[ranks] & ~self._doomed[ranks] & np.isfinite(at_s)
        ranks, at_s = ranks[fresh], at_s[fresh]
        if not ranks.size:
            return ranks
        self._doomed[ranks] = self.processes.raised[ranks] = True
        frame = innermost_user_frame(frames)
        for rank, when_s in zip(ranks.tolist(), at_s.tolist(), strict=True):
            step, phase = self.steps.phase_at(rank, when_s)
            attributes: dict[str, Any] = {
                "step": step, "phase": phase.name.lower(), "pid": int(self.processes.pid[rank]), "type": type_name,
                "message": message, "stack": format_stack(frames), "communication": is_victim, "in_main": True,
            }  # fmt: skip
            if frame is not None:
                attributes |= {"file": frame.file, "line": frame.line, "function": frame.function}
            self._telling.behind(EventName.RANK_EXCEPTION, rank, when_s, attributes)
            self.says(when_s, rank, "exception", {"type": type_name, "message": message})
            self.processes.stops[Stop.HOST].since_s[rank] = min(when_s, self.processes.stops[Stop.HOST].since_s[rank])
            self.processes.stops[Stop.HOST].until_s[rank] = np.inf
        self.steps.recompute(self.processes)
        for rank, when_s in zip(ranks.tolist(), at_s.tolist(), strict=True):
            self.at(when_s + _UNWINDS_S, partial(self._exit, rank))
        return ranks

    def terminate(self, at_s: float) -> None:
        """The launcher ends all ranks that live, by SIGTERM, within 0.2 s of ``at_s``."""
        ranks = np.flatnonzero(self.processes.alive)
        random = generator(self.spec.name, self.number, "takedown")
        if ranks.size:
            self.die(ranks, at_s + random.uniform(0.0, 0.2, ranks.size), signal=SIGTERM)

    def finish(self, at_s: float) -> None:
        """The script comes to its end at ``at_s``: ranks that live leave by themselves with exit code 0."""
        ranks = np.flatnonzero(self.processes.alive)
        random = generator(self.spec.name, self.number, "leaving")
        if ranks.size:
            self.die(ranks, at_s + random.uniform(0.1, 0.3, ranks.size), code=0)

    def kill_for_memory(self, rank: int, at_s: float) -> None:
        """At ``at_s`` the kernel kills the rank's process, if it lives, and says so."""

        def kill(at: float) -> None:
            if self.processes.alive[rank]:
                self.says(at, rank, "oom_kill", {"pid": int(self.processes.pid[rank])})
                self.die(np.array([rank]), np.array([at]), signal=SIGKILL)

        self.at(at_s, kill)

    def _break_off_peers(self, at_s: float) -> None:
        """Connections of the dead close: some of its peers hear of it at once, all others when they are ended."""
        oldest = self.steps.oldest_open_s(at_s + 0.05)
        waiting = np.flatnonzero(np.isfinite(oldest) & self.processes.alive & ~self._doomed)
        random = generator(self.spec.name, self.number, "peers")
        gloo = self.spec.recipe.backend == "gloo"
        hears = waiting if gloo else waiting[random.random(waiting.size) < self.spec.launcher.peers_hear]
        if not hears.size:
            return
        delay_s = random.uniform(0.005, 0.05, hears.size) if gloo else random.uniform(0.3, 1.8, hears.size)
        if gloo:
            type_name, message = (
                "RuntimeError",
                "[gloo/transport/tcp/pair.cc:547] Connection closed by peer [10.0.0.7]:4711",
            )
        else:
            type_name = "torch.distributed.DistBackendError"
            message = "NCCL error: remote process exited or there was a network error, NCCL version 2.27.3"
        for rank, when_s in zip(hears.tolist(), (at_s + delay_s).tolist(), strict=True):
            self.at(when_s, partial(self._hear_of_it, rank, type_name, message))

    def _hear_of_it(self, rank: int, type_name: str, message: str, at_s: float) -> None:
        frames = user_frames("train_step", 92)
        self.raise_in(np.array([rank]), np.array([at_s]), type_name, message, frames, is_victim=True)

    def _exit(self, rank: int, at_s: float) -> None:
        self.die(np.array([rank]), np.array([at_s]), code=1)

    def _end_node(self, node: int, at_s: float) -> None:
        ranks = np.flatnonzero((self.node_of_rank == node) & self.processes.alive)
        if ranks.size:
            self.die(ranks, np.full(ranks.size, at_s), signal=SIGTERM)

    def _watch_for_timeouts(self, until_s: float) -> None:
        """NCCL's watchdog aborts whoever has waited too long; gloo raises."""
        oldest = self.steps.oldest_open_s(until_s)
        due_s = oldest + self.spec.recipe.timeout_s
        late = np.flatnonzero((due_s < until_s) & self.processes.alive & ~self._doomed)
        if late.size:
            self.die(late, due_s[late], signal=SIGABRT)

    # --- words --------------------------------------------------------------------------------------------------------
    def _tell_later(self, name: EventName, rank: int, at_s: float) -> None:
        def tell(at: float) -> None:
            if self.processes.alive[rank]:
                step, phase = self.steps.phase_at(rank, at)
                where = {"step": step, "phase": phase.name.lower(), "pid": int(self.processes.pid[rank])}
                self._telling.behind(name, rank, at, where)
                if name is EventName.RANK_STOPPED:
                    self._telling.witness(int(self.node_of_rank[rank]), at + _WITNESS_AFTER_S)

        self.at(at_s, tell)

    def at(self, at_s: float, act: Callable[[float], None]) -> None:
        """Lets ``act`` be called when the attempt comes to ``at_s``; it is given that time."""
        self._dues.put(at_s, act)
