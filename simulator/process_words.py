"""What agents tell of processes of an attempt: how one began, and how it ended."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..telemetry.identity import launch_id
from ..telemetry.records import Identity
from ..telemetry.vocabulary import ExitState
from .attempt_steps import AttemptSteps
from .errors import SCRIPT
from .jobs import JobSpec
from .rank_processes import CAUGHT, SIGTERM, Processes

#: Process id of the first launch's launcher, on every node.
_LAUNCHER_PID = 3900


def identities_of(spec: JobSpec, number: int, cluster: str, node_names: Sequence[str]) -> list[Identity]:
    """By node of the job, the identity that its agent tells. number: of the launch."""
    return [
        Identity(
            cluster=cluster,
            run=spec.run or spec.name,
            job=spec.name,
            attempt=launch_id(
                spec.name, node, "", launcher_pid=_LAUNCHER_PID + number, launcher_start_ticks=1, restart_count=number
            ),
            node=node,
        )
        for node in node_names
    ]


class ProcessWords:
    """What agents tell of an attempt's processes, as attributes of events. number: of the launch."""

    def __init__(
        self, spec: JobSpec, number: int, node_names: Sequence[str], processes: Processes, steps: AttemptSteps
    ) -> None:
        self._spec, self._number, self._node_names = spec, number, node_names
        self._processes, self._steps = processes, steps

    def started(self, rank: int) -> dict[str, Any]:
        """Attributes of the event RANK_STARTED of this rank."""
        return {
            "pid": int(self._processes.pid[rank]),
            "local_rank": rank % self._spec.ranks_per_node,
            "world_size": self._spec.mesh.world_size,
            "writer": "c",
            "launcher_pid": _LAUNCHER_PID + self._number,
            "restart_count": self._number,
            "owner_uid": 1000,
            "host": self._node_names[rank // self._spec.ranks_per_node],
            "backend": "hooks",
            "script": SCRIPT,
        }

    def exit(self, rank: int, at_s: float) -> dict[str, Any]:
        """Attributes of the event RANK_EXIT of this rank, which has ended at ``at_s``."""
        step, phase = self._steps.phase_at(rank, at_s)
        processes = self._processes
        signal = int(processes.signal[rank])
        state = ExitState.EXCEPTION if processes.raised[rank] else ExitState.RUNNING
        if not signal and processes.exit_code[rank] == 0:
            state = ExitState.NORMAL
        words: dict[str, Any] = {
            "step": step,
            "phase": phase.name.lower(),
            "pid": int(processes.pid[rank]),
            "signal": signal,
            "exit_state": int(ExitState.SIGNAL if signal in CAUGHT else state),
            "exception": bool(processes.raised[rank]),
            "core": False,
        }
        if not signal:
            words["exit_code"] = int(processes.exit_code[rank])
        if signal == SIGTERM:
            words["sender_pid"] = _LAUNCHER_PID + self._number
        return words
