"""Kernel lines in, events out: the one reader for files, journals and /dev/kmsg.

Most lines hold none of some hundred literals and are given up after looking for those; only the others are taken out of
their wrapper and held against the rules that asked for the literals they have. State is small and bounded.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence

from .cper import CperFollower
from .device import canonical_gpu, canonical_pci
from .device_history import CRASHES, History
from .event import KernelEvent, KernelStamp
from .gpu_details import GpuDetailFollower
from .holder import Holder
from .hung_task import HungFollower
from .kernel_line_prefix import UnwrappedLine, unwrap
from .line_folding import Fold
from .links_down import LINK_DOWN, LINK_UP, LinksDown
from .oops import KERNEL_OOPS, OOPS_S, OopsFollower
from .rules import LineRule, line_rules, match
from .several_lines import (
    OFF_THE_BUS,
    SOFT_LOCKUP,
    BusFollower,
    NapiFollower,
    OomFollower,
    PanicFollower,
)
from .stamps import Calendar
from .xid import XID, parse_sxid, parse_xid

#: What stands further out in a line is not read.
LINE_CHARACTERS = 16_384
#: Lines of one oops that would each look like another.
OOPS_LINES = 12

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
        self._holders: tuple[Holder, ...] = (HungFollower(), OopsFollower(), GpuDetailFollower(), CperFollower())
        self._beginnings = frozenset((*OomFollower.WORDS, *PanicFollower.WORDS, *BusFollower.WORDS))
        self._is_following = False
        #: ``_holds``, kept: it changes with lines that say something only, and is asked for all.
        self._is_holding = False
        self.history = History()
        self._links = LinksDown()
        self._oops_lines_left, self._oops_at = 0, KernelStamp()
        self._index: dict[str, list[LineRule]] = {}
        for rule in line_rules():
            for word in rule.needs:
                self._index.setdefault(word, []).append(rule)
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
        """Branch of the NVIDIA driver (570), as told or learnt; None: not known yet."""
        return self._driver_major

    @property
    def words(self) -> tuple[str, ...]:
        """Words of which every line that says something holds one, but for lines that ``wants_next`` asks for."""
        return self._words

    @property
    def wants_next(self) -> bool:
        """Whether the next line counts whatever it holds: the last one began something of several lines."""
        return self._is_following or self._oops_lines_left > 0 or self._is_holding

    def _holds(self) -> bool:
        """Whether something was read that the lines after it tell more of."""
        return any(holder.lines_left > 0 for holder in self._holders)

    def read(
        self, line: str, *, now_s: float | None = None, literals: Sequence[str] | None = None
    ) -> Sequence[KernelEvent]:
        """Events that this line, with those before it, tells; empty for most lines. Never raises.

        now_s: Unix seconds when it came, for lines without a time of their own. literals: those of ``words`` that the
        line holds, where that is known. A line may hold line breaks of its own (``journalctl -o json``, Docker).
        """
        if literals is None:
            literals = [word for word in self._words if word in line]
        if not literals and not self.wants_next:
            return ()
        if len(line) > LINE_CHARACTERS:
            line = line[:LINE_CHARACTERS]
        if not self.wants_next and not self._may_match(line, literals):
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
            self._is_holding = self._holds()
        return events

    def may_match_folded(self, word: str, line: str, fold: Fold) -> bool:
        """Whether this one of ``words`` may say something in ASCII lines that are ``line`` when folded."""
        if _is_to_decode(line) or word in self._own_words:
            return True
        return any(rule.within_folded(fold).search(line) for rule in self._index[word])

    def _may_match(self, line: str, literals: Sequence[str]) -> bool:
        """Whether it is worth to take the line out of its wrapper: most lines with a word of a fault tell of none."""
        if _is_to_decode(line):
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
                if is_recovery and not self.history.may_be_back(line):
                    continue
                if search(line) is not None:
                    return True
        return False

    def flush(self) -> Sequence[KernelEvent]:
        """Events that were held back for lines to come.

        To be called at the input's end, or after a second of silence.
        """
        self._is_following = False
        held = [event for holder in self._holders for event in holder.flush()]
        self._is_holding = self._holds()
        return held + [event for follower in self._followers for event in follower.flush()]

    def end(self, last_line: str) -> Sequence[KernelEvent]:
        """Events that only the end of the log tells. After ``flush``, and not where lines are still to come.

        last_line: tells when the log ended.
        """
        return self._links.at_end(self._stamp(unwrap(last_line[:LINE_CHARACTERS], self._calendar), None))

    def _read_text(
        self, text: str, literals: Sequence[str], line: UnwrappedLine, now_s: float | None
    ) -> Sequence[KernelEvent]:
        """One line of ``line``'s text. Most say nothing: when and where it was is made out only for those that do."""
        self._oops_lines_left = max(0, self._oops_lines_left - 1)
        if self._is_holding:
            stamp = self._stamp(line, now_s)
            more = [event for holder in self._holders if holder.lines_left for event in holder.read(text, stamp)]
            return [*more, *self._events_of(text, literals, line, now_s)]
        return self._events_of(text, literals, line, now_s)

    def _events_of(
        self, text: str, literals: Sequence[str], line: UnwrappedLine, now_s: float | None
    ) -> Sequence[KernelEvent]:
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
        if event is None or not self.history.is_awaited(event, line.host):
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

    def _follow(self, text: str, hits: Sequence[str], stamp: KernelStamp) -> list[KernelEvent]:
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
            self.history.name_gpu(host, address, canonical_gpu(gpu["uuid"]) or "")

    def _judged(self, events: Iterable[KernelEvent], stamp: KernelStamp) -> list[KernelEvent]:
        """Drops what was said before in other words, and marks consequences."""
        kept: list[KernelEvent] = []
        for event in events:
            if event.event == XID:
                kept += self.history.implied(event, stamp)
                event = self.history.with_role(event, stamp)
            elif event.event == OFF_THE_BUS:
                if self.history.is_lost_again(event, stamp):
                    continue
            elif event.event == KERNEL_OOPS:
                if self._oops_lines_left and self._oops_at.is_within(OOPS_S, stamp):
                    continue
                self._oops_lines_left, self._oops_at = OOPS_LINES, stamp
            elif event.event in CRASHES:
                if self.history.is_crashed_again(event, stamp):
                    continue
            elif event.event in (LINK_DOWN, LINK_UP):
                self._links.read(event, stamp)
            elif event.event == SOFT_LOCKUP:
                self._napi.begin(event)
                self._is_following = True
            holder = next((holder for holder in self._holders if holder.takes(event)), None)
            kept += [event] if holder is None else holder.begin(event, stamp)
        return kept

    def _stamp(self, line: UnwrappedLine, now_s: float | None) -> KernelStamp:
        time_s = line.time_s
        if time_s is None and line.monotonic_s is not None and self._boot_time_s is not None:
            time_s = self._boot_time_s + line.monotonic_s
        return KernelStamp(time_s=now_s if time_s is None else time_s, monotonic_s=line.monotonic_s, host=line.host)


def _is_to_decode(line: str) -> bool:
    """Colours, JSON: the text does not stand there as it is."""
    return "\x1b" in line or '{"' in line or '{ "' in line


def driver_major(version: str | None) -> int | None:
    """570 of "570.148.08" or "R570"; None if there is no such number."""
    found = _MAJOR.match(version) if version else None
    return int(found[1]) if found else None


def _order(rule: LineRule) -> int:
    return rule.order
