"""What rules ask of series of one shape: the same for all who speak so, but for the words in the names of devices.

Worked out once per shape; ``series`` fills in the words of each speaker.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ...telemetry.speaker_series import SeriesShape
from .asked_series import Series
from .column_plan import RuleColumns
from .condition_rules import COLLECTOR, WATCHING, MetricRule, Rules
from .loads import load_load_rules

#: Parts of a name, between slashes: a text, or the number of a word.
Parts = tuple[str | int, ...]
#: Of one shape: which rules ask may depend on words, and speakers may say anything.
_MOST_FOUND = 16


class Slot:
    """A series as one rule sees it, with parts in place of the device's name."""

    __slots__ = ("_device", "_last", "_rule", "place")

    def __init__(self, rule: MetricRule, place: int, device: Parts) -> None:
        self._rule, self.place, self._device = rule, place, device
        self._last: Series | None = None

    def filled(self, words: Sequence[str]) -> Series:
        """The series of whoever has these words; of speakers whose devices have one name it is one object."""
        device = filled(self._device, words)
        if self._last is None or self._last.device != device:
            rule = self._rule
            where = ",".join(rule.where.values())
            self._last = Series(
                place=self.place,
                device=device,
                key=f"{rule.condition}/{rule.metric}/{where}/{device}",
                condition=f"{rule.condition}/{device}",
                whole=f"{rule.of}/{device}" if rule.of else "",
            )
        return self._last


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What rules ask of the series of some speakers (``series.Asked``), with parts in place of names.

    wholes: metric and device of what others are compared with, and the place of its point; counts: likewise, of what
    others' growth is divided by. columns: of ``rules``.
    """

    wholes: Sequence[tuple[str, Parts, int]]
    counts: Sequence[tuple[str, Parts, int]]
    rules: Sequence[tuple[MetricRule, Sequence[Slot]]]
    columns: RuleColumns
    watching: Sequence[tuple[Parts, int]]
    loads: tuple[int, ...]


class AskedTemplate:
    """Of one shape. ``found`` tells what rules ask of a speaker's series."""

    def __init__(self, shape: SeriesShape, rules: Rules) -> None:
        load_rules = load_load_rules()
        self._watching: list[tuple[Parts, int]] = []
        self._wholes: list[tuple[str, Parts, int]] = []
        self._counts: list[tuple[str, Parts, int]] = []
        self._loads: list[int] = []
        #: Rule and series, and of words what they must be: if it is not so, the rule does not ask.
        self._slots: list[tuple[MetricRule, Slot, Sequence[tuple[int, str]]]] = []
        self._found: dict[tuple[bool, ...], Found] = {}
        for place, name in enumerate(shape.names):
            if name in load_rules:
                self._loads.append(place)
            if name != WATCHING and not any(name in each for each in (rules.metrics, rules.limits, rules.counts)):
                continue
            attributes, words = shape.attributes[place], dict(shape.words[place])
            if name == WATCHING:
                self._watching.append(((words.get(COLLECTOR, str(attributes.get(COLLECTOR) or "")),), place))
            for rule in rules.limits.get(name, ()):
                self._wholes.append((name, _device_of(rule, shape, place), place))
            for rule in rules.counts.get(name, ()):
                self._counts.append((name, _device_of(rule, shape, place), place))
            for rule in rules.metrics.get(name, ()):
                if all(key in words or str(attributes.get(key)) == value for key, value in rule.where.items()):
                    asked = [(words[key], value) for key, value in rule.where.items() if key in words]
                    self._slots.append((rule, Slot(rule, place, _device_of(rule, shape, place)), asked))
        #: Words on which anything depends, and what they must be.
        self._depends = list(dict.fromkeys(each for _, _, asked in self._slots for each in asked))

    def found(self, words: Sequence[str]) -> Found:
        """words: the speaker's, by number."""
        holds = tuple([words[number] == value for number, value in self._depends])
        found = self._found.get(holds)
        if found is None:
            if len(self._found) >= _MOST_FOUND:
                self._found.clear()
            found = self._found[holds] = self._find(words)
        return found

    def _find(self, words: Sequence[str]) -> Found:
        by_rule: dict[int, tuple[MetricRule, list[Slot]]] = {}
        for rule, slot, asked in self._slots:
            if all(words[number] == value for number, value in asked):
                by_rule.setdefault(id(rule), (rule, []))[1].append(slot)
        rules = [(rule, tuple(slots)) for rule, slots in by_rule.values()]
        return Found(
            wholes=self._wholes,
            counts=self._counts,
            rules=rules,
            columns=RuleColumns([(rule, [slot.place for slot in slots]) for rule, slots in rules]),
            watching=self._watching,
            loads=tuple(self._loads),
        )


def filled(parts: Parts, words: Sequence[str]) -> str:
    """The name that parts make with these words."""
    return "/".join([part if isinstance(part, str) else words[part] for part in parts])


def _device_of(rule: MetricRule, shape: SeriesShape, place: int) -> Parts:
    attributes, words = shape.attributes[place], dict(shape.words[place])
    return tuple([words.get(name, str(attributes.get(name, ""))) for name in rule.device])
