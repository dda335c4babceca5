"""The findings of a job that are open, and what of them is asked again and again."""

from __future__ import annotations

from ....telemetry.kind_sets import STOPPING_KINDS, WAIT_KINDS
from ....telemetry.vocabulary import Kind, Severity
from .finding_memory import SilentNodeMemory
from .rank_state import OpenFinding


def silent_node(finding: OpenFinding) -> str:
    """Of which node an AGENT_SILENT tells that nothing is seen; "" of other findings."""
    memory = finding.detail.memory
    return memory.node if isinstance(memory, SilentNodeMemory) else ""


class OpenFindings:
    """by_key: of all attempts. attempt: the one that runs."""

    def __init__(self) -> None:
        self.by_key: dict[str, OpenFinding] = {}
        self.attempt = ""

    def all(self) -> list[OpenFinding]:
        """In the order in which they were opened; a copy, as looking at them may end some."""
        return list(self.by_key.values())

    def stopping(self) -> OpenFinding | None:
        """The one finding of this attempt after which it cannot go on."""
        return next((f for f in self.by_key.values() if f.attempt == self.attempt and f.kind in STOPPING_KINDS), None)

    def noticed_wait(self) -> OpenFinding | None:
        """The same, where it is a wait that was noticed and is no page (yet): whatever shows more takes its place."""
        finding = self.stopping()
        if finding is None or finding.kind not in WAIT_KINDS or finding.body.severity is Severity.PAGE:
            return None
        return finding

    def of_kind(self, kind: Kind) -> list[OpenFinding]:
        """Of the attempt that runs."""
        return [f for f in self.by_key.values() if f.kind == kind.value and f.attempt == self.attempt]

    def has_kind(self, kind: Kind) -> bool:
        """The same, whether there is any."""
        return bool(self.of_kind(kind))
