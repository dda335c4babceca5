"""What repeats say that one event does not: hardware or application, one fault or many, over by now or not.

Pure functions over sightings in time order; who calls them keeps the history. Parameters and rules: recurrence.toml.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache

from ...telemetry.vocabulary import Action
from .device import pci_slot
from .event import Domain, KernelEvent, Repair
from .kernel_log_tables import read_toml


@dataclass(frozen=True, slots=True, kw_only=True)
class Sighting:
    """One event of a node's history.

    code: of an Xid, else the event's word. device: GPU or port. place: finer, where the line tells it (GPC/TPC).
    registers: of an Xid 74. is_fatal, was_repaired: what came of it, as far as known. job: whose process it was.
    """

    time_s: float
    node: str
    code: str
    device: str = ""
    place: str = ""
    link: str = ""
    registers: tuple[int, ...] = ()
    is_fatal: bool = False
    was_repaired: bool = False
    job: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Conclusion:
    """``also``: what others call the rule. ``device``: where it holds; "" for the whole node or application."""

    rule: str
    also: str
    domain: Domain
    repair: Repair
    action: Action
    device: str
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RecurrenceRule:
    """One entry of recurrence.toml. ``codes`` empty: every Xid. ``register`` -1: looks at none."""

    name: str
    also: str
    kind: str
    codes: frozenset[str]
    place: str
    least: int
    register: int
    bits: tuple[int, ...]
    lookback_s: float
    domain: Domain
    repair: Repair
    action: Action


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameters:
    coalesce_s: float
    slow_s: float = 3600.0
    one_loss_s: float
    uncoalesced: frozenset[str] = frozenset()
    burst_gap_s: float
    sticky: frozenset[str]
    sticky_s: float
    cancels: Mapping[str, frozenset[str]]
    rules: tuple[RecurrenceRule, ...]


@cache
def parameters() -> Parameters:
    """Rules and windows of recurrence.toml. Raises ValueError where it names a kind of rule that is not there."""
    document = read_toml("recurrence.toml")
    rules = tuple(
        RecurrenceRule(
            name=entry["name"],
            also=entry["also"],
            kind=entry["kind"],
            codes=frozenset(entry.get("codes", ())),
            place=entry.get("place", ""),
            least=entry["least"],
            register=entry.get("register", -1),
            bits=tuple(entry.get("bits", ())),
            lookback_s=entry.get("lookback_s", document["lookback_s"]),
            domain=Domain(entry["domain"]),
            repair=Repair(entry["repair"]),
            action=Action(entry["action"]),
        )
        for entry in document["rule"]
    )
    if unknown := {rule.kind for rule in rules} - set(_KINDS):
        raise ValueError(f"recurrence.toml: no kind of rule is called {', '.join(sorted(unknown))}")
    return Parameters(
        coalesce_s=document["coalesce_s"],
        slow_s=document["slow_s"],
        one_loss_s=document["one_loss_s"],
        uncoalesced=frozenset(document["uncoalesced"]),
        burst_gap_s=document["bursts"]["gap_s"],
        sticky=frozenset(document["bursts"]["sticky"]),
        sticky_s=document["bursts"]["sticky_s"],
        cancels={code: frozenset(ended) for code, ended in document["cancels"].items()},
        rules=rules,
    )


def sighting_of(event: KernelEvent, node: str) -> Sighting | None:
    """The event as one of ``node``'s history; None for an event without any time."""
    time_s = event.time_s if event.time_s is not None else event.monotonic_s
    if time_s is None:
        return None
    gpc, tpc = event.facts.get("gpc"), event.facts.get("tpc")
    registers = event.facts.get("registers", "").replace(",", " ").split()
    return Sighting(
        time_s=time_s,
        node=node,
        code=event.code if event.event == "xid" else event.event,
        device=pci_slot(event.device) if event.event == "xid" else event.device,
        place=f"{gpc}/{tpc}" if gpc and tpc else "",
        link=event.facts.get("link", ""),
        registers=tuple(int(register, 16) for register in registers),
        is_fatal=event.severity.value == "fatal",
    )


def conclusions(history: Sequence[Sighting], given: Parameters | None = None) -> tuple[Conclusion, ...]:
    """What the rules conclude from the newest of ``history``, with those before it.

    history: in time order, of a node or (``different_places``) an application; empty: nothing. given: None: those of
    recurrence.toml. Every rule looks back from the newest by its own time; what does not concern the newest is not said
    again.
    """
    if not history:
        return ()
    known = given or parameters()
    newest = history[-1]
    found = []
    looked_back: dict[float, Sequence[Sighting]] = {}
    for rule in known.rules:
        if rule.codes and newest.code not in rule.codes:
            continue
        recent = looked_back.get(rule.lookback_s)
        if recent is None:
            since_s = newest.time_s - rule.lookback_s
            recent = history if history[0].time_s >= since_s else [s for s in history if s.time_s >= since_s]
            looked_back[rule.lookback_s] = recent
        count = _KINDS[rule.kind](rule, recent, known)
        if count >= rule.least:
            found.append(
                Conclusion(
                    rule=rule.name,
                    also=rule.also,
                    domain=rule.domain,
                    repair=rule.repair,
                    action=rule.action,
                    device="" if rule.kind in ("different_places", "repairs") else newest.device,
                    count=count,
                )
            )
    return tuple(found)


