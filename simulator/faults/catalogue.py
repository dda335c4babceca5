"""All kinds of faults by name."""

from __future__ import annotations

from collections.abc import Mapping

from . import compute, harmless, history, observer, process, services, shared
from .fault import FaultKind

CATALOGUE: Mapping[str, FaultKind] = {
    kind.name: kind
    for kind in (
        *compute.KINDS,
        *process.KINDS,
        *shared.KINDS,
        *services.KINDS,
        *history.KINDS,
        *observer.KINDS,
        *harmless.KINDS,
    )
}
