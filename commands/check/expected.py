"""What is expected of the node: the file of --expect, or nothing beyond what the node's own kind suggests."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib  # type: ignore[import-not-found,unused-ignore]

_MOST_BYTES = 1 << 20


class BadExpectations(ValueError):
    """One line that names the file, the place and the remedy."""


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
        """``gpu.temperature_c`` of a rule's table. Raises AttributeError for a key that there is not."""
        section, _, name = key.partition(".")
        value = getattr(getattr(self, section), name)
        return None if value is None else float(value)


_SECTIONS: Mapping[str, Callable[..., Any]] = {
    "gpu": ExpectedGpu,
    "network": ExpectedNetwork,
    "storage": ExpectedStorage,
    "memory": ExpectedMemory,
    "host": ExpectedHost,
    "services": ExpectedServices,
    "kernel_log": ExpectedKernelLog,
    "compute": ExpectedCompute,
}


def read_document(path: Path) -> Mapping[str, Any]:
    """The file's tables as they stand. Raises BadExpectations."""
    try:
        with open(path, "rb") as file:
            raw = file.read(_MOST_BYTES)
        document: dict[str, Any] = tomllib.loads(raw.decode("utf-8"))
    except OSError as error:
        raise BadExpectations(f"{path}: {error.strerror}; name a TOML file that can be read") from None
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise BadExpectations(f"{path}: {error}; see docs/check.md for its keys") from None
    return document


def expected_of(document: Mapping[str, Any], source: str) -> Expected:
    """Raises BadExpectations: a section, a key or a value that there is not."""
    given: dict[str, Any] = {}
    for section, table in document.items():
        if not isinstance(table, dict) or section not in (*_SECTIONS, "versions"):
            known = ", ".join((*_SECTIONS, "versions"))
            raise BadExpectations(f"{source}: [{section}] is no section; there are {known}")
        if section == "versions":
            given[section] = {what: _value("str", value, f"{source}: versions.{what}") for what, value in table.items()}
        else:
            given[section] = _section(_SECTIONS[section], table, f"{source}: {section}")
    return Expected(**given)


def _section(made: Callable[..., Any], table: Mapping[str, Any], where: str) -> Any:
    kinds = {each.name: str(each.type) for each in fields(made)}  # type: ignore[arg-type]
    values = {}
    for key, value in table.items():
        if key not in kinds:
            raise BadExpectations(f"{where}.{key}: no such key; there are {', '.join(kinds)}")
        values[key] = _value(kinds[key], value, f"{where}.{key}")
    return made(**values)


def _value(kind: str, value: Any, where: str) -> Any:
    """``kind``: the annotation of the field."""
    if kind == "str" and isinstance(value, str):
        return value
    if kind.startswith("tuple") and isinstance(value, list) and all(isinstance(each, str) for each in value):
        return tuple(value)
    numbers = int if kind.startswith("int") else (int, float)
    if kind[0] in "if" and isinstance(value, numbers) and not isinstance(value, bool) and 0 <= value < 1e15:
        return value
    wanted = {"s": "a text", "t": "a list of texts", "i": "a whole number, 0 or more", "f": "a number, 0 or more"}
    raise BadExpectations(f"{where} = {value!r}: must be {wanted[kind[0]]}")
