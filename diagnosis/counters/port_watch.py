"""All ports of one node over time: looks in, beginnings and ends of conditions out.

Pure and incremental: whoever holds a ``PortWatch`` may ``pack`` it into JSON's types and go on elsewhere. Bounded: by
the number of ports, never by the number of looks.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from ...telemetry.vocabulary import Action, Scope
from .enough_ports import RATE_SLACK, judge_ports
from .growth import Latch, LatchEvent, Step, growth
from .link import LinkEvent
from .port_conditions import ChangeKind, ConditionChange, PortCondition, PortConditionSpan
from .port_state import PortState
from .rules import UNIT_S, CounterRule, ExpectedPorts, Grade, LinkRules, RuleKind, counter_rules, link_rules
from .sample import Layer, LinkState, NodeSample, PortSample

MAX_PORTS = 1024
#: Counters that say how often the link was lost, the first that is there.
_LOSS_COUNTERS = ("link_downed", "carrier_down_count", "link_down_events_phy")


class PortWatch:
    """State of one node's ports. ``expected``: what the node must have; None: what it has shown so far.

    A look must hold all ports of the node: one that is absent is on its way to be missing.
    """

    def __init__(
        self,
        *,
        expected: ExpectedPorts | None = None,
        links: LinkRules | None = None,
        rules: tuple[CounterRule, ...] | None = None,
    ) -> None:
        self._expected = expected
        self._links = links or link_rules()
        self._rules = rules if rules is not None else counter_rules()
        self._ports: dict[str, PortState] = {}
        self._open: dict[tuple[str, str], PortConditionSpan] = {}
        self._last_s: float | None = None
        #: Ports beyond MAX_PORTS, and looks that came late: both are left out.
        self.ignored_looks = 0

    @property
    def open_conditions(self) -> tuple[PortConditionSpan, ...]:
        """Conditions that have begun and not ended, in the order of their begin."""
        return tuple(self._open.values())

    def take(self, sample: NodeSample) -> list[ConditionChange]:
        """Takes one look at all ports of the node, and gives the conditions that began, got worse or ended by it.

        Looks must come in the order of time; others are left out and counted.
        """
        if self._last_s is not None and sample.t_s <= self._last_s:
            self.ignored_looks += 1
            return []
        self._last_s = sample.t_s
        changes: list[ConditionChange] = []
        seen: set[str] = set()
        for port in sample.ports:
            if port.name in seen:
                continue
            if port.name not in self._ports and len(self._ports) >= MAX_PORTS:
                self.ignored_looks += 1
                continue
            seen.add(port.name)
            state = self._ports.setdefault(port.name, PortState())
            changes += self._link(port, state, sample.t_s)
            changes += self._rate(port, state, sample.t_s)
            changes += self._counters(port, state, sample.t_s)
        changes += self._missing(seen, sample.t_s)
        if self._expected is not None:
            changes += self._few(self._expected, sample)
        return changes

    def pack(self) -> dict[str, Any]:
        """Ports and open conditions in JSON's types."""
        return {
            "last_s": self._last_s,
            "ports": {name: state.pack() for name, state in self._ports.items()},
            "open": [condition.plain() for condition in self._open.values()],
        }

    @classmethod
    def unpack(cls, packed: Mapping[str, Any], **settings: Any) -> PortWatch:
        """A watch from what ``pack`` gave; settings as for the constructor.

        Raises KeyError or TypeError for anything else.
        """
        watch = cls(**settings)
        watch._last_s = packed["last_s"]
        watch._ports = {name: PortState.unpack(state) for name, state in packed["ports"].items()}
        conditions = [PortConditionSpan.of_plain(plain) for plain in packed["open"]]
        watch._open = {condition.key: condition for condition in conditions}
        return watch

    def _link(self, port: PortSample, state: PortState, t_s: float) -> Iterator[ConditionChange]:
        lost = next((value for name in _LOSS_COUNTERS if (value := port.counters.get(name)) is not None), None)
        losses = 0
        if lost is not None and state.lost is not None:
            grown = growth(state.lost, lost)
            # A reset is silent: what a driver counts while it starts is no loss of a working link.
            losses = grown.amount if grown.step is Step.GREW else 0
        state.lost = lost if lost is not None else state.lost
        was_up = state.link.was_up
        for event in state.link.take(self._links, t_s, port.state, port.counters.get("link_downed"), losses):
            yield from self._link_event(event, port, state, t_s, was_up=was_up)

    def _link_event(
        self, event: LinkEvent, port: PortSample, state: PortState, t_s: float, *, was_up: bool
    ) -> Iterator[ConditionChange]:
        if event is LinkEvent.DOWN and was_up:
            words = f"the port is {port.state.value}" + (f" ({port.physical})" if port.physical else "")
            yield self._begin(
                self._of(PortCondition.LINK_DOWN, port, t_s, limit=self._links.drop_s, unit="s", shows=words)
            )
        elif event is LinkEvent.DROPPED:
            since_s = state.link.down_since_s or t_s
            down_s = t_s - since_s
            # A port that never worked while somebody looked may have no cable on purpose.
            grade = Grade.CRITICAL if was_up else Grade.INFO
            words = f"the port has been down for {down_s:.0f} s" + ("" if was_up else ", since the first look")
            yield self._begin(
                self._of(
                    PortCondition.LINK_DOWN,
                    port,
                    since_s,
                    value=down_s,
                    limit=self._links.drop_s,
                    unit="s",
                    shows=words,
                    grade=grade,
                    action=Action.REPLACE_LINK,
                )
            )
        elif event is LinkEvent.UP:
            yield from self._end(PortCondition.LINK_DOWN, port.name, t_s)
        elif event is LinkEvent.FLAPPING:
            flaps, losses = len(state.link.flaps), len(state.link.losses)
            yield self._begin(
                self._of(
                    PortCondition.LINK_FLAPPING,
                    port,
                    min([*state.link.flaps, *state.link.losses]),
                    value=float(max(flaps, losses)),
                    limit=float(self._links.flaps if flaps >= self._links.flaps else self._links.losses),
                    shows=f"{flaps} times down and up again, {losses} losses counted",
                    grade=Grade.CRITICAL,
                    action=Action.REPLACE_LINK,
                )
            )
        elif event is LinkEvent.STEADY:
            yield from self._end(PortCondition.LINK_FLAPPING, port.name, t_s)

    def _rate(self, port: PortSample, state: PortState, t_s: float) -> Iterator[ConditionChange]:
        # A port without carrier says 10 Gb/sec (4X SDR) or nothing: only an active one has a rate.
        if port.state is not LinkState.ACTIVE or port.rate is None or port.rate.gbps <= 0:
            return
        state.best_gbps = max(state.best_gbps, port.rate.gbps)
        expected = state.best_gbps
        if self._expected is not None and port.layer is Layer.INFINIBAND and self._expected.gbps > expected:
            expected = self._expected.gbps
        if port.rate.gbps >= expected * RATE_SLACK:
            yield from self._end(PortCondition.RATE_DEGRADED, port.name, t_s)
            return
        lanes = f", {port.rate.lanes} lanes" if port.rate.lanes else ""
        condition = self._of(
            PortCondition.RATE_DEGRADED,
            port,
            t_s,
            value=port.rate.gbps,
            limit=expected,
            unit="Gb/s",
            shows=f"the port runs at {port.rate.gbps:g} Gb/s{lanes}, not at {expected:g}",
            grade=Grade.CRITICAL if port.rate.gbps <= expected / 2 else Grade.WARN,
            action=Action.REPLACE_LINK,
        )
        standing = self._open.get(condition.key)
        if standing is None or standing.value != condition.value:
            yield self._begin(condition)

    def _counters(self, port: PortSample, state: PortState, t_s: float) -> Iterator[ConditionChange]:
        for rule in self._rules:
            value = next((found for name in rule.counters if (found := port.counters.get(name)) is not None), None)
            if value is None:
                continue
            latch = state.latches.setdefault(rule.name, Latch())
            event = latch.take(rule, t_s, value)
            if event is LatchEvent.RECOVERY or (event is None and latch.is_quiet(rule, t_s)):
                latch.clear()
                yield from self._end(rule.name, port.name, t_s)
            elif event is not None:
                condition = self._of(
                    rule.name,
                    port,
                    t_s,
                    value=latch.worst,
                    limit=rule.limit,
                    unit=_unit(rule),
                    shows=rule.shows,
                    grade=rule.grade,
                    action=rule.action,
                )
                standing = self._open.get(condition.key)
                if standing is None or condition.value > standing.value:
                    yield self._begin(condition)
            if value == rule.saturates_at or self._open:
                yield from self._full(rule, port, t_s, value)

    def _full(self, rule: CounterRule, port: PortSample, t_s: float, value: int) -> Iterator[ConditionChange]:
        key = f"{PortCondition.COUNTER_FULL.value}:{rule.counters[0]}"
        if rule.saturates_at is None or value != rule.saturates_at:
            yield from self._end(key, port.name, t_s)
        elif (key, port.name) not in self._open:
            words = f"{rule.counters[0]} is full and counts nothing any more (perfquery -R clears it)"
            full = float(value)
            yield self._begin(self._of(key, port, t_s, value=full, limit=full, grade=Grade.INFO, shows=words))

    def _missing(self, seen: set[str], t_s: float) -> Iterator[ConditionChange]:
        for name, state in self._ports.items():
            if name in seen:
                state.missing_looks = 0
                yield from self._end(PortCondition.PORT_MISSING, name, t_s)
                continue
            state.missing_looks += 1
            if state.missing_looks == self._links.missing_looks:
                yield self._begin(
                    PortConditionSpan(
                        name=PortCondition.PORT_MISSING.value,
                        port=name,
                        since_s=t_s,
                        grade=Grade.CRITICAL,
                        value=float(state.missing_looks),
                        limit=float(self._links.missing_looks),
                        unit="looks",
                        shows="the port is gone from the system",
                        action=Action.RESTART_WITHOUT_NODE,
                        scope=Scope.NODE,
                    )
                )

    def _few(self, expected: ExpectedPorts, sample: NodeSample) -> Iterator[ConditionChange]:
        verdict = judge_ports(sample.ports, expected)
        name = PortCondition.PORTS_TOO_FEW.value
        if verdict.is_enough:
            yield from self._end(name, "", sample.t_s)
        elif (standing := self._open.get((name, ""))) is None or standing.value != verdict.good:
            yield self._begin(
                PortConditionSpan(
                    name=name,
                    port="",
                    since_s=sample.t_s,
                    grade=Grade.CRITICAL,
                    value=float(verdict.good),
                    limit=float(expected.ports),
                    unit="ports",
                    shows=verdict.text,
                    action=Action.RESTART_WITHOUT_NODE,
                    scope=Scope.NODE,
                )
            )

    def _of(
        self,
        name: str | PortCondition,
        port: PortSample,
        since_s: float,
        *,
        value: float = 0.0,
        limit: float = 0.0,
        unit: str = "",
        shows: str = "",
        grade: Grade = Grade.WARN,
        action: Action = Action.WAIT,
    ) -> PortConditionSpan:
        word = name.value if isinstance(name, PortCondition) else name
        return PortConditionSpan(
            name=word,
            port=port.name,
            since_s=since_s,
            grade=grade,
            value=value,
            limit=limit,
            unit=unit,
            shows=shows,
            action=action,
        )

    def _begin(self, condition: PortConditionSpan) -> ConditionChange:
        """A new condition, or what has become of the one that stands."""
        standing = self._open.get(condition.key)
        kind = ChangeKind.BEGAN if standing is None else ChangeKind.WORSENED
        if standing is not None:
            condition = replace(condition, since_s=min(standing.since_s, condition.since_s))
        self._open[condition.key] = condition
        return ConditionChange(kind=kind, condition=condition)

    def _end(self, name: str | PortCondition, port: str, t_s: float) -> Iterator[ConditionChange]:
        word = name.value if isinstance(name, PortCondition) else name
        if (standing := self._open.pop((word, port), None)) is not None:
            yield ConditionChange(kind=ChangeKind.ENDED, condition=replace(standing, until_s=t_s))


def conditions_of(samples: Iterable[NodeSample], *, expected: ExpectedPorts | None = None) -> list[PortConditionSpan]:
    """All conditions in a whole series of looks, by begin and port; one that still stands has no end."""
    watch = PortWatch(expected=expected)
    ended: list[PortConditionSpan] = []
    for sample in samples:
        ended += [change.condition for change in watch.take(sample) if change.kind is ChangeKind.ENDED]
    return sorted([*ended, *watch.open_conditions], key=lambda condition: (condition.since_s, condition.port))


def _unit(rule: CounterRule) -> str:
    if rule.kind is RuleKind.DELTA:
        return ""
    return next(f"per {name}" for name, seconds in UNIT_S.items() if seconds == rule.unit_s)
