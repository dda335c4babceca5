"""What hardware, driver and kernel of a node say by themselves once a parameter is bad; nobody asked them.

Lines are those of the real driver and kernel, and go through the agent's own reader of kernel lines.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from .cluster_topology import Topology
from .mounts import MOUNTS
from .resources import ParameterChange

#: The kernel tells of an NFS server after so long.
_NFS_TOLD_AFTER_S = 60.0
#: From an error of a process on a GPU until its channels are gone.
_CLEANED_UP_AFTER_S = 0.4
#: The driver waits so long for a GPU's own processor, and asks again so much later.
_GSP_TOLD_AFTER_S, _GSP_AGAIN_S = 6.0, 45.0
#: A monitoring daemon: who asks is whoever is the first.
GSP_ASKED_BY = 2_911
#: A queue pair whose packets are lost sends them again after its time-out; a port has some dozens of them.
_RESENT_PER_S = 20.0
TENANT_PID = 2_417_803
MMU_FAULT = (
    "Ch 00000008, intr 00000000. MMU Fault: ENGINE GRAPHICS GPCCLIENT_T1_0 faulted @ 0x7f2a_3c000000. "
    "Fault is of type FAULT_PDE ACCESS_TYPE_VIRT_READ"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class DriverWord:
    """What the GPU driver says at ``at_s``: event ("xid", "gpu_lost", "gpu_back") of a GPU of the cluster."""

    at_s: float
    gpu: int
    event: str
    code: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedKernelLine:
    """A line of a node's kernel log. of: what it depends on until it is said: whole again by then, there is nothing to
    say.
    """

    at_s: float
    node: int
    text: str
    of: str = ""


@dataclass(kw_only=True)
class Hardware:
    """What hardware, driver and kernel of all nodes say. ``changed`` and ``killed`` note it; the sensors of the node
    take it.
    """

    topology: Topology
    lines: list[SimulatedKernelLine] = field(default_factory=list)
    words: list[DriverWord] = field(default_factory=list)
    #: By GPU: uncorrectable errors since the driver was loaded. By port: times that its link went down.
    memory_errors: dict[int, int] = field(default_factory=dict)
    link_downs: dict[int, int] = field(default_factory=dict)
    #: By GPU: since when its own processor has not answered. By port: since when it has lost what it sends.
    firmware_down_since_s: dict[int, float] = field(default_factory=dict)
    losing_since_s: dict[int, float] = field(default_factory=dict)
    #: By (node, parameter): since when this mount has not answered.
    _unanswered: dict[tuple[int, str], float] = field(default_factory=dict)

    def changed(self, change: ParameterChange) -> None:
        """Notes what hardware, driver and kernel say of the change, and when; nothing for most parameters."""
        tell = self._of_parameters.get((change.family, change.name))
        if tell is not None:
            nodes = change.family == "host"
            for place in change.places or range(self.topology.nodes if nodes else self.topology.gpus):
                tell(change, place)

    @property
    def _of_parameters(self) -> dict[tuple[str, str], Callable[[ParameterChange, int], None]]:
        """What is said of a change of each at one place."""
        return {
            ("gpu", "on_bus"): self._bus,
            ("gpu", "memory"): self._memory,
            ("gpu", "corrected"): self._corrected,
            ("gpu", "tenant"): self._tenant,
            ("gpu", "nvlink_up"): self._nvlink,
            ("gpu", "firmware"): self._firmware,
            ("port", "up"): self._port,
            ("port", "carries"): self._carries,
            ("host", "mount"): self._mount,
            ("host", "home_mount"): self._mount,
            ("host", "corrected"): self._host_corrected,
        }

    def _bus(self, change: ParameterChange, gpu: int) -> None:
        if not change.value:
            self._xid(change.at_s, gpu, 79, "GPU has fallen off the bus.")
        event = "gpu_back" if change.value else "gpu_lost"
        self.words.append(DriverWord(at_s=change.at_s, gpu=gpu, event=event))

    def _memory(self, change: ParameterChange, gpu: int) -> None:
        if not change.value:
            self.memory_errors[gpu] = self.memory_errors.get(gpu, 0) + 1
            self._xid(change.at_s, gpu, 48, "DBE (double bit error) ECC Error")

    def _corrected(self, change: ParameterChange, gpu: int) -> None:
        if change.value:
            what = "Row Remapper: New row (0x000000000003a1c7) marked for remapping, reset gpu to activate."
            self._xid(change.at_s, gpu, 63, what)

    def _tenant(self, change: ParameterChange, gpu: int) -> None:
        """What its program did, and the clean-up."""
        if change.value:
            self.bad_access(change.at_s, gpu, TENANT_PID)

    def _nvlink(self, change: ParameterChange, gpu: int) -> None:
        if not change.value:
            what = "NVLink: fatal error detected on link 3(0x10000, 0x0, 0x0, 0x0, 0x0, 0x0, 0x0)"
            self._xid(change.at_s, gpu, 74, what)
        event = "nvlink_up" if change.value else "nvlink_down"
        self.words.append(DriverWord(at_s=change.at_s, gpu=gpu, event=event))

    def _firmware(self, change: ParameterChange, gpu: int) -> None:
        """The driver gives a question up after a while, asks again, and says so each time."""
        if change.value:
            return
        self.firmware_down_since_s[gpu] = change.at_s
        number = gpu % self.topology.shape.gpus_per_node
        what = (
            f"Timeout after 6s of waiting for RPC response from GPU{number} GSP! "
            "Expected function 76 (GSP_RM_CONTROL) (0x20802096 0x8)."
        )
        for again in range(3):
            at_s = change.at_s + _GSP_TOLD_AFTER_S + again * _GSP_AGAIN_S
            self._xid(at_s, gpu, 119, what, pid=GSP_ASKED_BY)

    def _carries(self, change: ParameterChange, port: int) -> None:
        if change.value:
            self.losing_since_s.pop(port, None)
        else:
            self.losing_since_s[port] = change.at_s

    def ack_timeouts(self, port: int, at_s: float) -> int:
        """What the port had sent again by ``at_s`` for want of an answer, as a count."""
        return int(max(0.0, at_s - self.losing_since_s.get(port, at_s)) * _RESENT_PER_S)

    def _mount(self, change: ParameterChange, node: int) -> None:
        server = MOUNTS[change.name].server
        if change.value:
            if self._unanswered.pop((node, change.name), change.at_s) + _NFS_TOLD_AFTER_S < change.at_s:
                self._say(change.at_s, node, f"nfs: server {server} OK")
            self.lines = [line for line in self.lines if (line.node, line.of) != (node, change.name)]
            return
        self._unanswered.setdefault((node, change.name), change.at_s)
        text = f"nfs: server {server} not responding, still trying"
        line = SimulatedKernelLine(at_s=change.at_s + _NFS_TOLD_AFTER_S, node=node, text=text, of=change.name)
        self.lines.append(line)

    def _host_corrected(self, change: ParameterChange, node: int) -> None:
        if change.value:
            where = "CPU_SrcID#0_MC#1_Chan#0_DIMM#0 (channel:0 slot:0 page:0x8f41b offset:0x3c0 grain:32 syndrome:0x0)"
            self._say(change.at_s, node, f"EDAC MC1: {int(change.value)} CE memory read error on {where}")

    def killed(self, at_s: float, node: int, pid: int, resident_bytes: float) -> None:
        """Notes the kernel's line that it has ended a process for its memory."""
        kib = int(resident_bytes / 1024)
        text = f"Out of memory: Killed process {pid} (python3) total-vm:{2 * kib}kB, anon-rss:{kib}kB, file-rss:0kB"
        self._say(at_s, node, text)

    def bad_access(self, at_s: float, gpu: int, pid: int) -> None:
        """Notes what the driver says of a process whose kernel has read where it may not, and of
        cleaning up after it.
        """
        self._xid(at_s, gpu, 31, MMU_FAULT, pid=pid)
        self._xid(at_s + _CLEANED_UP_AFTER_S, gpu, 45, "Ch 00000008", pid=pid)

    def take_lines(self, until_s: float) -> list[SimulatedKernelLine]:
        """Removes and returns kernel lines before ``until_s``, in the order of their time."""
        due = [line for line in self.lines if line.at_s < until_s]
        self.lines = [line for line in self.lines if line.at_s >= until_s]
        return sorted(due, key=lambda line: line.at_s)

    def take_words(self, until_s: float) -> list[DriverWord]:
        """Removes and returns what drivers say before ``until_s``, in the order of its time."""
        due = [word for word in self.words if word.at_s < until_s]
        self.words = [word for word in self.words if word.at_s >= until_s]
        return sorted(due, key=lambda word: word.at_s)

    def _say(self, at_s: float, node: int, text: str) -> None:
        self.lines.append(SimulatedKernelLine(at_s=at_s, node=node, text=text))

    def _xid(self, at_s: float, gpu: int, code: int, what: str, *, pid: int = 0) -> None:
        """pid: of the process that it is about, where the driver knows it."""
        bus = self.topology.pci_bus(gpu).removesuffix(".0")
        whose = f"pid={pid}, name=python3" if pid else "pid='<unknown>', name=<unknown>"
        self._say(at_s, self.topology.node_of_gpu(gpu), f"NVRM: Xid (PCI:{bus}): {code}, {whose}, {what}")
        self.words.append(DriverWord(at_s=at_s, gpu=gpu, event="xid", code=code))

    def _port(self, change: ParameterChange, port: int) -> None:
        if not change.value:
            self.link_downs[port] = self.link_downs.get(port, 0) + 1
        bus, number = self.topology.pci_bus(port), port % self.topology.shape.gpus_per_node
        text = f"mlx5_core {bus} ib{number}: Link {'up' if change.value else 'down'}"
        self._say(change.at_s, self.topology.node_of_gpu(port), text)
