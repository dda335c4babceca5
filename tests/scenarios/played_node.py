"""A node, or two, with played GPUs and a kernel log of their own, and what happens to them while a job runs.

The GPUs are ``tests.played_gpu`` (NVIDIA's library, in C, from a script); the kernel log is a file that gets the lines
a driver writes. What happens to a rank happens in the rank, as in every scenario. Each ``beside`` here waits for the
rank's onset, as a device does that takes its user with it, and does to the node what the scenario says; then both are
there to be seen, or, in the controls, something that only looks like a cause.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeVar

from tests.agents.collectors import stalling_fuse
from tests.played_gpu.played import PlayedGpus, Profile, can_be_built

from .nodes import NAMES, UPTIME_S, TwoNodes
from .nodes import missing as missing_nodes
from .plan import Plan, Scenario
from .runner import Job

POLL_S = 0.005
Beside = Callable[[Job, threading.Event], None]
Played = TypeVar("Played", "PlayedNode", "PlayedNodes")
#: A node has eight GPUs, and ranks are not on them in their order.
_PLACES = (5, 2, 7, 0, 3, 6, 1, 4)


def missing() -> str:
    """Why GPUs cannot be played here; empty: they can."""
    return "" if can_be_built() else "the played driver needs a C compiler"


def missing_two_nodes() -> str:
    return missing() or missing_nodes()


def missing_fuse() -> str:
    return "" if os.geteuid() == 0 and os.access("/dev/fuse", os.W_OK) else "a FUSE mount needs root and /dev/fuse"


def missing_cgroup() -> str:
    """Why no process can be put into a memory cgroup of its own, or the kernel's log not be read."""
    folders = ("/sys/fs/cgroup/memory", "/sys/fs/cgroup")
    writable = any(os.access(f"{folder}/cgroup.procs", os.W_OK) for folder in folders)
    return "" if writable and os.access("/dev/kmsg", os.R_OK) else "a memory cgroup and /dev/kmsg need root"


class Stage:
    """The GPUs and the kernel log of one node. boot_s: what its monotonic clock is ahead of this machine's."""

    def __init__(self, profile: Profile, folder: Path, *, host: str, name: str = "", boot_s: float = 0.0) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.gpus = PlayedGpus(profile, folder / "gpus", name=name)
        self.log = folder / "kern.log"
        self.log.touch()
        self._host = host
        self._boot_s = boot_s
        self._placed: set[int] = set()
        self.kernel("Linux version 6.8.0-45-generic (buildd@lcy02) #45-Ubuntu SMP")
        self.kernel("NVRM: loading NVIDIA UNIX x86_64 Kernel Module  550.90.07  Fri May 31 09:35:42 UTC 2024")

    def environment(self) -> dict[str, str]:
        return {**self.gpus.environment(), "WHICHRANK_KERNEL_LOG": str(self.log)}

    def place(self, local_rank: int, pid: int) -> None:
        """A rank opens its device as it comes."""
        if local_rank not in self._placed:
            self._placed.add(local_rank)
            self.gpus.attach(pid, _place(local_rank))

    def kernel(self, text: str, ago_s: float = 0.0) -> None:
        """A line as syslog keeps it, with the seconds since boot."""
        now = time.time() - ago_s
        stamp = time.strftime("%b %e %H:%M:%S", time.localtime(now))
        boot = time.monotonic() + self._boot_s - ago_s
        with self.log.open("a") as log:
            log.write(f"{stamp} {self._host} kernel: [{boot:12.6f}] {text}\n")

    def xid(self, local_rank: int, pid: int, code: int, words: str, ago_s: float = 0.0) -> None:
        """In the kernel log and, if it is news, as the driver's event."""
        gpu = _place(local_rank)
        bus = self.gpus.pci_bus(gpu).rpartition(".")[0]
        who = "pid='<unknown>', name=<unknown>" if code == 79 else f"pid={pid}, name=python3"
        self.kernel(f"NVRM: Xid (PCI:{bus}): {code}, {who}, {words}", ago_s)
        if not ago_s:
            self.gpus.xid(gpu, code)

    def off_the_bus(self, local_rank: int, pid: int) -> None:
        gpu = _place(local_rank)
        self.xid(local_rank, pid, 79, "GPU has fallen off the bus.")
        self.kernel(f"NVRM: GPU {self.gpus.pci_bus(gpu)}: GPU has fallen off the bus.")
        self.gpus.lose(gpu)

    def uuid_of(self, local_rank: int) -> str:
        return self.gpus.uuids[_place(local_rank)]


