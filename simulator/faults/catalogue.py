"""All kinds of faults by name."""

from __future__ import annotations

from collections.abc import Mapping

from . import (
    cross_job_faults,
    gpu_faults,
    harmless,
    host_faults,
    observer,
    process_faults,
    program_faults,
    service_faults,
    shared,
)
from .fault import FaultKind

CATALOGUE: Mapping[str, FaultKind] = {
    kind.name: kind
    for kind in (
        *gpu_faults.KINDS,
        *process_faults.KINDS,
        *host_faults.KINDS,
        *program_faults.KINDS,
        *shared.KINDS,
        *service_faults.KINDS,
        *cross_job_faults.KINDS,
        *observer.KINDS,
        *harmless.KINDS,
    )
}
