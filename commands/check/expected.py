"""What is expected of the node: what ``expectations_file`` reads, or nothing beyond what the node's kind suggests."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpectedGpu:
    """count None: as many as the driver's folder in /proc, or the PCI bus, shows."""

    count: int | None = None
    model: str = ""
    memory_gib: float | None = None
    nvlinks: int | None = None
    pcie_lanes: int | None = None
    temperature_c: float | None = None
    memory_in_use_mib: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpectedNetwork:
    """ports, gbps: RDMA ports that are up, and the rate of each; None: what belongs to the GPU's model.

    interfaces: that must be up. watch_s: for so long counters are watched.
    """

    ports: int | None = None
    gbps: float | None = None
    interfaces: tuple[str, ...] = ()
    interface_gbps: float | None = None
    watch_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpectedStorage:
    mounts: tuple[str, ...] = ()
    write: tuple[str, ...] = ()
    answer_s: float = 3.0
    used_percent_warn: float = 90.0
    used_percent_critical: float = 98.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpectedMemory:
    total_gib: float | None = None
    shared_memory_gib: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpectedHost:
    clock_offset_s: float | None = None
    governor: str = ""
    uptime_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpectedServices:
    """units: of systemd, or names of processes where there is no systemd. modules: of the kernel."""

    units: tuple[str, ...] = ()
    modules: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpectedKernelLog:
    """Faults of the last so many hours count in full, older ones of this boot as a warning."""

    hours: float = 24.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpectedCompute:
    """Of every GPU: dense bf16 matrix product, its own memory (bytes read and written), copies from the host."""

    gemm_tflops: float | None = None
    memory_gb_per_s: float | None = None
    host_to_gpu_gb_per_s: float | None = None
    peer_gb_per_s: float | None = None
    #: A GPU that is so much slower than the median of the node is warned of; twice that is critical.
    slower_percent: float = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    """One section of the file each. versions: what it is ("nvidia_driver") -> pattern as of file names ("550.*")."""

    gpu: ExpectedGpu = field(default_factory=ExpectedGpu)
    network: ExpectedNetwork = field(default_factory=ExpectedNetwork)
    storage: ExpectedStorage = field(default_factory=ExpectedStorage)
    memory: ExpectedMemory = field(default_factory=ExpectedMemory)
    host: ExpectedHost = field(default_factory=ExpectedHost)
    services: ExpectedServices = field(default_factory=ExpectedServices)
    kernel_log: ExpectedKernelLog = field(default_factory=ExpectedKernelLog)
    compute: ExpectedCompute = field(default_factory=ExpectedCompute)
    versions: Mapping[str, str] = field(default_factory=dict)

    def number(self, key: str) -> float | None:
        """The number expected under a key such as ``gpu.temperature_c``, None where none is given.

        Raises AttributeError for a key that there is not.
        """
        section, _, name = key.partition(".")
        value = getattr(getattr(self, section), name)
        return None if value is None else float(value)
