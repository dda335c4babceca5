"""The parameters of everything that can go wrong: rate, latency, capacity, error probability, up or down.

A fault is a list of ``ParameterChange`` and nothing else: it is data, and ``Resources`` refuses what is no parameter.
Symptoms follow because ``propagate``, ``shared_storage``, ``fabric``, ``heat``, ``devices`` and ``rank_processes`` read
these numbers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from .cluster_topology import Topology


class Sort(Enum):
    """What a parameter is, and so what it may be set to."""

    RATE = "rate"  # share of nominal, >= 0
    LATENCY = "latency"  # seconds, >= 0
    CAPACITY = "capacity"  # in its unit, >= 0
    PROBABILITY = "probability"  # per its unit, >= 0
    UP = "up"  # 1 up, 0 down
    OFFSET = "offset"  # signed


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameter:
    family: str
    name: str
    sort: Sort
    healthy: float
    unit: str
    meaning: str


def _of(family: str, *rows: tuple[str, Sort, float, str, str]) -> tuple[Parameter, ...]:
    return tuple(
        Parameter(family=family, name=name, sort=sort, healthy=healthy, unit=unit, meaning=meaning)
        for name, sort, healthy, unit, meaning in rows
    )


PARAMETERS: tuple[Parameter, ...] = (
    *_of(
        "gpu",
        ("speed", Sort.RATE, 1.0, "share", "of what its kernels need at full clocks"),
        ("on_bus", Sort.UP, 1.0, "", "the PCIe link to it"),
        ("kernels", Sort.UP, 1.0, "", "kernels come to an end"),
        ("cooling", Sort.RATE, 1.0, "share", "heat that its heatsink carries away"),
        ("clock_limit", Sort.RATE, 1.0, "share", "highest clock that is allowed"),
        ("lanes", Sort.RATE, 1.0, "share", "of its PCIe lanes that work"),
        ("nvlink", Sort.RATE, 1.0, "share", "of its NVLink rate"),
        ("failures", Sort.PROBABILITY, 0.0, "1/h", "kernels that fail on it, whatever they compute"),
        ("memory", Sort.UP, 1.0, "", "its memory holds what is written (0: an uncorrectable error)"),
        ("nvlink_up", Sort.UP, 1.0, "", "its NVLinks carry data"),
        ("nvlink_errors", Sort.CAPACITY, 0.0, "1", "packets that one of its NVLinks had to send again"),
        ("firmware", Sort.UP, 1.0, "", "its own processor (GSP) answers the driver"),
        ("wrong_results", Sort.PROBABILITY, 0.0, "1", "of its steps in which a result is wrong, and nothing notices"),
        (
            "flipped",
            Sort.PROBABILITY,
            0.0,
            "",
            "1: a bit of a weight in its memory is flipped, unnoticed",
        ),
        ("corrected", Sort.CAPACITY, 0.0, "1", "errors of its memory that were corrected, each in a row of its own"),
        ("tenant", Sort.PROBABILITY, 0.0, "", "1: somebody else's program on it reads where it may not"),
    ),
    *_of(
        "host",
        ("up", Sort.UP, 1.0, "", "power, kernel and network of the node"),
        ("cpu", Sort.RATE, 1.0, "share", "of its cores that the job gets"),
        ("input", Sort.RATE, 1.0, "share", "pace of its loaders (disk, page cache, decoding)"),
        ("writes", Sort.RATE, 1.0, "share", "pace at which it writes to the shared file system"),
        ("shared_memory", Sort.CAPACITY, 0.1, "share", "of its /dev/shm that is taken"),
        ("joins", Sort.UP, 1.0, "", "what starts on it finds the others (image, name service, routes)"),
        ("memory_bytes", Sort.CAPACITY, 2.0e12, "By", "its memory"),
        ("mount", Sort.UP, 1.0, "", "the mount of the shared file system answers here"),
        ("memory_faults", Sort.PROBABILITY, 0.0, "1/h", "words of its memory that go bad under a process, unnoticed"),
        ("release", Sort.CAPACITY, 0.0, "", "number of the GPU driver's release that it has"),
        ("home_mount", Sort.UP, 1.0, "", "the mount of the home directories, which no job reads, answers here"),
        ("corrected", Sort.CAPACITY, 0.0, "1", "errors of its memory that were corrected"),
    ),
    *_of(
        "port",
        ("up", Sort.UP, 1.0, "", "its link"),
        ("rate", Sort.RATE, 1.0, "share", "of its nominal rate"),
        ("errors", Sort.PROBABILITY, 0.0, "1/s", "symbol errors"),
        (
            "carries",
            Sort.UP,
            1.0,
            "",
            "what it sends arrives, if larger than a packet; its link does not notice",
        ),
    ),
    *_of(
        "leaf",
        ("up", Sort.UP, 1.0, "", "the switch"),
        ("capacity", Sort.RATE, 1.0, "share", "of its uplinks that carry traffic"),
    ),
    *_of("spine", ("capacity", Sort.RATE, 1.0, "share", "of its rate")),
    *_of(
        "metadata",
        ("capacity", Sort.RATE, 1.0, "share", "of the operations that the metadata server can do"),
    ),
    *_of("data", ("capacity", Sort.RATE, 1.0, "share", "of what a data server can carry")),
    *_of(
        "filesystem",
        ("room_bytes", Sort.CAPACITY, 4.0e15, "By", "of the shared file system that are free"),
        ("quota_bytes", Sort.CAPACITY, 4.0e15, "By", "that the jobs together may still take of it"),
    ),
    *_of("service", ("up", Sort.UP, 1.0, "", "a service that jobs need to start: names, registry, sign-in")),
    *_of(
        "supply",
        ("power", Sort.RATE, 1.0, "share", "of the power that its racks may draw"),
        ("inlet_c", Sort.CAPACITY, 24.0, "Cel", "temperature of the air that its racks take in"),
    ),
    *_of(
        "process",
        ("alive", Sort.UP, 1.0, "", "0: it gets a SIGKILL"),
        ("runs", Sort.UP, 1.0, "", "0: it is stopped (SIGSTOP)"),
        ("input", Sort.UP, 1.0, "", "its data source gives the next batch"),
        ("loader", Sort.RATE, 1.0, "share", "pace of its own loader (its shard, its transformations)"),
        ("raises", Sort.PROBABILITY, 0.0, "", "1: its code raises at its next line"),
        ("bad_batch", Sort.PROBABILITY, 0.0, "", "1: the batch of this step makes its code raise, whenever it is read"),
        ("grows_bytes_per_s", Sort.CAPACITY, 0.0, "By/s", "by which its memory grows"),
        ("device_bytes_per_s", Sort.CAPACITY, 0.0, "By/s", "by which its memory on its GPU grows"),
        ("work", Sort.RATE, 1.0, "share", "compute per step, by that of the program"),
        (
            "bad_access",
            Sort.PROBABILITY,
            0.0,
            "",
            "1: a kernel of its next step reads where it may not, whenever made",
        ),
        ("overflow", Sort.PROBABILITY, 0.0, "", "1: the numbers of its next batch overflow, whenever it is read"),
        (
            "outlier",
            Sort.CAPACITY,
            0.0,
            "share",
            "loss of its next batch by a usual one's, whenever read",
        ),
        ("other_order", Sort.PROBABILITY, 0.0, "", "1: its code takes two groups in the opposite order"),
        ("other_branch", Sort.PROBABILITY, 0.0, "", "1: its code takes another branch than the other ranks'"),
    ),
    *_of(
        "program",
        ("work", Sort.RATE, 1.0, "share", "compute per step"),
        ("bytes", Sort.RATE, 1.0, "share", "sent per step"),
        ("save_bytes", Sort.RATE, 1.0, "share", "of a checkpoint"),
        ("metadata_ops", Sort.CAPACITY, 20.0, "1", "metadata operations per rank and step"),
        (
            "background_ops",
            Sort.CAPACITY,
            0.0,
            "1",
            "metadata operations under way beside its steps, by rank",
        ),
        (
            "spread",
            Sort.RATE,
            0.0,
            "share",
            "by which ranks' work differs from step to step (lengths of texts)",
        ),
        ("evaluation", Sort.RATE, 1.0, "share", "length of an evaluation, by that of its recipe"),
        (
            "pauses",
            Sort.PROBABILITY,
            0.0,
            "1",
            "of a rank's steps, in which its interpreter stands to clean up",
        ),
        ("space", Sort.UP, 1.0, "", "its quota of the shared file system has room"),
        ("moves", Sort.PROBABILITY, 0.0, "", "1: its next launch brings its ranks to its nodes in another order"),
        ("granted", Sort.UP, 1.0, "", "the scheduler lets it have its nodes"),
    ),
    *_of(
        "agent",
        ("up", Sort.UP, 1.0, "", "the node's agent"),
        ("wanted", Sort.UP, 1.0, "", "whoever runs the node lets its agent run; 0: it is told to end"),
        ("clock_s", Sort.OFFSET, 0.0, "s", "by which the node's wall clock is off"),
        ("loss", Sort.PROBABILITY, 0.0, "1", "of its messages that never arrive"),
        ("repeats", Sort.PROBABILITY, 0.0, "1", "of its messages that arrive twice"),
        ("delay_s", Sort.LATENCY, 0.0, "s", "by which its messages are late"),
        ("lines_lost", Sort.PROBABILITY, 0.0, "1", "of its kernel's lines, overwritten before they are read"),
        ("gpu", Sort.UP, 1.0, "", "its GPU collector"),
        ("kernel_log", Sort.UP, 1.0, "", "its kernel log collector"),
        ("network", Sort.UP, 1.0, "", "its network collector"),
        ("storage", Sort.UP, 1.0, "", "its storage collector"),
        ("host", Sort.UP, 1.0, "", "its host collector"),
        ("processes", Sort.UP, 1.0, "", "its process collector"),
    ),
)
#: The places of the family "service".
SERVICES = ("names", "registry", "sign-in")
#: Families of one job: their parameters are kept per job, and their places are ranks (or the job itself: 0).
OF_JOBS = frozenset({"process", "program"})
_BY_NAME: Mapping[tuple[str, str], Parameter] = MappingProxyType({(p.family, p.name): p for p in PARAMETERS})


class NotAParameter(ValueError):
    """A change of something that is no parameter of a resource, or to what it cannot be."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ParameterChange:
    """From ``at_s`` on the parameter has this value at these places. The only thing that a fault may say.

    places: GPU, node, port, leaf, spine, server, supply, service or rank numbers; () all. job: of families OF_JOBS.
    """

    at_s: float
    family: str
    name: str
    value: float
    places: tuple[int, ...] = ()
    job: str = ""

    def __post_init__(self) -> None:
        parameter = _BY_NAME.get((self.family, self.name))
        if parameter is None:
            raise NotAParameter(f"{self.family}.{self.name} is no parameter of a resource")
        if (self.family in OF_JOBS) != bool(self.job):
            raise NotAParameter(f"{self.family}.{self.name}: {'needs' if not self.job else 'has no'} job")
        if parameter.sort is Sort.UP and self.value not in (0.0, 1.0):
            raise NotAParameter(f"{self.family}.{self.name} is up (1) or down (0), not {self.value}")
        if parameter.sort is not Sort.OFFSET and not 0.0 <= self.value < float("inf"):
            raise NotAParameter(f"{self.family}.{self.name} cannot be {self.value}")


