"""Every other kind of line: the rules of rules_*.toml, compiled once.

A table per event, named by its word:

    [nvme_path_failure]
    device_kind = "disk"      # DeviceKind
    severity = "fatal"        # Severity; a line may have its own
    component = "nvme"
    domain = "storage"        # Domain
    repair = "reboot_node"    # Repair
    action = "restart"        # telemetry.vocabulary.Action
    meaning = "…"
    also = ["…"]              # what other monitors call it
    after = "…"               # a recovery: only said of a device that had this event before
    lines = [{ needs = "a literal every such line has (or a list: one of them)", regex = '…' }]

A line may have a severity, domain or action of its own. Groups of a regex: ``device``, ``process``, ``pid``, ``code``; any
other is a fact. ``{pci}`` and ``{interface}`` stand for an address and for the name of a real network interface,
``{daemon}`` for programs of the machine, ``{nic}`` for a NIC's driver, ``{amd}``, ``{intel}``, ``{habana}``, ``{ascend}`` for how lines of those drivers are told, ``{accelerator}`` for any of
these. Repeats are bounded, so that every search is linear.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from types import MappingProxyType
from typing import Any

from ...telemetry.vocabulary import Action
from .device import canonical_pci
from .event import DeviceKind, Domain, KernelEvent, Repair, Severity
from .tables import read_toml

FILES = ("rules_gpu.toml", "rules_accelerator.toml", "rules_network.toml", "rules_storage.toml", "rules_host.toml")
_PCI = r"(?:[0-9a-fA-F]{4}){1,2}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}(?:\.[0-7])?"
#: Containers' and virtual machines' ends come and go all day.
_INTERFACE = (
    r"(?!veth|docker|br-|cali|cni|flannel|cilium|lxc|tap|tun|virbr|vnet|vxlan|lo\b|dummy|ovs|podman)"
    r"[A-Za-z][\w.-]{0,15}"
)
_AMD = r"(?:\bamdgpu\b|\bkfd kfd\b|\bamdkfd\b|\bradeon\b)"
_INTEL = r"(?:\bi915\b|\bxe (?=[0-9a-f]{4}:)|\[xe\])"
_HABANA = r"\bhabanalabs\b"
_ASCEND = r"(?:\bAscend\b|\[ascend\]|\bascend |\bdavinci|\bdevdrv|\bhdcdrv|\bdevmm|\btsdrv|\bdrv_pcie|\bdms_module|\[dms\])"
_NIC = (
    r"(?:\bmlx[45]_\w+|\bbnxt_(?:en|re)\b|\bice\b|\bi40e\b|\biavf\b|\birdma\b|\bixgbe(?:vf)?\b|\bigb\b|\bigc\b|\be1000e\b|\bena\b|\befa\b|\bqed\w?\b|"
    r"\bhfi1\w*|\bcxi_\w+|\bcxgb4\b|\bhns3\b|\bhinic\w*|\bionic\w*|\bsfc\b|\btg3\b|\bbnx2x?\b|\bfm10k\b|\bgve\b|\bmana\b|\benic\b|\bnfp\b|\batlantic\b|\br8169\b)"
)
#: Programs of the machine, whose end is not a job's.
_DAEMON = (
    r"(?:sshd|systemd[\w-]{0,12}|rsyslogd|syslogd|crond|cron|dbus-daemon|snmpd|NetworkManager|polkitd|auditd|chronyd|ntpd|sssd\w{0,10}|"
    r"gnome-[\w-]{1,10}|Xorg|gdm[\w-]{0,10}|packagekitd|udisksd|irqbalance|tuned|cupsd|postfix|master|zabbix_agentd|collectd|telegraf|"
    r"node_exporter|lldpd|ipmievd|rpcbind|agetty|login|accounts-daemon|firewalld|snapd|fwupd|abrtd?[\w-]{0,10}|smartd|lvmetad|multipathd)"
)
_MACROS = {
    "{daemon}": _DAEMON,
    "{nic}": _NIC,
    "{accelerator}": f"(?:{_AMD}|{_INTEL}|{_HABANA}|{_ASCEND})",
    "{amd}": _AMD,
    "{intel}": _INTEL,
    "{habana}": _HABANA,
    "{ascend}": _ASCEND,
    "{pci}": _PCI,
    "{interface}": _INTERFACE,
}
#: Words of which every line of such a driver has one.
_DRIVER_WORDS = {
    "{habana}": ("habanalabs",),
    "{ascend}": ("[ascend]", "ascend ", "Ascend", "davinci", "devdrv", "hdcdrv", "devmm", "tsdrv", "drv_pcie", "dms_module", "[dms]"),
}
_ANCHOR = re.compile(r"(?<![\[\\])\^")
_ANY_PCI = re.compile(rf"(?<!\w){_PCI}(?!\w)")
_BY_DRIVER = re.compile(
    rf"(?P<gpu>\b(?:nvidia|amdgpu|radeon|i915|xe|habanalabs) (?={_PCI}))|(?P<nic>{_NIC} (?={_PCI}))|"
    rf"(?P<disk>\b(?:nvme|ahci|megaraid_sas|mpt3sas|mpi3mr|smartpqi|hpsa|vmd) (?:nvme\d+: )?(?={_PCI}))"
)
#: What Habana's and Ascend's drivers call their devices where they give no address.
_NUMBERED = re.compile(r"\b(?:habanalabs|accel) ((?:hl|accel)\d{1,3})\b|\bdev(?:ice)?_?(?:id)?[ =:]{1,2}(\d{1,3})\b")
_ANY_NIC = re.compile(r"\b(mlx[45]_\d{1,3}|mlx[45]_bond_\d|rdmap\w{1,12}|ib\d{1,3}|bnxt_re\d{1,3})\b")


@dataclass(frozen=True, slots=True, kw_only=True)
class EventRule:
    event: str
    device_kind: DeviceKind
    severity: Severity
    component: str
    domain: Domain
    repair: Repair
    action: Action
    meaning: str
    also: tuple[str, ...]
    after: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LineRule:
    """``order``: earlier ones are tried first. ``rule``: with what this line has of its own."""

    order: int
    needs: tuple[str, ...]
    regex: str
    rule: EventRule

    @property
    def pattern(self) -> re.Pattern[str]:
        """Compiled when it is first asked for: of some hundred a log needs a few."""
        return _compiled(self.regex)

    @property
    def within(self) -> re.Pattern[str]:
        """Matches in a line whose wrapper is still on it wherever ``pattern`` matches without."""
        return _compiled_within(self.regex)


@cache
def _compiled_within(regex: str) -> re.Pattern[str]:
    return _compiled(_ANCHOR.sub(r"(?<!\\w)", regex))


@cache
def _compiled(regex: str) -> re.Pattern[str]:
    for macro, written in _MACROS.items():
        regex = regex.replace(macro, written)
    return re.compile(regex)


@cache
def event_rules() -> Mapping[str, EventRule]:
    """By word."""
    return MappingProxyType({rule.event: rule for rule, _ in _read()})


@cache
def line_rules() -> tuple[LineRule, ...]:
    found: list[LineRule] = []
    for rule, lines in _read():
        for line in lines:
            own = replace(
                rule,
                severity=Severity(line.get("severity", rule.severity)),
                domain=Domain(line.get("domain", rule.domain)),
                action=Action(line.get("action", rule.action)),
            )
            found.append(LineRule(order=len(found), needs=_needs(line["needs"]), regex=line["regex"], rule=own))
    return tuple(found)


def _needs(value: str | list[str]) -> tuple[str, ...]:
    words = (value,) if isinstance(value, str) else tuple(value)
    return tuple(told for word in words for told in _DRIVER_WORDS.get(word, (word,)))


def _read() -> list[tuple[EventRule, list[dict[str, Any]]]]:
    """Raises ValueError for an event that stands in two places, or has a key that nobody reads."""
    found: list[tuple[EventRule, list[dict[str, Any]]]] = []
    words: set[str] = set()
    for file in FILES:
        for word, entry in read_toml(file).items():
            if word in words:
                raise ValueError(f"{file}: {word} stands twice")
            words.add(word)
            found.append((_event_rule(file, word, dict(entry)), list(entry.get("lines", ()))))
    return found


def _event_rule(file: str, word: str, entry: dict[str, Any]) -> EventRule:
    entry.pop("lines", None)
    rule = EventRule(
        event=word,
        device_kind=DeviceKind(entry.pop("device_kind")),
        severity=Severity(entry.pop("severity")),
        component=entry.pop("component"),
        domain=Domain(entry.pop("domain")),
        repair=Repair(entry.pop("repair")),
        action=Action(entry.pop("action")),
        meaning=entry.pop("meaning"),
        also=tuple(entry.pop("also", ())),
        after=entry.pop("after", ""),
    )
    if entry:
        raise ValueError(f"{file}: {word} has keys that nobody reads: {', '.join(entry)}")
    return rule


def match(line_rule: LineRule, text: str) -> KernelEvent | None:
    found = line_rule.pattern.search(text)
    if found is None:
        return None
    groups = {name: value for name, value in found.groupdict().items() if value}
    pid, process = groups.pop("pid", ""), groups.pop("process", "")
    rule = line_rule.rule
    device = _device(rule.device_kind, groups.pop("device", ""), text, groups, process)
    if rule.device_kind is DeviceKind.PCIE and (kind := _kind_by_driver(text)) is not None:
        rule = replace(rule, device_kind=kind)
    return event_of(
        rule,
        text,
        device=device,
        code=groups.pop("code", ""),
        process=process,
        pid=int(pid) if pid else None,
        facts=groups,
    )


def _kind_by_driver(text: str) -> DeviceKind | None:
    """PCIe says of every device the same; whose driver writes the line tells what it is."""
    found = _BY_DRIVER.search(text)
    return DeviceKind(found.lastgroup) if found and found.lastgroup else None


def event_of(
    rule: EventRule,
    text: str,
    *,
    device: str = "",
    code: str = "",
    process: str = "",
    pid: int | None = None,
    facts: Mapping[str, str] | None = None,
) -> KernelEvent:
    return KernelEvent(
        event=rule.event,
        code=code,
        device_kind=rule.device_kind,
        device=device,
        severity=rule.severity,
        component=rule.component,
        domain=rule.domain,
        repair=rule.repair,
        action=rule.action,
        meaning=rule.meaning,
        process=process,
        pid=pid,
        facts=dict(facts or {}),
        text=text,
        also=rule.also,
    )


def _device(kind: DeviceKind, named: str, text: str, facts: dict[str, str], process: str) -> str:
    """Canonical. A NIC is its PCI address where the line has one, and its interface a fact; a process its name."""
    if kind is DeviceKind.CPU:
        return named.lower().replace("#", "").replace(":", "").replace(" ", "")
    if kind is DeviceKind.PROCESS:
        return named or process
    if (address := canonical_pci(named)) is not None:
        return address
    if kind is DeviceKind.NIC:
        at = _ANY_PCI.search(text)
        if at is not None:
            after = named or text[at.end() :].split(":", 1)[0].strip()
            if after and " " not in after and len(after) <= 16:
                facts["interface"] = after
            return canonical_pci(at[0]) or ""
        nic = _ANY_NIC.search(text) if not named else None
        return nic[1] if nic else named
    if not named and kind in (DeviceKind.GPU, DeviceKind.NVSWITCH, DeviceKind.PCIE) and (at := _ANY_PCI.search(text)):
        return canonical_pci(at[0]) or ""
    if not named and kind is DeviceKind.GPU and (numbered := _NUMBERED.search(text)) is not None:
        return numbered[1] or f"npu{numbered[2]}"
    return named
