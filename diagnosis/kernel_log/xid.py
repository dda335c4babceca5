"""Xid and SXid lines of the NVIDIA drivers: code, device and details, with our one policy per code.

Tables: xid.tsv (all codes that we know, and what each means for kernel logs, job logs and conditions), sxid.tsv
(NVSwitch), nvlink5.tsv (how 144-150 are told apart).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from types import MappingProxyType

from ...telemetry.vocabulary import Action, CausalRole
from . import nvlink5
from .device import canonical_gpu
from .event import DeviceKind, Domain, EventSeverity, KernelEvent, Repair
from .kernel_log_tables import read_tsv

XID = "xid"
SXID = "sxid"
OFF_THE_BUS_XID = "79"
RECOVERY_XID = 154
#: An Xid this long after another on the same device may be its consequence.
CASCADE_S = 60.0

_XID = re.compile(
    r"(?:\bNVRM: {0,3}(?:GPU\d{1,2} )?|\bnvidia: {0,3}|^)"
    r"Xid \((?P<device>[^()\s]{4,60})(?: (?P<instance>[^()]{1,40}))?\): {0,3}(?P<code>\d{1,5})\b(?P<rest>.*)",
    re.DOTALL,
)
_OLD_ADDRESS = re.compile(r"(?:PCI:)?00([0-9a-fA-F]{2}):([0-9a-fA-F]{2})\Z")
_SXID = re.compile(
    r"(?:\bnvidia-nvswitch(?P<switch>\d{0,3}): {0,3}|\bNVRM: {0,3}|^)"
    r"SXid \((?P<device>[^()\s]{4,60})\): {0,3}(?P<code>\d{1,6})\b(?P<rest>.*)",
    re.DOTALL,
)
_PID = re.compile(r"\bpid='?(\d{1,10})")
_NAME = re.compile(r"\bname='?([^,']{1,64}?)'?(?:,|$)")
_RECOVERY = re.compile(r"\bto 0x[0-9a-fA-F]{1,4} \(([^)]{1,60})\)")
_CAUSED_BY = re.compile(
    r"(?:previous|prior|due to|caused by|because of|triggered by|after)[^\n]{0,40}?"
    r"\b[Xx][Ii][Dd]\s?[(:#]?\s?(\d{1,3})\b"
)
_NVLINK_REGISTERS = re.compile(
    r"on link (?P<link>\d{1,3})\s?\((?P<registers>0x[0-9a-fA-F]{1,8}(?:,? ?0x[0-9a-fA-F]{1,8}){0,9})"
)
#: The line after it, of engine and registers, has a number for the word: 1 is fatal.
_SXID_SEVERITY = re.compile(r"\b(?:(Fatal|FATAL)|Non-[Ff]atal|NON-FATAL|Severity (?:(1)|0))\b")
_LINK = re.compile(r"\bLink (-?\d{1,3})\b")
#: What else the lines of some codes tell.
_FACTS = (
    re.compile(r"\bGPC ?(?P<gpc>\d{1,2}),? ?TPC ?(?P<tpc>\d{1,2})(?:,? ?SM ?(?P<sm>\d{1,2}))?"),
    re.compile(
        r"\b(?:ENGINE|engine) (?P<engine>\w{1,30}) (?:GPC(?P<gpc>\d{1,2}) )?(?P<client>\w{1,40}) faulted @ "
        r"(?P<address>0x[0-9a-f_]{1,20})"
    ),
    re.compile(r"\b(?:Ch|Channel|channel|Channel ID) (?P<channel>(?:0x)?[0-9a-f]{1,8})\b"),
)

_ACTIONS: Mapping[Repair, Action] = {
    Repair.NONE: Action.ASK_A_HUMAN,
    Repair.IGNORE: Action.WAIT,
    Repair.RESTART_APP: Action.RESTART,
    Repair.FOLLOW_XID_154: Action.RESTART,
    Repair.RESET_GPU: Action.RESTART_WITHOUT_NODE,
    Repair.RESTART_VM: Action.RESTART_WITHOUT_NODE,
    Repair.REBOOT_NODE: Action.RESTART_WITHOUT_NODE,
    Repair.REPLACE_NODE: Action.RESTART_WITHOUT_NODE,
    Repair.CHECK_MECHANICALS: Action.RESTART_WITHOUT_NODE,
    Repair.UPDATE_SOFTWARE: Action.ASK_A_HUMAN,
    Repair.RUN_DIAGNOSTICS: Action.RESTART_WITHOUT_NODE,
    Repair.CONTACT_SUPPORT: Action.ASK_A_HUMAN,
}
#: What Xid 154 says in words (its text, lower case) -> what it takes.
_RECOVERIES: Mapping[str, tuple[Repair, EventSeverity]] = {
    "none": (Repair.IGNORE, EventSeverity.INFO),
    "drain p2p": (Repair.RESTART_APP, EventSeverity.ERROR),
    "drain and reset": (Repair.RESET_GPU, EventSeverity.ERROR),
    "gpu reset required": (Repair.RESET_GPU, EventSeverity.FATAL),
    "node reboot required": (Repair.REBOOT_NODE, EventSeverity.FATAL),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class XidPolicy:
    """What an Xid means and asks for, before the line itself is looked at.

    follows: codes after which, on the same device, it says nothing new; None: after any other.
    failure_class: of a job in whose log it stands (job_log/classes.toml). effect: what it means for the jobs on its
    GPU, by the name that processors/entity/conditions.toml gives it.
    """

    code: str
    mnemonic: str
    meaning: str
    severity: EventSeverity
    domain: Domain
    repair: Repair
    action: Action
    follows: frozenset[str] | None
    failure_class: str
    effect: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SxidPolicy:
    code: str
    meaning: str
    severity: EventSeverity
    repair: Repair


@cache
def xid_policies() -> Mapping[str, XidPolicy]:
    """What each Xid means and asks for, by code, from xid.tsv."""
    found = {}
    for row in read_tsv("xid.tsv"):
        follows = None if row["follows"] == "any" else frozenset(filter(None, row["follows"].split(",")))
        found[row["code"]] = XidPolicy(
            code=row["code"],
            mnemonic=row["mnemonic"],
            meaning=row["meaning"],
            severity=EventSeverity(row["severity"]),
            domain=Domain(row["domain"]),
            repair=Repair(row["repair"]),
            action=Action(row["action"]),
            follows=follows,
            failure_class=row["class"],
            effect=row["effect"],
        )
    return MappingProxyType(found)


def xids_of_class(failure_class: str) -> tuple[str, ...]:
    """Xids that make this failure class of a job in whose log they stand."""
    return tuple(code for code, policy in xid_policies().items() if policy.failure_class == failure_class)


def xids_of_effect(effect: str) -> tuple[str, ...]:
    """Xids with this effect on the jobs on their GPU. Raises ValueError where no code has it."""
    found = tuple(code for code, policy in xid_policies().items() if policy.effect == effect)
    if not found:
        raise ValueError(f"no Xid has the effect {effect!r}; xid.tsv has {', '.join(sorted(_effects()))}")
    return found


def _effects() -> set[str]:
    return {policy.effect for policy in xid_policies().values()}


@cache
def sxid_policies() -> Mapping[str, SxidPolicy]:
    """What each SXid means and asks for, by code, from sxid.tsv."""
    rows = read_tsv("sxid.tsv")
    return MappingProxyType(
        {
            row["code"]: SxidPolicy(
                code=row["code"],
                meaning=row["meaning"],
                severity=EventSeverity(row["severity"]),
                repair=Repair(row["repair"]),
            )
            for row in rows
        }
    )


def policy_of(code: str) -> XidPolicy:
    """What an Xid means and asks for; for a code that nobody has described yet that is to ask support."""
    known = xid_policies().get(code)
    if known is not None:
        return known
    return XidPolicy(
        code=code,
        mnemonic="",
        meaning="A code that our table does not have",
        severity=EventSeverity.ERROR,
        domain=Domain.HARDWARE,
        repair=Repair.CONTACT_SUPPORT,
        action=Action.ASK_A_HUMAN,
        follows=frozenset(),
        failure_class="gpu_hardware",
        effect="device",
    )


def is_consequence(code: str, earlier: Iterable[str]) -> bool:
    """Whether an Xid follows from the ``earlier`` ones, which its device had in the last ``CASCADE_S``."""
    follows = policy_of(code).follows
    return any(other != code and (follows is None or other in follows) for other in earlier)


def parse_xid(text: str, driver_major: int | None) -> KernelEvent | None:
    """The event of an Xid line; None if it is none. Never raises. The reader sets time, host and role.

    driver_major: 570 of "570.148.08"; None: not known.
    """
    found = _XID.search(text)
    device = _gpu(found["device"]) if found else None
    if found is None or device is None:
        return None
    code, rest = str(int(found["code"])), found["rest"][:2048]
    policy = policy_of(code)
    facts = {
        name: value
        for pattern in _FACTS
        if (m := pattern.search(rest))
        for name, value in m.groupdict().items()
        if value
    }
    if found["instance"]:
        facts["instance"] = found["instance"]
    severity, domain, repair, action = policy.severity, policy.domain, policy.repair, policy.action
    role = CausalRole.INITIATING
    if int(code) in nvlink5.CODES and (link := nvlink5.decode(int(code), rest, driver_major)) is not None:
        severity, domain, repair = _judge_link(link)
        action = _ACTIONS[repair]
        facts |= _link_facts(link)
    elif int(code) == RECOVERY_XID:
        words = _RECOVERY.search(rest)
        repair, severity = _RECOVERIES.get(
            words[1].lower() if words else "", (Repair.CONTACT_SUPPORT, EventSeverity.WARNING)
        )
        action = _ACTIONS[repair]
        facts["recovery"] = words[1] if words else ""
    elif registers := _NVLINK_REGISTERS.search(rest):
        facts |= registers.groupdict()
    if cause := _CAUSED_BY.search(rest):
        facts["caused_by"] = cause[1]
        role = CausalRole.CASCADE
    pid, name = _PID.search(rest), _NAME.search(rest)
    return KernelEvent(
        event=XID,
        code=code,
        device_kind=DeviceKind.GPU,
        device=device,
        severity=severity,
        component=_component(code),
        domain=domain,
        action=action,
        repair=repair,
        role=role,
        meaning=policy.meaning,
        process=name[1] if name and name[1] != "<unknown>" else "",
        pid=int(pid[1]) if pid else None,
        facts=facts,
        text=text,
    )


def _gpu(text: str) -> str | None:
    """Drivers before 340 write bus and slot only, the bus with four digits: ``0007:00``."""
    old = _OLD_ADDRESS.match(text)
    return canonical_gpu(f"{old[1]}:{old[2]}" if old else text)


def implied_xid(event: KernelEvent, code: str) -> KernelEvent:
    """An event of Xid ``code`` on the device of ``event``, an Xid that names it as its cause."""
    policy = policy_of(code)
    return replace(
        event,
        code=code,
        severity=policy.severity,
        component=_component(code),
        domain=policy.domain,
        repair=policy.repair,
        action=policy.action,
        role=CausalRole.INITIATING,
        meaning=policy.meaning,
        facts={"told_by": event.code},
    )


def _component(code: str) -> str:
    return "nvlink" if int(code) in nvlink5.CODES or code in ("74", "136", "137", "155") else "gpu"


def _judge_link(link: nvlink5.Nvlink5) -> tuple[EventSeverity, Domain, Repair]:
    """The driver's own word says how bad it is; the table what to do."""
    if link.is_promoted and link.row is not None:
        return EventSeverity.FATAL, link.row.domain, link.row.promoted_repair
    severity = EventSeverity.FATAL if link.is_fatal else EventSeverity.WARNING
    if link.row is None:
        return severity, Domain.HARDWARE, Repair.RESET_GPU if link.is_fatal else Repair.IGNORE
    return severity, link.row.domain, link.row.repair


