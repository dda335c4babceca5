"""A job that plays collectives by hand and dumps as torch does: the fixtures of the flight-recorder tests."""

from __future__ import annotations

import json
import pickle
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from whichrank.diagnosis.flight_recorder.analysis import Diagnosis, analyse
from whichrank.diagnosis.flight_recorder.dump_files import DumpFiles

OPEN, STARTED, DONE = "scheduled", "started", "completed"
BASE_NS = 1_750_000_000_000_000_000


class PlayedJob:
    """``groups``: name -> (description, members). The group "0" of all ranks is always there."""

    def __init__(self, ranks: int, groups: Mapping[str, tuple[str, Sequence[int]]] | None = None) -> None:
        self.ranks = ranks
        self.groups: dict[str, tuple[str, list[int]]] = {"0": ("default_pg", list(range(ranks)))}
        for name, (description, members) in (groups or {}).items():
            self.groups[name] = (description, list(members))
        self.entries: dict[int, list[dict[str, Any]]] = {rank: [] for rank in range(ranks)}
        self._sequence: dict[tuple[str, int], int] = defaultdict(int)
        self._pair_sequence: dict[tuple[str, int], int] = defaultdict(int)
        self._record: dict[int, int] = defaultdict(int)
        self._done: dict[tuple[str, int], int] = defaultdict(int)
        self.clock_ns: dict[int, int] = defaultdict(int)

    def call(
        self,
        group: str,
        op: str = "all_reduce",
        *,
        by: Iterable[int] | None = None,
        state: str = DONE,
        sizes: Sequence[Sequence[int]] = ((1024,),),
        out: Sequence[Sequence[int]] | None = None,
        dtype: str = "Float",
        same_call: bool = False,
        line: int = 10,
    ) -> None:
        """A collective that ``by`` (default: all members) make. same_call: a further entry of a coalesced set."""
        for rank in self.groups[group][1] if by is None else by:
            if not same_call:
                self._sequence[group, rank] += 1
            if state == DONE:
                self._done[group, rank] = self._sequence[group, rank]
            self._add(rank, group, op, state, sizes, sizes if out is None else out, dtype, line, is_p2p=False)

    def pair(
        self, group: str, source: int, target: int, *, sent: str | None = DONE, received: str | None = DONE
    ) -> None:
        """A send and a receive by global rank; None: that side has not called."""
        members = sorted(self.groups[group][1])
        one, other = members.index(source), members.index(target)
        for rank, state, name in (
            (source, sent, f"send {one}->{other}"),
            (target, received, f"recv {other}<-{one}"),
        ):
            if state is not None:
                self._pair_sequence[group, rank] += 1
                self._add(rank, group, name, state, ((8, 8),), ((8, 8),), "BFloat16", 20, is_p2p=True)

    def _add(
        self,
        rank: int,
        group: str,
        op: str,
        state: str,
        sizes: Sequence[Sequence[int]],
        out: Sequence[Sequence[int]],
        dtype: str,
        line: int,
        *,
        is_p2p: bool,
    ) -> None:
        record = self._record[rank]
        self._record[rank] += 1
        created_ns = BASE_NS + record * 1_000_000 + self.clock_ns[rank]
        self.entries[rank].append(
            {
                "frames": [
                    {
                        "name": "wrapper",
                        "filename": "/venv/lib/python3.11/site-packages/torch/distributed/c10d.py",
                        "line": 83,
                    },
                    {"name": "step", "filename": "/home/user/train.py", "line": line},
                ],
                "record_id": record,
                "pg_id": self._pg_id(rank, group),
                "process_group": (group, self.groups[group][0]),
                "collective_seq_id": self._sequence[group, rank],
                "p2p_seq_id": self._pair_sequence[group, rank] if is_p2p else 0,
                "op_id": record,
                "profiling_name": f"nccl:{op}",
                "time_created_ns": created_ns,
                "input_sizes": [list(shape) for shape in sizes],
                "input_dtypes": [dtype] * len(sizes),
                "output_sizes": [list(shape) for shape in out],
                "output_dtypes": [dtype] * len(out),
                "state": state,
                "time_discovered_started_ns": created_ns + 1000 if state in (STARTED, DONE) else None,
                "time_discovered_completed_ns": created_ns + 2000 if state == DONE else None,
                "retired": state == DONE,
                "timeout_ms": 600_000,
                "is_p2p": is_p2p,
            }
        )

    def _pg_id(self, rank: int, group: str) -> int:
        return [name for name, (_, members) in self.groups.items() if rank in members].index(group)

    def dump(self, rank: int, *, newest: int | None = None, only_open: bool = False) -> dict[str, Any]:
        entries = self.entries[rank] if newest is None else self.entries[rank][-newest:]
        mine = {name: value for name, value in self.groups.items() if rank in value[1]}
        return {
            "version": "2.10",
            "pg_config": {
                name: {"name": name, "desc": description, "ranks": str(members)}
                for name, (description, members) in mine.items()
            },
            "pg_status": {
                str(self._pg_id(rank, name)): {
                    "last_enqueued_collective": self._pair_sequence[name, rank] or self._sequence[name, rank],
                    "last_started_collective": -1,
                    "last_completed_collective": self._done[name, rank],
                }
                for name in mine
            },
            "entries": [entry for entry in entries if not only_open or entry["state"] != DONE],
        }

    def files(
        self, *, without: Iterable[int] = (), newest: int | None = None, only_open: bool = False
    ) -> dict[str, bytes]:
        """Half of them pickles, half JSON: it must make no difference."""
        files: dict[str, bytes] = {}
        for rank in sorted(set(range(self.ranks)) - set(without)):
            raw = self.dump(rank, newest=newest, only_open=only_open)
            if rank % 2:
                files[f"nccl_trace_rank_{rank}.json"] = json.dumps(raw).encode()
            else:
                files[f"nccl_trace_rank_{rank}"] = pickle.dumps(raw, protocol=2)
        return files

    def diagnosis(
        self, *, without: Iterable[int] = (), newest: int | None = None, only_open: bool = False
    ) -> Diagnosis:
        return diagnose(self.files(without=without, newest=newest, only_open=only_open))


def diagnose(files: Mapping[str, bytes]) -> Diagnosis:
    collected = DumpFiles(len(files))
    for name, data in files.items():
        collected.add(name, data)
    return analyse(collected.dumps)


def named(diagnosis: Diagnosis) -> list[int]:
    return sorted(suspect.rank for suspect in diagnosis.suspects)


def mesh(tensor: int, data: int, pipeline: int) -> tuple[int, dict[str, tuple[str, list[int]]]]:
    """(ranks, groups) of a job: rank = (stage * data + replica) * tensor + part."""
    groups: dict[str, tuple[str, list[int]]] = {}

    def rank(stage: int, replica: int, part: int) -> int:
        return (stage * data + replica) * tensor + part

    for stage in range(pipeline):
        for replica in range(data):
            members = [rank(stage, replica, part) for part in range(tensor)]
            groups[str(len(groups) + 1)] = ("TP", members)
    for stage in range(pipeline):
        for part in range(tensor):
            members = [rank(stage, replica, part) for replica in range(data)]
            groups[str(len(groups) + 1)] = ("DP", members)
    for replica in range(data):
        for part in range(tensor):
            members = [rank(stage, replica, part) for stage in range(pipeline)]
            groups[str(len(groups) + 1)] = ("PP", members)
    return tensor * data * pipeline, groups


def group_of(job: PlayedJob, description: str, rank: int) -> str:
    return next(name for name, (one, members) in job.groups.items() if one == description and rank in members)
