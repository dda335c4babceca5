"""Faults that were put into a run on purpose (``whichrank inject``), from the audit file in its folder.

For the accounting alone: it says which interruptions were made, and counts them like any other.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

from ...telemetry.injection_words import AUDIT_HOOK
from ...telemetry.regular_files import read_regular
from ...telemetry.response_outcomes import Outcome
from ..incident_service.audit import AUDIT_FILE
from ..run_folder.run_directory import RunDirectory

_MOST_BYTES = 16 << 20
#: What is seen of a fault may lie so long before it by another clock, or so long after its end.
_BEFORE_S, _AFTER_S = 1.0, 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class InjectedFault:
    """kind, target: as the command had them. begin, end: Unix seconds; end None: nobody wrote down that it ended."""

    kind: str
    target: str
    begin: float
    end: float | None = None


def read_injected(directory: RunDirectory) -> list[InjectedFault]:
    """The faults in the order in which they were done; none where no audit file can be read."""
    try:
        text = read_regular(directory.path / AUDIT_FILE, _MOST_BYTES, directory.owner).decode("utf-8", "replace")
    except OSError:
        return []
    found: list[InjectedFault] = []
    for line in text.splitlines():
        try:
            said = json.loads(line)
            if said["hook"] != AUDIT_HOOK:
                continue
            outcome, at_s = Outcome(said["outcome"]), float(said["time"])
            kind, target = str(said["operation"]), str(said["target"])
        except (ValueError, KeyError, TypeError):
            continue  # torn, or another program's
        if outcome is Outcome.BEGUN:
            found.append(InjectedFault(kind=kind, target=target, begin=at_s))
        elif found and found[-1].kind == kind and found[-1].end is None:
            found[-1] = InjectedFault(kind=kind, target=target, begin=found[-1].begin, end=at_s)
    return found


def injected_at(faults: Sequence[InjectedFault], begin_s: float) -> InjectedFault | None:
    """The fault during which, or right after which, something began (Unix seconds); None: it is a true one."""
    for fault in faults:
        end_s = fault.begin if fault.end is None else fault.end
        if fault.begin - _BEFORE_S <= begin_s <= end_s + _AFTER_S:
            return fault
    return None
