"""What single events change in an entity's conditions: a kernel line, a driver's event, a probe without answer."""

from __future__ import annotations

from dataclasses import replace

from ...diagnosis.kernel_log.xid import XID, policy_of
from ...telemetry.records import Event
from ...telemetry.trust import Trust
from ...telemetry.vocabulary import CausalRole, EventName
from ..condition_document import AffectedRank
from .condition_rules import EventRule, Rules
from .conditions import MAX_ALIASES, MAX_OPENINGS, MAX_RANKS, Condition, EntityState, canonical_pci
from .job_log import signals_of
from .scheduler import call_off, follow_plan, hear_again, signal_of
from .signal_facts import NOTHING, SignalFacts, read_signal

_SOURCES = {
    EventName.KERNEL_EVENT: "kernel",
    EventName.DEVICE_EVENT: "driver",
    EventName.PROBE_LATE: "probe",
    EventName.RANK_PROCESS: "process",
    EventName.JOB_LOG: "job_log",
    EventName.SCHEDULER: "scheduler",
    EventName.NODE_CONDITION: "condition",
}
_TRUST = {
    EventName.KERNEL_EVENT: Trust.KERNEL,
    EventName.DEVICE_EVENT: Trust.DRIVER,
    EventName.PROBE_LATE: Trust.AGENT,
    EventName.RANK_PROCESS: Trust.AGENT,
    EventName.JOB_LOG: Trust.USER,
    EventName.SCHEDULER: Trust.SCHEDULER,
    EventName.NODE_CONDITION: Trust.AGENT,
}
#: Their time is that of the look; since when it lasts is told beside it (less than 0: it lies ahead).
_AGED = frozenset({EventName.PROBE_LATE, EventName.RANK_PROCESS, EventName.SCHEDULER, EventName.NODE_CONDITION})
_MAX_TEXT, _MAX_SOURCE = 500, 32
_DRIVER_WORDS = {
    "gpu_lost": "the driver does not reach it any more",
    "nvlink_down": "this NVLink of it is down",
    "gpu_unavailable": "the driver says that it is not available",
    "ecc_uncorrected": "an error of its memory could not be corrected",
    "poison_fatal": "bad data of its memory was used",
    "xgmi_down": "this XGMI link of it is down",
    "gpu_page_fault": "a program used an address that is not mapped",
    "gpu_reset": "the driver resets it",
    "gpu_job_timeout": "it did not end what it was given",
    "gpu_thermal_throttle": "its clocks are held down: too hot",
}


def take_event(state: EntityState, event: Event, rules: Rules) -> list[Condition]:
    """Changes the entity by an event; returns conditions that it has opened, repeated or ended, to be told.

    Events of ranks and devices are remembered, too.
    """
    name, found = event.name, event.attributes
    if name is EventName.RANK_STARTED:
        _remember_rank(state, event)
        return hear_again(state, event.identity.job)
    if name is EventName.RANK_DEVICE:
        return _remember_device(state, event)
    if name not in _SOURCES:
        return []
    if name is EventName.SCHEDULER:
        return _take_plan(state, event, rules)
    if name is EventName.NODE_CONDITION:
        return _take_told(state, event, rules)
    if name is EventName.JOB_LOG:
        severity = str(found.get("severity", "error"))
        signals = [(rules.of_event(name, signal.word, "", "", severity), signal) for signal in signals_of(state, event)]
        return [_join(state, _condition(event, s.facts, rule, s.word, "", s.device)) for rule, s in signals if rule]
    policy = NOTHING
    if name is EventName.DEVICE_EVENT:
        policy = _policy(str(found.get("event", "")), str(found.get("code", "")))
    facts = read_signal(found, policy)
    word = facts.word
    if name is EventName.PROBE_LATE:
        word = "answered" if facts.is_answered else "late"
    elif name is EventName.RANK_PROCESS:
        word = "over" if facts.is_over else facts.state
    renamed = name_device(state, facts.gpu, facts.pci_bus) if facts.gpu is not None else []
    device = state.device_of(facts.device_name)
    changed = [*renamed, *_end(state, word, device, event.time_ns / 1e9)]
    if facts.role == CausalRole.CASCADE.value:
        return changed  # it follows from another one
    rule = rules.of_event(name, word, facts.code, facts.domain, facts.severity)
    if rule is None:
        return changed
    return [*changed, _join(state, _condition(event, facts, rule, word, facts.code, device))]


