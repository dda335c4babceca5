"""How long after the last closing the next steps are closed: soon where they may be the first signs of something."""

from __future__ import annotations

from ....telemetry.kind_sets import SPEED_KINDS
from ..state.job_state import JobState
from .closed_steps import ends_with_steps

#: Steps that take no longer than those before may wait until so much has gathered, or so long.
CLOSE_ROWS = 8_192
CLOSE_NS = 4_000_000_000
#: Slow steps, and those after a finding, wait until the other nodes' rows of the same flush are in as well.
CLOSE_SOON_NS = 200_000_000
#: While it is known that steps are slow, all that they can tell is that they are no longer.
CLOSE_SLOW_NS = 1_000_000_000


def closing_patience_ns(job: JobState, length_ns: int) -> int:
    """How long after the last closing steps of this length are closed: soon if they may be the first signs of
    something, or the end of what was told."""
    if not job.steps.slow_step_ns or length_ns > job.steps.slow_step_ns:
        return CLOSE_SOON_NS
    findings = job.findings.by_key.values()
    if any(ends_with_steps(job, finding) for finding in findings):
        return CLOSE_SOON_NS
    return CLOSE_SLOW_NS if any(finding.kind in SPEED_KINDS for finding in findings) else CLOSE_NS
