"""Every scenario, with its truth beside it; one module per family.

A new fault is one entry in a family's module and one function in ``workloads/faults.py``.
"""

from __future__ import annotations

from .basics import BASICS
from .causes import CAUSES
from .clean import CLEAN
from .company import COMPANY
from .compiled import COMPILED
from .crashes import CRASHES
from .desyncs import DESYNCS
from .device import DEVICE
from .hangs import HANGS
from .levels import LEVELS
from .nodes import NODES
from .numeric import NUMERIC
from .restarts import RESTARTS
from .speed import SPEED

FAMILIES = {
    "basics": BASICS,
    "crashes": CRASHES,
    "hangs": HANGS,
    "desyncs": DESYNCS,
    "speed": SPEED,
    "numeric": NUMERIC,
    "nodes": NODES,
    "compiled": COMPILED,
    "restarts": RESTARTS,
    "company": COMPANY,
    "levels": LEVELS,
    "device": DEVICE,
    "causes": CAUSES,
    "clean": CLEAN,
}
SCENARIOS = tuple(scenario for family in FAMILIES.values() for scenario in family)
#: What ``make test`` runs: one of each way to be wrong, and one short healthy run.
REPRESENTATIVE = ("sleep in forward", "SIGKILL", "wrong size", "NaN on one rank", "normal end")

__all__ = ["FAMILIES", "REPRESENTATIVE", "SCENARIOS"]