def bursts(sightings: Iterable[Sighting], given: Parameters | None = None) -> list[list[Sighting]]:
    """Sightings of one device, in time order, split where it was quiet for ``burst_gap_s``.

    A sticky code keeps its burst open for longer.
    """
    known = given or parameters()
    found: list[list[Sighting]] = []
    sticky_at: float | None = None
    for sighting in sightings:
        is_joined = bool(found) and (
            sighting.time_s - found[-1][-1].time_s <= known.burst_gap_s
            or (sticky_at is not None and sighting.time_s - sticky_at <= known.sticky_s)
        )
        if is_joined:
            found[-1].append(sighting)
        else:
            found.append([sighting])
            sticky_at = None
        if sighting.code in known.sticky:
            sticky_at = sighting.time_s
    return found


def cancelled(newest: Sighting, active: Iterable[Sighting], given: Parameters | None = None) -> list[Sighting]:
    """Which of the ``active`` faults this recovery ends: those named for its code, on its own device."""
    known = given or parameters()
    ended = known.cancels.get(newest.code, frozenset())
    return [s for s in active if s.code in ended and s.node == newest.node and s.device == newest.device]


def coalesced(sightings: Iterable[Sighting], given: Parameters | None = None) -> list[tuple[Sighting, int]]:
    """(first of them, how many) for repeats of one code on one device, each soon after the one before."""
    known = given or parameters()
    found: list[list[Sighting]] = []
    open_at: dict[tuple[str, str, str], int] = {}
    for sighting in sightings:
        key = (sighting.node, sighting.device, sighting.code)
        index = open_at.get(key)
        if index is not None and sighting.time_s - found[index][-1].time_s <= known.coalesce_s:
            found[index].append(sighting)
        else:
            open_at[key] = len(found)
            found.append([sighting])
    return [(group[0], len(group)) for group in found]


def _same_code_bursts(rule: RecurrenceRule, recent: Sequence[Sighting], known: Parameters) -> int:
    newest = recent[-1]
    if not newest.code.isdigit():
        return 0
    own = [s for s in recent if s.device == newest.device and s.code.isdigit()]
    return sum(any(s.code == newest.code for s in burst) for burst in bursts(own, known))


def _same_place_bursts(rule: RecurrenceRule, recent: Sequence[Sighting], known: Parameters) -> int:
    newest = recent[-1]
    if rule.place == "processor" and not newest.place:
        return 0
    own = [s for s in recent if s.device == newest.device]
    return sum(
        any(s.code in rule.codes and _place(s, rule) == _place(newest, rule) for s in burst)
        for burst in bursts(own, known)
    )


def _different_places(rule: RecurrenceRule, recent: Sequence[Sighting], known: Parameters) -> int:
    newest = recent[-1]
    if rule.place == "processor" and not newest.place:
        return 0
    if rule.place == "processor":
        recent = [s for s in recent if s.place]
    return len({_place(s, rule) for s in recent if s.code in rule.codes})


def _alone_in_burst(rule: RecurrenceRule, recent: Sequence[Sighting], known: Parameters) -> int:
    """1 if the newest burst of the device holds this code once and no earlier burst does."""
    newest = recent[-1]
    own = [s for s in recent if s.device == newest.device and s.code == newest.code]
    return int(len(own) == 1)


def _register_alone(rule: RecurrenceRule, recent: Sequence[Sighting], known: Parameters) -> int:
    newest = recent[-1]
    others = [s for s in recent[:-1] if s.node == newest.node and (s.code != newest.code or s.device != newest.device)]
    return int(_has_bit(newest, rule) and not others)


def _register_repeated(rule: RecurrenceRule, recent: Sequence[Sighting], known: Parameters) -> int:
    newest = recent[-1]
    if not _has_bit(newest, rule):
        return 0
    return sum(s.code in rule.codes and _has_bit(s, rule) and _place(s, rule) == _place(newest, rule) for s in recent)


def _count(rule: RecurrenceRule, recent: Sequence[Sighting], known: Parameters) -> int:
    newest = recent[-1]
    if rule.place == "node":
        return sum(s.code == newest.code and s.node == newest.node for s in recent)
    return sum(s.code in rule.codes and s.node == newest.node and s.device == newest.device for s in recent)


def _repairs(rule: RecurrenceRule, recent: Sequence[Sighting], known: Parameters) -> int:
    newest = recent[-1]
    if not newest.is_fatal:
        return 0
    return sum(s.was_repaired and s.node == newest.node for s in recent[:-1])


def _place(sighting: Sighting, rule: RecurrenceRule) -> tuple[str, ...]:
    if rule.place == "link":
        return (sighting.node, sighting.device, sighting.link)
    if rule.place == "processor":
        return (sighting.node, sighting.device, sighting.place)
    return (sighting.node, sighting.device)


def _has_bit(sighting: Sighting, rule: RecurrenceRule) -> bool:
    if rule.register >= len(sighting.registers):
        return False
    return any(sighting.registers[rule.register] >> bit & 1 for bit in rule.bits)


_KINDS: Mapping[str, Callable[[RecurrenceRule, Sequence[Sighting], Parameters], int]] = {
    "same_code_bursts": _same_code_bursts,
    "same_place_bursts": _same_place_bursts,
    "different_places": _different_places,
    "alone_in_burst": _alone_in_burst,
    "register_alone": _register_alone,
    "register_repeated": _register_repeated,
    "count": _count,
    "repairs": _repairs,
}
