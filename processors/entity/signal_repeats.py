"""What the repeats of a node's signals say, live: ``diagnosis.kernel_log.recurrence`` over what the entity remembers.

A conclusion is a condition of its own, beside those of the single events. A device is blamed for what programs do to
devices (Xid 13, 31 and the like) only where two jobs met it there and no other device of the node had it: the same
program that is started again does the same again.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from ...diagnosis.kernel_log.device import pci_slot
from ...diagnosis.kernel_log.event import Domain
from ...diagnosis.kernel_log.recurrence import Conclusion, Sighting, cancelled, conclusions, parameters
from ...diagnosis.kernel_log.xid import XID, policy_of
from ...telemetry.records import Event
from ...telemetry.trust import Trust
from ...telemetry.vocabulary import Action, EventName
from .condition_rules import EventRule, Rules
from .conditions import MAX_SIGHTINGS, Condition, EntityState
from .event_signals import trust_of

#: Numbers in a line of registers, hexadecimal digits of each.
_MOST_REGISTERS, _MOST_DIGITS = 16, 8
_MAX_NAME = 64
#: A node that was taken away and is back: somebody has looked at it.
_TAKEN_AWAY = frozenset({"node_drain", "node_down", "node_fail"})
_REPAIRED = "node_back"
#: What asks for no act leaves the first word to the single event.
_NO_ACT = frozenset({Action.ASK_A_HUMAN, Action.WAIT})


def take_repeats(state: EntityState, event: Event, changed: Sequence[Condition], rules: Rules) -> list[Condition]:
    """Remembers what the event shows, and returns the conditions that its repeats open, count on or end.

    changed: what the event itself has done to conditions (``take_event``).
    """
    sighting = _sighting(state, event, changed)
    if sighting is None:
        return []
    place = _remember(state, sighting)
    if place is None:
        return []
    ended = _end(state, sighting)
    # The row keeps the names that lines give: by now a bus may be known by its device's id.
    history = [replace(each, device=state.device_of(each.device)) for each in state.sightings[: place + 1]]
    return [*ended, *_conclude(state, event, history, rules)]


def _sighting(state: EntityState, event: Event, changed: Sequence[Condition]) -> Sighting | None:
    """What counts for a rule of repeats; None for all else."""
    if event.name is EventName.SCHEDULER:
        is_back = any(each.name in _TAKEN_AWAY and each.until is not None for each in changed)
        return Sighting(time_s=event.time_ns / 1e9, node="", code=_REPAIRED, was_repaired=True) if is_back else None
    if event.name not in (EventName.KERNEL_EVENT, EventName.DEVICE_EVENT) or trust_of(event) == Trust.USER.value:
        return None
    found = event.attributes
    word, number = str(found.get("event", "")), str(found.get("code", ""))
    code = number if word == XID else word
    is_fatal = str(found.get("severity", "")) == "fatal"
    if not code or not (word == XID or is_fatal or code in _words()):
        return None
    device = str(found.get("gpu_uuid") or found.get("device") or "")
    if word == XID:
        device = pci_slot(device)  # the function of a NIC is its port
    return Sighting(
        time_s=event.time_ns / 1e9,
        node="",
        code=code[:_MAX_NAME],
        device=device[:_MAX_NAME],
        place=str(found.get("processor", ""))[:_MAX_NAME],
        link=str(found.get("link", ""))[:_MAX_NAME],
        registers=_registers(str(found.get("registers", ""))),
        is_fatal=is_fatal,
        job=_job_on(state, device, str(found.get("pid", ""))),
    )


def _words() -> frozenset[str]:
    """Codes of all rules, and what ends them."""
    known = parameters()
    return frozenset().union(*(rule.codes for rule in known.rules)) | frozenset(known.cancels)


def _registers(text: str) -> tuple[int, ...]:
    words = text.replace(",", " ").split()[:_MOST_REGISTERS]
    try:
        return tuple(int(word[: _MOST_DIGITS + 2], 16) for word in words)
    except ValueError:
        return ()


def _job_on(state: EntityState, device: str, pid: str) -> str:
    """Of the process that is named, else of the device's users where they are one job's; "" where nobody knows."""
    if pid in state.ranks:
        return state.ranks[pid].job
    users = state.devices.get(state.device_of(device), ())
    jobs = {state.ranks[each].job for each in users if each in state.ranks}
    return jobs.pop() if len(jobs) == 1 else ""


def _remember(state: EntityState, sighting: Sighting) -> int | None:
    """Its place in the history, by time; None where another source, or the same line again, has told it already."""
    kept, known = state.sightings, parameters()
    near_s = 0.0 if sighting.code in known.uncoalesced else known.coalesce_s
    device = state.device_of(sighting.device)
    for place in range(len(kept) - 1, -1, -1):
        each = kept[place]
        if each.time_s < sighting.time_s - known.coalesce_s:
            break
        is_same = each.code == sighting.code and state.device_of(each.device) == device
        if not is_same or abs(each.time_s - sighting.time_s) > near_s:
            continue
        if _says_no_more(sighting, each):
            return None
        if _says_no_more(each, sighting):  # the driver has told of it first, the kernel's line says more
            kept[place] = replace(sighting, time_s=each.time_s, job=sighting.job or each.job)
            return place
    place = len(kept)
    while place and kept[place - 1].time_s > sighting.time_s:
        place -= 1
    kept.insert(place, sighting)
    if len(kept) > MAX_SIGHTINGS:
        del kept[0]
        place -= 1
    return place if place >= 0 else None


def _says_no_more(one: Sighting, other: Sighting) -> bool:
    """Whether ``one`` tells nothing that ``other`` does not tell."""
    mine = (one.place, one.link, one.registers)
    return all(not told or told == known for told, known in zip(mine, _details(other), strict=True))


def _details(sighting: Sighting) -> tuple[str, str, tuple[int, ...]]:
    return sighting.place, sighting.link, sighting.registers


def _end(state: EntityState, newest: Sighting) -> list[Condition]:
    """A recovery ends what its own device had."""
    device = state.device_of(newest.device)
    active = {
        f"{XID}_{code}": Sighting(time_s=newest.time_s, node="", code=code, device=newest.device)
        for codes in parameters().cancels.values()
        for code in codes
    }
    names = {f"{XID}_{each.code}" for each in cancelled(newest, active.values())}
    ended = [c for c in state.conditions.values() if c.until is None and c.name in names and c.device == device]
    for condition in ended:
        condition.until = max(newest.time_s, condition.since)
    return ended


def _conclude(state: EntityState, event: Event, history: Sequence[Sighting], rules: Rules) -> Iterator[Condition]:
    newest = history[-1]
    found = conclusions(history)
    is_of_program = any(each.domain is Domain.APPLICATION and each.count > 1 for each in found)
    for conclusion in found:
        if conclusion.domain is Domain.APPLICATION or (is_of_program and conclusion.domain is Domain.HARDWARE):
            continue
        if newest.code.isdigit() and not _is_of_device(newest, history):
            continue
        rule = rules.of_event(EventName.KERNEL_EVENT, conclusion.rule, "", "", "error")
        if rule is not None:
            yield _open(state, event, newest, conclusion, rule)


def _is_of_device(newest: Sighting, history: Sequence[Sighting]) -> bool:
    """Whether what the code says is the device's doing: by itself, or because several jobs met it there alone."""
    if policy_of(newest.code).domain is not Domain.APPLICATION:
        return True
    same = [each for each in history if each.code == newest.code]
    jobs = {each.job for each in same if each.job}
    return len(jobs) > 1 and all(each.device == newest.device for each in same)