def _take_plan(state: EntityState, event: Event, rules: Rules) -> list[Condition]:
    signal = signal_of(event)
    rule = rules.of_event(event.name, signal.word, "", "", signal.facts.severity) if signal else None
    if signal is None or rule is None:
        return []
    condition = _condition(event, signal.facts, rule, signal.word, "", signal.device)
    if condition.trust == Trust.USER.value:  # a user's variables tell of his own job, and of none that is guessed
        if not condition.of_job and condition.device_kind == "job":
            return []
        condition.device = condition.of_job or condition.device
    if event.attributes.get("over"):
        return call_off(state, condition.key, event.time_ns / 1e9)
    return [follow_plan(state, condition)]


def _take_told(state: EntityState, event: Event, rules: Rules) -> list[Condition]:
    """A condition that whoever looks has judged by itself: it lasts until it is said to be over."""
    found, source = event.attributes, str(event.attributes.get("source") or "")[:_MAX_SOURCE]
    still = found.get("still") or ()
    changed = _forget_source(state, source, event.time_ns / 1e9, still) if found.get("anew") else []
    facts = read_signal(found)
    rule = rules.of_event(event.name, facts.word, "", facts.domain, facts.severity) if facts.word else None
    if rule is None:
        return changed
    condition = _condition(event, facts, rule, facts.word, "", state.device_of(facts.device_name))
    condition.source = source
    if facts.is_over:
        return [*changed, *call_off(state, condition.key, event.time_ns / 1e9)]
    known = state.conditions.get(condition.key)
    if known is not None and known.until is None and known.source == source:
        if (known.severity, known.text) == (condition.severity, condition.text):
            known.last = max(known.last, condition.last)
            return changed
        # It has got worse, or less bad: said anew, with its beginning.
        condition.since, condition.count = min(known.since, condition.since), known.count + 1
        condition.openings = known.openings
        state.add(condition)
        return [*changed, condition]
    return [*changed, _join(state, condition)]


def _forget_source(state: EntityState, source: str, time: float, still: object) -> list[Condition]:
    """What it said before it began to look again is over: it does not know how that went on.

    still: names and devices (NAME/DEVICE) of what it finds this time, too.
    """
    words = still if isinstance(still, tuple | list) else (still,)
    split = (str(word).partition("/") for word in words)
    kept = frozenset(f"{name}/{state.device_of(device)}" for name, _, device in split)
    named = (c for c in state.conditions.values() if c.until is None and c.source == source)
    gone = [c for c in named if f"{c.name}/{c.device}" not in kept]
    for condition in gone:
        condition.until = max(time, condition.since)
    return gone


def _policy(word: str, code: str) -> SignalFacts:
    """What the driver's event leaves to those who know the code."""
    if word != XID:
        words = _DRIVER_WORDS.get(word, word.replace("_", " "))
        return SignalFacts(device_kind="gpu", domain="hardware", severity="fatal", text=words)
    policy = policy_of(code)
    return SignalFacts(
        device_kind="gpu",
        domain=policy.domain.value,
        severity=policy.severity.value,
        action=policy.action.value,
        text=f"Xid {code}: {policy.meaning}",
    )


def _condition(event: Event, facts: SignalFacts, rule: EventRule, word: str, code: str, device: str) -> Condition:
    effect = rule.effect
    time = event.time_ns / 1e9
    if event.name in _AGED:
        time -= facts.age_s
    return Condition(
        name=rule.condition or (f"{word}_{code}" if code and word in ("xid", "sxid") else word),
        device_kind=facts.device_kind or ("mount" if facts.mount is not None else "host"),
        device=device,
        severity=facts.severity,
        domain=facts.domain or rule.domain,
        scope=effect.scope.value,
        # Our rule knows what it means for the job, the catalogue of lines what it means for the device.
        action=effect.action.value if effect.action else facts.action or None,
        explains=sorted(kind.value for kind in effect.explains),
        since=time,
        last=max(event.time_ns / 1e9, time),
        text=(facts.shown or word)[:_MAX_TEXT],
        source=_SOURCES[event.name],
        trust=trust_of(event),
        value=code or word,
        event=word,
        pid=facts.pid,
        of_process=rule.of_process,
        of_job=facts.of_job,
        before_s=effect.before_s,
        lag_s=effect.lag_s,
        lasts_s=effect.lasts_s,
        tolerated_s=effect.tolerated_s,
        tolerated_times=effect.tolerated_times,
        ends_with=effect.ends_with,
        at_once=effect.at_once,
        planned=effect.planned,
        symptom=effect.symptom,
        known=event.time_ns / 1e9,
        ends=sorted(rule.ends),
    )


