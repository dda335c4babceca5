"""What ``simulator.propagate`` computes, rank by rank and call by call, slowly and plainly: its measure.

Each rank goes on as far as it can; a collective ends for all of its members when the last of them has come.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from whichrank.simulator.program import Does, ProgramOperation, StepProgram
from whichrank.simulator.propagate import CALL_S, StepGiven, Stop, share_of_bytes


@dataclass
class PlainRank:
    rank: int
    host: float
    device: float
    at: int = 0
    waits: bool = False
    called: list[float] = field(default_factory=list)
    began: list[float] = field(default_factory=list)
    ended: list[float] = field(default_factory=list)


def through(begin: float, seconds: float, given: StepGiven, kinds: tuple[Stop, ...], rank: int) -> float:
    """Held up by the earliest of these standstills only, as in life one of them is enough."""
    chosen = [given.stops[kind] for kind in kinds if kind in given.stops]
    if not chosen:
        return begin + seconds
    stop = min(chosen, key=lambda stop: float(stop.since_s[rank]))
    since, until = float(stop.since_s[rank]), float(stop.until_s[rank])
    end = begin + seconds
    if end > since and begin < until:
        end += until - max(begin, since)
    return end


def propagate_plainly(program: StepProgram, given: StepGiven) -> list[PlainRank]:
    mesh = program.mesh
    ranks = [PlainRank(r, float(given.host_s[r]), float(given.device_s[r])) for r in range(mesh.world_size)]
    number = {name: mesh.group_of(name).tolist() for name in mesh.dimensions}
    sent: dict[tuple[int, int], list[float]] = {}
    # Members that stand in the n-th call of a group.
    standing: dict[tuple[str, int], list[PlainRank]] = {}
    pauses = {(pause.rank, pause.place): pause.seconds for pause in given.pauses}

    def operations(rank: PlainRank) -> tuple[ProgramOperation, ...]:
        return program.stages[rank.rank // mesh.stage_size]

    def launch(rank: PlainRank, seconds: float) -> tuple[float, float]:
        ready = rank.host + pauses.get((rank.rank, rank.at), 0.0)
        ready = through(ready, 0.0, given, (Stop.HOST,), rank.rank)
        rank.host = through(ready, seconds, given, (Stop.HOST,), rank.rank)
        return ready, rank.host

    def finish(rank: PlainRank, called: float, began: float, ended: float) -> None:
        rank.called.append(called)
        rank.began.append(began)
        rank.ended.append(ended)
        rank.at += 1

    def does(rank: PlainRank, ended: float) -> None:
        rank.device = ended
        if not given.runs_ahead:
            rank.host = ended

    def carried(begun: float, seconds: float, rank: int, group: str) -> float:
        by_nvlink = group == "tp" or (group == "dp" and mesh.tensor == 1)
        kinds = [Stop.DEVICE] + [Stop.LINK] * (group != "tp") + [Stop.NVLINK] * by_nvlink
        kinds += [] if given.runs_ahead else [Stop.HOST]
        return max(through(begun, seconds, given, (kind,), rank) for kind in kinds)

    def step(rank: PlainRank) -> bool:
        operation, r = operations(rank)[rank.at], rank.rank
        stage, inside = divmod(r, mesh.stage_size)
        if operation.does in (Does.COMPUTE, Does.EVALUATE):
            seconds = operation.work_s * float(given.kernel_pace[r])
            if given.jitter is not None:
                seconds *= float(given.jitter[stage][rank.at, inside])
            if given.runs_ahead:
                ready, launched = launch(rank, operation.work_s * given.launch_share * float(given.launch_pace[r]))
                began = max(rank.device, ready)
                ended = max(through(began, seconds, given, (Stop.DEVICE, Stop.KERNEL), r), launched)
            else:
                ready, launched = launch(rank, 0.0)
                began = max(rank.device, ready)
                ended = through(began, seconds, given, (Stop.HOST, Stop.DEVICE, Stop.KERNEL), r)
            does(rank, ended)
            finish(rank, ready, began, ended)
            return True
        if not operation.is_recorded:
            began = rank.host
            if operation.does is Does.SYNC:
                ended = max(began, rank.device)
            elif operation.does is Does.HOST:
                ended = through(began, operation.work_s * float(given.launch_pace[r]), given, (Stop.HOST,), r)
            else:
                seconds = float((given.input_s if operation.does is Does.INPUT else given.save_s)[r])
                ended = through(through(began, seconds, given, (Stop.INPUT,), r), 0.0, given, (Stop.HOST,), r)
            ended += pauses.get((r, rank.at), 0.0)
            rank.host = ended
            if not given.runs_ahead:
                rank.device = max(rank.device, ended)
            finish(rank, began, began, ended)
            return True
        if rank.waits:
            return False
        if operation.does is Does.RECV:
            peer = operation.peer * mesh.stage_size + inside
            if not sent.get((peer, r)):
                return False
        _, called = launch(rank, CALL_S)
        began = through(max(called, rank.device), 0.0, given, (Stop.DEVICE,), r)
        if operation.does is Does.SEND:
            ended = carried(began, operation.nbytes / float(given.rate["pp"][r]), r, "pp")
            sent.setdefault((r, operation.peer * mesh.stage_size + inside), []).append(ended)
            finish(rank, called, began, ended)
            return True
        if operation.does is Does.RECV:
            peer = operation.peer * mesh.stage_size + inside
            ended = max(began, sent[peer, r].pop(0))
            does(rank, ended)
            finish(rank, called, began, ended)
            return True
        rank.called.append(called)
        rank.began.append(began)
        rank.waits = True
        key = (operation.group, number[operation.group][r])
        members = standing.setdefault(key, [])
        members.append(rank)
        if len(members) < mesh.size_of(operation.group):
            return True
        last = max(member.began[-1] for member in members)
        size = mesh.size_of(operation.group)
        ended = -math.inf
        for member in members:
            mine = operations(member)[member.at]
            rate = float(given.rate[mine.group][member.rank])
            seconds = given.latency_s[mine.group] * math.ceil(math.log2(max(size, 2)))
            seconds += mine.nbytes * share_of_bytes(mine.op, size) / rate
            ended = max(ended, carried(last, seconds, member.rank, mine.group))
            if mine.may_differ and given.differs is not None and given.differs[member.rank]:
                ended = math.inf
        for member in members:
            member.waits = False
            member.ended.append(ended)
            member.at += 1
            does(member, ended)
        del standing[key]
        return True

    moved = True
    while moved:
        moved = False
        for rank in ranks:
            while rank.at < len(operations(rank)) and step(rank):
                moved = True
    assert all(rank.at == len(operations(rank)) for rank in ranks), "ranks wait for each other for ever"
    return ranks
