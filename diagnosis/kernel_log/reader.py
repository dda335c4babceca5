"""Kernel lines in, events out: the one reader for files, journals and /dev/kmsg.

Most lines hold none of some hundred literals and are given up after looking for those; only the others are taken out of
their wrapper and held against the rules that asked for the literals they have. State is small and bounded.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Callable, Iterable, MutableMapping, Sequence
from dataclasses import replace
from typing import TypeVar

from ...telemetry.vocabulary import CausalRole
from .device import canonical_gpu, canonical_pci, pci_slot
from .event import KernelEvent, Stamp
from .hung_task import HUNG_TASK, HungFollower
from .oops import KERNEL_OOPS, OOPS_S, OopsFollower
from .prefix import Line, unwrap
from .rules import LineRule, event_rules, line_rules, match
from .several_lines import (
    OFF_THE_BUS,
    SOFT_LOCKUP,
    BusFollower,
    NapiFollower,
    OomFollower,
    PanicFollower,
)
from .stamps import Calendar
from .xid import CASCADE_S, OFF_THE_BUS_XID, XID, implied_xid, is_consequence, parse_sxid, parse_xid, policy_of

#: What stands further out in a line is not read.
LINE_CHARACTERS = 16_384
#: Xid 79 and the text about the bus are one loss within this time.
ONE_LOSS_S = 300.0
#: An Xid that another one names as its cause, if nothing told it within this time, stood in what was cut off.
IMPLIED_S = 3600.0
#: Devices remembered; the longest silent are forgotten first.
DEVICES = 512
XIDS_PER_DEVICE = 32
#: So many devices that are gone can be looked for in a line; of an address bus, slot and function.
FEW, SLOT_CHARACTERS = 16, 7
#: Lines of one oops that would each look like another.
OOPS_LINES = 12

_K = TypeVar("_K")
_V = TypeVar("_V")
_XID_WORD = "Xid ("
_DRIVER_WORD = "loading NVIDIA"
_NUMBERS = ('"MESSAGE":[', '"MESSAGE" : [', '"MESSAGE": [')
_DRIVER = re.compile(
    r"(?:NVRM: loading NVIDIA UNIX|NVRM version: NVIDIA UNIX)[^\n]{0,80}?\s(\d{3})\.\d{1,4}(?:\.\d{1,3})?\s"
)
_UUID = re.compile(r"NVRM: GPU at (?:PCI:)?(?P<pci>[0-9a-fA-F:.]{7,16}): (?P<uuid>GPU-[0-9a-fA-F-]{36})")
_MAJOR = re.compile(r"\D{0,3}(\d{3})\b")


class KernelLogReader:
    """One per log. ``driver_version``: of the NVIDIA driver ("570.148.08"), else learnt from the log's own lines.

    ``calendar``: what dates without a year or zone mean. ``boot_time_s``: Unix seconds of second 0 of this boot, where
    only seconds since boot are in the log.
    """

    def __init__(
        self,
        driver_version: str | None = None,
        *,
        calendar: Calendar | None = None,
        boot_time_s: float | None = None,
    ) -> None:
        self._driver_major = driver_major(driver_version)
        self._calendar = calendar or Calendar()
        self._boot_time_s = boot_time_s
        self._oom = OomFollower()
        self._panic = PanicFollower()
        self._bus = BusFollower()
        self._napi = NapiFollower()
        self._followers = (self._oom, self._panic, self._bus, self._napi)
        self._hung = HungFollower()
        self._oops = OopsFollower()
        self._beginnings = frozenset((*OomFollower.WORDS, *PanicFollower.WORDS, *BusFollower.WORDS))
        self._is_following = False
        self._xids: OrderedDict[tuple[str, str], dict[str, float | None]] = OrderedDict()
        self._lost: OrderedDict[tuple[str, str], float | None] = OrderedDict()
        self._before: OrderedDict[tuple[str, str, str], None] = OrderedDict()
        self._uuids: OrderedDict[tuple[str, str], str] = OrderedDict()
        self._oops_lines_left, self._oops_at = 0, Stamp()
        self._index: dict[str, list[LineRule]] = {}
        for rule in line_rules():
            for word in rule.needs:
                self._index.setdefault(word, []).append(rule)
        self._awaited = {rule.rule.after for rule in line_rules() if rule.rule.after}
        # journald writes a message that is not UTF-8 as numbers, in which no word can be found.
        words = (
            *_NUMBERS,
            *OomFollower.WORDS,
            *PanicFollower.WORDS,
            *BusFollower.WORDS,
            _XID_WORD,
            _DRIVER_WORD,
            "NVRM: GPU at",
        )
        self._own_words = frozenset(words)
        #: By word, what its rules search a line for that is still wrapped; compiled when first asked for.
        self._searches: dict[str, list[tuple[Callable[[str], object], bool]]] = {}
        self._words = tuple(dict.fromkeys((*words, *self._index)))

    @property
    def driver_major(self) -> int | None:
        """Branch of the NVIDIA driver (570), as told or learnt."""
        return self._driver_major

    @property
    def words(self) -> tuple[str, ...]:
        """Every line that says something holds one of these, unless ``wants_next``."""
        return self._words

    @property
    def wants_next(self) -> bool:
        """Whether the next line counts whatever it holds: the last one began something of several lines."""
        return self._is_following or self._oops_lines_left > 0 or self._is_holding

    @property
    def _is_holding(self) -> bool:
        """Whether something was read that the lines after it tell more of."""
        return self._hung.lines_left > 0 or self._oops.lines_left > 0

    def read(
        self, line: str, *, now_s: float | None = None, literals: Sequence[str] | None = None
    ) -> Sequence[KernelEvent]:
        """What this line, with those before it, says. ``now_s``: when it came, for lines without a time of their own.

        literals: those of ``words`` that the line holds, where that is known. A line may hold line breaks of its own
        (``journalctl -o json``, Docker). Never raises.
        """
        if literals is None:
            literals = [word for word in self._words if word in line]
        if not literals and not self.wants_next:
            return ()
        if len(line) > LINE_CHARACTERS:
            line = line[:LINE_CHARACTERS]
        if not self.wants_next and not self._may_tell(line, literals):
            return ()
        unwrapped = unwrap(line, self._calendar)
        if unwrapped.is_continuation:
            return ()
        events: list[KernelEvent] = []
        if unwrapped.is_decoded:
            literals = self._words
        program = f"{unwrapped.tag}: " if unwrapped.tag else ""
        for part in unwrapped.text.splitlines():
            events += self._read_text(program + part.strip(), literals, unwrapped, now_s)
        return events

    def _may_tell(self, line: str, literals: Sequence[str]) -> bool:
        """Whether it is worth to take the line out of its wrapper: most lines with a word of a fault tell of none."""
        if "\x1b" in line or '{"' in line or '{ "' in line:  # colours, JSON: the text does not stand there as it is
            return True
        for word in literals:
            searches = self._searches.get(word)
            if searches is None:
                rules = self._index.get(word, ())
                searches = [(rule.within.search, bool(rule.rule.after)) for rule in rules]
                searches = self._searches[word] = [] if word in self._own_words else searches
            if not searches:  # one that is looked for elsewhere than in the rules
                if word != _DRIVER_WORD or _DRIVER.search(line) is not None:
                    return True
                continue
            for search, is_recovery in searches:
                if is_recovery and not self._may_be_back(line):
                    continue
                if search(line) is not None:
                    return True
        return False

    def _may_be_back(self, line: str) -> bool:
        """What is only said of a device that was gone says nothing of one that was not."""
        if not 0 < len(self._before) <= FEW:
            return bool(self._before)
        lower = line.lower()
        return any(device[-SLOT_CHARACTERS:].lower() in lower for _, _, device in self._before)

    def recent_xids(self, host: str, device: str) -> dict[str, float | None]:
        """When the device had each code last that may explain others. Who reads Xids elsewhere writes it down here."""
        key = (host, pci_slot(device))
        recent = self._xids.get(key)
        if recent is None:
            recent = {}
        _remember(self._xids, key, recent)
        return recent

    def lost(self, host: str, device: str) -> tuple[MutableMapping[tuple[str, str], float | None], tuple[str, str]]:
        """Where, and by what, it stands when a GPU was last said to have left the bus."""
        return self._lost, (host, pci_slot(device))

    def flush(self) -> Sequence[KernelEvent]:
        """What was held back for lines to come: at the end of the input, or when it has fallen silent for a second."""
        self._is_following = False
        held = [*self._hung.flush(), *self._oops.flush()]
        return held + [event for follower in self._followers for event in follower.flush()]

    def _read_text(self, text: str, literals: Sequence[str], line: Line, now_s: float | None) -> Sequence[KernelEvent]:
        """One line of ``line``'s text. Most say nothing: when and where it was is made out only for those that do."""
        self._oops_lines_left = max(0, self._oops_lines_left - 1)
        if self._is_holding:
            stamp = self._stamp(line, now_s)
            return [
                *self._hung.read(text, stamp),
                *self._oops.read(text, stamp),
                *self._told(text, literals, line, now_s),
            ]
        return self._told(text, literals, line, now_s)

    def _told(self, text: str, literals: Sequence[str], line: Line, now_s: float | None) -> Sequence[KernelEvent]:
        hits = [word for word in literals if word in text]
        if self._is_following or not self._beginnings.isdisjoint(hits):
            stamp = self._stamp(line, now_s)
            if events := self._follow(text, hits, stamp):
                return self._judged(events, stamp)
        if not hits:
            return ()
        if _XID_WORD in hits:
            event = parse_xid(text, self._driver_major) or parse_sxid(text)
        else:
            self._learn(text, line.host)
            event = self._first_match(text, hits)
        if event is None or not self._is_awaited(event, line.host):
            return ()
        stamp = self._stamp(line, now_s)
        return self._judged([stamp.on(event)], stamp)

    def _first_match(self, text: str, hits: Sequence[str]) -> KernelEvent | None:
        """By the first of the rules that asked for one of these words."""
        rules = self._index.get(hits[0], [])
        if len(hits) > 1:
            rules = sorted(
                {rule.order: rule for word in hits for rule in self._index.get(word, ())}.values(), key=_order
            )
        for rule in rules:
            event = match(rule, text)
            if event is not None:
                return event
        return None

    def _follow(self, text: str, hits: Sequence[str], stamp: Stamp) -> list[KernelEvent]:
        events: list[KernelEvent] = []
        is_following = False
        for follower in self._followers:
            begins = any(word in hits for word in getattr(follower, "WORDS", ()))
            if not begins and not follower.lines_left:
                continue
            events += follower.read(text, stamp)
            if follower.lines_left:
                follower.lines_left -= 1
                if not follower.lines_left:
                    events += follower.flush()
                is_following |= follower.lines_left > 0
        self._is_following = is_following
        return events

    def _learn(self, text: str, host: str) -> None:
        if "NVRM" not in text:
            return
        if (driver := _DRIVER.search(text)) is not None:
            self._driver_major = int(driver[1])
        elif (gpu := _UUID.search(text)) is not None and (address := canonical_pci(gpu["pci"])) is not None:
            _remember(self._uuids, (host, pci_slot(address)), canonical_gpu(gpu["uuid"]) or "")

    def _judged(self, events: Iterable[KernelEvent], stamp: Stamp) -> list[KernelEvent]:
        """Drops what was said before in other words, and marks consequences."""
        kept: list[KernelEvent] = []
        for event in events:
            key = (stamp.host, pci_slot(event.device))
            if event.event == XID:
                kept += self._implied(event, key, stamp)
                event = self._xid_role(event, key, stamp)
            elif event.event == OFF_THE_BUS:
                is_again = self._is_lost(key if event.device else self._last_lost(stamp.host), stamp)
                _remember(self._lost, key, stamp.when_s)
                if is_again:
                    continue
            elif event.event == KERNEL_OOPS:
                if not (self._oops_lines_left and self._oops_at.is_within(OOPS_S, stamp)):
                    kept += self._oops.begin(event, stamp)
                    self._oops_lines_left, self._oops_at = OOPS_LINES, stamp
                continue
            elif event.event == HUNG_TASK:
                kept += self._hung.begin(event, stamp)
                continue
            elif event.event == SOFT_LOCKUP:
                self._napi.begin(event)
                self._is_following = True
            kept.append(event)
        return kept

    def _last_lost(self, host: str) -> tuple[str, str] | None:
        """For a line that does not say which GPU it was."""
        return next((key for key in reversed(self._lost) if key[0] == host), None)

    def _is_lost(self, key: tuple[str, str] | None, stamp: Stamp) -> bool:
        return key is not None and key in self._lost and is_soon(self._lost[key], stamp.when_s, ONE_LOSS_S)

    def _is_awaited(self, event: KernelEvent, host: str) -> bool:
        """A recovery says something only of a device that was gone."""
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

    def _implied(self, event: KernelEvent, key: tuple[str, str], stamp: Stamp) -> list[KernelEvent]:
        """The Xid that this one names as its cause, where its own line is missing: it is what there is to act on."""
        cause = event.facts.get("caused_by", "")
        recent = self.recent_xids(*key)
        if not cause or cause == event.code or (cause in recent and is_soon(recent[cause], stamp.when_s, IMPLIED_S)):
            return []
        _note(recent, cause, stamp.when_s)
        return [stamp.on(implied_xid(event, cause))]

    def _xid_role(self, event: KernelEvent, key: tuple[str, str], stamp: Stamp) -> KernelEvent:
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

    def _stamp(self, line: Line, now_s: float | None) -> Stamp:
        time_s = line.time_s
        if time_s is None and line.monotonic_s is not None and self._boot_time_s is not None:
            time_s = self._boot_time_s + line.monotonic_s
        return Stamp(time_s=now_s if time_s is None else time_s, monotonic_s=line.monotonic_s, host=line.host)


def driver_major(version: str | None) -> int | None:
    """570 of "570.148.08" or "R570"; None if there is no such number."""
    found = _MAJOR.match(version) if version else None
    return int(found[1]) if found else None


def _order(rule: LineRule) -> int:
    return rule.order


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
    """Without a clock the order of lines is all there is, and counts."""
    return earlier_s is None or when_s is None or 0 <= when_s - earlier_s <= window_s