def trust_of(event: Event) -> str:
    """Who could have written it: a user, where the agent says so of the event; else by the sort of event."""
    trust = _TRUST[event.name]
    return Trust.USER.value if event.attributes.get("trust") == Trust.USER.value else trust.value


def _join(state: EntityState, condition: Condition) -> Condition:
    """The signal belongs to the condition that stands, or begins one; whatever comes first, the same is said.

    One that comes again after a longer silence than such a fault needs to do harm is another, with its own onset.
    """
    known = state.conditions.get(condition.key)
    if known is not None and not known.is_state and condition.last < known.since - known.before_s:
        condition.until = condition.last + condition.lasts_s  # read late: told beside the one that stands
        return condition
    if known is None or known.until is not None or _is_another(known, condition):
        condition.openings = [*(known.openings if known is not None else ()), condition.since][-MAX_OPENINGS:]
        state.add(condition)
        return condition
    known.count += 1
    known.last = max(known.last, condition.last)
    if known.trust == Trust.USER.value and condition.trust != known.trust:
        known.trust, known.told = condition.trust, 0
    elif condition.trust == Trust.USER.value:
        condition.trust = known.trust
    # Who says it first is quoted: of a GPU the driver and the kernel both tell.
    if not known.is_state and (condition.since, condition.source) < (known.since, known.source):
        condition.count, condition.last, condition.openings = known.count, known.last, known.openings
        state.add(condition)
        return condition
    return known


def _is_another(known: Condition, condition: Condition) -> bool:
    return not known.is_state and condition.severity != "info" and condition.since > known.last + known.before_s


def _end(state: EntityState, word: str, device: str, time: float) -> list[Condition]:
    ended = []
    for condition in state.conditions.values():
        if condition.until is None and word in condition.ends and condition.device == device:
            condition.until = max(time, condition.since)
            ended.append(condition)
    return ended


def _remember_rank(state: EntityState, event: Event) -> None:
    pid = str(event.attributes["pid"])
    known = state.ranks.pop(pid, None)
    who = event.identity
    rank = AffectedRank(job=who.job, attempt=who.attempt, world=who.world, rank=who.rank, pid=int(pid))
    if known != rank:
        _leave_devices(state, pid)  # of a process that is gone, and had this number
        state.began[pid] = event.time_ns / 1e9
    state.ranks[pid] = rank
    while len(state.ranks) > MAX_RANKS:
        gone = next(iter(state.ranks))
        del state.ranks[gone]
        state.began.pop(gone, None)
        _leave_devices(state, gone)


def _leave_devices(state: EntityState, pid: str) -> None:
    for users in state.devices.values():
        if pid in users:
            users.remove(pid)


def _remember_device(state: EntityState, event: Event) -> list[Condition]:
    """A process uses a device; conditions that were known under another name of it get its id, and concern it."""
    found = event.attributes
    pid, device = str(found["pid"]), str(found.get("gpu_uuid") or "")
    if not device or found.get("certainty") == "doubtful":
        return []
    if event.identity.rank >= 0 and pid not in state.ranks:
        _remember_rank(state, event)
    renamed = name_device(state, device, str(found.get("pci_bus") or ""))
    users = state.devices.setdefault(device, [])
    if pid in users:
        return renamed
    users.append(pid)
    concerned = [c for c in state.conditions.values() if c.gpu == device and c.until is None]
    for condition in concerned:
        condition.told = 0
    return [*renamed, *concerned]


def name_device(state: EntityState, device: str, pci_bus: str) -> list[Condition]:
    """Notes that the device is also known by its PCI bus; returns conditions to be told that had the bus as their
    device.

    Of each there are two: the old name, ended and without effect, and the new one. [] where nothing is new.
    """
    bus = canonical_pci(pci_bus)
    if not bus or state.aliases.get(bus) == device:
        return []
    state.aliases[bus] = device
    while len(state.aliases) > MAX_ALIASES:
        del state.aliases[next(iter(state.aliases))]
    renamed = [c for c in state.conditions.values() if canonical_pci(c.device) == bus]
    gone = [replace(condition, until=condition.last, explains=[]) for condition in renamed]
    for condition in renamed:
        del state.conditions[condition.key]
        condition.device, condition.told = device, 0
        state.add(condition)
    return [*gone, *renamed]
