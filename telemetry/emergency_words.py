"""Words about emergency saves that a rank, its agent and the job operator share. Standard library only.

An emergency save is asked for, all ranks agree on one step, and each rank tells what became of its part.
"""

from __future__ import annotations

from enum import Enum

#: In the ring folder: who asks for a save puts this file there, as JSON {"id", "reason", "seconds"}.
REQUEST_FILE = "checkpoint"
MAX_REQUEST_BYTES = 512
#: In the ring folder: where the ranks of a job on one node agree.
BOARD_FOLDER = "emergency"
#: In there, an empty file for each rank of this node that listens: RANK.PID follows.
LISTENS = "listens-"
#: So long before an end that is known the save is asked for.
DEFAULT_LEAD_S = 300.0
#: For a request that says nothing of its own: how long the ranks try, in seconds.
DEFAULT_SECONDS = 600.0
MOST_REASON = 64


class EmergencyState(str, Enum):
    """What became of an emergency save on one rank."""

    ASKED = "asked"
    SAVED = "saved"
    FAILED = "failed"
    MISSED = "missed"


class MissedWhy(str, Enum):
    """MissedWhy a rank did not save."""

    #: The ranks could not agree: no answer, or no way to talk.
    NO_AGREEMENT = "no_agreement"
    #: The step that was agreed on was not reached in time.
    NOT_REACHED = "not_reached"
    #: This rank was past the step that was agreed on, or stands at another.
    OTHER_STEP = "other_step"
    #: The process came to its end before.
    ENDED = "ended"
    #: The save function raised.
    RAISED = "raised"


class SaveReason(str, Enum):
    """Why a save is asked for; people may say it in their own words instead."""

    SIGTERM = "SIGTERM"
    TIME_LIMIT = "time_limit"
    PREEMPTION = "preemption"
    MAINTENANCE = "maintenance"
    #: A power supply or unit of the node has failed.
    POWER = "power"
    #: A check of the site's asks for it.
    ADVICE = "advice"
    PERSON = "person"
