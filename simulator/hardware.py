"""What hardware, driver and kernel of a node say by themselves once a parameter is bad; nobody asked them.

Lines are those of the real driver and kernel, and go through the agent's own reader of kernel lines.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from .resources import Change
from .topology import STORAGE, Topology

#: The kernel tells of an NFS server, and of a blocked task, after so long.
_NFS_TOLD_AFTER_S = 60.0
_BLOCKED_TOLD_AFTER_S = 120.0
MOUNT_PATH, MOUNT_SOURCE, MOUNT_SERVER = "/data", f"{STORAGE}:/export/data", STORAGE


@dataclass(frozen=True, slots=True, kw_only=True)
class DriverWord:
    """Of the GPU driver: event ("xid", "gpu_lost", "gpu_back") of a GPU of the cluster."""

    at_s: float
    gpu: int
    event: str
    code: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelLine:
    at_s: float
    node: int
    text: str


@dataclass(kw_only=True)
class Hardware:
    """``changed`` and ``killed`` note what is said; ``lines`` and ``words`` are taken by the sensors of the node."""

    topology: Topology
    lines: list[KernelLine] = field(default_factory=list)
    words: list[DriverWord] = field(default_factory=list)
    #: By GPU: uncorrectable errors since the driver was loaded. By port: times that its link went down.
    memory_errors: dict[int, int] = field(default_factory=dict)
    link_downs: dict[int, int] = field(default_factory=dict)
    mount_dead_since_s: dict[int, float] = field(default_factory=dict)

    def changed(self, change: Change) -> None:
        down = not change.value
        if change.family == "gpu" and change.name == "on_bus":
            for gpu in self._places(change, self.topology.gpus):
                if down:
                    self._xid(change.at_s, gpu, 79, "GPU has fallen off the bus.")
                self.words.append(DriverWord(at_s=change.at_s, gpu=gpu, event="gpu_lost" if down else "gpu_back"))
        elif change.family == "gpu" and change.name == "memory" and down:
            for gpu in self._places(change, self.topology.gpus):
                self.memory_errors[gpu] = self.memory_errors.get(gpu, 0) + 1
                self._xid(change.at_s, gpu, 48, "DBE (double bit error) ECC Error")
        elif change.family == "port" and change.name == "up":
            for port in self._places(change, self.topology.gpus):
                self._link(change.at_s, port, down=down)
        elif change.family == "host" and change.name == "mount":
            for node in self._places(change, self.topology.nodes):
                if down:
                    self.mount_dead_since_s.setdefault(node, change.at_s)
                    at_s = change.at_s + _NFS_TOLD_AFTER_S
                    text = f"nfs: server {MOUNT_SERVER} not responding, still trying"
                    self.lines.append(KernelLine(at_s=at_s, node=node, text=text))
                else:
                    self.mount_dead_since_s.pop(node, None)
                    text = f"nfs: server {MOUNT_SERVER} OK"
                    self.lines.append(KernelLine(at_s=change.at_s, node=node, text=text))

    def killed(self, at_s: float, node: int, pid: int, resident_bytes: float) -> None:
        """The kernel has ended a process for its memory."""
        kib = int(resident_bytes / 1024)
        text = f"Out of memory: Killed process {pid} (python3) total-vm:{2 * kib}kB, anon-rss:{kib}kB, file-rss:0kB"
        self.lines.append(KernelLine(at_s=at_s, node=node, text=text))

    def blocked(self, since_s: float, node: int, pid: int) -> None:
        """A task that the kernel has held from then on."""
        text = f"INFO: task python3:{pid} blocked for more than 120 seconds."
        self.lines.append(KernelLine(at_s=since_s + _BLOCKED_TOLD_AFTER_S, node=node, text=text))

    def take_lines(self, until_s: float) -> list[KernelLine]:
        due = [line for line in self.lines if line.at_s < until_s]
        self.lines = [line for line in self.lines if line.at_s >= until_s]
        return sorted(due, key=lambda line: line.at_s)

    def take_words(self, until_s: float) -> list[DriverWord]:
        due = [word for word in self.words if word.at_s < until_s]
        self.words = [word for word in self.words if word.at_s >= until_s]
        return sorted(due, key=lambda word: word.at_s)

    def _xid(self, at_s: float, gpu: int, code: int, what: str) -> None:
        bus = self.topology.pci_bus(gpu).removesuffix(".0")
        text = f"NVRM: Xid (PCI:{bus}): {code}, pid='<unknown>', name=<unknown>, {what}"
        self.lines.append(KernelLine(at_s=at_s, node=self.topology.node_of_gpu(gpu), text=text))
        self.words.append(DriverWord(at_s=at_s, gpu=gpu, event="xid", code=code))

    def _link(self, at_s: float, port: int, *, down: bool) -> None:
        if down:
            self.link_downs[port] = self.link_downs.get(port, 0) + 1
        bus, number = self.topology.pci_bus(port), port % self.topology.shape.gpus_per_node
        text = f"mlx5_core {bus} ib{number}: Link {'down' if down else 'up'}"
        self.lines.append(KernelLine(at_s=at_s, node=self.topology.node_of_gpu(port), text=text))

    @staticmethod
    def _places(change: Change, count: int) -> tuple[int, ...]:
        return change.places or tuple(range(count))