class Resources:
    """The parameters as they are now, as arrays that nobody else can write to."""

    def __init__(self, topology: Topology) -> None:
        shape = topology.shape
        self._sizes = {
            "gpu": topology.gpus,
            "host": topology.nodes,
            "port": topology.gpus,
            "leaf": topology.leaves,
            "spine": shape.spines,
            "metadata": 1,
            "data": shape.data_servers,
            "filesystem": 1,
            "service": len(SERVICES),
            "supply": topology.supplies,
            "agent": topology.nodes,
        }
        self._values: dict[tuple[str, str, str], NDArray[np.float64]] = {}
        self._views: dict[tuple[str, str, str], NDArray[np.float64]] = {}  # of the same, read-only
        #: Grows with every change, for what is worth remembering until then.
        self.version = 0
        for parameter in PARAMETERS:
            if parameter.family not in OF_JOBS:
                self._add(parameter, "", self._sizes[parameter.family])

    def add_job(self, job: str, world_size: int) -> None:
        """Adds the job's parameters at their healthy values; those of processes once per rank. Those it
        had are reset.
        """
        for parameter in PARAMETERS:
            if parameter.family in OF_JOBS:
                self._add(parameter, job, world_size if parameter.family == "process" else 1)

    def of(self, family: str, name: str, job: str = "") -> NDArray[np.float64]:
        """The parameter's values as they are now, read-only, by place. Raises KeyError for what is no parameter, or no
        job.
        """
        return self._views[family, name, job]

    def snapshot(self) -> dict[tuple[str, str, str], NDArray[np.float64]]:
        """A copy of the values of all parameters, by (family, name, job)."""
        return {key: values.copy() for key, values in self._values.items()}

    def apply(self, change: ParameterChange) -> None:
        """Sets the value at the change's places (none: all). Raises NotAParameter for a job or place
        that is not there.
        """
        values = self._values.get((change.family, change.name, change.job))
        if values is None:
            raise NotAParameter(f"{change.family}.{change.name}: there is no job {change.job!r}")
        self.version += 1
        if not change.places:
            values[:] = change.value
            return
        places = np.array(change.places)
        if places.min() < 0 or places.max() >= values.size:
            raise NotAParameter(f"{change.family}.{change.name} has no place {int(places.max())}")
        values[places] = change.value

    def _add(self, parameter: Parameter, job: str, size: int) -> None:
        key = parameter.family, parameter.name, job
        self._values[key] = np.full(size, parameter.healthy)
        self._views[key] = self._values[key].view()
        self._views[key].flags.writeable = False


class Schedule:
    """Changes in the order of their time; each is taken once."""

    def __init__(self, changes: Sequence[ParameterChange] = ()) -> None:
        self._changes = sorted(changes, key=lambda change: change.at_s)

    def add(self, changes: Sequence[ParameterChange]) -> None:
        """Adds changes; those that lie in the past come with the next ``take_until``."""
        self._changes = sorted([*self._changes, *changes], key=lambda change: change.at_s)

    def take_until(self, until_s: float) -> list[ParameterChange]:
        """Removes and returns the changes with ``at_s`` up to ``until_s``, that one included, in order of time."""
        taken = [change for change in self._changes if change.at_s <= until_s]
        del self._changes[: len(taken)]
        return taken
