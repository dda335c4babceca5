"""A port that lost its link and had not got it back when the log ended: what one line alone cannot tell from a blink.

Bounded; in the thread of its ``KernelLogReader``. Says nothing of ports that were down from boot on: they may have no
cable on purpose.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import replace

from .event import KernelEvent, KernelStamp
from .rules import event_of, event_rules

LINK_DOWN, LINK_UP, STAYS_DOWN = "nic_link_down", "nic_link_up", "nic_link_stays_down"
#: A link that comes back does so within seconds; the log has to go on for that long.
STAYS_S = 60.0
#: So long after its boot a node still brings its ports up.
BOOT_S = 300.0
PORTS = 512


class LinksDown:
    """One per log."""

    def __init__(self) -> None:
        self._down: OrderedDict[tuple[str, str], tuple[KernelEvent, KernelStamp]] = OrderedDict()

    def read(self, event: KernelEvent, stamp: KernelStamp) -> None:
        """Notes a port's loss of link, and forgets it when the link is back.

        Losses while the machine boots do not count.
        """
        key = (stamp.host, event.facts.get("interface") or event.device)
        if event.event == LINK_UP:
            self._down.pop(key, None)
        elif event.event == LINK_DOWN and event.device:
            if stamp.monotonic_s is not None and stamp.monotonic_s < BOOT_S:
                return
            self._down.setdefault(key, (event, stamp))
            if len(self._down) > PORTS:
                self._down.popitem(last=False)

    def at_end(self, last: KernelStamp) -> list[KernelEvent]:
        """An event for each port that was down for ``STAYS_S`` or longer when the log ended.

        last: stamp of its last line.

        Without a clock nobody knows whether the log went on for long enough: none then.
        """
        found: list[KernelEvent] = []
        for event, stamp in self._down.values():
            down_s = stamp.until(last)
            if down_s is None or down_s < STAYS_S:
                continue
            facts = {**event.facts, "seconds": f"{down_s:.0f}"}
            told = event_of(event_rules()[STAYS_DOWN], event.text, device=event.device, facts=facts)
            found.append(replace(stamp.on(told), host=event.host))
        return found