def _open(state: EntityState, event: Event, newest: Sighting, conclusion: Conclusion, rule: EventRule) -> Condition:
    time_s, words = newest.time_s, _words_of(conclusion, newest)
    known = state.conditions.get(f"{conclusion.rule}/{conclusion.device}")
    if known is not None and known.until is None:
        # What comes once more is why a rank stops now: it began with the newest.
        known.since, known.last, known.text = time_s, max(known.last, time_s), words
        known.count, known.told = known.count + 1, 0
        return known
    effect, is_xid = rule.effect, newest.code.isdigit()
    condition = Condition(
        name=conclusion.rule,
        device_kind="host" if not conclusion.device else "gpu" if is_xid else "nic",
        device=conclusion.device,
        severity="warning" if conclusion.action in _NO_ACT else "error",
        domain=conclusion.domain.value,
        scope=effect.scope.value,
        action=conclusion.action.value,
        explains=sorted(kind.value for kind in effect.explains),
        since=time_s,
        last=time_s,
        text=words,
        source="kernel" if event.name is EventName.KERNEL_EVENT else "driver",
        trust=trust_of(event),
        value=newest.code,
        event=XID if is_xid else newest.code,
        before_s=effect.before_s,
        lag_s=effect.lag_s,
        lasts_s=effect.lasts_s,
        ends_with=effect.ends_with,
        known=event.time_ns / 1e9,
    )
    state.add(condition)
    return condition


def _words_of(conclusion: Conclusion, newest: Sighting) -> str:
    what = f"Xid {newest.code}" if newest.code.isdigit() else newest.code.replace("_", " ")
    return f"{conclusion.rule.replace('_', ' ')}: {what}, {conclusion.count} times"
