"""What a check found, as events: a condition per finding that is not well, and which ones hold no more. Pure.

Each family of checks is a source of its own: a check of one family says nothing of the others. What was found before
and is found again goes on; what is not found any more is over.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from ....diagnosis.health_checks.outcome import CheckStatus
from ....telemetry.vocabulary import Action, Scope
from ..base.collector import NodeEvent, Timestamps
from ..base.node_condition import NodeCondition, looks_anew

#: Of whichrank's own checks, before the family; and of a site's, before the check's name.
SOURCE, SITE_SOURCE = "check", "site"
MOST_RESULTS = 200
_SEVERITY = {CheckStatus.WARN: "warning", CheckStatus.CRITICAL: "error"}
#: What a family is about: (kind of device, domain).
_ABOUT: Mapping[str, tuple[str, str]] = {
    "gpu": ("gpu", "hardware"),
    "nvlink": ("gpu", "hardware"),
    "compute": ("gpu", "hardware"),
    "network": ("nic", "network"),
    "pairs": ("nic", "network"),
    "storage": ("mount", "storage"),
    "memory": ("host", "host"),
    "host": ("host", "host"),
    "services": ("host", "service"),
    "versions": ("host", "service"),
    "kernel_log": ("host", "hardware"),
}
_NAME = re.compile(r"[^a-z0-9]+")
_MOST_NAME, _MOST_TEXT = 60, 400


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckResult:
    """One finding. device: "" the node. device_kind, domain "": what the family is about."""

    family: str
    check: str
    status: CheckStatus
    reason: str
    device: str = ""
    remedy: str = ""
    device_kind: str = ""
    domain: str = ""
    action: Action | None = None
    scope: Scope | None = None


def condition_name(family: str, check: str) -> str:
    """The condition's name: ``check_gpu_lost`` of the check lost of the family gpu, ``site_raid`` of a site's raid."""
    words = (SITE_SOURCE, check) if family == SITE_SOURCE else (SOURCE, family, check)
    return _NAME.sub("_", "_".join(words).lower()).strip("_")[:_MOST_NAME]


def source_of(family: str, check: str = "") -> str:
    """Who says it: of whichrank's checks the family, of a site's each check by itself."""
    return f"{SITE_SOURCE}.{check}"[:32] if family == SITE_SOURCE else f"{SOURCE}.{family}"


def events_of(
    results: Iterable[CheckResult], looked: Iterable[str], now: Timestamps, *, before: str = ""
) -> list[NodeEvent]:
    """Events that tell it: what each source found, and that what it said before and does not say now is over.

    looked: sources that have looked, whatever they found; what could not be seen leaves things as they were told.
    before: said first in each text, as "prolog".
    """
    by_source: dict[str, list[NodeCondition]] = {source: [] for source in looked}
    unseen: set[str] = set()
    for result in results:
        source = source_of(result.family, result.check)
        if result.status is CheckStatus.UNKNOWN:
            unseen.add(source)
        if result.status not in _SEVERITY or source not in by_source or len(by_source[source]) >= MOST_RESULTS:
            continue
        kind, domain = _ABOUT.get(result.family, ("host", ""))
        by_source[source].append(
            NodeCondition(
                name=condition_name(result.family, result.check),
                device=result.device[:200],
                # A GPU that is named by its number is none that ranks are known to use: it concerns the node's.
                device_kind=result.device_kind or (kind if result.device and kind != "gpu" else "host"),
                severity=_SEVERITY[result.status],
                domain=result.domain or domain,
                action=result.action,
                scope=result.scope,
                text=_text(result, before),
            )
        )
    events: list[NodeEvent] = []
    for source, found in by_source.items():
        if source not in unseen:
            events.append(looks_anew(source, now, still=[(each.name, each.device) for each in found]))
        events += [each.happening(source, now) for each in found]
    return events


def _text(result: CheckResult, before: str) -> str:
    where = f"{result.device}: " if result.device else ""
    said = f"{before}: {where}{result.reason}" if before else f"{where}{result.reason}"
    return (f"{said} -> {result.remedy}" if result.remedy else said)[:_MOST_TEXT]


def read_document(text: str | bytes) -> tuple[list[CheckResult], list[str], str]:
    """Findings of ``whichrank check --json``, the sources that looked, and the mode. Raises ValueError for none."""
    document = json.loads(text)
    if not isinstance(document, dict) or not isinstance(document.get("findings"), list):
        raise ValueError("no document of whichrank check --json")
    results = [
        CheckResult(
            family=str(found["family"]),
            check=str(found["check"]),
            status=CheckStatus(found["status"]),
            reason=str(found["reason"]),
            device=str(found.get("device") or ""),
            remedy=str(found.get("remedy") or ""),
        )
        for found in document["findings"]
        if isinstance(found, dict) and {"family", "check", "status", "reason"} <= found.keys()
    ]
    families = document.get("families")
    names = [str(name) for name in families] if isinstance(families, dict) else []
    looked = [source_of(name) for name in names if name != SITE_SOURCE]
    looked += [source_of(each.family, each.check) for each in results if each.family == SITE_SOURCE]
    return results, list(dict.fromkeys(looked)), str(document.get("mode", ""))


def read_site_answer(
    name: str, status: int, said: bytes, *, domain: str = "", device_kind: str = ""
) -> list[CheckResult]:
    """What a site's own check says: by its exit status as Nagios has it, or by JSON on stdout, which outweighs it.

    JSON: an object, or a list of them, with status, reason, device, remedy, severity of its own, domain, action.
    """
    by_status = {0: CheckStatus.OK, 1: CheckStatus.WARN, 2: CheckStatus.CRITICAL}
    otherwise = by_status.get(status, CheckStatus.UNKNOWN)
    text = said.decode("utf-8", "replace").strip()
    documents: Sequence[object] = ()
    if text[:1] in ("{", "["):
        try:
            read = json.loads(text)
            documents = read if isinstance(read, list) else [read]
        except (ValueError, RecursionError):
            documents = ()
    found = [
        _site_result(name, each, otherwise, domain, device_kind)
        for each in documents[:MOST_RESULTS]
        if isinstance(each, Mapping)
    ]
    if found:
        return found
    line = "".join(c if c.isprintable() else " " for c in text.partition("\n")[0])[:_MOST_TEXT]
    reason = line or f"{name} ended with status {status}"
    return [_result(name, otherwise, reason, domain=domain, device_kind=device_kind)]


def _site_result(
    name: str, found: Mapping[str, object], otherwise: CheckStatus, domain: str, device_kind: str
) -> CheckResult:
    def text(key: str) -> str:
        value = found.get(key)
        plain = str(value) if isinstance(value, str | int | float) else ""
        return "".join(c if c.isprintable() else " " for c in plain)[:_MOST_TEXT]

    word = text("status").upper()
    status = CheckStatus(word) if word in CheckStatus.__members__ else otherwise
    actions = {each.value: each for each in Action}
    return CheckResult(
        family=SITE_SOURCE,
        check=name,
        status=status,
        reason=text("reason") or f"{name} says {status.value}",
        device=text("device"),
        remedy=text("remedy"),
        device_kind=text("device_kind") or device_kind,
        domain=text("domain") or domain,
        action=actions.get(text("action")),
    )


def _result(name: str, status: CheckStatus, reason: str, *, domain: str, device_kind: str) -> CheckResult:
    return CheckResult(
        family=SITE_SOURCE, check=name, status=status, reason=reason, domain=domain, device_kind=device_kind
    )
