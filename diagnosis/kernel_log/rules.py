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
    says_what = true          # many things have this word: the words that matched are a fact
    lines = [{ needs = "a literal every such line has (or a list: one of them)", regex = '…' }]

A line may have a severity, domain or action of its own. Groups of a regex: ``device``, ``process``, ``pid``, ``code``;
any other is a fact. What stands in braces (``{pci}``, ``{interface}``, ``{amd}``) is replaced: ``macros.py``. Repeats
are bounded, so that every search is linear.
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
from .event import DeviceKind, Domain, EventSeverity, KernelEvent, Repair
from .kernel_log_tables import read_toml
from .line_folding import Fold, folded_pattern
from .macros import DRIVER_WORDS, MACROS, PCI, kind_by_driver

FILES = ("rules_gpu.toml", "rules_accelerator.toml", "rules_network.toml", "rules_storage.toml", "rules_host.toml")
_ANCHOR = re.compile(r"(?<![\[\\])\^")
_ANY_PCI = re.compile(rf"(?<!\w){PCI}(?!\w)")
#: What Habana's and Ascend's drivers call their devices where they give no address.
_NUMBERED = re.compile(r"\b(?:habanalabs|accel) ((?:hl|accel)\d{1,3})\b|\bdev(?:ice)?_?(?:id)?[ =:]{1,2}(\d{1,3})\b")
_ANY_NIC = re.compile(
    r"\b(mlx[45]_\d{1,3}|mlx[45]_bond_\d|rdmap\w{1,12}|roce\w{1,12}|ib\d{1,3}|bnxt_re\d{1,3}|hfi1_\d|cxi\d{1,2}|"
    # Drivers of QLogic and old Broadcom cards: ``[qede_tx_timeout:565(ens3f0)]``.
    r"(?<=\()[A-Za-z][\w.-]{1,14}(?=\)\]))"
)
#: Of the words that matched, where they are a fact.
WHAT_CHARACTERS = 80


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelEventRule:
    event: str
    device_kind: DeviceKind
    severity: EventSeverity
    component: str
    domain: Domain
    repair: Repair
    action: Action
    meaning: str
    also: tuple[str, ...]
    after: str
    says_what: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class LineRule:
    """``order``: earlier ones are tried first. ``rule``: with what this line has of its own."""

    order: int
    needs: tuple[str, ...]
    regex: str
    rule: KernelEventRule

    @property
    def pattern(self) -> re.Pattern[str]:
        """The rule's pattern, compiled when it is first asked for: of some hundred a log needs a few."""
        return _compiled(self.regex)

    @property
    def within(self) -> re.Pattern[str]:
        """A pattern that matches, in a line with its wrapper still on it, wherever ``pattern`` matches without."""
        return _compiled_within(self.regex)

    def within_folded(self, fold: Fold) -> re.Pattern[str]:
        """A pattern that matches in each ASCII line, folded, in which ``within`` matches."""
        return folded_pattern(self.within.pattern, fold)


@cache
def _compiled_within(regex: str) -> re.Pattern[str]:
    return _compiled(_ANCHOR.sub(r"(?<!\\w)", regex))


@cache
def _compiled(regex: str) -> re.Pattern[str]:
    for macro, written in MACROS.items():
        regex = regex.replace(macro, written)
    return re.compile(regex)


@cache
def event_rules() -> Mapping[str, KernelEventRule]:
    """The rule of each event by its word, from rules_*.toml."""
    return MappingProxyType({rule.event: rule for rule, _ in _read()})


@cache
def line_rules() -> tuple[LineRule, ...]:
    """One rule per pattern of rules_*.toml, in the order in which they are tried."""
    found: list[LineRule] = []
    for rule, lines in _read():
        for line in lines:
            own = replace(
                rule,
                severity=EventSeverity(line.get("severity", rule.severity)),
                domain=Domain(line.get("domain", rule.domain)),
                action=Action(line.get("action", rule.action)),
            )
            found.append(LineRule(order=len(found), needs=_needs(line["needs"]), regex=line["regex"], rule=own))
    return tuple(found)


def _needs(value: str | list[str]) -> tuple[str, ...]:
    words = (value,) if isinstance(value, str) else tuple(value)
    return tuple(told for word in words for told in DRIVER_WORDS.get(word, (word,)))


def _read() -> list[tuple[KernelEventRule, list[dict[str, Any]]]]:
    """Raises ValueError for an event that stands in two places, or has a key that nobody reads."""
    found: list[tuple[KernelEventRule, list[dict[str, Any]]]] = []
    words: set[str] = set()
    for file in FILES:
        for word, entry in read_toml(file).items():
            if word in words:
                raise ValueError(f"{file}: {word} stands twice")
            words.add(word)
            found.append((_event_rule(file, word, dict(entry)), list(entry.get("lines", ()))))
    return found


def _event_rule(file: str, word: str, entry: dict[str, Any]) -> KernelEventRule:
    entry.pop("lines", None)
    rule = KernelEventRule(
        event=word,
        device_kind=DeviceKind(entry.pop("device_kind")),
        severity=EventSeverity(entry.pop("severity")),
        component=entry.pop("component"),
        domain=Domain(entry.pop("domain")),
        repair=Repair(entry.pop("repair")),
        action=Action(entry.pop("action")),
        meaning=entry.pop("meaning"),
        also=tuple(entry.pop("also", ())),
        after=entry.pop("after", ""),
        says_what=entry.pop("says_what", False),
    )
    if entry:
        raise ValueError(f"{file}: {word} has keys that nobody reads: {', '.join(entry)}")
    return rule


def match(line_rule: LineRule, text: str) -> KernelEvent | None:
    """The event of the text by this rule; None where its pattern is not in it."""
    found = line_rule.pattern.search(text)
    if found is None:
        return None
    groups = {name: value for name, value in found.groupdict().items() if value}
    pid, process = groups.pop("pid", ""), groups.pop("process", "")
    rule = line_rule.rule
    device = _device(rule.device_kind, groups.pop("device", ""), text, groups, process)
    if rule.says_what and "what" not in groups:
        groups["what"] = found[0].rpartition(": ")[2][:WHAT_CHARACTERS].strip()
    if rule.device_kind is DeviceKind.PCIE and (kind := kind_by_driver(text)) is not None:
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


def event_of(
    rule: KernelEventRule,
    text: str,
    *,
    device: str = "",
    code: str = "",
    process: str = "",
    pid: int | None = None,
    facts: Mapping[str, str] | None = None,
) -> KernelEvent:
    """An event with what its rule says. text: the line's; the other arguments: what the caller found in it."""
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
