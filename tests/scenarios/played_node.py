"""A node with played GPUs and a kernel log of its own, and what happens to it while its job runs.

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

from tests.agents.collectors import stalling_fuse
from tests.played_gpu.played import PlayedGpus, Profile, can_be_built

from .plan import Plan, Scenario
from .runner import Job

POLL_S = 0.005
Beside = Callable[[Job, threading.Event], None]
#: A node has eight GPUs, and ranks are not on them in their order.
_PLACES = (5, 2, 7, 0, 3, 6, 1, 4)


def missing() -> str:
    """Why GPUs cannot be played here; empty: they can."""
    return "" if can_be_built() else "the played driver needs a C compiler"


def missing_fuse() -> str:
    return "" if os.geteuid() == 0 and os.access("/dev/fuse", os.W_OK) else "a FUSE mount needs root and /dev/fuse"


def missing_cgroup() -> str:
    """Why no process can be put into a memory cgroup of its own, or the kernel's log not be read."""
    folders = ("/sys/fs/cgroup/memory", "/sys/fs/cgroup")
    writable = any(os.access(f"{folder}/cgroup.procs", os.W_OK) for folder in folders)
    return "" if writable and os.access("/dev/kmsg", os.R_OK) else "a memory cgroup and /dev/kmsg need root"


class PlayedNode(Job):
    """``whichrank run`` on such a node."""

    def __init__(self, scenario: Scenario, plan: Plan, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        profiles = list(Profile)
        self.gpus = PlayedGpus(profiles[plan.seed % len(profiles)], folder / "gpus")
        self.kernel_log = folder / "kern.log"
        self.kernel_log.touch()
        self._placed: set[int] = set()
        self.kernel("Linux version 6.8.0-45-generic (buildd@lcy02) #45-Ubuntu SMP")
        self.kernel("NVRM: loading NVIDIA UNIX x86_64 Kernel Module  550.90.07  Fri May 31 09:35:42 UTC 2024")
        super().__init__(scenario, plan, folder)

    def start(self, environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
        more = {**self.gpus.environment(), "WHICHRANK_KERNEL_LOG": str(self.kernel_log)}
        return super().start({**environment, **more})

    def gpu_of(self, rank: int) -> int:
        return _PLACES[rank % len(_PLACES)]

    def place_ranks(self) -> None:
        """Ranks open their devices as they come."""
        for rank, pid in self.pids().items():
            if rank not in self._placed:
                self._placed.add(rank)
                self.gpus.attach(pid, self.gpu_of(rank))

    def devices(self) -> dict[str, str]:
        return {str(rank): self.gpus.uuids[self.gpu_of(rank)] for rank in range(self.plan.world_size)}

    def kernel(self, text: str, ago_s: float = 0.0) -> None:
        """A line as syslog keeps it, with the seconds since boot."""
        now = time.time() - ago_s
        stamp = time.strftime("%b %e %H:%M:%S", time.localtime(now))
        boot = time.monotonic() - ago_s
        with self.kernel_log.open("a") as log:
            log.write(f"{stamp} {socket.gethostname()} kernel: [{boot:12.6f}] {text}\n")

    def xid(self, rank: int, code: int, words: str, ago_s: float = 0.0) -> None:
        """In the kernel log and, if it is news, as the driver's event."""
        gpu = self.gpu_of(rank)
        pid = self.pids().get(rank, 4711)
        bus = self.gpus.pci_bus(gpu).rpartition(".")[0]
        who = "pid='<unknown>', name=<unknown>" if code == 79 else f"pid={pid}, name=python3"
        self.kernel(f"NVRM: Xid (PCI:{bus}): {code}, {who}, {words}", ago_s)
        if not ago_s:
            self.gpus.xid(gpu, code)


def played_node(scenario: Scenario, plan: Plan, folder: Path) -> Job:
    return PlayedNode(scenario, plan, folder)


def _at_onset(act: Callable[[PlayedNode], None], wait_s: float = 0.0) -> Beside:
    """``act`` on the node, so long after the rank's onset; its ranks are placed meanwhile."""

    def beside(job: Job, over: threading.Event) -> None:
        assert isinstance(job, PlayedNode)
        while not job.onsets():
            job.place_ranks()
            if over.wait(POLL_S):
                return
        if not over.wait(wait_s):
            act(job)
        over.wait()

    return beside


def _guilty(node: PlayedNode) -> int:
    return node.plan.guilty[0]


def _another(node: PlayedNode) -> int:
    return next(rank for rank in range(node.plan.world_size) if rank not in node.plan.guilty)


def _off_the_bus(node: PlayedNode, rank: int) -> None:
    node.xid(rank, 79, "GPU has fallen off the bus.")
    bus = node.gpus.pci_bus(node.gpu_of(rank))
    node.kernel(f"NVRM: GPU {bus}: GPU has fallen off the bus.")
    node.gpus.lose(node.gpu_of(rank))


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


off_the_bus = _at_onset(lambda node: _off_the_bus(node, _guilty(node)))
contained_memory_error = _at_onset(_contained_memory_error)
throttle = _at_onset(_throttle)
link_drops = _at_onset(_link_drops)
port_goes = _at_onset(_port_goes)
another_ranks_gpu = _at_onset(lambda node: _off_the_bus(node, _another(node)))
after_the_hang = _at_onset(lambda node: _off_the_bus(node, _guilty(node)), wait_s=6.0)
application_errors = _at_onset(_application_errors)
port_flaps = _at_onset(_port_flaps)
corrected_memory = _at_onset(_corrected_memory)
nothing_else = _at_onset(lambda node: None)


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

        _at_onset(stall)(job, over)
    finally:
        server.kill()
        server.wait()
        stalling_fuse.unmount(str(path))
