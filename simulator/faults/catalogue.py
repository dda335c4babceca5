"""All kinds of faults by name."""

from __future__ import annotations

from collections.abc import Mapping

from . import compute, harmless, history, host, observer, process, program, services, shared
from .fault import FaultKind

CATALOGUE: Mapping[str, FaultKind] = {
    kind.name: kind
    for kind in (
        *compute.KINDS,
        *process.KINDS,
        *host.KINDS,
        *program.KINDS,
        *shared.KINDS,
        *services.KINDS,
        *history.KINDS,
        *observer.KINDS,
        *harmless.KINDS,
    )
}
