"""What devices of a log had before: what follows from it, what says it again in other words, and what is a recovery.

Bounded: so many devices, the longest silent are forgotten first. In the thread of its ``KernelLogReader``; it reads no
lines.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import MutableMapping
from dataclasses import replace
from typing import TypeVar

from ...telemetry.vocabulary import CausalRole
from .device import pci_slot
from .event import KernelEvent, KernelStamp
from .rules import event_rules, line_rules
from .xid import CASCADE_S, OFF_THE_BUS_XID, implied_xid, is_consequence, policy_of

#: Xid 79 and the text about the bus are one loss within this time.
ONE_LOSS_S = 300.0
#: An Xid that another one names as its cause, if nothing told it within this time, stood in what was cut off.
IMPLIED_S = 3600.0
DEVICES = 512
XIDS_PER_DEVICE = 32
#: The kernel, its audit and systemd-coredump each tell of one crash.
CRASHES = frozenset({"segfault", "segfault_in_library", "service_crashed"})
ONE_CRASH_S = 300.0
#: So many devices that are gone can be looked for in a line; of an address bus, slot and function.
FEW, SLOT_CHARACTERS = 16, 7

#: Host and PCI slot.
Device = tuple[str, str]
_K = TypeVar("_K")
_V = TypeVar("_V")


class History:
    """One per log."""

    def __init__(self) -> None:
        self._xids: OrderedDict[Device, dict[str, float | None]] = OrderedDict()
        self._lost: OrderedDict[Device, float | None] = OrderedDict()
        self._before: OrderedDict[tuple[str, str, str], None] = OrderedDict()
        self._uuids: OrderedDict[Device, str] = OrderedDict()
        self._crashed: OrderedDict[tuple[str, int], float | None] = OrderedDict()
        self._awaited = {rule.rule.after for rule in line_rules() if rule.rule.after}

    def recent_xids(self, host: str, device: str) -> dict[str, float | None]:
        """By code when the device last had each Xid that may explain others; None for no clock.

        It is the dictionary itself: who reads Xids elsewhere writes them down in it.
        """
        key = (host, pci_slot(device))
        recent = self._xids.get(key)
        if recent is None:
            recent = {}
        _remember(self._xids, key, recent)
        return recent

    def lost(self, host: str, device: str) -> tuple[MutableMapping[Device, float | None], Device]:
        """(dictionary, key): what stands there tells when a GPU was last said to have left the bus."""
        return self._lost, (host, pci_slot(device))

    def name_gpu(self, host: str, device: str, uuid: str) -> None:
        """Notes the UUID of the GPU at this PCI address of the host, as a line told it."""
        _remember(self._uuids, (host, pci_slot(device)), uuid)

    def is_lost_again(self, event: KernelEvent, stamp: KernelStamp) -> bool:
        """Notes that the device left the bus. Whether that was told before in other words."""
        key: Device | None = (stamp.host, pci_slot(event.device))
        known = key if event.device else next((k for k in reversed(self._lost) if k[0] == stamp.host), None)
        is_again = self._is_lost(known, stamp)
        _remember(self._lost, (stamp.host, pci_slot(event.device)), stamp.when_s)
        return is_again

    def _is_lost(self, key: Device | None, stamp: KernelStamp) -> bool:
        return key is not None and key in self._lost and is_soon(self._lost[key], stamp.when_s, ONE_LOSS_S)

    def is_crashed_again(self, event: KernelEvent, stamp: KernelStamp) -> bool:
        """Notes that the process ended. Whether that was told within ``ONE_CRASH_S`` before; False without a pid."""
        if event.pid is None:
            return False
        key = (stamp.host, event.pid)
        is_again = key in self._crashed and is_soon(self._crashed[key], stamp.when_s, ONE_CRASH_S)
        _remember(self._crashed, key, stamp.when_s)
        return is_again

    def may_be_back(self, line: str) -> bool:
        """Whether the line may name a device of which a fault was noted: a recovery says nothing of others."""
        if not 0 < len(self._before) <= FEW:
            return bool(self._before)
        lower = line.lower()
        return any(device[-SLOT_CHARACTERS:].lower() in lower for _, _, device in self._before)

    def is_awaited(self, event: KernelEvent, host: str) -> bool:
        """Whether the event says something new: always, but for a recovery only after the fault that it ends.

        Notes faults whose recovery is to be told, and forgets one that is recovered.
        """
        if event.event in self._awaited:
            _remember(self._before, (host, event.event, event.device), None)
        rule = event_rules().get(event.event)
        after = rule.after if rule is not None else ""
        if not after:
            return True
        key = (host, after, event.device)
        if key not in self._before:
            return False
        del self._before[key]
        return True

    def implied(self, event: KernelEvent, stamp: KernelStamp) -> list[KernelEvent]:
        """The Xid that this one names as its cause, if its own line is missing: it is what there is to act on.

        Else [].
        """
        cause = event.facts.get("caused_by", "")
        recent = self.recent_xids(stamp.host, event.device)
        if not cause or cause == event.code or (cause in recent and is_soon(recent[cause], stamp.when_s, IMPLIED_S)):
            return []
        _note(recent, cause, stamp.when_s)
        return [stamp.on(implied_xid(event, cause))]

    def with_role(self, event: KernelEvent, stamp: KernelStamp) -> KernelEvent:
        """The Xid with its role (a consequence of those before it on the device, or not) and the UUID of its GPU.

        It is noted for those to come.
        """
        key = (stamp.host, pci_slot(event.device))
        role = event.role
        recent = self.recent_xids(*key)
        follows = policy_of(event.code).follows
        if is_consequence(event.code, [c for c, at_s in recent.items() if is_soon(at_s, stamp.when_s, CASCADE_S)]):
            role = CausalRole.CASCADE
        if event.code == OFF_THE_BUS_XID:
            if self._is_lost(key, stamp):
                role = CausalRole.CASCADE
            _remember(self._lost, key, stamp.when_s)
        if follows is not None:  # what follows anything explains nothing itself
            _note(recent, event.code, stamp.when_s)
        uuid = self._uuids.get(key)
        if uuid:
            event = replace(event, facts={**event.facts, "uuid": uuid})
        return event if role is event.role else replace(event, role=role)


def _remember(table: OrderedDict[_K, _V], key: _K, value: _V) -> None:
    table[key] = value
    table.move_to_end(key)
    if len(table) > DEVICES:
        table.popitem(last=False)


def _note(recent: dict[str, float | None], code: str, when_s: float | None) -> None:
    recent.pop(code, None)
    recent[code] = when_s
    if len(recent) > XIDS_PER_DEVICE:
        del recent[next(iter(recent))]


def is_soon(earlier_s: float | None, when_s: float | None, window_s: float) -> bool:
    """Whether ``when_s`` lies at most ``window_s`` after ``earlier_s``; True where either is unknown.

    Without a clock the order of lines is all there is, and counts.
    """
    return earlier_s is None or when_s is None or 0 <= when_s - earlier_s <= window_s
