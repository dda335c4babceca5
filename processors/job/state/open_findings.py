"""The findings of a job that are open, and what of them is asked again and again."""

from __future__ import annotations

from ....telemetry.kind_sets import STOPPING_KINDS, WAIT_KINDS
from ....telemetry.vocabulary import Kind, Severity
from .finding_memory import SilentNodeMemory
from .rank_state import OpenFinding
from .witness_state import WitnessState


def silent_node(finding: OpenFinding) -> str:
    """The node from which nothing is seen, of an AGENT_SILENT finding; "" of other findings."""
    memory = finding.detail.memory
    return memory.node if isinstance(memory, SilentNodeMemory) else ""


class OpenFindings:
    """Findings of a job that are open. by_key: of all attempts. attempt: the one that runs. witnesses: what others than
    rings say of it.
    """

    def __init__(self) -> None:
        self.by_key: dict[str, OpenFinding] = {}
        self.attempt = ""
        self.witnesses = WitnessState()

    def all(self) -> list[OpenFinding]:
        """Findings of all attempts in the order in which they were opened; a copy, as looking at them may end some."""
        return list(self.by_key.values())

    def stopping(self) -> OpenFinding | None:
        """The finding of the attempt that runs after which it cannot go on; None: there is none."""
        return next((f for f in self.by_key.values() if f.attempt == self.attempt and f.kind in STOPPING_KINDS), None)

    def noticed_wait(self) -> OpenFinding | None:
        """The stopping finding where it is a wait that is no page (yet), which whatever shows more
        replaces; else None.
        """
        finding = self.stopping()
        if finding is None or finding.kind not in WAIT_KINDS or finding.body.severity is Severity.PAGE:
            return None
        return finding

    def of_kind(self, kind: Kind) -> list[OpenFinding]:
        """Open findings of this kind, of the attempt that runs."""
        return [f for f in self.by_key.values() if f.kind == kind.value and f.attempt == self.attempt]

    def has_kind(self, kind: Kind) -> bool:
        """Whether a finding of this kind is open for the attempt that runs."""
        return bool(self.of_kind(kind))