def _link_facts(link: nvlink5.Nvlink5) -> dict[str, str]:
    facts = {
        "unit": link.unit,
        "subcode": str(link.subcode),
        "error_status": f"0x{link.status:08x}",
        "intrinfo": f"0x{link.intrinfo:08x}",
        "decode": f"v{link.version}",
    }
    if link.link is not None:
        facts["link"] = str(link.link)
    if link.is_injected:
        facts["injected"] = "1"
    if link.row is not None:
        facts["investigate"] = link.row.investigate
    return facts


def parse_sxid(text: str) -> KernelEvent | None:
    """The event of an SXid line of an NVSwitch; None if it is none.

    The line's own word (Fatal, Non-fatal) outdoes the table's.
    """
    found = _SXID.search(text)
    device = canonical_gpu(found["device"]) if found else None
    if found is None or device is None:
        return None
    code, rest = str(int(found["code"])), found["rest"][:2048]
    policy = sxid_policies().get(code)
    severity = policy.severity if policy else EventSeverity.WARNING
    repair = policy.repair if policy else Repair.CONTACT_SUPPORT
    if word := _SXID_SEVERITY.search(rest):
        is_fatal = bool(word[1] or word[2])
        if is_fatal:
            severity, repair = EventSeverity.FATAL, repair if repair is not Repair.IGNORE else Repair.CONTACT_SUPPORT
        else:
            severity, repair = EventSeverity.WARNING, Repair.IGNORE
    facts = {"switch": found["switch"]} if found["switch"] else {}
    if link := _LINK.search(rest):
        facts["link"] = link[1]
    return KernelEvent(
        event=SXID,
        code=code,
        device_kind=DeviceKind.NVSWITCH,
        device=device,
        severity=severity,
        component="nvswitch",
        domain=Domain.HARDWARE,
        action=Action.RESTART_WITHOUT_NODE if severity is EventSeverity.FATAL else _ACTIONS[repair],
        repair=repair,
        meaning=policy.meaning if policy else "A code that our table does not have",
        facts=facts,
        text=text,
    )