def _place(local_rank: int) -> int:
    return _PLACES[local_rank % len(_PLACES)]


def _profile(plan: Plan) -> Profile:
    profiles = list(Profile)
    return profiles[plan.seed % len(profiles)]


class PlayedNode(Job):
    """``whichrank run`` on such a node."""

    def __init__(self, scenario: Scenario, plan: Plan, folder: Path) -> None:
        self.stage = Stage(_profile(plan), folder, host=socket.gethostname())
        super().__init__(scenario, plan, folder)

    @property
    def gpus(self) -> PlayedGpus:
        return self.stage.gpus

    def start(self, environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
        return super().start({**environment, **self.stage.environment()})

    def gpu_of(self, rank: int) -> int:
        return _place(rank)

    def place_ranks(self) -> None:
        for rank, pid in self.pids().items():
            self.stage.place(rank, pid)

    def devices(self) -> dict[str, str]:
        return {str(rank): self.stage.uuid_of(rank) for rank in range(self.plan.world_size)}

    def kernel(self, text: str) -> None:
        self.stage.kernel(text)

    def xid(self, rank: int, code: int, words: str, ago_s: float = 0.0) -> None:
        self.stage.xid(rank, self.pids().get(rank, 4711), code, words, ago_s)

    def off_the_bus(self, rank: int) -> None:
        self.stage.off_the_bus(rank, self.pids().get(rank, 4711))


class PlayedNodes(TwoNodes):
    """One job on two such nodes, each with GPUs and a kernel log of its own."""

    def __init__(self, scenario: Scenario, plan: Plan, folder: Path) -> None:
        self.stages = {
            name: Stage(_profile(plan), folder / name, host=name, name=f"{name}/", boot_s=float(uptime_s))
            for name, uptime_s in zip(NAMES, UPTIME_S, strict=True)
        }
        super().__init__(scenario, plan, folder)

    def surroundings(self, node: str) -> Mapping[str, str]:
        return self.stages[node].environment()

    def place_ranks(self) -> None:
        for rank, pid in self.pids().items():  # as the rank's own node counts processes
            stage, local_rank = self._place_of(rank)
            stage.place(local_rank, pid)

    def devices(self) -> dict[str, str]:
        places = {rank: self._place_of(rank) for rank in range(self.plan.world_size)}
        return {str(rank): stage.uuid_of(local_rank) for rank, (stage, local_rank) in places.items()}

    def off_the_bus(self, rank: int) -> None:
        stage, local_rank = self._place_of(rank)
        stage.off_the_bus(local_rank, self.pids().get(rank, 4711))

    def _place_of(self, rank: int) -> tuple[Stage, int]:
        node, local_rank = divmod(rank, self.plan.world_size // 2)
        return self.stages[NAMES[node]], local_rank


def played_node(scenario: Scenario, plan: Plan, folder: Path) -> Job:
    return PlayedNode(scenario, plan, folder)


def played_nodes(scenario: Scenario, plan: Plan, folder: Path) -> Job:
    return PlayedNodes(scenario, plan, folder)


def _at_onset(act: Callable[[Played], None], kind: type[Played], wait_s: float = 0.0) -> Beside:
    """``act`` on the node or nodes, so long after the rank's onset; ranks are placed meanwhile."""

    def beside(job: Job, over: threading.Event) -> None:
        assert isinstance(job, kind)
        while not job.onsets():
            job.place_ranks()
            if over.wait(POLL_S):
                return
        if not over.wait(wait_s):
            act(job)
        over.wait()

    return beside


def _guilty(node: Job) -> int:
    return node.plan.guilty[0]


def _another(node: PlayedNode) -> int:
    return next(rank for rank in range(node.plan.world_size) if rank not in node.plan.guilty)


def _on_the_other_node(nodes: PlayedNodes) -> int:
    """The rank in the guilty one's place there: its GPU has the same number, bus and slot."""
    return (_guilty(nodes) + nodes.plan.world_size // 2) % nodes.plan.world_size


def _contained_memory_error(node: PlayedNode) -> None:
    node.xid(_guilty(node), 94, "Contained: SM (0x1). RST: No, D-RST: No")
    node.xid(_guilty(node), 45, "Ch 00000008")


def _throttle(node: PlayedNode) -> None:
    node.gpus.throttle(node.gpu_of(_guilty(node)), "hw_slowdown", "hw_thermal_slowdown")
    node.gpus.set(node.gpu_of(_guilty(node)), **{"temperature.gpu": 96})


def _link_drops(node: PlayedNode) -> None:
    node.gpus.link_down(node.gpu_of(_guilty(node)), 3)


def _port_goes(node: PlayedNode) -> None:
    node.kernel("mlx5_core 0000:9f:00.0 ens11f0np0: Link down")


def _port_flaps(node: PlayedNode) -> None:
    node.kernel("mlx5_core 0000:9f:00.0 ens11f0np0: Link down")
    time.sleep(1.5)
    node.kernel("mlx5_core 0000:9f:00.0 ens11f0np0: Link up")


def _application_errors(node: PlayedNode) -> None:
    rank = _guilty(node)
    node.xid(rank, 31, "Ch 00000010, intr 00000000. MMU Fault: ENGINE GRAPHICS GPC3 GPCCLIENT_T1_3 faulted @ 0x7f_d2e4")
    node.xid(rank, 13, "Graphics SM Warp Exception on (GPC 2, TPC 3, SM 1): Out Of Range Address")
    node.xid(rank, 43, "Ch 00000010")
    node.xid(rank, 45, "Ch 00000011")


def _corrected_memory(node: PlayedNode) -> None:
    node.kernel(
        "EDAC MC0: 1 CE memory read error on CPU_SrcID#0_MC#0_Chan#1_DIMM#0 (channel:1 slot:0 page:0x1f3a offset:0x0)"
    )


off_the_bus = _at_onset(lambda node: node.off_the_bus(_guilty(node)), PlayedNode)
contained_memory_error = _at_onset(_contained_memory_error, PlayedNode)
throttle = _at_onset(_throttle, PlayedNode)
link_drops = _at_onset(_link_drops, PlayedNode)
port_goes = _at_onset(_port_goes, PlayedNode)
another_ranks_gpu = _at_onset(lambda node: node.off_the_bus(_another(node)), PlayedNode)
after_the_hang = _at_onset(lambda node: node.off_the_bus(_guilty(node)), PlayedNode, wait_s=6.0)
application_errors = _at_onset(_application_errors, PlayedNode)
port_flaps = _at_onset(_port_flaps, PlayedNode)
corrected_memory = _at_onset(_corrected_memory, PlayedNode)
nothing_else = _at_onset(lambda node: None, PlayedNode)
own_gpu_of_two_nodes = _at_onset(lambda nodes: nodes.off_the_bus(_guilty(nodes)), PlayedNodes)
other_nodes_gpu = _at_onset(lambda nodes: nodes.off_the_bus(_on_the_other_node(nodes)), PlayedNodes)


def long_ago(job: Job, over: threading.Event) -> None:
    """The same Xid, ten minutes before the job's hang, and still in the log."""
    assert isinstance(job, PlayedNode)
    while not job.pids():
        if over.wait(POLL_S):
            return
    job.xid(_guilty(job), 79, "GPU has fallen off the bus.", ago_s=600.0)
    nothing_else(job, over)


def mount_stalls(job: Job, over: threading.Event) -> None:
    """The file server of a mount stops answering at the onset; the rank that reads from it stands still.

    The rank's own read blocks for real: its fault opens a file there as soon as ``truth/stalled`` says so.
    """
    assert isinstance(job, PlayedNode)
    path = job.folder / "scratch"
    path.mkdir()
    server = subprocess.Popen(
        [sys.executable, stalling_fuse.__file__, str(path), "nas1:/scratch"], stdout=subprocess.PIPE, text=True
    )
    try:
        assert server.stdout is not None
        if server.stdout.readline() != "ready\n":
            raise RuntimeError("the file system could not be mounted")

        def stall(node: PlayedNode) -> None:
            server.send_signal(signal.SIGSTOP)
            (node.truth / "stalled").write_text(str(path))

        _at_onset(stall, PlayedNode)(job, over)
    finally:
        server.kill()
        server.wait()
        stalling_fuse.unmount(str(path))
