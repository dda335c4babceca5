"""Words of faults that are put into a job on purpose, shared by who asks for one and the rank that does it.

The rank reads the request only where the job allowed it in its own environment when it started. Standard library only.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum

#: In the job's own environment at its start: faults may be injected into it.
ALLOW_VARIABLE = "WHICHRANK_ALLOW_INJECT"
#: In there, of a job under ``whichrank run``: the folder of its run, where incidents are.
RUN_FOLDER_VARIABLE = "WHICHRANK_RUN_FOLDER"
#: In the ring folder: what one rank is to do, as JSON {"id", "kind", "rank", "until_s"} (Unix seconds).
REQUEST_FILE = "inject"
#: In the ring folder: what that rank wrote right before it did it, as JSON {"id", "time", "step"} (Unix seconds).
ANSWER_FILE = "inject-done"
MAX_FILE_BYTES = 512
#: In the audit file of a run, whose acts these are.
AUDIT_HOOK = "inject"


class InsideFault(str, Enum):
    """What only the rank itself can do wrong."""

    RAISE = "raise"
    SKIP_COLLECTIVE = "skip-collective"
    ADD_COLLECTIVE = "add-collective"
    NAN = "nan"


def allows_injection(environ: Mapping[str, str]) -> bool:
    """Whether a job with this environment lets faults be injected into it."""
    return environ.get(ALLOW_VARIABLE) == "1"
