"""What people and schedulers are shown: a line per finding that is not OK, a line per family; or one JSON document."""

from __future__ import annotations

import json
import socket
import sys
from collections.abc import Sequence
from dataclasses import asdict

from rich.console import Console
from rich.text import Text

from ...diagnosis.health_checks.outcome import CheckStatus
from .acts.act import ActResult, ActState
from .check_setup import CheckMode
from .finding import CheckFinding, Family, verdict

SCHEMA = 1
_STYLE = {
    CheckStatus.OK: "green",
    CheckStatus.WARN: "yellow",
    CheckStatus.CRITICAL: "bold red",
    CheckStatus.UNKNOWN: "magenta",
}
#: The worst first: schedulers keep the first line as the reason of a drained node.
#: Devices of one line.
_MOST_NAMED = 16
_ORDER = (CheckStatus.CRITICAL, CheckStatus.WARN, CheckStatus.UNKNOWN, CheckStatus.OK)


def print_json(
    mode: CheckMode,
    findings: Sequence[CheckFinding],
    exit_code: int,
    took_s: float,
    acts: Sequence[ActResult] = (),
) -> None:
    """Prints the findings as one JSON document on stdout, the worst first. took_s: of the whole check."""
    document = {
        "schema": SCHEMA,
        "host": socket.gethostname(),
        "mode": mode.value,
        "status": verdict(findings).value,
        "exit_code": exit_code,
        "took_s": round(took_s, 3),
        "families": {
            family.value: verdict(own).value
            for family in Family
            if (own := [finding for finding in findings if finding.family is family])
        },
        "findings": [asdict(finding) for finding in _sorted(findings)],
        "acts": [{**asdict(each), "done": each.done.value} for each in acts],
    }
    sys.stdout.write(json.dumps(document) + "\n")


def print_lines(
    findings: Sequence[CheckFinding], took_s: float, *, verbose: bool, acts: Sequence[ActResult] = ()
) -> None:
    """Prints a line per finding that is not OK, the worst first, and a line for all families.

    verbose: what is OK is shown as well. took_s: of the whole check.
    """
    console = Console(highlight=False, soft_wrap=True)
    overall = verdict(findings)
    bad = [finding for finding in _sorted(findings) if finding.status is not CheckStatus.OK]
    for group in _alike(_sorted(findings) if verbose else bad):
        console.print(_line(group))
    for each in acts:
        if verbose or each.done is not ActState.ALREADY:
            console.print(Text(f"{each.done.value:<8} {each.text}" + (f": {each.why}" if each.why else "")))
    words = []
    for family in Family:
        own = [finding for finding in findings if finding.family is family]
        if own:
            words.append(f"{family.value} {verdict(own).value}")
    ending = f"{overall.value}: {len(bad)} of {len(findings)} findings are not OK ({took_s:.1f} s): "
    console.print(Text.assemble((ending, _STYLE[overall]), ", ".join(words)))


def _alike(findings: Sequence[CheckFinding]) -> list[list[CheckFinding]]:
    """Findings of one check that are as bad and have one remedy: eight GPUs of a node need no eight lines."""
    groups: dict[tuple[object, ...], list[CheckFinding]] = {}
    for finding in findings:
        key = (finding.status, finding.family, finding.check, finding.remedy)
        # Lines of the kernel log have nothing in common but their name.
        own = finding.reason if finding.family is Family.KERNEL_LOG or not finding.device else ""
        groups.setdefault((*key, own), []).append(finding)
    return [part for group in groups.values() for part in ([group] if len(group) > 2 else [[one] for one in group])]


def _line(group: Sequence[CheckFinding]) -> Text:
    finding = group[0]
    where = f"{finding.family.value}.{finding.check}" + (f" {finding.device}" if finding.device else "")
    if len(group) > 1:
        others = ", ".join(each.device for each in group[1:_MOST_NAMED])
        where += f" (and {len(group) - 1} more: {others}{', ...' if len(group) > _MOST_NAMED else ''})"
    line = Text.assemble((f"{finding.status.value:<8} ", _STYLE[finding.status]), f"{where}: {finding.reason}")
    if finding.remedy:
        line.append(f" -> {finding.remedy}")
    return line


def _sorted(findings: Sequence[CheckFinding]) -> list[CheckFinding]:
    families = list(Family)
    return sorted(findings, key=lambda each: (_ORDER.index(each.status), families.index(each.family), each.device))
