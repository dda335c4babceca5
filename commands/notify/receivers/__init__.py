"""What receivers have in common. Each is a module: it writes a notice in one API's form, and reads its answer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Protocol

from ..messages.notices import AlertState, Notice


class DeliveryOutcome(Enum):
    TOLD = "told"
    #: Another try may go better.
    AGAIN = "again"
    #: Not as it is, however often.
    REFUSED = "refused"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReceiverReference:
    """What a receiver needs to know the next time; each kind of receiver has fields of its own.

    labels: an alert's. ts, channel, replied: where a message is, and the topic of the last reply to it; replied None:
    there was none. openings: how often it was opened.
    """

    labels: Mapping[str, str] = field(default_factory=dict)
    ts: str = ""
    channel: str = ""
    replied: str | None = None
    openings: int = 0

    def __bool__(self) -> bool:
        """False: nothing is known."""
        return self != NO_REFERENCE


NO_REFERENCE = ReceiverReference()


@dataclass(frozen=True, slots=True, kw_only=True)
class DeliveryContext:
    """What is known of this notice's key at the receiver. is_unsure: an earlier try may have arrived."""

    reference: ReceiverReference = NO_REFERENCE
    is_unsure: bool = False
    told: AlertState | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DeliveryAnswer:
    """detail: one line without secrets. reference: what the receiver needs to know next time.

    again_s: it must be said again by then, even if nothing changes. is_unsure: it may have arrived all the same.
    """

    outcome: DeliveryOutcome
    detail: str = ""
    reference: ReceiverReference = NO_REFERENCE
    retry_after_s: float | None = None
    again_s: float | None = None
    is_unsure: bool = False


class Receiver(Protocol):
    """Blocking, bounded in time, called by one thread; raises nothing that its world may answer with."""

    def send(self, notice: Notice, telling: DeliveryContext) -> DeliveryAnswer:
        """Tells a notice once; whatever the receiver answers becomes a ``DeliveryAnswer``."""
        ...
