"""The shared file system: a metadata server and data servers as queues that all jobs load together."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from .resources import Resources

#: What the servers were bought for, by GPU of the cluster.
METADATA_OPS_PER_S_AND_GPU = 40.0
DATA_BYTES_PER_S_AND_GPU = 4e8
#: Its whole size.
LIMIT_BYTES = 5e15
#: What one read or write of a client carries.
TRANSFER_BYTES = 1e6
METADATA_SERVICE_S = 5e-4
#: Beyond this a queue is as long as those who stand in it, not as its formula says.
MOST_UTILISATION = 0.95
#: Operations that one rank's loader has under way at once, and writes of one rank that saves.
IN_FLIGHT, WRITES_IN_FLIGHT = 4, 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """What one job asks of the shared file system, as it would be if nothing were slow. clients: ranks that ask.

    background_ops: that each has under way all the time, whatever its steps do. savers: ranks that write a checkpoint
    now.
    """

    clients: int
    metadata_ops_per_step: float
    step_s: float
    bytes_per_s: float
    background_ops: float = 0.0
    savers: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class StorageState:
    """How the shared file system does. metadata_s: what one operation takes.

    bytes_per_s, save_bytes_per_s: what one client that reads, or that writes a checkpoint, gets at most.
    """

    metadata_s: float
    bytes_per_s: float
    save_bytes_per_s: float
    utilisation: float


def storage_state(demands: Iterable[Demand], resources: Resources, gpus: int) -> StorageState:
    """What clients of the shared file system get. gpus: of the cluster, which its size follows from.

    Open queues up to ``MOST_UTILISATION``; beyond, as many wait as there can be, and each gets its turn.
    """
    demands = list(demands)
    capacity = METADATA_OPS_PER_S_AND_GPU * gpus * max(float(resources.of("metadata", "capacity")[0]), 1e-6)
    asked = sum(demand.clients * demand.metadata_ops_per_step / demand.step_s for demand in demands)
    never_idle = sum(demand.clients * demand.background_ops for demand in demands)
    utilisation = 1.0 if never_idle else asked / capacity
    metadata_s = METADATA_SERVICE_S / (1.0 - min(utilisation, MOST_UTILISATION))
    if utilisation > MOST_UTILISATION:
        queue = never_idle + sum(demand.clients * min(demand.metadata_ops_per_step, IN_FLIGHT) for demand in demands)
        metadata_s = max(metadata_s, queue / capacity)
    clients = sum(demand.clients for demand in demands) or 1
    savers = sum(demand.savers for demand in demands)
    total = DATA_BYTES_PER_S_AND_GPU * gpus * max(float(resources.of("data", "capacity").mean()), 1e-6)
    busy = sum(demand.clients * demand.bytes_per_s for demand in demands)
    # First come, first served: a client's share is that of its requests among all that wait.
    waiting = (clients - savers) * IN_FLIGHT + savers * WRITES_IN_FLIGHT
    alone = total / max(clients, busy / DATA_BYTES_PER_S_AND_GPU)
    return StorageState(
        metadata_s=metadata_s,
        bytes_per_s=min(alone, total * IN_FLIGHT / waiting) if savers else alone,
        save_bytes_per_s=total * WRITES_IN_FLIGHT / waiting if savers else alone,
        utilisation=utilisation,
    )


def read_s(nbytes: float, now: StorageState, quiet: StorageState, busy_s: float) -> float:
    """Seconds that a client needs to read ``nbytes``.

    busy_s: for how long those who save now go on; after them the state is ``quiet``.
    """
    in_time = now.bytes_per_s * busy_s
    if nbytes <= in_time:
        return nbytes / now.bytes_per_s
    return busy_s + (nbytes - in_time) / quiet.bytes_per_s
