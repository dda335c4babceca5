"""One link's ups and downs: drop, flap, and losses that polling did not see. Pure; packs into JSON's types.

A look that cannot tell the state (UNKNOWN) neither ends nor prolongs anything.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from .rules import LinkRules
from .sample import LinkState

#: More flaps than this in the window say nothing new.
MAX_TIMES = 64
#: A port is not usable in these; INIT and ARMED last seconds while the subnet manager works.
_NOT_UP = frozenset({LinkState.DOWN, LinkState.INIT, LinkState.ARMED})


class LinkEvent(str, Enum):
    DOWN = "down"
    #: Down for ``drop_s`` on end, and link_downed stood still.
    DROPPED = "dropped"
    UP = "up"
    FLAPPING = "flapping"
    STEADY = "steady"


def _times() -> deque[float]:
    return deque(maxlen=MAX_TIMES)


@dataclass(slots=True)
class LinkHistory:
    """``down_since_s``: first look of the present down time; None while the link is up or unknown."""

    was_up: bool = False
    down_since_s: float | None = None
    down_last_s: float = 0.0
    #: From when link_downed has not moved while the link was down.
    still_since_s: float = 0.0
    downed: int | None = None
    is_dropped: bool = False
    is_flapping: bool = False
    #: Ends of the flaps that count, and times of losses seen in counters (one entry per loss).
    flaps: deque[float] = field(default_factory=_times)
    losses: deque[float] = field(default_factory=_times)

    def take(self, rules: LinkRules, t_s: float, state: LinkState, downed: int | None, losses: int) -> list[LinkEvent]:
        """Takes one look at a link, and gives what it shows: down, dropped, up, flapping, steady. t_s: seconds.

        downed: link_downed now (None unknown); losses: carrier losses counted since the last look.
        """
        events: list[LinkEvent] = []
        self.losses.extend([t_s] * min(losses, MAX_TIMES))
        if state in _NOT_UP:
            events += self._down(rules, t_s, downed)
        elif state is LinkState.ACTIVE:
            events += self._up(rules, t_s)
        if downed is not None:
            self.downed = downed
        return events + self._flapping(rules, t_s)

    def _down(self, rules: LinkRules, t_s: float, downed: int | None) -> list[LinkEvent]:
        events: list[LinkEvent] = []
        if self.down_since_s is None:
            self.down_since_s, self.still_since_s = t_s, t_s
            events.append(LinkEvent.DOWN)
        elif downed is not None and self.downed is not None and downed != self.downed:
            self.still_since_s = t_s
        self.down_last_s = t_s
        if not self.is_dropped and t_s - self.still_since_s >= rules.drop_s:
            self.is_dropped = True
            events.append(LinkEvent.DROPPED)
        return events

    def _up(self, rules: LinkRules, t_s: float) -> list[LinkEvent]:
        self.was_up = True
        if self.down_since_s is None:
            return []
        # Seen down at both ends of that time: one look alone may have met a blink.
        if self.down_last_s - self.down_since_s >= rules.flap_down_s:
            self.flaps.append(t_s)
        self.down_since_s, self.is_dropped = None, False
        return [LinkEvent.UP]

    def _flapping(self, rules: LinkRules, t_s: float) -> list[LinkEvent]:
        while self.flaps and t_s - self.flaps[0] > rules.flap_window_s:
            self.flaps.popleft()
        while self.losses and t_s - self.losses[0] > rules.losses_window_s:
            self.losses.popleft()
        is_many = len(self.flaps) >= rules.flaps or len(self.losses) >= rules.losses
        latest_s = max([*list(self.flaps)[-1:], *list(self.losses)[-1:]], default=t_s)
        is_recent = t_s - latest_s < rules.flap_quiet_s
        if is_many and is_recent and not self.is_flapping:
            self.is_flapping = True
            return [LinkEvent.FLAPPING]
        if self.is_flapping and not is_recent and self.down_since_s is None:
            self.is_flapping = False
            # What has been told once counts only with new flaps.
            self.flaps.clear()
            self.losses.clear()
            return [LinkEvent.STEADY]
        return []

    def pack(self) -> dict[str, Any]:
        """The state in JSON's types, for a collector that starts again."""
        return {
            "was_up": self.was_up,
            "down_since_s": self.down_since_s,
            "down_last_s": self.down_last_s,
            "still_since_s": self.still_since_s,
            "downed": self.downed,
            "is_dropped": self.is_dropped,
            "is_flapping": self.is_flapping,
            "flaps": list(self.flaps),
            "losses": list(self.losses),
        }

    @classmethod
    def unpack(cls, packed: dict[str, Any]) -> LinkHistory:
        """The state from what ``pack`` gave. Raises KeyError or TypeError where it is something else."""
        return cls(
            **{**packed, "flaps": deque(packed["flaps"], MAX_TIMES), "losses": deque(packed["losses"], MAX_TIMES)}
        )
